"""Options that many commands share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from runqy.cli.app import Session
from runqy.cli.output import Output

pass_session = click.make_pass_decorator(Session)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--json` also behind the command, where one types it."""

    def remember(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        session = ctx.find_object(Session)
        if value and session is not None:
            session.output = Output(as_json=True, quiet=session.output.quiet, verbose=session.output.verbose)

    option = click.option(
        "--json", is_flag=True, expose_value=False, is_eager=True, callback=remember, help="Print JSON."
    )
    return option(command)


def required_text(what: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """A positional argument that must not be empty; blanks around it are dropped."""

    def check(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
        text = value.strip()
        if not text:
            raise click.UsageError(f"{what} cannot be empty")
        return text

    return check


def moment(unix_ms: int | None) -> str:
    """`YYYY-MM-DD HH:MM:SS` in local time; `-` for none."""
    return "-" if unix_ms is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ms / 1000))
