"""`runqy login`, `runqy logout`, `runqy auth`: which server the commands talk to, and with which key."""

from __future__ import annotations

import sys

import click

from runqy.cli.app import Session, Suggesting
from runqy.cli.client import Client, environment_key, find_server
from runqy.cli.options import json_option, pass_session, required_text
from runqy.cli.profiles import (
    DEFAULT_NAME,
    Profile,
    Profiles,
    load_profiles,
    remove_profiles,
    save_profiles,
)
from runqy.errors import NotFoundError, UnavailableError, UsageError

HINT = "Run 'runqy login --server URL' to save a server."


@click.command()
@click.option("-s", "--server", default="", help="URL of the server.")
@click.option("-k", "--api-key", default="", help="Key; better in RUNQY_API_KEY, or typed when asked.")
@click.option("-n", "--name", default=DEFAULT_NAME, show_default=True, help="Name of this login.")
@json_option
@pass_session
def login(session: Session, server: str, api_key: str, name: str) -> None:
    """Save a server and its key, so that later commands need neither.

    \b
    Examples:
      runqy login --server https://runqy.example.com
      RUNQY_API_KEY_FILE=key runqy login --server http://10.0.0.5:3000 --name staging
    """
    url = (server or session.server).strip().rstrip("/")
    name = name.strip()
    if not name:
        raise UsageError("profile name cannot be empty")
    if not url:
        raise UsageError("--server is required", hint="runqy login --server http://host:3000")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--server must begin with http:// or https://, got {url!r}")
    if api_key:
        session.output.warn("--api-key shows a secret to everyone who can list processes; use RUNQY_API_KEY instead")
    profiles = load_profiles()
    profile = Profile(url, api_key or session.api_key or environment_key() or _saved_key(profiles, url) or _ask())
    _check(Session(profile.url, profile.api_key, output=session.output))
    profiles.add(name, profile)
    save_profiles(profiles)
    session.output.document({"name": name, "url": url, "current": profiles.current == name})
    session.output.line(f'Logged in to {url} (saved as "{name}")')
    if profiles.current != name:
        session.output.note(f"'{profiles.current}' stays the current one; `runqy auth switch {name}` changes that")


def _saved_key(profiles: Profiles, url: str) -> str:
    """A key goes only to the server that it was saved for."""
    return next((p.api_key for p in profiles.servers.values() if p.url == url and p.api_key), "")


def _ask() -> str:
    if sys.stdin.isatty():
        key = str(click.prompt("API Key", hide_input=True, default="", show_default=False, err=True))
    else:
        key = sys.stdin.readline()
    if not key.strip():
        raise UsageError("API key is required", hint="type it when asked, or set RUNQY_API_KEY or RUNQY_API_KEY_FILE")
    return key.strip()


def _check(session: Session) -> None:
    """Refuse a key that the server refuses; a server that is not there yet may be saved all the same."""
    try:
        Client(session).get("api", "me")
    except NotFoundError:
        # A server of the original has no such route.
        return
    except UnavailableError as error:
        session.output.warn(f"the key was not checked: {error}")


@click.command()
@click.option("-n", "--name", default="", help="Which login.  [default: the current one]")
@click.option("--all", "everything", is_flag=True, help="Remove all saved credentials.")
@json_option
@pass_session
def logout(session: Session, name: str, everything: bool) -> None:
    """Forget a saved server and its key."""
    if everything:
        remove_profiles()
        session.output.document({"removed": "all"})
        session.output.line("Removed all saved credentials.")
        return
    profiles = load_profiles()
    name = name.strip() or profiles.current
    if not name:
        session.output.document({"removed": None, "current": None})
        session.output.line("Not logged in.")
        return
    profiles.remove(name)
    save_profiles(profiles)
    session.output.document({"removed": name, "current": profiles.current or None})
    session.output.line(f'Logged out from "{name}"')


@click.group(cls=Suggesting)
def auth() -> None:
    """See and choose the saved servers."""


@auth.command()
@json_option
@pass_session
def status(session: Session) -> None:
    """Show the current login, and which server commands really use."""
    profiles = load_profiles()
    chosen = profiles.chosen
    try:
        used = find_server(session)
    except UnavailableError:
        used = None
    session.output.document(
        {
            "current": profiles.current or None,
            "url": chosen.url if chosen else None,
            "api_key": chosen.masked if chosen else None,
            "used": {"url": used.url, "source": used.source} if used else None,
        }
    )
    if chosen is None:
        session.output.line("Not logged in.")
        session.output.note(HINT)
    else:
        session.output.fields({"Current server": profiles.current, "URL": chosen.url, "API Key": chosen.masked})
    if used is not None and (chosen is None or used.url != chosen.url):
        session.output.note(f"Commands use {used.url}, from {used.source}.")


@auth.command("list")
@json_option
@pass_session
def list_profiles(session: Session) -> None:
    """List the saved servers."""
    profiles = load_profiles()
    rows = [
        {"name": name, "url": profile.url, "current": name == profiles.current}
        for name, profile in profiles.servers.items()
    ]
    session.output.document(rows)
    if not rows:
        session.output.line("No saved servers.")
        return
    session.output.table(
        ("NAME", "URL", "CURRENT"), ((row["name"], row["url"], "*" if row["current"] else " ") for row in rows)
    )


@auth.command()
@click.argument("name", callback=required_text("profile name"))
@json_option
@pass_session
def switch(session: Session, name: str) -> None:
    """Use another saved server from now on."""
    profiles = load_profiles()
    profile = profiles.switch(name)
    save_profiles(profiles)
    session.output.document({"current": name, "url": profile.url})
    session.output.line(f'Switched to "{name}"')
    session.output.line(f"  URL: {profile.url}")
