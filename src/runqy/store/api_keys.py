"""Named API keys: made here, shown once, kept as a hash; each with a role and, where wanted, its queues."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from runqy.errors import ConflictError, NotFoundError, UsageError
from runqy.store.database import Database
from runqy.store.roles import Role
from runqy.store.tables import api_keys
from runqy.timing import SYSTEM_CLOCK, Clock

PREFIX = "rq_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is kept of a key. Times in unix seconds; ``start`` is its first characters, to tell keys apart."""

    name: str
    role: Role
    queues: tuple[str, ...] | None
    """parents or full names it may reach; None for all"""
    start: str
    created_at: float
    created_by: str
    last_used_at: float | None
    expires_at: float | None
    digest: bytes


def digest_of(key: str) -> bytes:
    """The SHA-256 that stands for a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class ApiKeyStore:
    """Keys of one database. Each method is one transaction."""

    def __init__(self, database: Database, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._database = database
        self._clock = clock

    async def create(
        self,
        name: str,
        role: Role,
        who: str,
        *,
        queues: Sequence[str] | None = None,
        expires_at: float | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key; returns what is kept, and the key, which can't be read again.

        Raises `UsageError` for an impossible name, `ConflictError` when the name is taken.
        """
        if not _NAME.fullmatch(name):
            raise UsageError("invalid key name: 1 to 64 letters, digits, '_', '.' or '-', first a letter or digit")
        key = PREFIX + secrets.token_urlsafe(32)
        kept = ApiKey(
            name,
            role,
            None if queues is None else tuple(sorted(set(queues))),
            key[:8],
            self._clock.now(),
            who,
            None,
            expires_at,
            digest_of(key),
        )
        values = {
            "name": name,
            "digest": kept.digest.hex(),
            "start": kept.start,
            "role": role.value,
            "queues": None if kept.queues is None else list(kept.queues),
            "created_at": kept.created_at,
            "created_by": who,
            "expires_at": expires_at,
        }
        async with self._database.write() as connection:
            taken = (await connection.execute(select(api_keys.c.id).where(api_keys.c.name == name))).scalar()
            if taken is not None:
                raise ConflictError(f"an API key named {name} exists", hint="revoke it first, or choose another name")
            try:
                await connection.execute(insert(api_keys).values(**values))
            except IntegrityError:
                raise ConflictError(f"an API key named {name} exists", hint="choose another name") from None
        return kept, key

    async def all(self) -> list[ApiKey]:
        """All keys by name, expired ones too."""
        async with self._database.read() as connection:
            rows = (await connection.execute(select(api_keys).order_by(api_keys.c.name))).all()
        return [
            ApiKey(
                row.name,
                Role(row.role),
                None if row.queues is None else tuple(row.queues),
                row.start,
                row.created_at,
                row.created_by,
                row.last_used_at,
                row.expires_at,
                bytes.fromhex(row.digest),
            )
            for row in rows
            if row.role in set(Role)
        ]

    async def revoke(self, name: str) -> None:
        """Delete a key. Raises `NotFoundError`."""
        async with self._database.write() as connection:
            gone = await connection.execute(delete(api_keys).where(api_keys.c.name == name))
            if gone.rowcount == 0:
                raise NotFoundError(f"no API key is named {name}", hint="runqy key list shows all")

    async def note_used(self, used: Mapping[str, float]) -> None:
        """Keep when each key was used last: name → unix seconds."""
        async with self._database.write() as connection:
            for name, at in used.items():
                await connection.execute(update(api_keys).where(api_keys.c.name == name).values(last_used_at=at))
