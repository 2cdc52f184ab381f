"""Who calls, by the key that a request presents; compared in constant time."""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runqy.errors import NotAllowedError, NotAuthenticatedError, RunqyError
from runqy.settings.server import ServerSettings
from runqy.store.api_keys import ApiKey, digest_of
from runqy.store.roles import Role
from runqy.telemetry import add_secret

KEY_FILE = "api-key"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: a name for the audit log, a role, and the queues it may reach (None for all)."""

    who: str
    role: Role
    queues: frozenset[str] | None = None
    key_name: str = ""
    """the named API key, if it is one"""
    session: str = ""
    """the session's id, if a person in a browser calls"""

    def may(self, roles: Iterable[Role]) -> bool:
        """Whether one of ``roles`` is included in the caller's."""
        return not self.role.includes.isdisjoint(roles)

    def sees(self, queue: str) -> bool:
        """Whether a queue (parent or full name) is within the caller's scope."""
        return self.queues is None or queue in self.queues or queue.partition(".")[0] in self.queues


def admin_key(settings: ServerSettings) -> tuple[str, Path | None]:
    """The admin key, and the file that holds it when the server made it itself.

    Without a configured key one is made at the first start and kept beside the data with mode 0600. Raises
    `ConfigurationError` with PostgreSQL (several servers would each make their own), `RunqyError` when the
    file can't be written.
    """
    if settings.api_key is not None:
        return settings.api_key.get_secret_value(), None
    settings.require_admin_key()
    path = settings.data_dir.absolute() / KEY_FILE
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _write_new(path, secrets.token_urlsafe(32))
        key = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise RunqyError(
            f"The admin key can't be kept in {path}",
            why=error.strerror or str(error),
            hint="make the folder writable, choose another with --data-dir, or set RUNQY_API_KEY",
        ) from error
    if not key:
        raise RunqyError(f"{path} is empty", hint="delete it, and the server makes a new key; or write a key into it")
    return key, path


def _write_new(path: Path, key: str) -> None:
    """Whole or not at all, also when two servers start at once: the first one's key stays."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(key + "\n")
    try:
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()


class Keys:
    """Finds the caller behind a presented key: the three of the environment, and the named ones of the database."""

    def __init__(self, admin: str, worker: str | None, client: str | None) -> None:
        self._fixed: list[tuple[bytes, Caller]] = []
        for key, role in ((admin, Role.ADMIN), (worker, Role.WORKER), (client, Role.CLIENT)):
            if key:
                add_secret(key)
                self._fixed.append((digest_of(key), Caller(f"{role} key", role)))
        self._named: dict[bytes, tuple[Caller, float | None]] = {}
        self.used: dict[str, float] = {}
        """named keys that were presented since this was emptied last, and when (unix seconds)"""

    @classmethod
    def of(cls, settings: ServerSettings, admin: str) -> Keys:
        worker, client = settings.worker_api_key, settings.client_api_key
        return cls(
            admin,
            worker.get_secret_value() if worker is not None else None,
            client.get_secret_value() if client is not None else None,
        )

    def replace_named(self, keys: Iterable[ApiKey]) -> None:
        """Take over the named keys of the database, all at once."""
        self._named = {
            key.digest: (
                Caller(
                    f"key {key.name}",
                    key.role,
                    None if key.queues is None else frozenset(key.queues),
                    key_name=key.name,
                ),
                key.expires_at,
            )
            for key in keys
        }

    def caller_of(self, presented: str | None) -> Caller | None:
        """Who presents this key; None for no key, an unknown or an expired one."""
        if not presented:
            return None
        digest = digest_of(presented)
        found = None
        for known, caller in self._fixed:
            if hmac.compare_digest(known, digest):
                found = found or caller
        if found is not None:
            return found
        # Looked up by its digest, never by its text: the time it takes tells nothing about a key.
        named, expires_at = self._named.get(digest, (None, None))
        if named is None or (expires_at is not None and expires_at <= time.time()):
            return None
        self.used[named.key_name] = time.time()
        return named


def permitted(caller: Caller | None, roles: Iterable[Role]) -> Caller:
    """The caller, when one of ``roles`` is within its role.

    Raises `NotAuthenticatedError` (401) for nobody, `NotAllowedError` (403) for the wrong role.
    """
    if caller is None:
        raise NotAuthenticatedError("access unauthorized")
    if not caller.may(roles):
        raise NotAllowedError("insufficient permissions")
    return caller


def presented_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key in ``Authorization: Bearer``, or in ``X-API-Key`` where that header is no bearer's."""
    other = None
    for name, value in headers:
        if name == b"authorization" and value[:7] == b"Bearer ":
            return value[7:].decode("latin-1").strip()
        if name == b"x-api-key":
            other = value.decode("latin-1").strip()
    return other
