"""`runqy worker`: start one; list and steer those that run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from runqy.cli.app import Session, Suggesting, version_text
from runqy.cli.client import Client
from runqy.cli.completing import worker_ids
from runqy.cli.options import json_option, pass_session, required_text
from runqy.cli.output import shorten
from runqy.errors import NotFoundError

FOLLOW_SECONDS = 1.0


def _start_options(command: Any) -> Any:
    for option in (
        click.option("--config", "config_path", type=click.Path(path_type=Path), help="Settings file.  [./config.yml]"),
        click.option("--validate", is_flag=True, help="Check the settings and leave."),
        click.option("--server", "server", help="URL of the server (RUNQY_SERVER_URL)."),
        click.option("--queues", help="Queues to serve, comma-separated (RUNQY_QUEUES)."),
        click.option("--concurrency", help="Tasks at once (RUNQY_CONCURRENCY).  [default: 1]"),
        click.option("--deployment-dir", help="Where code is deployed (RUNQY_DEPLOYMENT_DIR)."),
        click.option("--shutdown-timeout", help="How long a stop lets tasks run (RUNQY_SHUTDOWN_TIMEOUT)."),
    ):
        command = option(command)
    return command


@click.group(cls=Suggesting, invoke_without_command=True)
@click.option("-v", "--version", is_flag=True, help="Print the version and leave.")
@_start_options
@click.pass_context
def worker(ctx: click.Context, /, version: bool, **flags: Any) -> int | None:
    """Start a worker, or look after the workers that run.

    A worker knows the server's URL, a key and a queue's name; everything else comes from the server.

    \b
    Examples:
      RUNQY_API_KEY_FILE=key runqy worker --server http://host:3000 --queues inference
      runqy worker list
    """
    if version:
        click.echo(version_text().replace("runqy version", "runqy-worker version"))
        return 0
    if ctx.invoked_subcommand is None:
        return _start(ctx.find_object(Session) or Session(), **flags)
    return None


@worker.command("start")
@_start_options
@pass_session
def start(session: Session, /, **flags: Any) -> int:
    """Start a worker (what `runqy worker` alone does)."""
    return _start(session, **flags)


def _start(session: Session, config_path: Path | None, validate: bool, **flags: Any) -> int:
    from runqy.settings.worker import load_worker_settings

    output = session.output
    given = {name: value for name, value in flags.items() if value}
    if session.server and "server" not in given:
        given["server"] = session.server
    settings = load_worker_settings(config_path, {**given, "api_key": session.api_key or None})
    for warning in settings.warnings:
        output.warn(warning)
    if validate:
        output.line("Configuration is valid")
        output.document({"valid": True})
        return 0
    import asyncio

    import uvloop

    from runqy import telemetry
    from runqy.worker.worker import run_worker

    telemetry.configure(verbose=output.verbose, json=output.as_json or None)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_worker(settings))


@worker.command("list")
@json_option
@pass_session
def list_workers(session: Session) -> None:
    """List the workers that were heard of lately."""
    workers = Client(session).get("workers")["workers"]
    session.output.document(workers)
    if not workers:
        session.output.line("No workers found.")
        return
    now = time.time()
    session.output.table(
        ("WORKER_ID", "STATUS", "QUEUES", "CONCURRENCY", "LAST_BEAT", "STALE"),
        (
            (
                row["worker_id"],
                row["status"],
                shorten(_queues(row), 30),
                row["concurrency"],
                ago(now - row["last_beat"]),
                row["is_stale"],
            )
            for row in workers
        ),
    )


def _queues(row: dict[str, Any]) -> str:
    return ",".join(row.get("queue_priorities") or []) or row["queues"]


@contextlib.contextmanager
def _known(worker_id: str) -> Iterator[None]:
    try:
        yield
    except NotFoundError:
        raise NotFoundError(f"worker '{worker_id}' not found", hint="`runqy worker list` shows all") from None


@worker.command("info")
@click.argument("worker_id", callback=required_text("worker ID"), shell_complete=worker_ids)
@json_option
@pass_session
def info(session: Session, worker_id: str) -> None:
    """Show one worker."""
    with _known(worker_id):
        row = Client(session).get("workers", worker_id)
    session.output.document(row)
    now = time.time()
    session.output.fields(
        {
            "Worker ID": row["worker_id"],
            "Status": row["status"],
            "Queues": _queues(row),
            "Concurrency": row["concurrency"],
            "Version": row.get("version"),
            "Started At": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["started_at"])),
            "Last Beat": f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(row['last_beat']))}"
            f" ({ago(now - row['last_beat'])} ago)",
            "Current Tasks": ", ".join(row.get("current") or []),
        }
    )
    for line in row.get("detail") or []:
        session.output.line(f"  {line}")
    if row["is_stale"]:
        session.output.line("WARNING: Worker is STALE (no heartbeat for >30s)")


def _order_command(order: str, meaning: str, done: str) -> None:
    """One command for one order; ``done`` says what follows, with the worker's id for ``{id}``."""

    @worker.command(order, help=meaning)
    @click.argument("worker_id", callback=required_text("worker ID"), shell_complete=worker_ids)
    @json_option
    @pass_session
    def command(session: Session, worker_id: str) -> None:
        with _known(worker_id):
            session.output.document(Client(session).post("workers", worker_id, order))
        session.output.line(f"Worker '{worker_id}' {done.format(id=worker_id)}")


_order_command("restart", "Restart a worker's task processes; ends a degraded state.", "restarts its task processes.")
_order_command("drain", "Let a worker finish what it runs, then stop it.", "finishes its tasks and stops.")
_order_command(
    "pause",
    "Let a worker take no more tasks; those it runs go on.",
    "takes no more tasks until `runqy worker resume {id}`.",
)
_order_command("resume", "Let a paused worker take tasks again.", "takes tasks again.")


@worker.command("logs")
@click.argument("worker_id", callback=required_text("worker ID"), shell_complete=worker_ids)
@click.option("-n", "--lines", type=click.IntRange(1, 500), default=200, show_default=True, help="How many at most.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until interrupted.")
@json_option
@pass_session
def logs(session: Session, worker_id: str, lines: int, follow: bool) -> None:
    """Print what a worker's task processes printed last."""
    client = Client(session)
    with _known(worker_id):
        answer = client.get("workers", worker_id, "logs", n=lines)
    if not follow:
        session.output.document(answer)
    shown = answer["lines"] or []
    _print_lines(session, shown, follow)
    while follow:
        time.sleep(FOLLOW_SECONDS)
        with _known(worker_id):
            newest = client.get("workers", worker_id, "logs", n=500)["lines"] or []
        _print_lines(session, _beyond(shown, newest), follow)
        shown = newest


def _print_lines(session: Session, lines: list[Any], follow: bool) -> None:
    for line in lines:
        if follow:
            session.output.json_line({"line": line})
        session.output.line(str(line).rstrip("\n"))


def _beyond(shown: list[Any], newest: list[Any]) -> list[Any]:
    """The lines of ``newest`` after the longest end of ``shown`` that they begin with or contain at one place."""
    for size in range(min(len(shown), len(newest)), 0, -1):
        if newest[:size] == shown[-size:]:
            return newest[size:]
    tail = shown[-3:]
    for at in range(len(newest) - len(tail), -1, -1):
        if tail and newest[at : at + len(tail)] == tail:
            return newest[at + len(tail) :]
    return newest


def ago(seconds: float) -> str:
    """`5s`, `3m2s`, `1h4m`."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60}s"
    return f"{whole // 3600}h{whole % 3600 // 60}m"
