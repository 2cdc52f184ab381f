"""`runqy config plan` and `runqy config history`: what a reload would change, and who changed what."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from runqy.cli.app import Session
from runqy.cli.client import Client
from runqy.cli.options import json_option, pass_session
from runqy.cli.output import paint, shorten
from runqy.errors import ConfigurationError

_SIGNS = {"created": "+", "updated": "~"}
_COLOURS = {"created": "32", "updated": "33"}


@click.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Files of this machine instead of the server's.")
@json_option
@pass_session
def plan(session: Session, folder: Path | None) -> None:
    """Show what a reload would change: each queue's effective differences, the server's defaults included."""
    body = {} if folder is None else {"files": _texts(folder)}
    answer = Client(session).post("api", "config", "plan", body=body)
    session.output.document(answer)
    for warning in answer["warnings"]:
        session.output.warn(warning)
    if answer["errors"]:
        raise ConfigurationError("a reload would change nothing", problems=tuple(answer["errors"]))
    changed = [entry for entry in answer["changes"] if entry["action"] != "unchanged"]
    for entry in changed:
        _show(session, entry)
    counts = ", ".join(
        f"{sum(entry['action'] == action for entry in changed)} to be {action}" for action in ("created", "updated")
    )
    session.output.line(f"Plan: {counts}." if changed else "No changes.")
    if answer["unlisted"]:
        session.output.note(f"No file names {', '.join(answer['unlisted'])}; a reload leaves them as they are.")


def _texts(place: Path) -> dict[str, str]:
    from runqy.config.source import queue_files

    files = [place] if place.is_file() else queue_files(place)
    if not files:
        raise ConfigurationError(f"there is no queue file in {place}", hint="they end in .yaml or .yml")
    try:
        return {str(file): file.read_text(encoding="utf-8") for file in files}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the files in {place} can't be read", why=str(error)) from error


def _show(session: Session, entry: dict[str, Any]) -> None:
    import sys

    action = entry["action"]
    session.output.line(paint(f"{_SIGNS[action]} {entry['queue']} ({action})", _COLOURS[action], sys.stdout))
    for row in entry["changed"]:
        if row["path"] != "name":
            session.output.line(f"    {row['path']}: {_value(row['before'])} -> {_value(row['after'])}")


def _value(value: Any) -> str:
    return "(not set)" if value is None else json.dumps(value, ensure_ascii=False)


@click.command()
@click.argument("queue", required=False)
@click.option("-l", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many.")
@json_option
@pass_session
def history(session: Session, queue: str | None, limit: int) -> None:
    """Show who changed which queue, newest first."""
    rows = Client(session).get("api", "config", "changes", queue=queue, limit=limit)["changes"]
    session.output.document(rows)
    if not rows:
        session.output.line("No changes.")
        return
    session.output.table(
        ("AT", "WHO", "ACTION", "QUEUE", "CHANGED"),
        (
            (
                time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at"] / 1000)),
                row["who"],
                row["action"],
                row["queue"],
                "" if row["before"] is None else shorten(", ".join(part["path"] for part in row["changed"]), 60),
            )
            for row in rows
        ),
    )
