"""`runqy key`: named API keys, each with a role."""

from __future__ import annotations

import sys
from typing import Any

import click

from runqy.cli.app import Session, Suggesting
from runqy.cli.client import Client
from runqy.cli.completing import queue_names
from runqy.cli.options import json_option, moment, pass_session, required_text
from runqy.errors import UsageError

ROLES = ("admin", "operator", "viewer", "worker", "client")


@click.group(cls=Suggesting)
def key() -> None:
    """Create, list and revoke API keys."""


@key.command()
@click.argument("name", callback=required_text("key name"))
@click.option("--role", type=click.Choice(ROLES), required=True, help="What the key may do.")
@click.option("-q", "--queue", "queues", multiple=True, shell_complete=queue_names, help="Only this queue; repeatable.")
@click.option("--expires-in", help="After which time it ends, such as 720h.  [default: never]")
@json_option
@pass_session
def create(session: Session, name: str, role: str, queues: tuple[str, ...], expires_in: str | None) -> None:
    """Create a key. It is shown this once, alone on standard output.

    \b
    Examples:
      runqy key create ci --role client --queue inference --expires-in 720h > ci.key
    """
    body: dict[str, Any] = {"name": name, "role": role}
    if queues:
        body["queues"] = list(queues)
    if expires_in:
        body["expires_in"] = expires_in
    answer = Client(session).post("api", "keys", body=body)
    session.output.document(answer)
    session.output.line(answer["key"])
    session.output.note(f"Key '{name}' ({role}) created. It can't be shown again.")


@key.command("list")
@json_option
@pass_session
def list_keys(session: Session) -> None:
    """List the keys, with their first characters only."""
    rows = Client(session).get("api", "keys")["keys"] or []
    session.output.document(rows)
    if not rows:
        session.output.line("No keys found.")
        return
    session.output.table(
        ("NAME", "ROLE", "QUEUES", "STARTS_WITH", "CREATED", "LAST_USED", "EXPIRES"),
        (
            (
                row["name"],
                row["role"],
                ",".join(row["queues"]) if row["queues"] is not None else "all",
                row["start"],
                moment(row["created_at"]),
                moment(row["last_used_at"]),
                "expired" if row["is_expired"] else moment(row["expires_at"]),
            )
            for row in rows
        ),
    )


@key.command()
@click.argument("name", callback=required_text("key name"))
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_session
def revoke(session: Session, name: str, yes: bool) -> None:
    """Revoke a key: it is refused everywhere within a second."""
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"key '{name}' will stop working, and nobody can be asked here", hint="add --yes")
        if not click.confirm(f"Key '{name}' will stop working. Go on?", err=True):
            raise click.Abort
    session.output.document(Client(session).delete("api", "keys", name))
    session.output.line(f"Key '{name}' revoked.")
