"""Reaches vaults: through a server, or in this machine's database where no server is known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from runqy.cli.app import Session
from runqy.cli.client import Client, NoServerError, find_server
from runqy.errors import ConfigurationError, RunqyError, UsageError
from runqy.settings.server import ServerSettings, load_server_settings

T = TypeVar("T")
NOT_ENABLED = "vaults not enabled. Set RUNQY_VAULT_MASTER_KEY environment variable."
GENERATE = "Generate a key with: openssl rand -base64 32"


class Vaults(Protocol):
    """What the commands need; the answers have the API's shapes."""

    def all(self) -> Any: ...

    def get(self, vault: str) -> Any: ...

    def create(self, vault: str, description: str) -> Any: ...

    def delete(self, vault: str) -> Any: ...

    def set_entry(self, vault: str, key: str, value: str, *, is_secret: bool) -> Any: ...

    def delete_entry(self, vault: str, key: str) -> Any: ...


def find_vaults(session: Session) -> Vaults:
    """Those of the known server, else those of the local database, which is said."""
    try:
        return RemoteVaults(Client(session))
    except NoServerError:
        session.output.note("Warning: No server configured. Using local database. Run 'runqy login' for remote mode.")
        return LocalVaults(local_settings(session))


def local_settings(session: Session, data_dir: Path | None = None) -> ServerSettings:
    """The settings that a server started here would have; ``data_dir`` is that of one which runs."""
    return load_server_settings({"redis_uri": session.redis_uri or None, "data_dir": data_dir})


def only_local(session: Session, command: str) -> ServerSettings:
    """Settings for a command that needs the database itself. Raises `UsageError` in remote mode."""
    try:
        endpoint = find_server(session)
    except NoServerError:
        return local_settings(session)
    if endpoint.data_dir is None:
        raise UsageError(
            f"vault {command} is local-only and cannot be used in remote mode",
            why=f"{endpoint.source} names a server",
            hint="run it where the server runs, with the server's settings",
        )
    return local_settings(session, endpoint.data_dir)


class RemoteVaults:
    """Vaults by the API of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def all(self) -> Any:
        return self._client.get("api", "vaults")

    def get(self, vault: str) -> Any:
        return self._client.get("api", "vaults", vault)

    def create(self, vault: str, description: str) -> Any:
        return self._client.post("api", "vaults", body={"name": vault, "description": description})

    def delete(self, vault: str) -> Any:
        return self._client.delete("api", "vaults", vault)

    def set_entry(self, vault: str, key: str, value: str, *, is_secret: bool) -> Any:
        body = {"key": key, "value": value, "is_secret": is_secret}
        return self._client.post("api", "vaults", vault, "entries", body=body)

    def delete_entry(self, vault: str, key: str) -> Any:
        return self._client.delete("api", "vaults", vault, "entries", key)


class LocalVaults:
    """Vaults in the database that a server started here would open."""

    def __init__(self, settings: ServerSettings) -> None:
        if settings.vault_master_key is None:
            raise ConfigurationError(NOT_ENABLED, hint=GENERATE)
        from runqy.telemetry import add_secret

        self._master_key = settings.vault_master_key
        self._settings = settings
        add_secret(settings.vault_master_key.get_secret_value())

    def all(self) -> Any:
        from runqy.server.vault_documents import vaults_document

        return vaults_document(self.run(lambda store: store.all()))

    def get(self, vault: str) -> Any:
        from runqy.server.vault_documents import vault_document

        return vault_document(self.run(lambda store: store.get(vault)))

    def create(self, vault: str, description: str) -> Any:
        made = self.run(lambda store: store.create(vault, description), is_change=True)
        return {"vault": {"name": made.name, "description": made.description}}

    def delete(self, vault: str) -> Any:
        self.run(lambda store: store.delete(vault), is_change=True)
        return {"vault": vault}

    def set_entry(self, vault: str, key: str, value: str, *, is_secret: bool) -> Any:
        self.run(lambda store: store.set_entry(vault, key, value, is_secret=is_secret), is_change=True)
        return {"vault": vault, "key": key}

    def delete_entry(self, vault: str, key: str) -> Any:
        self.run(lambda store: store.delete_entry(vault, key), is_change=True)
        return {"vault": vault, "key": key}

    def run(self, work: Callable[[Any], Awaitable[T]], *, is_change: bool = False) -> T:
        """Do something with the store of vaults; after a change, workers of a configured Redis hear of it."""
        return asyncio.run(self._run(work, is_change))

    async def _run(self, work: Callable[[Any], Awaitable[T]], is_change: bool) -> T:
        from runqy.store.database import Database
        from runqy.store.vaults import VaultStore

        database = Database(self._settings.effective_database_url)
        await database.open()
        try:
            result = await work(VaultStore(database, self._master_key))
        finally:
            await database.close()
        if is_change and self._settings.redis is not None:
            await _announce(self._settings)
        return result


async def _announce(settings: ServerSettings) -> None:
    from runqy.broker.connection import connected
    from runqy.broker.workers import WorkerRegistry

    assert settings.redis is not None
    try:
        async with connected(settings.redis) as connection:
            await WorkerRegistry(connection).publish_config_change()
    except RunqyError as error:
        raise RunqyError(
            "The change is stored, but running workers could not be told",
            why=str(error),
            hint="`runqy config reload` tells them once Redis answers",
        ) from error
