"""`runqy config create`: queues from a file, or one from flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from runqy.cli.app import Session
from runqy.cli.client import Client
from runqy.cli.options import json_option, pass_session
from runqy.errors import ConfigurationError, ConflictError, RunqyError

MODES = ("long_running", "one_shot")


@click.command()
@click.option("-f", "--file", "file", type=click.Path(path_type=Path), help="Queue file: `queues:`, or one queue.")
@click.option("--name", default="", help="Name of the queue.")
@click.option("--priority", type=click.IntRange(min=1), default=1, show_default=True, help="Its priority.")
@click.option("--git-url", default="", help="Repository of its task code.")
@click.option("--branch", default="main", show_default=True, help="Branch, tag or commit.")
@click.option("--startup-cmd", default="", help="What starts the task code.")
@click.option("--mode", default=MODES[0], show_default=True, help="long_running or one_shot.")
@click.option("--code-path", default="", help="Folder of the task code in the repository.")
@click.option("--force", is_flag=True, help="Change queues that exist.")
@json_option
@pass_session
def create(session: Session, /, file: Path | None, force: bool, **flags: Any) -> None:
    """Create queues from a file, or one queue from flags; `--force` changes those that exist."""
    if file is not None:
        _create_from_file(session, file, force)
        return
    body = _body(**flags)
    answer = Client(session).post("workers", "queues", body=body, **_forced(force))
    session.output.document(answer)
    session.output.line(f"{answer['message']}:")
    queue, deployment = answer["queue"], answer["queue"]["deployment"]
    session.output.fields(
        {
            "Name": queue["name"],
            "Priority": queue["priority"],
            "Git URL": deployment["git_url"],
            "Mode": deployment.get("mode", MODES[0]),
        }
    )


def _forced(force: bool) -> dict[str, Any]:
    return {"query": {"force": "true"}} if force else {}


def _body(
    name: str, priority: int, git_url: str, branch: str, startup_cmd: str, mode: str, code_path: str
) -> dict[str, Any]:
    if mode not in MODES:
        raise click.UsageError(f"invalid mode '{mode}', must be 'long_running' or 'one_shot'")
    for flag, value in (("--name", name), ("--git-url", git_url), ("--startup-cmd", startup_cmd)):
        if not value.strip():
            raise click.UsageError(f"{flag} is required when not using --file")
    deployment = {"git_url": git_url, "branch": branch, "startup_cmd": startup_cmd, "mode": mode}
    if code_path:
        deployment["code_path"] = code_path
    return {"name": name, "priority": priority, "deployment": deployment}


def _create_from_file(session: Session, file: Path, force: bool) -> None:
    from runqy.config.encoding import queue_request_document
    from runqy.config.source import load_create_file

    loaded = load_create_file(file)
    for warning in loaded.warnings:
        session.output.warn(warning)
    client = Client(session)
    stored = {row["name"].partition(".")[0] for row in client.get("workers", "queues")["queues"] or []}
    existing = [queue.name for queue in loaded.queues if queue.name in stored]
    if existing and not force:
        raise ConflictError(
            f"queue(s) already exist: [{' '.join(existing)}]. Use --force to update existing queues",
            why="nothing was stored",
        )
    done: dict[str, list[str]] = {"created": [], "updated": []}
    errors: list[str] = []
    for queue in loaded.queues:
        try:
            client.post("workers", "queues", body=queue_request_document(queue), **_forced(force))
            done["updated" if queue.name in existing else "created"].append(queue.name)
        except RunqyError as error:
            errors.append(f"{queue.name}: {error}")
    session.output.document({**done, "errors": errors})
    for word, names in done.items():
        if names:
            session.output.line(f"{word.capitalize()} {len(names)} queue configuration(s):")
        for name in names:
            session.output.line(f"  - {name}")
    if errors:
        raise ConfigurationError(f"Errors ({len(errors)})", problems=tuple(errors))
