"""Queues in the database: saved, deleted and restored as one step each, with a history of who changed what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from runqy.config.encoding import queue_document
from runqy.config.model import QueueConfig, QueueName, parse_queue_name
from runqy.config.request import QueueRequest
from runqy.errors import ConflictError, NotFoundError, UsageError
from runqy.store.catalog import QueueCatalog
from runqy.store.database import Database
from runqy.store.rows import read_queues, write_queue
from runqy.store.tables import queue_changes
from runqy.timing import SYSTEM_CLOCK, Clock


class Action(StrEnum):
    """What a change did to a queue."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    DELETED = "deleted"
    RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of one queue."""

    queue: QueueConfig
    action: Action

    @property
    def is_change(self) -> bool:
        return self.action is not Action.UNCHANGED


@dataclass(frozen=True, slots=True)
class Planned:
    """What saving one queue would do. ``before`` is None for one that was never stored."""

    before: QueueConfig | None
    after: QueueConfig
    action: Action


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the history. ``before`` and ``after`` are whole queues as JSON values; unix seconds."""

    id: int
    queue: str
    action: Action
    who: str
    at: float
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class QueueStore:
    """All queues of one database, and `catalog`, the snapshot of them in memory.

    Each method is one transaction; writers stand in line, also those of other servers. After a write the
    catalogue is read anew; call `refresh` when another server has written.
    """

    def __init__(self, database: Database, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._database = database
        self._clock = clock
        self._refreshing = asyncio.Lock()
        self.catalog = QueueCatalog()

    async def refresh(self) -> QueueCatalog:
        """Read all queues into the catalogue. Raises `UnavailableError`; then the old snapshot stays."""
        # One at a time: an older look must not replace a newer one.
        async with self._refreshing:
            warnings: list[str] = []
            async with self._database.read() as connection:
                found = await read_queues(connection, warnings)
            self.catalog.replace(found.values(), tuple(warnings))
        return self.catalog

    async def all(self, include_disabled: bool = False) -> list[QueueConfig]:
        """All parents, by name; with ``include_disabled`` deleted ones and deleted sub-queues too."""
        async with self._database.read() as connection:
            found = await read_queues(connection, [])
        if include_disabled:
            return list(found.values())
        return [_enabled_part(queue) for queue in found.values() if queue.enabled]

    async def get(self, name: str, include_disabled: bool = False) -> QueueConfig | None:
        """The parent of ``name`` (``parent`` or ``parent.sub``); None when it, or the sub-queue, is not there."""
        wanted = parse_queue_name(name)
        async with self._database.read() as connection:
            queue = (await read_queues(connection, [], [wanted.parent])).get(wanted.parent)
        if queue is None or include_disabled:
            return queue
        return _enabled_part(queue) if _exists(queue, wanted) else None

    async def save(self, queue: QueueConfig, who: str) -> Saved:
        """Insert or update one parent. See `save_all`."""
        (saved,) = await self.save_all([queue], who)
        return saved

    async def save_all(self, queues: Iterable[QueueConfig], who: str) -> list[Saved]:
        """Insert or update parents, all or none; each becomes as given, enabled, others are left alone.

        Sub-queues that a given parent no longer lists are disabled. What is stored already changes nothing.
        """
        wanted = list(queues)
        async with self._database.write() as connection:
            stored = await read_queues(connection, [], [queue.name for queue in wanted])
            saved = [
                await self._save(connection, stored.get(queue.name), replace(queue, enabled=True), who)
                for queue in wanted
            ]
        await self.refresh()
        return saved

    async def plan(self, queues: Iterable[QueueConfig]) -> list[Planned]:
        """What `save_all` of these would do now; nothing is written."""
        wanted = [replace(queue, enabled=True) for queue in queues]
        async with self._database.read() as connection:
            stored = await read_queues(connection, [], [queue.name for queue in wanted])
        planned = []
        for queue in wanted:
            before = stored.get(queue.name)
            after, action = _outcome(before, queue)
            planned.append(Planned(before, after, action))
        return planned

    async def apply(self, request: QueueRequest, who: str, *, force: bool = False) -> Saved:
        """Create or (with ``force``) change one queue as the API has it.

        Raises `ConflictError` when the queue exists and ``force`` is not given, `ConfigurationError` when the
        request doesn't fit what is stored. A deleted queue does not count as existing.
        """
        async with self._database.write() as connection:
            stored = (await read_queues(connection, [], [request.name.parent])).get(request.name.parent)
            existed = stored is not None and _exists(stored, request.name)
            if existed and not force:
                raise ConflictError(f"queue '{request.name}' already exists. Use --force to update existing queue")
            # A deleted queue is made anew: nothing of it is inherited.
            basis = stored if stored is not None and stored.enabled else None
            saved = await self._save(connection, stored, request.applied_to(basis), who)
        await self.refresh()
        return replace(saved, action=Action.UPDATED if existed else Action.CREATED)

    async def delete(self, name: str, who: str) -> QueueConfig:
        """Disable a parent with all its sub-queues, or one sub-queue. Raises `NotFoundError`."""
        wanted = parse_queue_name(name)
        async with self._database.write() as connection:
            stored = (await read_queues(connection, [], [wanted.parent])).get(wanted.parent)
            if stored is None or not _exists(stored, wanted):
                raise NotFoundError(f"queue '{name}' not found")
            after = _all_disabled(stored) if wanted.sub is None else _switched(stored, wanted.sub, False)
            await self._write(connection, stored, after, Action.DELETED, who)
        await self.refresh()
        return after

    async def restore(self, name: str, who: str) -> QueueConfig:
        """Enable a deleted parent with all its sub-queues, or one deleted sub-queue.

        Raises `NotFoundError` when it never was, `UsageError` when it is not deleted.
        """
        wanted = parse_queue_name(name)
        async with self._database.write() as connection:
            stored = (await read_queues(connection, [], [wanted.parent])).get(wanted.parent)
            if stored is None or (wanted.sub is not None and not _has_row(stored, wanted.sub)):
                raise NotFoundError(f"queue '{name}' not found")
            if _exists(stored, wanted):
                raise UsageError(f"queue '{name}' is not deleted")
            after = _all_enabled(stored) if wanted.sub is None else _switched(stored, wanted.sub, True)
            await self._write(connection, stored, after, Action.RESTORED, who)
        await self.refresh()
        return after

    async def history(self, name: str | None = None, *, limit: int = 100, before_id: int | None = None) -> list[Change]:
        """Changes, newest first; of one parent where ``name`` is given; ``before_id`` goes on from there."""
        statement = select(queue_changes).order_by(queue_changes.c.id.desc()).limit(limit)
        if name is not None:
            statement = statement.where(queue_changes.c.queue == parse_queue_name(name).parent)
        if before_id is not None:
            statement = statement.where(queue_changes.c.id < before_id)
        async with self._database.read() as connection:
            rows = (await connection.execute(statement)).all()
        return [Change(row.id, row.queue, Action(row.action), row.who, row.at, row.before, row.after) for row in rows]

    async def _save(
        self, connection: AsyncConnection, stored: QueueConfig | None, wanted: QueueConfig, who: str
    ) -> Saved:
        after, action = _outcome(stored, wanted)
        if action is Action.UNCHANGED:
            return Saved(_enabled_part(after), action)
        return await self._write(connection, stored, after, action, who)

    async def _write(
        self, connection: AsyncConnection, before: QueueConfig | None, after: QueueConfig, action: Action, who: str
    ) -> Saved:
        now = self._clock.now()
        await write_queue(connection, after, now)
        await connection.execute(
            insert(queue_changes).values(
                queue=after.name,
                action=action.value,
                who=who,
                at=now,
                before=None if before is None else queue_document(before),
                after=queue_document(after),
            )
        )
        created_at = now if before is None else before.created_at
        return Saved(_enabled_part(replace(after, created_at=created_at, updated_at=now)), action)


def _outcome(stored: QueueConfig | None, wanted: QueueConfig) -> tuple[QueueConfig, Action]:
    """The whole parent once ``wanted`` is saved, and what that does to it."""
    if stored is None:
        return wanted, Action.CREATED
    # Sub-queues that are no longer listed stay as disabled rows.
    listed = {sub.name for sub in wanted.sub_queues}
    gone = (replace(sub, enabled=False) for sub in stored.sub_queues if sub.name not in listed)
    after = replace(wanted, sub_queues=_by_name((*wanted.sub_queues, *gone)), created_at=stored.created_at)
    if after == replace(stored, sub_queues=_by_name(stored.sub_queues)):
        return stored, Action.UNCHANGED
    return after, Action.UPDATED if stored.enabled else Action.CREATED


def _exists(queue: QueueConfig, name: QueueName) -> bool:
    if not queue.enabled:
        return False
    return name.sub is None or queue.sub_queue(name.sub) is not None


def _has_row(queue: QueueConfig, sub: str) -> bool:
    return any(each.name == sub for each in queue.sub_queues)


def _enabled_part(queue: QueueConfig) -> QueueConfig:
    return replace(queue, sub_queues=tuple(sub for sub in queue.sub_queues if sub.enabled))


def _all_disabled(queue: QueueConfig) -> QueueConfig:
    return replace(queue, enabled=False, sub_queues=tuple(replace(sub, enabled=False) for sub in queue.sub_queues))


def _all_enabled(queue: QueueConfig) -> QueueConfig:
    return replace(queue, enabled=True, sub_queues=tuple(replace(sub, enabled=True) for sub in queue.sub_queues))


def _switched(queue: QueueConfig, name: str, enabled: bool) -> QueueConfig:
    subs = (replace(sub, enabled=enabled) if sub.name == name else sub for sub in queue.sub_queues)
    return replace(queue, enabled=queue.enabled or enabled, sub_queues=tuple(subs))


def _by_name(subs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(sorted(subs, key=lambda sub: sub.name))
