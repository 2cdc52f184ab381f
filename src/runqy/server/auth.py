"""Who may call what: three keys with a role each, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from runqy.errors import NotAllowedError, NotAuthenticatedError, RunqyError
from runqy.settings.server import ServerSettings
from runqy.telemetry import add_secret

KEY_FILE = "api-key"


class Role(StrEnum):
    """What a key is for. An admin may do everything."""

    ADMIN = "admin"
    WORKER = "worker"
    CLIENT = "client"


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
    """Finds the role of a presented key."""

    def __init__(self, admin: str, worker: str | None, client: str | None) -> None:
        self._known: list[tuple[bytes, Role]] = []
        for key, role in ((admin, Role.ADMIN), (worker, Role.WORKER), (client, Role.CLIENT)):
            if key:
                add_secret(key)
                self._known.append((hashlib.sha256(key.encode()).digest(), role))
        # A key that was presented often costs one dictionary look-up by its digest, never by its text.
        self._roles = dict(self._known)

    @classmethod
    def of(cls, settings: ServerSettings, admin: str) -> Keys:
        worker, client = settings.worker_api_key, settings.client_api_key
        return cls(
            admin,
            worker.get_secret_value() if worker is not None else None,
            client.get_secret_value() if client is not None else None,
        )

    def role_of(self, presented: str | None) -> Role | None:
        """The role of a key, None for no key or an unknown one."""
        if not presented:
            return None
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        found = None
        for known, role in self._known:
            if hmac.compare_digest(known, digest):
                found = found or role
        return found

    def require(self, headers: Iterable[tuple[bytes, bytes]], *roles: Role) -> Role:
        """The caller's role, if it is one of ``roles`` or admin.

        Raises `NotAuthenticatedError` (401) for no key or an unknown one, `NotAllowedError` (403) for the wrong role.
        """
        role = self.role_of(presented_key(headers))
        if role is None:
            raise NotAuthenticatedError("access unauthorized")
        if role is not Role.ADMIN and role not in roles:
            raise NotAllowedError("insufficient permissions")
        return role


def presented_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key in ``Authorization: Bearer``, or in ``X-API-Key`` where that header is no bearer's."""
    other = None
    for name, value in headers:
        if name == b"authorization" and value[:7] == b"Bearer ":
            return value[7:].decode("latin-1").strip()
        if name == b"x-api-key":
            other = value.decode("latin-1").strip()
    return other
