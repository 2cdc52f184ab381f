"""The transitions of tasks, each for one or many, each one atomic script per queue."""

from __future__ import annotations

import functools
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from runqy.broker import keys, reverse, scripts
from runqy.broker.connection import Command, Connection
from runqy.broker.gathering import Gatherer
from runqy.broker.history import bucket
from runqy.broker.picking import read_pickup
from runqy.broker.transitions import AttemptEnd, Enqueued, EnqueueStatus, Held, Pickup, Renewal
from runqy.errors import UnavailableError
from runqy.tasks.limits import PENDING_TIMEOUT, STAMPS, TTL_ARCHIVED, Limits, Override, Source
from runqy.tasks.message import NewTask
from runqy.tasks.outcome import Archive, Complete, Ending, GiveBack, Retry, decide_lost
from runqy.tasks.retry import RetryPolicy

LEASE_SECONDS = 30.0
BATCH = 200
"""Tasks per script call at most: about 5 ms of Redis."""
LOOKED_AT = 300
"""Ids that one pickup looks at beyond those it takes, so that a heap of expired tasks can't hold Redis. One that
is expired counts for eight."""

TASK_LOG_BYTES = 64 * 1024
"""How much of a task's output is kept (up to twice as much for a moment)."""

_Call = tuple[scripts.Script, Sequence[str], Sequence[Any]]


class Broker:
    """Moves tasks between their states in Redis.

    All methods are coroutines, may be called concurrently from one event loop, and raise `UnavailableError`
    when Redis can't be reached (then nothing, or possibly everything, has happened: repeating the call is
    safe) and `OutOfMemoryError` when it refuses writes.
    """

    def __init__(self, connection: Connection, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self.connection = connection
        self.lease_seconds = lease_seconds
        self._enqueuing: Gatherer[tuple[NewTask, int], Enqueued] = Gatherer(self._enqueue)

    async def enqueue(self, tasks: Sequence[NewTask], *, max_pending: int = 0) -> list[Enqueued]:
        """Accept tasks; one answer per task, in order. Concurrent calls are gathered into one script call.

        A task with ``run_at`` in the future becomes scheduled, any other pending. When the call returns,
        every created task is durable in Redis and can be found by its id alone. With ``max_pending`` (0: no
        bound) a queue that holds as many waiting tasks takes no more.
        """
        if len(tasks) == 1:
            return [await self._enqueuing.submit((tasks[0], max_pending))]
        answers: list[Enqueued] = []
        for chunk in _batched(tasks, BATCH):
            answers += await self._enqueue([(task, max_pending) for task in chunk])
        return answers

    async def _enqueue(self, items: Sequence[tuple[NewTask, int]]) -> list[Enqueued]:
        groups: dict[tuple[str, int, tuple[str, ...]], list[int]] = defaultdict(list)
        for index, (task, bound) in enumerate(items):
            groups[task.queue, bound, _stamps(task)].append(index)
        calls = [
            _enqueue_call(queue, bound, stamps, [items[index][0] for index in indexes])
            for (queue, bound, stamps), indexes in groups.items()
        ]
        extra: list[Command] = [("SADD", keys.QUEUES, *{queue for queue, _, _ in groups})]
        places = [(task.queue, task.id) for task, _ in items]
        if self.connection.is_cluster:
            extra += reverse.remember_commands(places)
        else:
            calls.append(reverse.remember_call(places))
        replies, repeated = await self._call_again(calls, extra)
        doubtful: set[reverse.Place] = set()
        answers = [Enqueued(EnqueueStatus.CREATED, task.id) for task, _ in items]
        for indexes, reply in zip(groups.values(), replies, strict=False):
            for at in range(0, len(reply), 3):
                index = indexes[reply[at]]
                status, known = EnqueueStatus(reply[at + 1].decode()), reply[at + 2].decode()
                if status is EnqueueStatus.REPEATED and repeated and known == items[index][0].id:
                    # Our own first try had arrived and only its answer was lost.
                    continue
                answers[index] = Enqueued(status, known)
                doubtful |= {places[index], (places[index][0], known)}
        if doubtful:
            await reverse.restore(self.connection, sorted(doubtful))
        return answers

    async def _call_again(self, calls: Sequence[_Call], extra: Sequence[Command]) -> tuple[list[Any], bool]:
        """Call; once more if the connection broke. The scripts know a repetition and change nothing twice."""
        try:
            return await self.connection.call(calls, *extra), False
        except UnavailableError:
            return await self.connection.call(calls, *extra), True

    async def pick_up(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        token: str,
        starting: int,
        fallback: Limits,
        answer_lost: bool = False,
    ) -> Pickup:
        """Take up to ``limit`` tasks, from the first queue first; paused queues are skipped.

        A task over its pending_timeout is archived in the same step. ``token`` is ``<worker id>#<number>``,
        unique per call; repeating the call with the same token and ``answer_lost`` returns the tasks of the
        first call. The first ``starting`` tasks start at once, the others are marked as held ahead.
        ``fallback`` stands in for missing stamps.
        """
        if not self.connection.is_cluster:
            return await self._pick_up(queues, limit, token, starting, fallback, answer_lost)
        taken = Pickup(())
        if answer_lost:
            # Everything that the first call took, wherever, before anything new.
            parts = [await self._pick_up([queue], 0, token, 0, fallback, True) for queue in queues]
            taken = Pickup(tuple(task for part in parts for task in part.tasks))
            if taken.tasks:
                return taken
        for queue in queues:
            wanted = limit - len(taken.tasks)
            if wanted <= 0:
                break
            starts = max(starting - len(taken.tasks), 0)
            part = await self._pick_up([queue], wanted, token, starts, fallback, False)
            taken = Pickup(
                taken.tasks + part.tasks,
                taken.expired + part.expired,
                taken.dropped + part.dropped,
                taken.more or part.more,
            )
        return taken

    async def _pick_up(
        self, queues: Sequence[str], limit: int, token: str, starting: int, fallback: Limits, answer_lost: bool
    ) -> Pickup:
        script_keys: list[str] = []
        arguments: list[Any] = [
            limit,
            limit + LOOKED_AT,
            token,
            self.lease_seconds,
            starting,
            int(answer_lost),
            fallback.value(PENDING_TIMEOUT),
            fallback.value(TTL_ARCHIVED),
        ]
        for q in queues:
            script_keys += (
                keys.pending(q),
                keys.active(q),
                keys.lease(q),
                keys.paused(q),
                keys.archived(q),
                keys.processed(q),
                keys.failed(q),
                keys.history(q),
                keys.holes(q),
            )
            arguments += (q, keys.task_prefix(q), keys.log_prefix(q), keys.once_prefix(q), keys.events_channel(q))
        (reply,) = await self.connection.call([(scripts.PICKUP, script_keys, arguments)])
        expired, dropped, more, now, rows = reply
        picked = read_pickup(queues, rows, int(now), token, fallback)
        places = [(queues[expired[i] - 1], expired[i + 1].decode()) for i in range(0, len(expired), 2)]
        await reverse.agree(self.connection, places)
        if picked.unreadable:
            await self.finish([_unreadable(*entry) for entry in picked.unreadable])
        return Pickup(tuple(picked.tasks), len(places), dropped + len(picked.unreadable), bool(more))

    async def finish(
        self, ends: Sequence[AttemptEnd], started: Sequence[Held] = (), *, recovering: bool = False
    ) -> list[bool]:
        """Write the ends of attempts; one answer per end: whether this caller still owned the task.

        ``started`` takes the held-ahead mark off tasks whose execution has begun. A superseded attempt or a
        replayed call changes nothing. With ``recovering`` only tasks whose lease has run out are touched.
        """
        calls, positions = _finish_calls(ends, started, recovering)
        if not calls:
            return []
        ended = [(end.queue, end.id) for end in ends if isinstance(end.decision, (Complete, Archive))]
        if ended and not self.connection.is_cluster:
            calls.append(reverse.agree_call(ended))
        replies = await self.connection.call(calls)
        owned = [False] * len(ends)
        for indexes, reply in zip(positions, replies, strict=False):
            for index, done in zip(indexes, reply, strict=True):
                owned[index] = bool(done)
        if self.connection.is_cluster:
            await reverse.agree(self.connection, ended)
        return owned

    async def extend(self, held: Sequence[Held]) -> Renewal:
        """Renew the leases of held tasks; tells which this worker no longer owns, and which it must cancel."""
        by_queue: dict[str, list[Held]] = defaultdict(list)
        for task in held:
            by_queue[task.queue].append(task)
        chunks = [(queue, chunk) for queue, tasks in by_queue.items() for chunk in _batched(tasks, BATCH)]
        if not chunks:
            return Renewal()
        replies = await self.connection.call(
            [
                (
                    scripts.EXTEND,
                    [keys.lease(queue)],
                    [
                        keys.task_prefix(queue),
                        self.lease_seconds,
                        *(x for task in chunk for x in (task.id, task.token)),
                    ],
                )
                for queue, chunk in chunks
            ]
        )
        rows = list(zip((chunk for _, chunk in chunks), replies, strict=True))
        return Renewal(
            tuple(chunk[index] for chunk, (lost, _) in rows for index in lost),
            tuple(chunk[index] for chunk, (_, cancelled) in rows for index in cancelled),
        )

    async def forward(self, queue: str, limit: int = 100) -> int:
        """Move scheduled and retrying tasks that are due into pending; returns how many entries were due."""
        (due,) = await self.connection.call(
            [
                (
                    scripts.FORWARD,
                    [keys.pending(queue), keys.scheduled(queue), keys.retry(queue), keys.archived(queue)],
                    [queue, keys.task_prefix(queue), keys.WAKE_CHANNEL, limit, keys.events_channel(queue)],
                )
            ]
        )
        return int(due)

    async def recover(
        self, queue: str, limit: int = 50, *, first: int = 0, fallback: Limits | None = None
    ) -> tuple[int, int]:
        """Decide again about tasks whose lease ran out; returns how many were found, and how many are active.

        ``first`` is where in the active list to look for tasks without a lease. ``fallback`` stands in for
        missing stamps.
        """
        (reply,) = await self.connection.call(
            [
                (
                    scripts.EXPIRED,
                    [keys.active(queue), keys.lease(queue)],
                    [keys.task_prefix(queue), self.lease_seconds, limit, first, limit],
                )
            ]
        )
        active, cleaned, rows = reply
        ends = [_lost_end(queue, row, fallback or Limits()) for row in rows]
        await self.finish(ends, recovering=True)
        return int(cleaned) + len(ends), int(active)

    async def purge(self, queue: str, limit: int = 50, *, fallback: Limits | None = None) -> int:
        """Remove finished tasks whose retention is over; returns how many entries were looked at.

        ``fallback`` stands in for missing stamps of tasks that the original's server archived.
        """
        ended = [keys.completed(queue), keys.archived(queue)]
        kept = (fallback or Limits()).value(TTL_ARCHIVED)
        arguments = [keys.task_prefix(queue), keys.log_prefix(queue), limit, kept]
        ((looked, gone),) = await self.connection.call([(scripts.PURGE, ended, arguments)])
        await reverse.clear(self.connection, queue, [id_.decode() for id_ in gone])
        return int(looked)

    async def append_log(self, held: Held, text: str) -> bool:
        """Keep what a task printed (the newest 64 KiB) and tell it to whoever follows; False if not the owner."""
        call: _Call = (
            scripts.APPEND_LOG,
            [keys.task(held.queue, held.id), keys.log(held.queue, held.id)],
            [held.token, text, TASK_LOG_BYTES, keys.progress_channel(held.id)],
        )
        return bool((await self.connection.call([call]))[0])

    async def progress(self, held: Held, progress: bytes) -> bool:
        """Keep the newest progress of a running task (JSON text) and tell it; False if not the owner."""
        call: _Call = (
            scripts.PROGRESS,
            [keys.task(held.queue, held.id)],
            [held.token, progress, keys.progress_channel(held.id)],
        )
        return bool((await self.connection.call([call]))[0])

    async def publish_output(self, held: Held, document: bytes) -> None:
        """Tell a piece of a streamed result (JSON text) to whoever follows the task; it is not kept."""
        await self.connection.command("PUBLISH", keys.progress_channel(held.id), b"output " + document)

    async def server_start(self) -> tuple[str, float]:
        """Which Redis process answers (its run id), and for how many seconds it has been up."""
        info = await self.connection.command("INFO", "server")
        if isinstance(info, bytes):
            pairs = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
        else:
            pairs = {str(key): str(value) for key, value in info.items()}
        return pairs.get("run_id", ""), float(pairs.get("uptime_in_seconds", 0))

    async def pause(self, queue: str) -> bool:
        """Pause a queue at once for every path; False when it already was."""
        (reply,) = await self.connection.call([(scripts.PAUSE, [keys.paused(queue)], [])])
        return bool(reply)

    async def resume(self, queue: str) -> bool:
        """Let a queue run again and wake idle workers; False when it was not paused."""
        (reply,) = await self.connection.call([(scripts.RESUME, [keys.paused(queue)], [queue, keys.WAKE_CHANNEL])])
        return bool(reply)


_T = TypeVar("_T")


def _batched(items: Sequence[_T], size: int) -> Iterable[Sequence[_T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _enqueue_call(queue: str, max_pending: int, stamps: tuple[str, ...], tasks: Sequence[NewTask]) -> _Call:
    long = any(task.once or task.run_at is not None for task in tasks) or len({t.id for t in tasks}) < len(tasks)
    arguments: list[Any] = [
        queue,
        keys.task_prefix(queue),
        keys.once_prefix(queue),
        keys.WAKE_CHANNEL,
        max_pending,
        int(long),
        len(stamps),
        *stamps,
    ]
    for task in tasks:
        arguments += (task.id, task.encode())
        if long:
            arguments += ("" if task.run_at is None else f"{task.run_at:.6f}", task.once, task.body_hash)
    return scripts.ENQUEUE, [keys.pending(queue), keys.scheduled(queue), keys.holes(queue)], arguments


def _stamps(task: NewTask) -> tuple[str, ...]:
    """The hash fields that freeze a task's limits and what else it was enqueued with."""
    return _frozen(task.limits, task.retry_policy, task.handler, task.extra)


@functools.lru_cache(maxsize=4096)
def _frozen(
    limits: Limits, retry_policy: RetryPolicy, handler: str, extra: tuple[tuple[str, str], ...]
) -> tuple[str, ...]:
    stamps = [part for lever in STAMPS for part in (lever.name, str(limits.value(lever)))]
    stamps += ("src", limits.sources)
    policy = retry_policy.stamp()
    if policy:
        stamps += ("retry_policy", policy)
    if handler:
        stamps += ("handler", handler)
    if policy or handler:
        stamps += ("more", "1")
    for name, value in extra:
        stamps += (name, value)
    return tuple(stamps)


def _finish_calls(
    ends: Sequence[AttemptEnd], started: Sequence[Held], recovering: bool
) -> tuple[list[_Call], list[list[int]]]:
    """The script calls for the ends, and for each call the positions of its ends.

    Completions go by queue, retention and whether results are kept; the rest goes by queue.
    """
    completions: dict[tuple[str, int, bool], list[int]] = defaultdict(list)
    others: dict[str, tuple[list[Held], list[int]]] = defaultdict(lambda: ([], []))
    for held in started:
        others[held.queue][0].append(held)
    for index, end in enumerate(ends):
        if isinstance(end.decision, Complete):
            kept = end.decision.result is not None
            completions[end.queue, end.limits.ttl_completed, kept].append(index)
        else:
            others[end.queue][1].append(index)
    calls = [
        _complete_call(queue, ttl, kept, [ends[i] for i in indexes])
        for (queue, ttl, kept), indexes in completions.items()
    ]
    calls += [
        _finish_call(queue, begun, [ends[i] for i in indexes], recovering) for queue, (begun, indexes) in others.items()
    ]
    return calls, [*completions.values(), *(indexes for _, indexes in others.values())]


def _complete_call(queue: str, ttl: int, kept: bool, ends: Sequence[AttemptEnd]) -> _Call:
    tokens: dict[str, int] = {}
    rows: list[Any] = []
    for end in ends:
        number = tokens.setdefault(end.token, len(tokens) + 1)
        wait = "" if end.wait is None else bucket(end.wait)
        run = bucket(end.run_time) if end.run_time > 0 else ""
        rows += (end.id, number, f"{end.run_time * 1000:.3f}", wait, run)
        if kept:
            assert isinstance(end.decision, Complete)
            rows.append(end.decision.result)
    script_keys = [
        keys.active(queue),
        keys.lease(queue),
        keys.completed(queue),
        keys.processed(queue),
        keys.failed(queue),
        keys.history(queue),
    ]
    arguments = [
        keys.task_prefix(queue),
        keys.log_prefix(queue),
        keys.once_prefix(queue),
        keys.events_channel(queue),
        ttl,
        int(kept),
        len(tokens),
        *tokens,
        *rows,
    ]
    return scripts.COMPLETE, script_keys, arguments


def _finish_call(queue: str, started: Sequence[Held], ends: Sequence[AttemptEnd], recovering: bool) -> _Call:
    arguments: list[Any] = [
        queue,
        keys.task_prefix(queue),
        keys.log_prefix(queue),
        keys.once_prefix(queue),
        keys.WAKE_CHANNEL,
        keys.events_channel(queue),
        int(recovering),
        _fallback_ttl_archived(ends),
        len(started),
    ]
    for held in started:
        arguments += (held.id, held.token)
    for end in ends:
        arguments += _end_arguments(end)
    script_keys = [
        keys.pending(queue),
        keys.active(queue),
        keys.lease(queue),
        keys.archived(queue),
        keys.retry(queue),
        keys.processed(queue),
        keys.failed(queue),
        keys.history(queue),
    ]
    return scripts.FINISH, script_keys, arguments


def _end_arguments(end: AttemptEnd) -> tuple[Any, ...]:
    run_us = round(end.run_time * 1e6)
    match end.decision:
        case Retry(delay, ending, reason):
            return "R", end.id, end.token, run_us, delay, ending.value, reason
        case Archive(ending, reason):
            return "A", end.id, end.token, run_us, end.limits.ttl_archived, ending.value, reason
        case GiveBack(free_loss):
            return "G", end.id, end.token, run_us, int(free_loss), "", ""
        case Complete():
            raise AssertionError("completions have a script of their own")


def _fallback_ttl_archived(ends: Sequence[AttemptEnd]) -> int:
    """How long a task without a stamp is kept when its cancellation overtakes the decision: never a neighbour's."""
    return next(
        (end.limits.ttl_archived for end in ends if end.limits.source(TTL_ARCHIVED) is Source.WORKER),
        TTL_ARCHIVED.default,
    )


def _unreadable(queue: str, id_: str, token: str, problem: str, limits: Limits) -> AttemptEnd:
    return AttemptEnd(queue, id_, token, Archive(Ending.FAILED, f"the task message can't be read: {problem}"), limits)


def _lost_end(queue: str, row: Sequence[Any], fallback: Limits) -> AttemptEnd:
    id_, token = row[0].decode(), row[1].decode()
    max_retry, retried, lost, ahead, policy, ttl_archived = (
        None if value is None else value.decode() for value in row[2:]
    )
    decision = decide_lost(
        max_retry=_count(max_retry, fallback.max_retry),
        retried=_count(retried, 0),
        losses=_count(lost, 0),
        free_losses=None if ahead is None else _count(ahead, 0),
        policy=RetryPolicy.read_stamp(policy),
        random=random.random(),
    )
    kept = Override(ttl_archived=_count(ttl_archived, fallback.ttl_archived))
    limits = Limits().override(kept, Source.WORKER if ttl_archived is None else Source.QUEUE)
    return AttemptEnd(queue, id_, token, decision, limits)


def _count(text: str | None, default: int) -> int:
    return int(text) if text and text.isdigit() else default
