"""`runqy account`: who may log in to the dashboard."""

from __future__ import annotations

import sys

import click

from runqy.cli.account_access import Accounts, find_accounts
from runqy.cli.app import Session, Suggesting
from runqy.cli.options import json_option, moment, pass_session, required_text
from runqy.errors import UsageError

ROLES = ("admin", "operator", "viewer")


@click.group(cls=Suggesting)
def account() -> None:
    """Create, list and delete accounts of the dashboard; set their passwords."""


_email = click.argument("email", callback=required_text("email"))
_local = click.option("--local", is_flag=True, help="In this machine's database: for a lost password.")
_password = click.option(
    "--password-stdin", is_flag=True, help="Read the password from standard input (else it is asked for)."
)


def _accounts(session: Session, local: bool) -> Accounts:
    return find_accounts(session, local=local)


def _read_password(from_stdin: bool) -> str:
    if from_stdin or not sys.stdin.isatty():
        password = sys.stdin.readline().rstrip("\r\n")
        if not password:
            raise UsageError("password is missing", hint="give it on standard input, with --password-stdin")
        return password
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))


@account.command()
@_email
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True, help="What the person may do.")
@_password
@_local
@json_option
@pass_session
def create(session: Session, email: str, role: str, password_stdin: bool, local: bool) -> None:
    """Create an account.

    \b
    Examples:
      runqy account create ann@example.com --role operator
    """
    row = _accounts(session, local).create(email, _read_password(password_stdin), role)
    session.output.document(row)
    session.output.line(f"Account '{row['email']}' ({row['role']}) created.")


@account.command("list")
@_local
@json_option
@pass_session
def list_accounts(session: Session, local: bool) -> None:
    """List all accounts."""
    rows = _accounts(session, local).all()
    session.output.document(rows)
    if not rows:
        session.output.line("No accounts found.")
        return
    session.output.table(
        ("EMAIL", "ROLE", "CREATED", "LAST_LOGIN"),
        ((row["email"], row["role"], moment(row["created_at"]), moment(row["last_login_at"])) for row in rows),
    )


@account.command()
@_email
@_password
@_local
@json_option
@pass_session
def password(session: Session, email: str, password_stdin: bool, local: bool) -> None:
    """Set an account's password; its sessions end."""
    _accounts(session, local).set_password(email, _read_password(password_stdin))
    session.output.document({"email": email, "changed": True})
    session.output.line(f"Password of '{email}' set; its sessions have ended.")


@account.command()
@_email
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_local
@json_option
@pass_session
def delete(session: Session, email: str, yes: bool, local: bool) -> None:
    """Delete an account with its sessions. The last admin stays."""
    accounts = _accounts(session, local)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"account '{email}' will be deleted, and nobody can be asked here", hint="add --yes")
        if not click.confirm(f"Account '{email}' will be deleted. Go on?", err=True):
            raise click.Abort
    accounts.delete(email)
    session.output.document({"email": email, "deleted": True})
    session.output.line(f"Account '{email}' deleted.")
