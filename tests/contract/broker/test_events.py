"""Events: wake-ups, ends, orders; and after every interruption everybody looks again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.lives import COMPLETE, FAIL, QUEUE, active, completed, end_of, enqueued, finish, new_task, retrying, take
from harness.redis_servers import redis_binary, running
from harness.waiting import eventually

from runqy.broker import keys
from runqy.broker.broker import Broker
from runqy.broker.connection import ClockOffset, Connection, connected
from runqy.broker.events import DELETED, Events
from runqy.broker.operator import Operator
from runqy.broker.workers import WorkerRegistry
from runqy.errors import UnavailableError
from runqy.tasks.state import Action


@pytest.fixture
async def events(connection: Connection) -> AsyncIterator[Events]:
    """Listening to everything."""
    events = Events(connection, task_ends=True)
    await events.start()
    await asyncio.wait_for(events.wait_connected(), 10)
    yield events
    await events.stop()


class Told(list[str]):
    """What was told, in order."""

    async def has(self, *wanted: str) -> None:
        await eventually(lambda: list(wanted) == self[: len(wanted)], 10, f"{wanted} in {self}")


async def test_a_queue_that_gets_work_wakes_its_workers(
    broker: Broker, connection: Connection, clock_offset: ClockOffset
) -> None:
    """Once when the list was empty; at a resume; when retries are due; not for other queues."""
    events, woken = Events(connection), Told()
    events.subscribe_wake([QUEUE, "other.q"], woken.append)
    await events.start()
    await eventually(lambda: len(woken) == 2, 10, "everybody looks once after the connection")
    woken.clear()
    await enqueued(broker)
    await enqueued(broker)
    await enqueued(broker, "third.q")
    await woken.has(QUEUE)
    await broker.pause(QUEUE)
    await broker.resume(QUEUE)
    await woken.has(QUEUE, QUEUE)
    await retrying(broker, "other.q")
    await woken.has(QUEUE, QUEUE, "other.q")
    clock_offset.advance(3600)
    await broker.forward("other.q")
    await woken.has(QUEUE, QUEUE, "other.q", "other.q")
    await asyncio.sleep(0)
    assert len(woken) == 4
    await events.stop()


@pytest.mark.parametrize("decision", [COMPLETE, FAIL], ids=["completed", "archived"])
async def test_whoever_waits_learns_of_the_end_at_once(broker: Broker, events: Events, decision: object) -> None:
    """Decision 20, defect 71 of the original: within milliseconds, a thousand waiters on one connection."""
    task = await active(broker)
    waiters = [asyncio.create_task(events.wait_for_end(QUEUE, task.id, 30)) for _ in range(1000)]
    await asyncio.sleep(0.05)
    assert not any(waiter.done() for waiter in waiters)
    begin = time.monotonic()
    await finish(broker, task, decision)  # type: ignore[arg-type]
    assert all(await asyncio.gather(*waiters))
    assert time.monotonic() - begin < 1.0


async def test_an_end_that_came_before_is_seen_without_waiting(broker: Broker, events: Events) -> None:
    task = await completed(broker)
    assert await events.wait_for_end(QUEUE, task.id, 30)
    assert await events.wait_for_end(QUEUE, "nobody", 30)


async def test_waiting_ends_with_its_time(broker: Broker, events: Events) -> None:
    task = await enqueued(broker)
    begin = time.monotonic()
    assert not await events.wait_for_end(QUEUE, task.id, 0.2)
    assert not await events.wait_for_end(QUEUE, task.id, 0)
    assert 0.2 <= time.monotonic() - begin < 5


async def test_every_way_to_an_end_is_told(
    broker: Broker, operator: Operator, events: Events, clock_offset: ClockOffset
) -> None:
    """Expiry at pickup, lost lease, cancel, delete: a waiter hears of each."""
    expired = await enqueued(broker, "q.a", pending_timeout=1)
    lost = await active(broker, "q.b", max_retry=0)
    cancelled, deleted = await enqueued(broker, "q.c"), await enqueued(broker, "q.d")
    waiters = [
        asyncio.create_task(events.wait_for_end(queue, task.id, 30))
        for queue, task in (("q.a", expired), ("q.b", lost), ("q.c", cancelled), ("q.d", deleted))
    ]
    await asyncio.sleep(0.05)
    clock_offset.advance(broker.lease_seconds + 2)
    await take(broker, "q.a")
    await broker.recover("q.b")
    await operator.act(Action.CANCEL, "q.c", [cancelled.id])
    await operator.act(Action.DELETE, "q.d", [deleted.id])
    begin = time.monotonic()
    assert await asyncio.gather(*waiters) == [True] * 4
    assert time.monotonic() - begin < 2


async def test_changes_are_told_with_queue_state_and_id(broker: Broker, operator: Operator, events: Events) -> None:
    told = Told()
    events.subscribe_changes(lambda queue, state, id_: told.append(f"{queue} {state} {id_}"))
    first, second, third = await active(broker), await active(broker), await enqueued(broker)
    await broker.finish([end_of(first, COMPLETE), end_of(second, COMPLETE)])
    await operator.act(Action.DELETE, QUEUE, [third.id])
    await eventually(lambda: len(told) >= 3, 10)
    assert told == Told(
        [f"{QUEUE} completed {first.id}", f"{QUEUE} completed {second.id}", f"{QUEUE} {DELETED} {third.id}"]
    )


async def test_cancels_and_orders_reach_workers(
    broker: Broker, operator: Operator, connection: Connection, events: Events
) -> None:
    """Decision 19, decision 41, defect 19 of the original: asynq's own cancel channel."""
    cancels, orders = Told(), Told()
    events.subscribe_cancel(cancels.append)
    events.subscribe_control(orders.append)
    task = await active(broker)
    await operator.act(Action.CANCEL, QUEUE, [task.id])
    await cancels.has(task.id)
    version = await WorkerRegistry(connection).publish_config_change()
    await orders.has('{"order":"configuration"}')
    assert await WorkerRegistry(connection).config_version() == version


async def test_a_broken_subscription_comes_back_and_wakes_everybody(
    connection: Connection, broker: Broker, events: Events
) -> None:
    """CLIENT KILL: what was told meanwhile is lost, so all look again; a waiter is not forgotten."""
    woken = Told()
    events.subscribe_wake([QUEUE], woken.append)
    task = await active(broker)
    waiter = asyncio.create_task(events.wait_for_end(QUEUE, task.id, 30))
    await asyncio.sleep(0.05)
    nodes = connection.client.get_primaries() if connection.is_cluster else [None]
    for node in nodes:
        where = {} if node is None else {"target_nodes": node}
        await connection.client.execute_command("CLIENT KILL", "TYPE", "pubsub", **where)
    await finish(broker, task, COMPLETE)
    assert await waiter
    await woken.has(QUEUE)
    await asyncio.wait_for(events.wait_connected(), 10)
    woken.clear()
    await enqueued(broker)
    await woken.has(QUEUE)


async def test_a_restarted_server_is_found_again(tmp_path: Path) -> None:
    """Kill and restart of Redis: reconnects for ever, tells everybody to look."""
    with running(redis_binary(), tmp_path / "redis", "--appendonly", "yes") as server:
        async with connected(server.target) as connection:
            broker, events, woken = Broker(connection), Events(connection, task_ends=True), Told()
            events.subscribe_wake([QUEUE], woken.append)
            await events.start()
            await asyncio.wait_for(events.wait_connected(), 10)
            woken.clear()
            server.kill()
            await eventually(lambda: not events.connected, 10)
            with pytest.raises(UnavailableError):
                await events.wait_for_end(QUEUE, "x", 1)
            server.start()
            await asyncio.wait_for(events.wait_connected(), 15)
            await woken.has(QUEUE)
            task = await active(broker)
            waiter = asyncio.create_task(events.wait_for_end(QUEUE, task.id, 30))
            await asyncio.sleep(0.05)
            await finish(broker, task, COMPLETE)
            assert await waiter
            await events.stop()


async def test_stop_releases_whoever_waits_and_may_be_called_twice(broker: Broker, connection: Connection) -> None:
    events = Events(connection, task_ends=True)
    await events.start()
    await events.start()
    task = await enqueued(broker)
    waiter = asyncio.create_task(events.wait_for_end(QUEUE, task.id, 1.0))
    await asyncio.sleep(0.05)
    await events.stop()
    await events.stop()
    assert not await waiter


async def test_an_unsubscribed_worker_hears_nothing(broker: Broker, events: Events) -> None:
    woken, others = Told(), Told()
    callback = woken.append
    events.subscribe_wake([QUEUE], callback)
    events.subscribe_wake([QUEUE], others.append)
    events.unsubscribe_wake(callback)
    await broker.enqueue([new_task()])
    await others.has(QUEUE)
    assert woken == []


async def test_channels_carry_the_queue_name_as_it_is() -> None:
    assert keys.queue_of_events_channel(keys.events_channel("a.b")) == "a.b"
