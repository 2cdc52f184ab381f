"""`runqy doctor`."""

from __future__ import annotations

import sys

import click

from runqy.cli.app import Session
from runqy.cli.client import Client
from runqy.cli.options import json_option, pass_session
from runqy.cli.output import paint

_MARKS = {"ok": ("ok", "32"), "warning": ("warning", "33"), "problem": ("PROBLEM", "31")}


@click.command()
@json_option
@pass_session
def doctor(session: Session) -> None:
    """Check the whole system: what is well, what is not, and the command that mends it.

    Exit code 1 when there is a problem; warnings alone leave it at 0.

    \b
    Example:
      runqy doctor --json
    """
    checks = Client(session).get("api", "doctor")["checks"]
    session.output.document(checks)
    for check in checks:
        word, color = _MARKS.get(check["status"], (check["status"], "0"))
        session.output.line(f"{paint(f'{word:<8}', color, sys.stdout)} {check['name']}: {check['detail']}")
        if check.get("fix"):
            session.output.line(f"         fix: {check['fix']}")
    if any(check["status"] == "problem" for check in checks):
        raise click.exceptions.Exit(1)
