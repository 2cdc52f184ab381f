"""Reaches accounts: through a server, or in this machine's database (for who has lost the last password)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from runqy.cli.app import Session
from runqy.cli.client import Client, NoServerError, find_server
from runqy.cli.vault_access import local_settings
from runqy.errors import UsageError

if TYPE_CHECKING:
    from runqy.store.accounts import Account, AccountStore

T = TypeVar("T")


class Accounts(Protocol):
    """What the commands need; rows have the API's shape, times in unix ms."""

    def all(self) -> list[dict[str, Any]]: ...

    def create(self, email: str, password: str, role: str) -> dict[str, Any]: ...

    def set_password(self, email: str, password: str) -> None: ...

    def delete(self, email: str) -> None: ...


def find_accounts(session: Session, *, local: bool) -> Accounts:
    """Those of the known server; with ``local``, or where no server is known, those of the local database."""
    if local:
        return LocalAccounts(session)
    try:
        return RemoteAccounts(Client(session))
    except NoServerError:
        session.output.note("Warning: No server configured. Using local database. Run 'runqy login' for remote mode.")
        return LocalAccounts(session)


class RemoteAccounts:
    """Accounts by the API of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def all(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._client.get("api", "accounts")["accounts"]
        return rows

    def create(self, email: str, password: str, role: str) -> dict[str, Any]:
        body = {"email": email, "password": password, "role": role}
        row: dict[str, Any] = self._client.post("api", "accounts", body=body)["account"]
        return row

    def set_password(self, email: str, password: str) -> None:
        self._client.put("api", "accounts", email, body={"password": password})

    def delete(self, email: str) -> None:
        self._client.delete("api", "accounts", email)


class LocalAccounts:
    """Accounts in the database that a server started here would open, or has open. Each call is one transaction."""

    def __init__(self, session: Session) -> None:
        try:
            endpoint = find_server(session)
        except NoServerError:
            data_dir = None
        else:
            if endpoint.data_dir is None:
                raise UsageError(
                    "--local does not go together with a server elsewhere",
                    why=f"{endpoint.source} names {endpoint.url}",
                    hint="run it where the server runs, with the server's settings",
                )
            data_dir = endpoint.data_dir
        self._settings = local_settings(session, data_dir)

    def all(self) -> list[dict[str, Any]]:
        return [_row(account) for account in self._run(lambda store: store.all())]

    def create(self, email: str, password: str, role: str) -> dict[str, Any]:
        from runqy.server.passwords import check_password, hash_password
        from runqy.store.accounts import check_email
        from runqy.store.roles import ACCOUNT_ROLES, parse_role

        checked, wanted = check_email(email), parse_role(role, ACCOUNT_ROLES)
        text = check_password(password)

        async def work(store: AccountStore) -> Account:
            return await store.create(checked, await hash_password(text), wanted)

        return _row(self._run(work))

    def set_password(self, email: str, password: str) -> None:
        from runqy.server.passwords import check_password, hash_password

        text = check_password(password)

        async def work(store: AccountStore) -> None:
            await store.set_password(email, await hash_password(text))

        self._run(work)

    def delete(self, email: str) -> None:
        self._run(lambda store: store.delete(email))

    def _run(self, work: Callable[[AccountStore], Awaitable[T]]) -> T:
        async def whole() -> T:
            from runqy.store.accounts import AccountStore
            from runqy.store.database import Database

            database = Database(self._settings.effective_database_url)
            await database.open()
            try:
                return await work(AccountStore(database))
            finally:
                await database.close()

        return asyncio.run(whole())


def _row(account: Account) -> dict[str, Any]:
    return {
        "email": account.email,
        "role": account.role.value,
        "created_at": _ms(account.created_at),
        "last_login_at": _ms(account.last_login_at),
    }


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
