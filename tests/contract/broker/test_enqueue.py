"""Enqueue: accepted once, whole, stamped, findable."""

from __future__ import annotations

import asyncio
import time

import pytest
from harness.keyspace import all_keys, misplaced, read_keyspace
from harness.lives import COMPLETE, QUEUE, active, enqueued, finish, limits, new_task, retrying, take

from runqy.broker import keys
from runqy.broker.broker import Broker
from runqy.broker.connection import ClockOffset, Connection
from runqy.broker.inspector import Inspector
from runqy.broker.transitions import EnqueueStatus
from runqy.errors import UnavailableError
from runqy.tasks.message import decode
from runqy.tasks.retry import Backoff, RetryPolicy
from runqy.tasks.state import State


async def test_the_resolved_limits_are_stamped_onto_every_task(
    broker: Broker, connection: Connection, inspector: Inspector
) -> None:
    """R1, R2, R16: the five levers stand in hash and message before anybody can pick the task up."""
    task = await enqueued(
        broker, max_retry=1, ttl_completed=3600, ttl_archived=86400, pending_timeout=300, active_timeout=30
    )
    fields = await connection.command("HGETALL", keys.task(QUEUE, task.id))
    assert {
        name: fields[name.encode()] for name in ("ttl_completed", "ttl_archived", "pending_timeout", "active_timeout")
    } == {
        "ttl_completed": b"3600",
        "ttl_archived": b"86400",
        "pending_timeout": b"300",
        "active_timeout": b"30",
    }
    message = decode(fields[b"msg"])
    assert (message.retry, message.timeout, message.retention) == (1, 30, 3600)
    view = await inspector.find(task.id)
    assert view is not None
    assert view.limits == task.limits


async def test_stamps_are_frozen_when_the_limits_of_later_tasks_change(broker: Broker) -> None:
    """R18: a task enqueued before keeps its own values through retry and a new pickup."""
    first = await enqueued(broker, max_retry=2, ttl_completed=10)
    await enqueued(broker, max_retry=0, ttl_completed=99)
    (taken,) = await take(broker)
    assert taken.id == first.id
    assert (taken.limits.max_retry, taken.limits.ttl_completed) == (2, 10)


async def test_a_zero_stamp_is_a_value_and_not_an_absence(broker: Broker) -> None:
    """R65: a stamp of 0 wins over the worker's fallback."""
    await enqueued(broker, ttl_completed=0, ttl_archived=0, pending_timeout=0, active_timeout=0, max_retry=0)
    (taken,) = await take(broker, fallback=limits(ttl_completed=5, ttl_archived=5, active_timeout=5, max_retry=5))
    assert taken.limits == limits(ttl_completed=0, ttl_archived=0, pending_timeout=0, active_timeout=0, max_retry=0)


async def test_pending_since_is_written_in_nanoseconds_of_the_clock_of_redis(
    broker: Broker, connection: Connection, clock_offset: ClockOffset
) -> None:
    clock_offset.advance(1000)
    task = await enqueued(broker)
    stamp = await connection.command("HGET", keys.task(QUEUE, task.id), "pending_since")
    assert abs(int(stamp) / 1e9 - time.time() - 1000) < 60


async def test_a_created_task_is_found_by_its_id_alone(broker: Broker, inspector: Inspector) -> None:
    task = await enqueued(broker, payload=b'{"a": [1, null, "\\u00e9"]}')
    view = await inspector.find(task.id)
    assert view is not None
    assert (view.queue, view.state, view.payload) == (QUEUE, State.PENDING, task.payload)
    assert await inspector.queues() == [QUEUE]
    assert await inspector.find("no-such-id") is None


async def test_a_batch_is_accepted_in_order_and_leaves_in_order(broker: Broker) -> None:
    tasks = [new_task() for _ in range(450)]
    answers = await broker.enqueue(tasks)
    assert [answer.status for answer in answers] == [EnqueueStatus.CREATED] * 450
    taken = [task.id for _ in range(5) for task in await take(broker, limit=100)]
    assert taken == [task.id for task in tasks]


async def test_a_task_with_a_time_to_come_is_scheduled_and_one_in_the_past_is_not(
    broker: Broker, connection: Connection
) -> None:
    later = await enqueued(broker, run_at=time.time() + 60.25)
    past = await enqueued(broker, run_at=time.time() - 60)
    keyspace = await read_keyspace(connection)
    assert keyspace.members(QUEUE, State.SCHEDULED) == [later.id]
    assert keyspace.zsets[keys.scheduled(QUEUE)][later.id] == pytest.approx(later.run_at, abs=0.001)
    assert keyspace.waiting(QUEUE) == [past.id]
    assert b"pending_since" not in await connection.command("HGETALL", keys.task(QUEUE, later.id))


async def test_an_id_that_exists_is_refused_or_recognised(broker: Broker, connection: Connection) -> None:
    task = await enqueued(broker)
    (same,) = await broker.enqueue([task])
    (other,) = await broker.enqueue([new_task(id=task.id, payload=b'"else"')])
    assert (same.status, other.status) == (EnqueueStatus.REPEATED, EnqueueStatus.EXISTS)
    keyspace = await read_keyspace(connection)
    assert keyspace.waiting(QUEUE) == [task.id]
    assert misplaced(keyspace, [QUEUE]) == []


async def test_the_same_task_twice_in_one_call_is_created_once(broker: Broker, connection: Connection) -> None:
    task = new_task()
    answers = await broker.enqueue([task, task])
    assert [answer.status for answer in answers] == [EnqueueStatus.CREATED, EnqueueStatus.REPEATED]
    assert (await read_keyspace(connection)).waiting(QUEUE) == [task.id]


async def test_a_repeated_call_is_recognised_after_the_task_has_ended(broker: Broker) -> None:
    """A fast worker may have finished the task before the caller repeats the call whose answer it missed."""
    task = await enqueued(broker)
    (taken,) = await take(broker)
    assert await finish(broker, taken, COMPLETE)
    (answer,) = await broker.enqueue([task])
    assert answer.status is EnqueueStatus.REPEATED


async def test_an_enqueue_whose_answer_is_lost_creates_its_task_once(
    broker: Broker, connection: Connection, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = connection.run, 0

    async def losing(commands: object) -> list[object]:
        nonlocal calls
        calls += 1
        replies = await real(commands)  # type: ignore[arg-type]
        if calls == 1:
            raise UnavailableError("the answer was lost")
        return replies

    # The loss of one answer can't be provoked at will on a real socket.
    monkeypatch.setattr(connection, "run", losing)
    task = new_task()
    (answer,) = await broker.enqueue([task])
    assert answer.status is EnqueueStatus.CREATED
    assert (await inspector.counts(QUEUE)).pending == 1
    assert await inspector.find(task.id) is not None


async def test_one_idempotency_key_makes_one_task(broker: Broker, connection: Connection) -> None:
    """Decision 22: the same key gives the same task, with another body it is a mismatch, in another queue nothing."""
    first = await enqueued(broker, once="k", body_hash="b1")
    again, other, elsewhere = (
        new_task(once="k", body_hash="b1"),
        new_task(once="k", body_hash="b2"),
        new_task("else", once="k", body_hash="b2"),
    )
    answers = [(await broker.enqueue([task]))[0] for task in (again, other, elsewhere)]
    assert [(a.status, a.id) for a in answers] == [
        (EnqueueStatus.REPEATED, first.id),
        (EnqueueStatus.MISMATCH, first.id),
        (EnqueueStatus.CREATED, elsewhere.id),
    ]
    left = {name for name in await all_keys(connection) if name.startswith("asynq:t:")}
    assert left == {keys.reverse(first.id), keys.reverse(elsewhere.id)}


async def test_an_idempotency_key_is_kept_a_day_or_until_the_task_has_ended(
    broker: Broker, connection: Connection, clock_offset: ClockOffset
) -> None:
    """Decision 22: while the task lives its record has no expiry; after a late end it goes at once."""
    await enqueued(broker, once="k", body_hash="b")
    record = keys.once(QUEUE, "k")
    assert await connection.command("TTL", record) == -1
    (early,) = await take(broker)
    assert await finish(broker, early, COMPLETE)
    assert 86400 - 60 <= await connection.command("TTL", record) <= 86400

    await enqueued(broker, once="late", body_hash="b")
    clock_offset.advance(200_000)
    (late,) = await take(broker)
    assert await finish(broker, late, COMPLETE)
    ends = await connection.command("EXPIRETIME", keys.once(QUEUE, "late"))
    assert abs(ends - (time.time() + 200_000)) < 60


async def test_twenty_callers_with_one_key_get_one_task(broker: Broker, inspector: Inspector) -> None:
    tasks = [new_task(once="k", body_hash="b") for _ in range(20)]
    answers = await asyncio.gather(*(broker.enqueue([task]) for task in tasks))
    assert len({answer.id for (answer,) in answers}) == 1
    assert [answer.status for (answer,) in answers].count(EnqueueStatus.CREATED) == 1
    assert (await inspector.counts(QUEUE)).pending == 1


async def test_a_full_queue_takes_no_more_and_leaves_no_trace(broker: Broker, connection: Connection) -> None:
    tasks = [new_task() for _ in range(5)]
    answers = await broker.enqueue(tasks, max_pending=3)
    assert [answer.status.value for answer in answers] == ["created"] * 3 + ["full"] * 2
    assert not {keys.reverse(tasks[3].id), keys.reverse(tasks[4].id)} & set(await all_keys(connection))
    await take(broker)
    (answer,) = await broker.enqueue([tasks[3]], max_pending=3)
    assert answer.status is EnqueueStatus.CREATED


async def test_retry_policy_handler_and_more_fields_travel_with_the_task(broker: Broker, inspector: Inspector) -> None:
    """Decision 17: stamped like the limits."""
    policy = RetryPolicy(delay=1.5, backoff=Backoff.LINEAR, max_delay=1234567.0, jitter=0.25)
    task = await enqueued(broker, retry_policy=policy, handler="resize", extra=(("webhook", "https://x.example/y"),))
    (taken,) = await take(broker)
    assert (taken.retry_policy, taken.handler) == (policy, "resize")
    view = await inspector.find(task.id)
    assert view is not None
    assert view.fields["webhook"] == b"https://x.example/y"


async def test_no_key_of_an_unfinished_task_expires(broker: Broker, connection: Connection) -> None:
    """C15, C44: pending, scheduled, active, retry: nothing that belongs to them has an end."""
    await enqueued(broker, "q.a", once="k", body_hash="b")
    await enqueued(broker, "q.b", run_at=time.time() + 999)
    await active(broker, "q.c", once="k", body_hash="b")
    await retrying(broker, "q.d", once="k", body_hash="b")
    keyspace = await read_keyspace(connection)
    counters = ("processed", "failed", "history")
    ending = {k for k, at in keyspace.expiry.items() if at != -1 and not any(word in k for word in counters)}
    assert ending == set()
