"""Vaults: named sets of variables for task code, encrypted in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runqy.errors import ConflictError, NotFoundError, UnavailableError
from runqy.settings.secret import MASK, Secret
from runqy.store.database import Database
from runqy.store.sealing import MasterKey, SealError
from runqy.store.tables import vault_entries, vaults
from runqy.store.vault_rules import check_description, check_key_name, check_value, check_vault_name
from runqy.telemetry import add_secret
from runqy.timing import SYSTEM_CLOCK, Clock

_NOT_FOUND = "vault not found"


@dataclass(frozen=True, slots=True)
class VaultSummary:
    """A vault in a list."""

    name: str
    description: str
    entry_count: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One variable as it may be shown: a secret's ``value`` is a mask. Times in unix seconds."""

    key: str
    value: str
    is_secret: bool
    created_at: float | None
    updated_at: float | None


@dataclass(frozen=True, slots=True)
class Vault:
    """One vault with its entries by key. Times in unix seconds."""

    name: str
    description: str
    entries: tuple[Entry, ...]
    created_at: float | None
    updated_at: float | None


class VaultStore:
    """The vaults of one database under one master key. Each method is one transaction.

    What was stored with another master key raises `SealError` where its value is needed.
    """

    def __init__(self, database: Database, master_key: Secret, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._database = database
        self._master = MasterKey(master_key)
        self._clock = clock

    async def all(self) -> list[VaultSummary]:
        """All vaults by name."""
        counted = select(vault_entries.c.vault_id, func.count().label("entries")).group_by(vault_entries.c.vault_id)
        async with self._database.read() as connection:
            rows = (await connection.execute(select(vaults))).all()
            counts = {row.vault_id: row.entries for row in await connection.execute(counted)}
        return sorted(
            (VaultSummary(row.name, row.description or "", counts.get(row.id, 0)) for row in rows),
            key=lambda vault: vault.name,
        )

    async def get(self, name: str) -> Vault:
        """One vault. Raises `NotFoundError`."""
        if not name.isprintable():
            raise NotFoundError(_NOT_FOUND)
        async with self._database.read() as connection:
            row = (await connection.execute(select(vaults).where(vaults.c.name == name))).one_or_none()
            if row is None:
                raise NotFoundError(_NOT_FOUND)
            entries = await _entries(connection, row.id)
        shown = tuple(
            Entry(
                entry.key,
                MASK if entry.is_secret else self._master.open(name, entry.key, bytes(entry.value)),
                bool(entry.is_secret),
                entry.created_at,
                entry.updated_at,
            )
            for entry in entries
        )
        return Vault(row.name, row.description or "", shown, row.created_at, row.updated_at)

    async def create(self, name: object, description: object = "") -> VaultSummary:
        """Make an empty vault. Raises `UsageError`, `ConflictError` when there is one of that name."""
        made = VaultSummary(check_vault_name(name), check_description(description), 0)
        now = self._clock.now()
        async with self._database.write() as connection:
            if await _vault_id(connection, made.name) is not None:
                raise ConflictError("vault already exists")
            await connection.execute(
                insert(vaults).values(name=made.name, description=made.description, created_at=now, updated_at=now)
            )
        return made

    async def delete(self, name: str) -> None:
        """Delete a vault with all its entries. Raises `NotFoundError`."""
        async with self._database.write() as connection:
            vault_id = await _vault_id(connection, name)
            if vault_id is None:
                raise NotFoundError(_NOT_FOUND)
            await connection.execute(delete(vault_entries).where(vault_entries.c.vault_id == vault_id))
            await connection.execute(delete(vaults).where(vaults.c.id == vault_id))

    async def set_entry(self, name: str, key: object, value: object, *, is_secret: bool = True) -> None:
        """Insert or replace a value. Raises `UsageError`, `NotFoundError` without such a vault."""
        key, value = check_key_name(key), check_value(value)
        if is_secret:
            add_secret(value)
        now = self._clock.now()
        async with self._database.write() as connection:
            vault_id = await _vault_id(connection, name)
            if vault_id is None:
                raise NotFoundError(f"vault '{name}': {_NOT_FOUND}")
            values = {"value": self._master.seal(name, key, value), "is_secret": is_secret, "updated_at": now}
            here = (vault_entries.c.vault_id == vault_id) & (vault_entries.c.key == key)
            changed = await connection.execute(update(vault_entries).where(here).values(**values))
            if changed.rowcount == 0:
                await connection.execute(
                    insert(vault_entries).values(vault_id=vault_id, key=key, created_at=now, **values)
                )
            await connection.execute(update(vaults).where(vaults.c.id == vault_id).values(updated_at=now))

    async def delete_entry(self, name: str, key: str) -> None:
        """Delete a value. Raises `NotFoundError`."""
        async with self._database.write() as connection:
            vault_id = await _vault_id(connection, name)
            if vault_id is None:
                raise NotFoundError(f"vault '{name}': {_NOT_FOUND}")
            here = (vault_entries.c.vault_id == vault_id) & (vault_entries.c.key == key)
            if not key.isprintable() or (await connection.execute(delete(vault_entries).where(here))).rowcount == 0:
                raise NotFoundError(f"key '{key}' in vault '{name}': entry not found")
            now = self._clock.now()
            await connection.execute(update(vaults).where(vaults.c.id == vault_id).values(updated_at=now))

    async def value(self, name: str, key: str) -> str:
        """One value in clear. Raises `NotFoundError`, `SealError`."""
        values = await self._values_of(name)
        if values is None:
            raise NotFoundError(f"vault '{name}': {_NOT_FOUND}")
        if key not in values:
            raise NotFoundError(f"key '{key}' in vault '{name}': entry not found")
        return self._open(name, key, values[key])

    async def referenced(self, reference: str) -> str:
        """The value that ``vault://<vault>/<key>`` names, in clear. Raises as `value` does."""
        name, _, key = reference.removeprefix("vault://").partition("/")
        return await self.value(name, key)

    async def merged(self, names: Sequence[str]) -> dict[str, str]:
        """The variables of several vaults in clear; of equal keys the later vault's.

        Raises `UnavailableError` when a vault is missing or can't be decrypted.
        """
        found: dict[str, str] = {}
        for name in names:
            values = await self._values_of(name)
            if values is None:
                raise UnavailableError(
                    f"failed to resolve vaults [{' '.join(names)}]: vault '{name}': {_NOT_FOUND}",
                    hint=f"make it with `runqy vault create {name}`, or take it out of the queue's deployment",
                )
            try:
                found |= {key: self._open(name, key, value) for key, value in values.items()}
            except SealError as error:
                raise UnavailableError(
                    f"failed to resolve vaults [{' '.join(names)}]: {error.what}", why=error.why, hint=error.hint
                ) from None
        return found

    async def rotate(self, new_key: Secret) -> int:
        """Seal every value anew under another master key, all or none; returns how many there are.

        A value that the new key opens already counts as done, so a second call after a success changes
        nothing. Raises `SealError` when neither key opens a value. From then on servers need the new key.
        """
        new = MasterKey(new_key)
        statement = select(vault_entries.c.id, vault_entries.c.key, vault_entries.c.value, vaults.c.name).join(vaults)
        async with self._database.write() as connection:
            rows = (await connection.execute(statement)).all()
            for row in rows:
                value = _opened_by_either(self._master, new, row)
                await connection.execute(
                    update(vault_entries)
                    .where(vault_entries.c.id == row.id)
                    .values(value=new.seal(row.name, row.key, value))
                )
        self._master = new
        return len(rows)

    async def unreadable(self) -> list[str]:
        """``vault/key`` of every value that this master key does not open."""
        statement = select(vault_entries.c.key, vault_entries.c.value, vaults.c.name).join(vaults)
        async with self._database.read() as connection:
            rows = (await connection.execute(statement)).all()
        return sorted(f"{row.name}/{row.key}" for row in rows if not _opens(self._master, row))

    async def _values_of(self, name: str) -> Mapping[str, tuple[bytes, bool]] | None:
        async with self._database.read() as connection:
            vault_id = await _vault_id(connection, name)
            if vault_id is None:
                return None
            return {
                entry.key: (bytes(entry.value), bool(entry.is_secret)) for entry in await _entries(connection, vault_id)
            }

    def _open(self, name: str, key: str, stored: tuple[bytes, bool]) -> str:
        value = self._master.open(name, key, stored[0])
        if stored[1]:
            add_secret(value)
        return value


async def _vault_id(connection: AsyncConnection, name: str) -> int | None:
    if not name.isprintable():
        # PostgreSQL takes no NUL, and no vault is called so.
        return None
    found: int | None = (await connection.execute(select(vaults.c.id).where(vaults.c.name == name))).scalar()
    return found


async def _entries(connection: AsyncConnection, vault_id: int) -> list[Any]:
    rows = (await connection.execute(select(vault_entries).where(vault_entries.c.vault_id == vault_id))).all()
    # Sorted here: each database has an order of texts of its own.
    return sorted(rows, key=lambda row: str(row.key))


def _opens(master: MasterKey, row: Any) -> bool:
    try:
        master.open(row.name, row.key, bytes(row.value))
    except SealError:
        return False
    return True


def _opened_by_either(old: MasterKey, new: MasterKey, row: Any) -> str:
    try:
        return old.open(row.name, row.key, bytes(row.value))
    except SealError:
        return new.open(row.name, row.key, bytes(row.value))
