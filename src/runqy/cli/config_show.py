"""`runqy config show`: the settings that a server started here would have, and where each comes from."""

from __future__ import annotations

import click

from runqy.cli.app import Session
from runqy.cli.client import NoServerError, find_server
from runqy.cli.options import json_option, pass_session


@click.command()
@click.option("--origin", is_flag=True, help="Say where each value comes from: flag, variable, file or default.")
@json_option
@pass_session
def show(session: Session, origin: bool) -> None:
    """Show the settings that hold in this folder, secrets masked; and which server commands talk to.

    A flag stands above a variable of the environment, that above `.env.secret` or `.env`, that above the default.
    """
    from runqy.settings.server import load_server_settings

    settings = load_server_settings({"redis_uri": session.redis_uri or None})
    try:
        endpoint = find_server(session)
        used = {"name": "server", "value": endpoint.url, "origin": endpoint.source}
    except NoServerError:
        used = {"name": "server", "value": "", "origin": "none is known"}
    described = {entry.name: entry for entry in settings.described}
    rows = [used, *({"name": e.name, "value": e.value, "origin": e.origin} for e in described.values())]
    for warning in settings.warnings:
        session.output.warn(warning)
    session.output.document(rows)
    if origin:
        session.output.table(("SETTING", "VALUE", "ORIGIN"), ((r["name"], r["value"], r["origin"]) for r in rows))
    else:
        session.output.table(("SETTING", "VALUE"), ((r["name"], r["value"]) for r in rows))
