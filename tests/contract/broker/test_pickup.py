"""Pickup: by priority, not paused, too old is archived, under a lease, each task once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from harness.keyspace import misplaced, read_keyspace
from harness.lives import (
    COMPLETE,
    FALLBACK,
    GIVE_BACK,
    QUEUE,
    archived,
    enqueued,
    finish,
    limits,
    new_task,
    new_token,
    retrying,
    take,
)

from runqy.broker import keys
from runqy.broker.broker import Broker
from runqy.broker.connection import ClockOffset, Connection
from runqy.broker.inspector import Inspector
from runqy.tasks.message import TaskMessage
from runqy.tasks.state import State


async def test_a_pickup_makes_the_task_active_under_a_lease(
    broker: Broker, connection: Connection, clock_offset: ClockOffset, inspector: Inspector
) -> None:
    """R17: with the stamps in hand, R34: the time of the pickup is on the task."""
    clock_offset.advance(50)
    task = await enqueued(broker, active_timeout=7)
    clock_offset.advance(10)
    (taken,) = await take(broker, token="host:7:abc#1")
    assert (taken.id, taken.limits.active_timeout, taken.attempt, taken.ahead) == (task.id, 7, 1, False)
    assert 10 <= taken.wait < 11
    keyspace = await read_keyspace(connection)
    assert misplaced(keyspace, [QUEUE]) == []
    view = await inspector.get(QUEUE, task.id)
    assert view is not None
    assert (view.state, view.worker, view.is_orphaned, view.pending_since) == (State.ACTIVE, "host:7:abc", False, None)
    assert view.started_at is not None
    lease = keyspace.zsets[keys.lease(QUEUE)][task.id]
    assert abs(lease - view.started_at - broker.lease_seconds) < 0.01


async def test_a_task_that_waited_too_long_is_archived_unexecuted(
    broker: Broker, connection: Connection, clock_offset: ClockOffset, inspector: Inspector
) -> None:
    """R6, R10, R47, R48, C46: archived in the pickup, no retry used, with a reason of its own, not started."""
    stale = await enqueued(broker, pending_timeout=60, max_retry=3, ttl_archived=100)
    clock_offset.advance(61)
    fresh = await enqueued(broker, pending_timeout=60)
    pickup = await broker.pick_up([QUEUE], 5, token=new_token(), starting=5, fallback=FALLBACK)
    assert ([task.id for task in pickup.tasks], pickup.expired) == ([fresh.id], 1)
    view = await inspector.find(stale.id)
    assert view is not None
    assert (view.state, view.retried, view.error) == (State.ARCHIVED, 0, "pending timeout: waited 1m1s before pickup")
    assert [attempt.ending for attempt in view.attempts] == ["expired"]
    assert 99 <= await connection.command("TTL", keys.task(QUEUE, stale.id)) - 61 <= 100
    counts = await inspector.counts(QUEUE)
    assert (counts.processed, counts.failed, counts.archived, counts.active) == (1, 1, 1, 1)


async def test_an_age_below_the_limit_is_not_expired(broker: Broker, clock_offset: ClockOffset) -> None:
    """R47, Q6: strictly longer than the limit expires."""
    task = await enqueued(broker, pending_timeout=60)
    clock_offset.advance(59)
    assert [taken.id for taken in await take(broker)] == [task.id]


async def test_nothing_expires_while_no_worker_asks(
    broker: Broker, clock_offset: ClockOffset, inspector: Inspector
) -> None:
    """R49, R50: maintenance never touches pending; the check is the pickup's."""
    task = await enqueued(broker, pending_timeout=1)
    clock_offset.advance(100_000)
    for service in (broker.forward, broker.recover, broker.purge):
        await service(QUEUE)
    view = await inspector.find(task.id)
    assert view is not None
    assert view.state is State.PENDING
    assert await take(broker) == ()
    view = await inspector.find(task.id)
    assert view is not None
    assert view.state is State.ARCHIVED


async def test_waiting_counts_while_paused_and_not_in_retry(broker: Broker, clock_offset: ClockOffset) -> None:
    """R35, decision 4: counted from the last entry into pending."""
    task = await retrying(broker, pending_timeout=50)
    clock_offset.advance(1000)
    assert await broker.forward(QUEUE) == 1
    clock_offset.advance(30)
    (again,) = await take(broker)
    assert again.id == task.id
    assert await finish(broker, again, GIVE_BACK)
    await broker.pause(QUEUE)
    clock_offset.advance(30)
    await broker.resume(QUEUE)
    assert await take(broker) == ()


async def test_a_pending_since_in_seconds_is_understood(
    broker: Broker, connection: Connection, clock_offset: ClockOffset
) -> None:
    """Decision 5: the original's worker writes seconds."""
    old, young = await enqueued(broker, pending_timeout=60), await enqueued(broker, pending_timeout=60)
    await connection.command("HSET", keys.task(QUEUE, old.id), "pending_since", int(time.time()) - 70)
    await connection.command("HSET", keys.task(QUEUE, young.id), "pending_since", int(time.time()) - 5)
    assert [task.id for task in await take(broker, limit=5)] == [young.id]


async def test_queues_are_served_in_the_order_given(broker: Broker) -> None:
    """Decision 18: strictly by priority, which the caller's order is."""
    low = [await enqueued(broker, "p.low") for _ in range(2)]
    high = [await enqueued(broker, "p.high") for _ in range(2)]
    taken = await take(broker, ["p.high", "p.low"], 3)
    assert [task.id for task in taken] == [high[0].id, high[1].id, low[0].id]
    assert [task.queue for task in taken] == ["p.high", "p.high", "p.low"]


async def test_a_paused_queue_is_skipped_at_once(broker: Broker) -> None:
    """Decision 18."""
    await enqueued(broker, "p.a")
    other = await enqueued(broker, "p.b")
    assert await broker.pause("p.a")
    assert not await broker.pause("p.a")
    assert [task.id for task in await take(broker, ["p.a", "p.b"], 5)] == [other.id]
    assert await broker.resume("p.a")
    assert not await broker.resume("p.a")
    assert len(await take(broker, ["p.a", "p.b"], 5)) == 1


async def test_tasks_beyond_those_that_start_are_marked_as_held_ahead(broker: Broker, connection: Connection) -> None:
    """Decision 3: pickup marks them."""
    await broker.enqueue([new_task("p.a"), new_task("p.a"), new_task("p.b")])
    taken = await take(broker, ["p.a", "p.b"], 3, starting=1)
    assert [task.ahead for task in taken] == [False, True, True]
    marks = [await connection.command("HEXISTS", keys.task(task.queue, task.id), "ahead") for task in taken]
    assert marks == [0, 1, 1]


async def test_a_pickup_whose_answer_was_lost_gives_the_same_tasks_again(broker: Broker) -> None:
    """C06: whatever came in between, all of them and nothing else; in every queue."""
    first, second = await enqueued(broker, "p.low"), await enqueued(broker, "p.low")
    token = new_token()
    await take(broker, ["p.high", "p.low"], 5, token=token, starting=1)
    await enqueued(broker, "p.high")
    again = await take(broker, ["p.high", "p.low"], 5, token=token, starting=1, answer_lost=True)
    assert [(task.id, task.ahead) for task in again] == [(first.id, False), (second.id, True)]


async def test_a_pickup_that_never_arrived_is_an_ordinary_one_when_repeated(broker: Broker) -> None:
    task = await enqueued(broker)
    assert [t.id for t in await take(broker, answer_lost=True)] == [task.id]


async def test_fallbacks_stand_in_for_stamps_that_are_absent_or_unreadable(
    broker: Broker, connection: Connection, clock_offset: ClockOffset
) -> None:
    """R64, R73, Q31: a task put into Redis directly, or by an older server."""
    bare = TaskMessage(type=QUEUE, payload=b"1", id="bare", queue=QUEUE, retry=2).SerializeToString()
    for id_, stamp in (("bare", None), ("odd", b"abc"), ("negative", b"-5")):
        fields = ["msg", bare, "state", "pending"]
        if stamp:
            fields += ["ttl_completed", stamp, "pending_timeout", stamp]
        await connection.command("HSET", keys.task(QUEUE, id_), *fields)
        await connection.command("LPUSH", keys.pending(QUEUE), id_)
    taken = await take(broker, limit=5, fallback=limits(ttl_completed=11, active_timeout=12, max_retry=13))
    assert [task.id for task in taken] == ["bare", "odd", "negative"]
    assert {(t.limits.ttl_completed, t.limits.active_timeout, t.limits.max_retry) for t in taken} == {(11, 12, 2)}


async def test_the_workers_pending_timeout_applies_to_tasks_without_stamps(
    broker: Broker, connection: Connection, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """R64, R69, R68: the fallbacks of both the limit and the retention."""
    message = TaskMessage(type=QUEUE, id="bare", queue=QUEUE, retry=2).SerializeToString()
    await connection.command(
        "HSET", keys.task(QUEUE, "bare"), "msg", message, "state", "pending", "pending_since", 1_700_000_000
    )
    await connection.command("LPUSH", keys.pending(QUEUE), "bare")
    assert await take(broker, fallback=limits(pending_timeout=5, ttl_archived=77)) == ()
    view = await inspector.get(QUEUE, "bare")
    assert view is not None
    assert view.state is State.ARCHIVED
    assert 70 <= await connection.command("TTL", keys.task(QUEUE, "bare")) <= 77


async def test_a_task_without_a_message_is_picked_up_by_its_plain_fields(
    broker: Broker, connection: Connection
) -> None:
    """Decision 6: max_retry of the hash, else 3."""
    for id_, more in (("plain", ["max_retry", 7]), ("plainer", [])):
        await connection.command("HSET", keys.task(QUEUE, id_), "type", "resize", "payload", "[1]", *more)
        await connection.command("LPUSH", keys.pending(QUEUE), id_)
    taken = await take(broker, limit=2)
    assert [(t.id, t.type, t.payload, t.limits.max_retry) for t in taken] == [
        ("plain", "resize", b"[1]", 7),
        ("plainer", "resize", b"[1]", 3),
    ]


async def test_an_id_without_a_task_is_dropped_and_its_pointer_goes(broker: Broker, connection: Connection) -> None:
    """C41: a vanished hash crashes nothing; the worker goes on, the janitor cleans up."""
    gone, task = await enqueued(broker), await enqueued(broker)
    await connection.command("DEL", keys.task(QUEUE, gone.id))
    pickup = await broker.pick_up([QUEUE], 2, token=new_token(), starting=2, fallback=FALLBACK)
    assert ([t.id for t in pickup.tasks], pickup.dropped) == ([task.id], 1)
    await broker.purge(QUEUE)
    keyspace = await read_keyspace(connection)
    assert keys.reverse(gone.id) not in keyspace.hashes
    assert misplaced(keyspace, [QUEUE]) == []


async def test_a_message_that_nobody_can_read_is_archived_and_not_lost(
    broker: Broker, connection: Connection, inspector: Inspector
) -> None:
    """Defect 3 of the original: it dropped such ids."""
    await connection.command("HSET", keys.task(QUEUE, "broken"), "msg", b"\xff\xff\xff", "state", "pending")
    await connection.command("LPUSH", keys.pending(QUEUE), "broken")
    task = await enqueued(broker)
    assert [t.id for t in await take(broker, limit=5)] == [task.id]
    view = await inspector.get(QUEUE, "broken")
    assert view is not None
    assert view.state is State.ARCHIVED
    assert "can't be read" in view.error


async def test_a_heap_of_stale_tasks_does_not_hold_redis(broker: Broker, clock_offset: ClockOffset) -> None:
    """C46: the pickup stops at its bound of work and says that there is more."""
    await broker.enqueue([new_task(pending_timeout=5) for _ in range(1000)])
    clock_offset.advance(10)
    fresh = await enqueued(broker, pending_timeout=5)
    rounds, taken = 0, ()
    while not taken:
        pickup = await broker.pick_up([QUEUE], 10, token=new_token(), starting=10, fallback=FALLBACK)
        taken, rounds = pickup.tasks, rounds + 1
        assert taken or pickup.more
    assert [task.id for task in taken] == [fresh.id]
    assert rounds > 2


async def test_eight_workers_take_two_thousand_tasks_each_exactly_once(
    broker: Broker, connection: Connection, inspector: Inspector
) -> None:
    """Defects 3 and 4 of the original; C06."""
    queues = ["p.a", "p.b"]
    tasks = [new_task(queues[n % 2]) for n in range(2000)]
    await broker.enqueue(tasks)
    taken: list[str] = []

    async def work(name: str) -> None:
        while batch := await take(broker, queues, 7, token=new_token(name)):
            taken.extend(task.id for task in batch)
            await asyncio.gather(*(finish(broker, task, COMPLETE) for task in batch))

    await asyncio.gather(*(work(f"w{n}") for n in range(8)))
    assert Counter(taken) == Counter(task.id for task in tasks)
    counts = [await inspector.counts(queue) for queue in queues]
    assert sum(count.completed for count in counts) == 2000
    assert sum(count.pending + count.active for count in counts) == 0


async def test_the_retry_count_is_the_larger_of_message_and_hash(broker: Broker, connection: Connection) -> None:
    """asynq counts in the message, the original's recovery in the hash."""
    message = TaskMessage(type=QUEUE, id="t", queue=QUEUE, retry=5, retried=2).SerializeToString()
    await connection.command("HSET", keys.task(QUEUE, "t"), "msg", message, "state", "pending")
    await connection.command("LPUSH", keys.pending(QUEUE), "t")
    (taken,) = await take(broker)
    assert (taken.retried, taken.attempt) == (2, 3)


async def test_an_archived_task_is_not_picked_up_from_a_stray_entry(broker: Broker, connection: Connection) -> None:
    task = await archived(broker)
    await connection.command("LPUSH", keys.pending(QUEUE), task.id)
    assert await take(broker) == ()
    assert misplaced(await read_keyspace(connection), [QUEUE]) == []
