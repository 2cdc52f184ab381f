"""Finds tasks: by id, queue and state from the indexes, by text in the newest of what the rest leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from runqy.broker.inspector import Inspector, TaskView
from runqy.errors import UsageError
from runqy.tasks.query import Query
from runqy.tasks.state import State

READ_AT_MOST = 10_000
"""tasks whose text one search reads (product decision 43)"""
IDS_PAGE = 1_000
PAGE = 50
"""tasks per look: a slice of a few milliseconds of Redis"""
ORDER = (State.ACTIVE, State.PENDING, State.RETRY, State.SCHEDULED, State.ARCHIVED, State.COMPLETED)


@dataclass(frozen=True, slots=True)
class Found:
    """One page of a search. ``cursor`` goes on from there, empty at the end."""

    tasks: tuple[TaskView, ...]
    cursor: str
    scanned: int
    limit_reached: bool = False
    """`READ_AT_MOST` tasks were read; what lies behind is read when one goes on with ``cursor``"""


@dataclass(slots=True)
class _Place:
    """Where a search stands: which queue, which state, how many of its tasks are behind it."""

    queue: int = 0
    state: int = 0
    offset: int = 0
    scanned: int = 0

    @classmethod
    def read(cls, text: str) -> _Place:
        parts = text.split(".") if text else ["0"] * 4
        if len(parts) != 4 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
            raise UsageError("invalid cursor: take it from the former answer")
        return cls(*map(int, parts))

    def text(self) -> str:
        return f"{self.queue}.{self.state}.{self.offset}.{self.scanned}"


@dataclass(slots=True)
class Search:
    """One query over the queues that a caller may see. Errors as in `Inspector`.

    Tasks that move while one pages through can be met twice or not at all; ended ones stand still.
    """

    inspector: Inspector
    query: Query
    queues: Sequence[str]
    now: float
    """unix seconds, for `older` and `newer`"""
    _wanted: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self._wanted = [queue for queue in self.queues if self.query.wants_queue(queue)]

    async def page(self, limit: int, cursor: str = "") -> Found:
        """Up to ``limit`` matches. Raises `UsageError` for a cursor of another kind."""
        if self.query.ids:
            return await self._by_id()
        place = _Place.read(cursor)
        found: list[TaskView] = []
        states = self._states()
        while place.queue < len(self._wanted):
            if place.state >= len(states):
                place.queue, place.state, place.offset = place.queue + 1, 0, 0
                continue
            if self.query.needs_text and place.scanned >= READ_AT_MOST:
                scanned, place.scanned = place.scanned, 0
                return Found(tuple(found), place.text(), scanned, limit_reached=True)
            size = min(PAGE, limit - len(found)) if not self.query.needs_text else PAGE
            queue, state = self._wanted[place.queue], states[place.state]
            views, read = await self.inspector.page(queue, state, offset=place.offset, limit=size)
            for index, view in enumerate(views):
                if view is not None and view.state is state and matches(self.query, view, self.now):
                    found.append(view)
                    if len(found) == limit:
                        place.offset, place.scanned = place.offset + index + 1, place.scanned + index + 1
                        return Found(tuple(found), place.text(), place.scanned)
            place.offset, place.scanned = place.offset + read, place.scanned + read
            if read < size:
                place.state, place.offset = place.state + 1, 0
        return Found(tuple(found), "", place.scanned)

    async def all(self, most: int, *, whole: bool = True) -> AsyncIterator[TaskView]:
        """Matches, up to ``most``; without ``whole`` only those among the first `READ_AT_MOST` that are read."""
        cursor, seen = "", 0
        while True:
            found = await self.page(PAGE, cursor)
            for view in found.tasks:
                yield view
                seen += 1
                if seen >= most:
                    return
            cursor = found.cursor
            if not cursor or (found.limit_reached and not whole):
                return

    async def ids(self, most: int) -> AsyncIterator[tuple[str, str]]:
        """Queue and id of every match, up to ``most``; where the indexes answer, no task is read."""
        if self.query.ids or self.query.needs_text:
            async for view in self.all(most):
                yield view.queue, view.id
            return
        for queue in self._wanted:
            for state in self._states():
                offset = 0
                while ids := await self.inspector.task_ids(queue, state, offset=offset, limit=min(IDS_PAGE, most)):
                    for task_id in ids:
                        yield queue, task_id
                    offset, most = offset + len(ids), most - len(ids)
                    if most <= 0:
                        return

    async def count(self, most: int) -> tuple[int, bool]:
        """How many match, and whether there may be more: by the indexes exactly, else among those first read."""
        if self.query.ids or self.query.needs_text:
            views = [view async for view in self.all(most, whole=False)]
            return len(views), await self._is_cut(len(views), most)
        return await self._indexed(), False

    async def _is_cut(self, found: int, most: int) -> bool:
        return found >= most or (not self.query.ids and await self._indexed() > READ_AT_MOST)

    async def _indexed(self) -> int:
        """How many tasks fit queue and state."""
        counts = await self.inspector.counts_of(self._wanted)
        return sum(int(getattr(entry, state.value)) for entry in counts for state in self._states())

    def _states(self) -> list[State]:
        return [state for state in ORDER if not self.query.states or state in self.query.states]

    async def _by_id(self) -> Found:
        found = []
        for task_id in dict.fromkeys(self.query.ids):
            view = await self.inspector.find(task_id)
            if (
                view is not None
                and view.queue in self._wanted
                and (not self.query.states or view.state in self.query.states)
                and matches(self.query, view, self.now)
            ):
                found.append(view)
        return Found(tuple(found), "", len(self.query.ids))


def matches(query: Query, view: TaskView, now: float) -> bool:
    """Whether a task fits everything but queue, state and id."""
    error = view.error.casefold()
    return (
        all(text in error for text in query.errors)
        and all(_ran_on(view, worker) for worker in query.workers)
        and all(handler == view.handler for handler in query.handlers)
        and _fits_age(query, view, now)
        and (not query.payload or _fits_payload(query, view))
        and all(word in view.id.casefold() or word in error or _in_payload(word, view) for word in query.words)
    )


def _ran_on(view: TaskView, worker: str) -> bool:
    last = view.attempts[-1].worker if view.attempts else ""
    return worker in {view.worker, last}


def _fits_age(query: Query, view: TaskView, now: float) -> bool:
    if not query.has_age:
        return True
    since = view.completed_at or view.last_failed_at or view.pending_since
    if since is None:
        return False
    age = now - since
    return (query.older is None or age > query.older) and (query.newer is None or age < query.newer)


def _in_payload(word: str, view: TaskView) -> bool:
    return word in view.payload.decode("utf-8", "replace").casefold()


def _fits_payload(query: Query, view: TaskView) -> bool:
    try:
        document = msgspec.json.decode(view.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return all(_is_value(_at(document, path), wanted) for path, wanted in query.payload)


_NOTHING = object()


def _at(document: Any, path: Sequence[str]) -> Any:
    for part in path:
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list) and part.isascii() and part.isdigit() and int(part) < len(document):
            document = document[int(part)]
        else:
            return _NOTHING
    return document


def _is_value(value: Any, wanted: str) -> bool:
    if value is _NOTHING:
        return False
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return wanted == "*" or text.casefold() == wanted.casefold()
