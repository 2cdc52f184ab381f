"""Lost leases: found within two lease periods, charged as decided, never over the head of a living owner."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from harness.keyspace import misplaced, read_keyspace
from harness.lives import (
    COMPLETE,
    FAIL,
    FALLBACK,
    GIVE_BACK,
    QUEUE,
    active,
    end_of,
    enqueued,
    finish,
    held,
    limits,
    new_task,
    new_token,
    take,
)

from runqy.broker import keys
from runqy.broker.broker import Broker
from runqy.broker.connection import ClockOffset, Connection
from runqy.broker.history import History, quantile
from runqy.broker.inspector import Inspector, TaskView
from runqy.broker.operator import Operator
from runqy.broker.transitions import ActionStatus
from runqy.tasks.message import TaskMessage
from runqy.tasks.outcome import Complete
from runqy.tasks.retry import Backoff, RetryPolicy
from runqy.tasks.state import Action, State


async def seen(inspector: Inspector, id_: str) -> TaskView:
    view = await inspector.get(QUEUE, id_)
    assert view is not None
    return view


async def lose(broker: Broker, clock_offset: ClockOffset) -> None:
    """The worker is gone for longer than a lease, and somebody looks."""
    clock_offset.advance(broker.lease_seconds + 0.1)
    await broker.recover(QUEUE)


async def test_a_lost_lease_goes_straight_back_the_first_time_and_waits_later(
    broker: Broker, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """C01, C13, decision 16: charged one retry each time; the second waits for the queue's delay."""
    policy = RetryPolicy(100.0, Backoff.FIXED, jitter=0.0)
    task = await enqueued(broker, max_retry=2, retry_policy=policy)
    await take(broker, token="box:1:aa#1")
    await lose(broker, clock_offset)
    view = await seen(inspector, task.id)
    assert (view.state, view.retried, view.error) == (State.PENDING, 1, "lease expired")
    assert (view.attempts[0].worker, view.attempts[0].ending) == ("box:1:aa", "lost")
    await take(broker)
    await lose(broker, clock_offset)
    assert (await seen(inspector, task.id)).state is State.RETRY
    clock_offset.advance(101)
    await broker.forward(QUEUE)
    await take(broker)
    await lose(broker, clock_offset)
    view = await seen(inspector, task.id)
    assert (view.state, view.retried) == (State.ARCHIVED, 2)
    assert "lease expired" in view.error
    assert len(view.attempts) == 3


async def test_a_lease_that_is_renewed_is_not_lost(
    broker: Broker, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """C09: a task five leases long is started once."""
    task = await active(broker)
    for _ in range(15):
        clock_offset.advance(10)
        assert (await broker.extend([held(task)])).lost == ()
        assert await broker.recover(QUEUE) == (0, 1)
    assert (await seen(inspector, task.id)).state is State.ACTIVE
    assert await finish(broker, task, COMPLETE)


async def test_a_task_held_ahead_is_lost_at_no_cost_three_times_in_a_row(
    broker: Broker, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """Decision 3, C07: the fourth loss is charged, so no poison task hides behind the mark."""
    task = await enqueued(broker, max_retry=1)
    since = (await seen(inspector, task.id)).pending_since
    for _ in range(3):
        await take(broker, starting=0)
        await lose(broker, clock_offset)
        view = await seen(inspector, task.id)
        assert (view.state, view.retried, view.pending_since) == (State.PENDING, 0, since)
    await take(broker, starting=0)
    await lose(broker, clock_offset)
    assert (await seen(inspector, task.id)).retried == 1


async def test_a_start_ends_the_row_of_free_losses(
    broker: Broker, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """Decision 3: the mark goes with the batch that follows the start; then a loss is charged."""
    task = await enqueued(broker, max_retry=5)
    for _ in range(2):
        await take(broker, starting=0)
        await lose(broker, clock_offset)
    (taken,) = await take(broker, starting=0)
    await broker.finish([], [held(taken)])
    await lose(broker, clock_offset)
    assert (await seen(inspector, task.id)).retried == 1
    for _ in range(3):
        await take(broker, starting=0)
        await lose(broker, clock_offset)
    assert (await seen(inspector, task.id)).retried == 1


async def test_a_pickup_that_starts_at_once_takes_the_mark_of_earlier_losses_off(
    broker: Broker, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """Decision 3: what starts at its pickup is charged when it is lost."""
    task = await enqueued(broker, max_retry=5)
    await take(broker, starting=0)
    await lose(broker, clock_offset)
    await take(broker, starting=1)
    await lose(broker, clock_offset)
    assert (await seen(inspector, task.id)).retried == 1


async def test_recovery_touches_no_lease_that_was_renewed_meanwhile(
    broker: Broker, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """C05, Q29: between the look and the decision the owner may renew; lease and token are checked again."""
    task = await active(broker)
    clock_offset.advance(broker.lease_seconds + 1)
    await broker.extend([held(task)])
    assert await broker.finish([end_of(task, GIVE_BACK), end_of(task, FAIL)], recovering=True) == [False, False]
    assert (await seen(inspector, task.id)).state is State.ACTIVE


async def test_free_losses_return_to_the_front_in_order(broker: Broker, clock_offset: ClockOffset) -> None:
    tasks = [await enqueued(broker) for _ in range(3)]
    for _ in tasks[:2]:
        await take(broker, starting=0)
        clock_offset.advance(0.01)
    await lose(broker, clock_offset)
    assert [task.id for task in await take(broker, limit=3)] == [task.id for task in tasks]


async def test_a_poison_task_starts_a_bounded_number_of_times(
    broker: Broker, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """C07: at most max_retry + 1 starts and three that nobody was told of; healthy tasks behind it are served."""
    policy = RetryPolicy(0.0, Backoff.FIXED, jitter=0.0)
    poison = await enqueued(broker, max_retry=1, retry_policy=policy)
    healthy = [await enqueued(broker) for _ in range(10)]
    starts = 0
    for _ in range(30):
        for task in await take(broker, limit=3, starting=1):
            if task.id == poison.id:
                starts += 1
                break  # and its worker is dead
            await finish(broker, task, COMPLETE)
        await lose(broker, clock_offset)
    assert 2 <= starts <= 2 + 3
    assert (await seen(inspector, poison.id)).state is State.ARCHIVED
    assert (await inspector.counts(QUEUE)).completed == len(healthy)


async def test_with_no_retries_a_lost_task_is_archived(
    broker: Broker, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """R3, R9, C13."""
    task = await active(broker, max_retry=0)
    await lose(broker, clock_offset)
    assert (await seen(inspector, task.id)).state is State.ARCHIVED


async def test_a_cancel_of_a_dead_workers_task_takes_effect_at_recovery(
    broker: Broker, operator: Operator, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """C25: it neither starts nor tries again, and says why, with retries left or not."""
    for max_retry in (3, 0):
        task = await active(broker, max_retry=max_retry)
        (answer,) = await operator.act(Action.CANCEL, QUEUE, [task.id])
        assert answer.status is ActionStatus.ASKED
        await lose(broker, clock_offset)
        view = await seen(inspector, task.id)
        assert (view.state, view.error, view.attempts[-1].ending) == (State.ARCHIVED, "cancelled", "cancelled")


async def test_a_lease_entry_that_vanished_is_made_again(
    broker: Broker, connection: Connection, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """C44: the owner goes on; without an owner the task is found one lease later."""
    mine, orphan = await active(broker), await active(broker)
    await connection.command("DEL", keys.lease(QUEUE))
    assert (await broker.extend([held(mine)])).lost == ()
    assert await broker.recover(QUEUE) == (0, 2)
    assert set((await read_keyspace(connection)).zsets[keys.lease(QUEUE)]) == {mine.id, orphan.id}
    clock_offset.advance(20)
    await broker.extend([held(mine)])
    clock_offset.advance(11)
    await broker.recover(QUEUE)
    assert (await seen(inspector, orphan.id)).state is State.PENDING
    assert (await seen(inspector, mine.id)).state is State.ACTIVE


async def test_entries_that_need_nothing_hide_none_that_do(
    broker: Broker, connection: Connection, clock_offset: ClockOffset
) -> None:
    """Leases of vanished tasks are cleaned, and the batches go on behind them."""
    await broker.enqueue([new_task() for _ in range(40)])
    taken = [task for _ in range(2) for task in await take(broker, limit=20)]
    for task in taken[:35]:
        await connection.command("DEL", keys.task(QUEUE, task.id))
    clock_offset.advance(broker.lease_seconds + 1)
    for _ in range(5):
        await broker.recover(QUEUE, 10)
    keyspace = await read_keyspace(connection)
    assert sorted(keyspace.waiting(QUEUE)) == sorted(task.id for task in taken[35:])
    assert keyspace.members(QUEUE, State.ACTIVE) == []
    assert keys.lease(QUEUE) not in keyspace.zsets


async def test_tasks_of_the_originals_worker_are_recovered_too(
    broker: Broker, connection: Connection, inspector: Inspector
) -> None:
    """R71, R72: no attempt token, a lease in whole seconds, retries counted in hash or message."""
    message = TaskMessage(type=QUEUE, id="old", queue=QUEUE, retry=1, retried=1).SerializeToString()
    await connection.command("HSET", keys.task(QUEUE, "old"), "msg", message, "state", "active")
    await connection.command("LPUSH", keys.active(QUEUE), "old")
    await connection.command("ZADD", keys.lease(QUEUE), 1_700_000_000, "old")
    await broker.recover(QUEUE, fallback=limits(ttl_archived=60))
    view = await seen(inspector, "old")
    assert (view.state, view.retried) == (State.ARCHIVED, 1)
    assert 50 < await connection.command("TTL", keys.task(QUEUE, "old")) <= 60


async def test_the_recovery_delay_does_not_count_as_waiting_or_running(
    broker: Broker, connection: Connection, clock_offset: ClockOffset
) -> None:
    await active(broker)
    await lose(broker, clock_offset)
    now = time.time() + clock_offset.microseconds / 1e6
    (slot,) = await History(connection).hours(QUEUE, now - 7200, now + 60)
    assert (slot.processed, slot.failed, slot.runs) == (1, 1, {})
    longest = quantile(slot.waits, 1.0)
    assert longest is not None
    assert longest < broker.lease_seconds / 2


@pytest.mark.parametrize("worker_count", [6])
async def test_finish_and_recovery_race_to_one_end(
    connection: Connection, inspector: Inspector, worker_count: int
) -> None:
    """C05: leases of 50 ms, tasks of 45 to 55 ms. A completed task stays completed with its own result, each is in
    one place, and none starts more often than its retries allow."""
    broker = Broker(connection, lease_seconds=0.05)
    rng = random.Random(5)
    tasks = [new_task(max_retry=3, retry_policy=RetryPolicy(0.0, Backoff.FIXED, jitter=0.0)) for _ in range(400)]
    await broker.enqueue(tasks)
    starts: dict[str, int] = {task.id: 0 for task in tasks}
    owned: dict[str, list[bytes]] = {task.id: [] for task in tasks}
    done = asyncio.Event()

    async def work(name: str) -> None:
        while not done.is_set():
            batch = await take(broker, limit=10, token=new_token(name))
            for task in batch:
                starts[task.id] += 1
            await asyncio.sleep(rng.uniform(0.045, 0.055))
            results = [b'"%s %d"' % (task.id.encode(), task.attempt) for task in batch]
            ends = [end_of(task, Complete(result)) for task, result in zip(batch, results, strict=True)]
            answers = await broker.finish(ends) if ends else []
            for task, result, mine in zip(batch, results, answers, strict=True):
                if mine:
                    owned[task.id].append(result)

    async def sweep() -> None:
        while not done.is_set():
            await broker.recover(QUEUE)
            await broker.forward(QUEUE)

    async def watch() -> None:
        while True:
            counts = await inspector.counts(QUEUE)
            if counts.completed + counts.archived == len(tasks):
                done.set()
                return
            await asyncio.sleep(0.02)

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(f"w{n}") for n in range(worker_count)), sweep(), sweep(), watch())
    assert misplaced(await read_keyspace(connection), [QUEUE]) == []
    for task in tasks:
        view = await seen(inspector, task.id)
        assert starts[task.id] <= 4
        assert len(owned[task.id]) == (view.state is State.COMPLETED)
        assert view.result == (owned[task.id][0] if owned[task.id] else None)
        assert len(view.attempts) == view.retried + 1


async def test_a_pickup_never_hands_out_what_was_given_back_twice(broker: Broker) -> None:
    task = await active(broker)
    assert await finish(broker, task, GIVE_BACK)
    assert not await finish(broker, task, GIVE_BACK)
    pickup = await broker.pick_up([QUEUE], 5, token=new_token(), starting=5, fallback=FALLBACK)
    assert [t.id for t in pickup.tasks] == [task.id]
