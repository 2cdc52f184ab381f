"""`runqy vault`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import click

from runqy.cli.app import Session, Suggesting
from runqy.cli.options import json_option, pass_session, required_text
from runqy.cli.output import shorten
from runqy.errors import ConfigurationError, ConflictError, NotFoundError

vault_argument = click.argument("name", metavar="VAULT", callback=required_text("vault name"))
key_argument = click.argument("key", callback=required_text("key name"))


@click.group(cls=Suggesting)
def vault() -> None:
    """Keep secrets for task code, encrypted.

    A queue names its vaults in `deployment.vaults`; their entries are environment variables of its task code.
    A git token is named by `deployment.git_token: vault://VAULT/KEY`.
    """


@contextlib.contextmanager
def _in_our_words(name: str) -> Iterator[None]:
    """The same texts for a server and the local database."""
    try:
        yield
    except NotFoundError as error:
        if "vault not found" not in str(error):
            raise
        raise NotFoundError(f"vault '{name}' not found", hint="`runqy vault list` shows all") from None
    except ConflictError:
        raise ConflictError(f"vault '{name}' already exists") from None


def _vaults(session: Session) -> Any:
    from runqy.cli.vault_access import find_vaults

    return find_vaults(session)


@vault.command("list")
@json_option
@pass_session
def list_vaults(session: Session) -> None:
    """List the vaults."""
    rows = _vaults(session).all()["vaults"] or []
    session.output.document(rows)
    if not rows:
        session.output.line("No vaults found.")
        return
    session.output.table(
        ("NAME", "DESCRIPTION", "ENTRIES"),
        ((row["name"], shorten(row["description"], 40), row["entry_count"]) for row in rows),
    )


@vault.command()
@vault_argument
@click.option("-d", "--description", default="", help="What it is for.")
@json_option
@pass_session
def create(session: Session, name: str, description: str) -> None:
    """Make an empty vault."""
    with _in_our_words(name):
        session.output.document(_vaults(session).create(name, description))
    session.output.line(f"Vault '{name}' created successfully.")


@vault.command()
@vault_argument
@json_option
@pass_session
def show(session: Session, name: str) -> None:
    """Show a vault; secrets are masked."""
    with _in_our_words(name):
        found = _vaults(session).get(name)
    session.output.document(found)
    fields = {"Vault": found["name"]}
    if found["description"]:
        fields["Description"] = found["description"]
    session.output.fields(fields | {"Created": found["created_at"], "Updated": found["updated_at"]})
    session.output.line()
    session.output.line(f"Entries ({len(found['entries'])}):")
    if found["entries"]:
        session.output.table(
            ("KEY", "VALUE", "SECRET"),
            ((entry["key"], shorten(entry["value"], 60), entry["is_secret"]) for entry in found["entries"]),
        )


@vault.command()
@vault_argument
@json_option
@pass_session
def entries(session: Session, name: str) -> None:
    """List the entries of a vault; secrets are masked."""
    with _in_our_words(name):
        rows = _vaults(session).get(name)["entries"]
    session.output.document(rows)
    if not rows:
        session.output.line("No entries.")
        return
    session.output.table(
        ("KEY", "VALUE", "SECRET", "UPDATED"),
        ((row["key"], shorten(row["value"], 60), row["is_secret"], row["updated_at"]) for row in rows),
    )


@vault.command()
@vault_argument
@click.option("--force", is_flag=True, help="Do not ask.")
@json_option
@pass_session
def delete(session: Session, name: str, force: bool) -> None:
    """Delete a vault with all its entries."""
    if not force and not click.confirm(f"Delete vault '{name}' with all its entries?", default=False, err=True):
        session.output.line("Cancelled.")
        return
    with _in_our_words(name):
        answer = _vaults(session).delete(name)
    session.output.document(answer)
    for warning in answer.get("warnings") or []:
        session.output.warn(warning)
    session.output.line(f"Vault '{name}' deleted successfully.")


@vault.command("set")
@vault_argument
@key_argument
@click.argument("value", required=False)
@click.option("--no-secret", is_flag=True, help="The value may be shown.")
@json_option
@pass_session
def set_entry(session: Session, name: str, key: str, value: str | None, no_secret: bool) -> None:
    """Set a value. With `-` it is read from standard input, without it asked for.

    \b
    Examples:
      runqy vault set keys HF_TOKEN - < token.txt
      runqy vault set keys REGION eu-west-1 --no-secret
    """
    text = _value(session, value, no_secret)
    if not no_secret:
        from runqy.telemetry import add_secret

        add_secret(text)
    with _in_our_words(name):
        session.output.document(_vaults(session).set_entry(name, key, text, is_secret=not no_secret))
    session.output.line(f"Entry '{key}' set in vault '{name}'.")


def _value(session: Session, given: str | None, is_open: bool) -> str:
    if given == "-":
        # An editor or `echo` ends the text with a newline, which is no part of the value.
        return sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if given is not None:
        if not is_open:
            session.output.warn(
                "the value shows to everyone who can list processes, and in your shell's history; "
                "give `-` and it is read from standard input"
            )
        return given
    if not sys.stdin.isatty():
        raise click.UsageError("a value is missing; give `-` to read it from standard input")
    asked: str = click.prompt("Value", hide_input=True, err=True)
    return asked


@vault.command()
@vault_argument
@key_argument
@json_option
@pass_session
def get(session: Session, name: str, key: str) -> None:
    """Print a value in clear; only where the database is at hand."""
    from runqy.cli.vault_access import LocalVaults, only_local

    local = LocalVaults(only_local(session, "get"))
    with _in_our_words(name):
        value = local.run(lambda store: store.value(name, key))
    session.output.document({"vault": name, "key": key, "value": value})
    session.output.line(value)


@vault.command()
@vault_argument
@key_argument
@json_option
@pass_session
def unset(session: Session, name: str, key: str) -> None:
    """Delete a value."""
    with _in_our_words(name):
        session.output.document(_vaults(session).delete_entry(name, key))
    session.output.line(f"Entry '{key}' removed from vault '{name}'.")


@vault.command("rotate-key")
@json_option
@pass_session
def rotate_key(session: Session) -> None:
    """Encrypt every value anew under another master key, all or none.

    The old key stands in RUNQY_VAULT_MASTER_KEY, the new one in RUNQY_VAULT_NEW_MASTER_KEY, or in files that
    RUNQY_VAULT_MASTER_KEY_FILE and RUNQY_VAULT_NEW_MASTER_KEY_FILE name. Afterwards start every server with the
    new key: until then it can't read the values.
    """
    from runqy.cli.vault_access import GENERATE, LocalVaults, only_local
    from runqy.settings.server import load_vault_rotation_key

    local = LocalVaults(only_local(session, "rotate-key"))
    new_key = load_vault_rotation_key()
    if new_key is None:
        raise ConfigurationError(
            "RUNQY_VAULT_NEW_MASTER_KEY is not set", why="it holds the key to change to", hint=GENERATE
        )
    from runqy.telemetry import add_secret

    add_secret(new_key.get_secret_value())
    count = local.run(lambda store: store.rotate(new_key))
    session.output.document({"rotated": count})
    session.output.line(f"{count} value(s) are now encrypted with the new master key.")
    session.output.note("Start every server with RUNQY_VAULT_MASTER_KEY set to the new key.")
