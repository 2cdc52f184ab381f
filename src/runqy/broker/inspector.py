"""Reads: one task, lists, counts. Generic over the state; entries whose task is gone are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from runqy.broker import keys
from runqy.broker.connection import Command, Connection
from runqy.broker.picking import read_since
from runqy.tasks.limits import FOREVER_SECONDS, STAMPS, Limits, read_stamps
from runqy.tasks.message import MessageError, TaskMessage, decode
from runqy.tasks.state import State

_LISTS = (State.PENDING, State.ACTIVE)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that ended. Times are unix seconds."""

    number: int
    worker: str
    started_at: float
    ended_at: float
    ending: str
    reason: str


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task as it stands in Redis. Times are unix seconds, None where there is none.

    ``result`` is JSON text; ``result_stored`` is False for a completed task whose queue keeps no results.
    ``next_process_at`` is when a scheduled or retrying task becomes pending. ``expires_at`` is when an ended
    one will be gone, None for never.
    """

    id: str
    queue: str
    type: str
    state: State
    payload: bytes
    result: bytes | None
    max_retry: int
    retried: int
    error: str
    limits: Limits
    last_failed_at: float | None = None
    completed_at: float | None = None
    next_process_at: float | None = None
    pending_since: float | None = None
    expires_at: float | None = None
    started_at: float | None = None
    worker: str = ""
    handler: str = ""
    is_orphaned: bool = False
    attempts: tuple[Attempt, ...] = ()
    fields: dict[str, bytes] = field(default_factory=dict, repr=False)
    """every other field of the hash, as it is"""

    @property
    def result_stored(self) -> bool:
        return self.state is not State.COMPLETED or self.result is not None


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many tasks a queue holds in each state, and how it does.

    ``latency`` is the age of the oldest pending task in seconds. ``processed`` and ``failed`` are totals.
    """

    queue: str
    pending: int = 0
    active: int = 0
    scheduled: int = 0
    retry: int = 0
    archived: int = 0
    completed: int = 0
    paused: bool = False
    latency: float = 0.0
    processed: int = 0
    failed: int = 0

    @property
    def size(self) -> int:
        return self.pending + self.active + self.scheduled + self.retry + self.archived + self.completed


class Inspector:
    """Reads tasks and queues. Errors as in `Connection`; nothing here changes a task."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def queue_of(self, task_id: str) -> str | None:
        """The queue of a task by its id alone; None when nobody knows the id."""
        name = await self._connection.command("HGET", keys.reverse(task_id), "queue")
        return None if name is None else str(name.decode())

    async def find(self, task_id: str) -> TaskView | None:
        """One task by its id alone."""
        queue = await self.queue_of(task_id)
        return None if queue is None else await self.get(queue, task_id)

    async def get(self, queue: str, task_id: str) -> TaskView | None:
        """One task of a queue."""
        (view,) = await self._views(queue, [task_id])
        return view

    async def task_log(self, queue: str, task_id: str) -> str | None:
        """What a task printed, its last 64 KiB; empty for one that printed nothing, None for no such task."""
        exists, text = await self._connection.replies(
            [("EXISTS", keys.task(queue, task_id)), ("GETRANGE", keys.log(queue, task_id), -65536, -1)]
        )
        return text.decode("utf-8", "replace") if exists else None

    async def list_tasks(self, queue: str, state: State, *, offset: int = 0, limit: int = 20) -> list[TaskView]:
        """Tasks in one state: oldest first for the waiting ones, newest first for the ended ones."""
        views, _ = await self.page(queue, state, offset=offset, limit=limit)
        return [view for view in views if view is not None and view.state is state]

    async def page(self, queue: str, state: State, *, offset: int, limit: int) -> tuple[list[TaskView | None], int]:
        """As `list_tasks`, but entry by entry: None where the task is gone, and how many entries were read."""
        ids = await self.task_ids(queue, state, offset=offset, limit=limit)
        return await self._views(queue, ids), len(ids)

    async def task_ids(self, queue: str, state: State, *, offset: int = 0, limit: int = 20) -> list[str]:
        """The ids of `list_tasks`, those of tasks that are gone too."""
        return [id_.decode() for id_ in await self._ids(queue, state, offset, limit)]

    async def _ids(self, queue: str, state: State, offset: int, limit: int) -> Sequence[bytes]:
        key = keys.container(queue, state)
        if limit <= 0:
            return []
        if state in _LISTS:
            # The oldest leave at the right end.
            ids: list[bytes] = await self._connection.command("LRANGE", key, -(offset + limit), -(offset + 1))
            return ids[::-1]
        verb = "ZREVRANGE" if state in {State.COMPLETED, State.ARCHIVED} else "ZRANGE"
        found: list[bytes] = await self._connection.command(verb, key, offset, offset + limit - 1)
        return found

    async def queues(self) -> list[str]:
        """Full names of all registered queues, sorted."""
        names = await self._connection.command("SMEMBERS", keys.QUEUES)
        return sorted(name.decode() for name in names)

    async def register_queues(self, names: Iterable[str]) -> None:
        """Make queues known to every reader (asynq's tools too)."""
        names = list(names)
        if names:
            await self._connection.command("SADD", keys.QUEUES, *names)

    async def unregister_queues(self, names: Iterable[str]) -> None:
        """Take queues off the list; their tasks stay."""
        names = list(names)
        if names:
            await self._connection.command("SREM", keys.QUEUES, *names)

    async def counts(self, queue: str) -> QueueCounts:
        """Sizes, pause, age of the oldest waiting task, totals; a handful of O(1) commands."""
        return (await self.counts_of([queue]))[0]

    async def counts_of(self, queues: Sequence[str]) -> list[QueueCounts]:
        """`counts` of many queues in two round trips."""
        if not queues:
            return []
        commands: list[Command] = [("TIME",)]
        for queue in queues:
            commands += [
                ("LLEN", keys.pending(queue)),
                ("LLEN", keys.active(queue)),
                ("ZCARD", keys.scheduled(queue)),
                ("ZCARD", keys.retry(queue)),
                ("ZCARD", keys.archived(queue)),
                ("ZCARD", keys.completed(queue)),
                ("EXISTS", keys.paused(queue)),
                ("GET", keys.processed(queue)),
                ("GET", keys.failed(queue)),
                ("GET", keys.holes(queue)),
                ("LINDEX", keys.pending(queue), -1),
            ]
        replies = await self._connection.replies(commands)
        now = self._time(replies[0])
        rows = [replies[1 + 11 * i : 12 + 11 * i] for i in range(len(queues))]
        latencies = await self._latencies([(q, row[10]) for q, row in zip(queues, rows, strict=True)], now)
        return [_counts(queue, row, latency) for queue, row, latency in zip(queues, rows, latencies, strict=True)]

    async def _latencies(self, oldest: Sequence[tuple[str, bytes | None]], now: float) -> list[float]:
        commands: list[Command] = [
            ("HGET", keys.task(queue, id_.decode()), "pending_since") for queue, id_ in oldest if id_ is not None
        ]
        stamps = iter(await self._connection.replies(commands))
        latencies = []
        for _, id_ in oldest:
            since = read_since(next(stamps)) if id_ is not None else None
            latencies.append(max(now - since, 0.0) if since is not None else 0.0)
        return latencies

    async def _views(self, queue: str, ids: Sequence[str]) -> list[TaskView | None]:
        """Tasks by id, None where there is none; two round trips for all of them."""
        if not ids:
            return []
        commands: list[Command] = [("TIME",)]
        commands += [("HGETALL", keys.task(queue, id_)) for id_ in ids]
        now_reply, *hashes = await self._connection.replies(commands)
        now = self._time(now_reply)
        states = [_read_state(h) for h in hashes]
        scores = await self._scores(queue, ids, states)
        return [
            _view(queue, id_, h, state, score, now) if state is not None else None
            for id_, h, state, score in zip(ids, hashes, states, scores, strict=True)
        ]

    async def _scores(self, queue: str, ids: Sequence[str], states: Sequence[State | None]) -> list[float | None]:
        commands: list[Command] = [
            ("ZSCORE", keys.lease(queue) if state is State.ACTIVE else keys.container(queue, state), id_)
            for id_, state in zip(ids, states, strict=True)
            if state is not None and state is not State.PENDING
        ]
        replies = iter(await self._connection.replies(commands))
        scores: list[float | None] = []
        for state in states:
            if state is None or state is State.PENDING:
                scores.append(None)
                continue
            reply = next(replies)
            scores.append(None if reply is None else float(reply))
        return scores

    def _time(self, reply: Sequence[Any]) -> float:
        """Redis's clock as the scripts see it."""
        return int(reply[0]) + (int(reply[1]) + self._connection.offset.microseconds) / 1e6


def _counts(queue: str, row: Sequence[Any], latency: float) -> QueueCounts:
    pending, active, scheduled, retry, archived, completed, paused, processed, failed, holes = (
        int(x or 0) for x in row[:10]
    )
    return QueueCounts(
        queue,
        max(pending - holes, 0),
        active,
        scheduled,
        retry,
        archived,
        completed,
        bool(paused),
        latency,
        processed,
        failed,
    )


def _read_state(fields: Any) -> State | None:
    h = _pairs(fields)
    try:
        return State(h[b"state"].decode()) if b"state" in h else None
    except ValueError:
        return None


def _pairs(fields: Any) -> dict[bytes, bytes]:
    if isinstance(fields, dict):
        return fields
    return dict(zip(fields[::2], fields[1::2], strict=True))


def _number(text: bytes | None) -> int | None:
    return int(text) if text and text.isdigit() else None


_OWN_FIELDS = frozenset(
    {b"msg", b"state", b"pending_since", b"src", b"retried", b"result", b"completed_at", b"last_failed_at"}
    | {b"error_msg", b"attempt", b"attempts", b"more", b"handler", b"type", b"payload", b"max_retry"}
    | {lever.name.encode() for lever in STAMPS}
)


def _message(id_: str, queue: str, h: dict[bytes, bytes]) -> tuple[TaskMessage, str]:
    """The task's message; where there is none, or none that can be read, what the hash says; and the problem."""
    if b"msg" in h:
        try:
            return decode(h[b"msg"]), ""
        except MessageError as error:
            return TaskMessage(id=id_, type=queue, queue=queue), f"the task message can't be read: {error}"
    type_ = h.get(b"type", queue.encode()).decode("utf-8", "replace")
    message = TaskMessage(id=id_, type=type_, queue=queue, payload=h.get(b"payload", b""))
    message.retry = _number(h.get(b"max_retry")) or 0
    return message, ""


def _view(queue: str, id_: str, fields: Any, state: State, score: float | None, now: float) -> TaskView:
    h = _pairs(fields)
    message, problem = _message(id_, queue, h)
    stamps: dict[str, str | bytes | None] = {lever.name: h.get(lever.name.encode()) for lever in STAMPS}
    ended = state in {State.COMPLETED, State.ARCHIVED}
    waiting = state in {State.SCHEDULED, State.RETRY}
    error = h.get(b"error_msg", b"").decode("utf-8", "replace") or message.error_msg or problem
    worker, started_at = _holder(h.get(b"attempt"))
    return TaskView(
        id=id_,
        queue=queue,
        type=message.type or queue,
        state=state,
        payload=message.payload,
        result=h.get(b"result"),
        max_retry=message.retry,
        retried=max(_number(h.get(b"retried")) or 0, message.retried),
        error=error,
        limits=read_stamps(stamps, message.retry, h.get(b"src", b"").decode(), Limits()),
        last_failed_at=_number(h.get(b"last_failed_at")) or message.last_failed_at or None,
        completed_at=_number(h.get(b"completed_at")) or message.completed_at or None,
        next_process_at=score if waiting else (now if state is State.PENDING else None),
        pending_since=read_since(h.get(b"pending_since")),
        expires_at=score if ended and score is not None and score - now < FOREVER_SECONDS / 2 else None,
        started_at=started_at,
        worker=worker,
        handler=h.get(b"handler", b"").decode("utf-8", "replace"),
        is_orphaned=state is State.ACTIVE and (score is None or score <= now),
        attempts=_attempts(h.get(b"attempts")),
        fields={name.decode("utf-8", "replace"): value for name, value in h.items() if name not in _OWN_FIELDS},
    )


def _holder(attempt: bytes | None) -> tuple[str, float | None]:
    """Who holds an active task, and since when: `token pending_since picked-up-us`."""
    if not attempt:
        return "", None
    token, _, rest = attempt.decode("utf-8", "replace").partition(" ")
    picked = rest.partition(" ")[2]
    return token.rpartition("#")[0], int(picked) / 1e6 if picked.isdigit() else None


def _attempts(lines: bytes | None) -> tuple[Attempt, ...]:
    attempts = []
    for line in (lines or b"").split(b"\n"):
        if not line:
            continue
        try:
            number, worker, ended, run_ms, ending, reason = msgspec.json.decode(line)
        except (msgspec.DecodeError, ValueError):
            continue
        attempts.append(Attempt(number, worker, (ended - run_ms) / 1000, ended / 1000, ending, reason))
    return tuple(attempts)
