"""Reads: one task, lists, counts, history; entries whose task is gone are left out."""

from __future__ import annotations

import datetime
import time

import pytest
from harness.lives import (
    COMPLETE,
    FAIL,
    QUEUE,
    RETRY,
    active,
    archived,
    completed,
    end_of,
    enqueued,
    finish,
    new_task,
    retrying,
    take,
)

from runqy.broker import keys
from runqy.broker.broker import Broker
from runqy.broker.connection import ClockOffset, Connection
from runqy.broker.history import History, bucket, bucket_end, quantile
from runqy.broker.inspector import Inspector
from runqy.tasks.state import State

DAY = 86400


async def test_lists_page_through_each_state_in_its_order(
    broker: Broker, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """Oldest first for the waiting ones, newest first for the ended ones."""
    ids: dict[State, list[str]] = {state: [] for state in State}
    for _ in range(7):
        clock_offset.advance(2)
        ids[State.RETRY].append((await retrying(broker, "q.r")).id)
        ids[State.COMPLETED].append((await completed(broker, "q.c")).id)
        ids[State.ARCHIVED].append((await archived(broker, "q.a")).id)
        ids[State.SCHEDULED].append(
            (await enqueued(broker, "q.s", run_at=time.time() + 9e6 + len(ids[State.SCHEDULED]))).id
        )
        ids[State.ACTIVE].append((await active(broker, "q.x")).id)
        ids[State.PENDING].append((await enqueued(broker, "q.p")).id)
    queues = dict(
        zip(
            (State.RETRY, State.COMPLETED, State.ARCHIVED, State.SCHEDULED, State.ACTIVE, State.PENDING),
            ("q.r", "q.c", "q.a", "q.s", "q.x", "q.p"),
            strict=True,
        )
    )
    for state, queue in queues.items():
        expected = ids[state]
        if state in {State.COMPLETED, State.ARCHIVED}:
            expected = expected[::-1]
        pages = [await inspector.list_tasks(queue, state, offset=offset, limit=3) for offset in (0, 3, 6, 9)]
        found = [view.id for page in pages for view in page]
        if state is State.RETRY:
            assert sorted(found) == sorted(expected)
        else:
            assert found == expected, state
    assert await inspector.list_tasks("q.p", State.PENDING, limit=0) == []


async def test_vanished_tasks_break_no_list(broker: Broker, inspector: Inspector, connection: Connection) -> None:
    """C41: three of twenty hashes are gone."""
    makers = {State.COMPLETED: completed, State.ARCHIVED: archived, State.RETRY: retrying, State.ACTIVE: active}
    for state, make in makers.items():
        tasks = [await make(broker, f"q.{state}") for _ in range(20)]
        for task in tasks[::7]:
            await connection.command("DEL", keys.task(f"q.{state}", task.id))
            assert await inspector.find(task.id) is None
        views = await inspector.list_tasks(f"q.{state}", state, limit=50)
        assert len(views) == 17


async def test_counts_tell_sizes_pause_latency_and_totals(
    broker: Broker, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """Defect 31 of the original: the age of the oldest waiting task, in seconds."""
    for make in (completed, archived, retrying, active):
        await make(broker)
    await enqueued(broker, run_at=time.time() + 9e6)
    await enqueued(broker)
    clock_offset.advance(40)
    await enqueued(broker)
    await broker.pause(QUEUE)
    counts = await inspector.counts(QUEUE)
    sizes = (counts.pending, counts.active, counts.scheduled, counts.retry, counts.archived, counts.completed)
    assert sizes == (2, 1, 1, 1, 1, 1)
    assert (counts.size, counts.paused, counts.processed, counts.failed) == (7, True, 3, 2)
    assert 40 <= counts.latency < 50
    empty = await inspector.counts("nothing.here")
    assert (empty.size, empty.latency, empty.paused) == (0, 0.0, False)


async def test_queues_are_registered_and_taken_off(broker: Broker, inspector: Inspector) -> None:
    await inspector.register_queues(["b.x", "a.x"])
    await enqueued(broker, "c.x")
    assert await inspector.queues() == ["a.x", "b.x", "c.x"]
    await inspector.unregister_queues(["a.x", "c.x"])
    await inspector.register_queues([])
    assert await inspector.queues() == ["b.x"]


async def test_an_orphan_is_shown(broker: Broker, inspector: Inspector, clock_offset: ClockOffset) -> None:
    task = await active(broker)
    clock_offset.advance(broker.lease_seconds + 1)
    view = await inspector.find(task.id)
    assert view is not None
    assert (view.state, view.is_orphaned) == (State.ACTIVE, True)


async def test_what_cannot_be_read_is_shown_as_such(inspector: Inspector, connection: Connection) -> None:
    await connection.command("HSET", keys.task(QUEUE, "odd"), "msg", b"\xff\xff", "state", "archived")
    await connection.command("HSET", keys.task(QUEUE, "alien"), "msg", b"", "state", "aggregating")
    view = await inspector.get(QUEUE, "odd")
    assert view is not None
    assert "can't be read" in view.error
    assert await inspector.get(QUEUE, "alien") is None


async def test_counters_are_written_with_the_end_by_day_for_ninety_days(
    broker: Broker, connection: Connection, clock_offset: ClockOffset
) -> None:
    """Decision 40, defect 28 of the original."""
    clock_offset.advance(5 * DAY)
    for decision in (COMPLETE, FAIL, RETRY):
        await finish(broker, await active(broker), decision)
    day = datetime.datetime.fromtimestamp(time.time() + 5 * DAY, datetime.UTC).strftime("%Y-%m-%d")
    for name, total in (("processed", 3), ("failed", 2)):
        key = f"asynq:{{{QUEUE}}}:{name}"
        assert int(await connection.command("GET", key)) == total
        assert int(await connection.command("GET", f"{key}:{day}")) == total
        assert await connection.command("TTL", key) == -1
        assert 89 * DAY < await connection.command("TTL", f"{key}:{day}") <= 91 * DAY


@pytest.mark.parametrize("days", [0, 59, 366, 400, 800, 1500])
async def test_the_day_of_a_counter_is_the_calendars(
    broker: Broker, connection: Connection, clock_offset: ClockOffset, days: int
) -> None:
    """C48, C50: UTC, leap years included, whatever the zone of a host."""
    clock_offset.advance(days * DAY)
    before = datetime.datetime.fromtimestamp(time.time() + days * DAY, datetime.UTC)
    await completed(broker)
    after = datetime.datetime.fromtimestamp(time.time() + days * DAY, datetime.UTC)
    expected = {f"{keys.processed(QUEUE)}:{moment:%Y-%m-%d}" for moment in (before, after)}
    found = [key for key in expected if await connection.command("EXISTS", key)]
    assert found


async def test_the_history_holds_minutes_and_hours_with_mergeable_histograms(
    broker: Broker, connection: Connection, clock_offset: ClockOffset
) -> None:
    """Decision 40: a day of minutes, thirty days of hours, only where something happened."""
    base = time.time()
    for _ in range(3):
        taken = await active(broker)
        await broker.finish([end_of(taken, COMPLETE, 0.5)])
        clock_offset.advance(3600)
    now = base + clock_offset.microseconds / 1e6
    history = History(connection)
    minutes, hours = (
        await history.minutes(QUEUE, base - 60, now + 60),
        await history.hours(QUEUE, base - 3600, now + 60),
    )
    assert [slot.processed for slot in minutes] == [1, 1, 1]
    assert [slot.processed for slot in hours] == [1, 1, 1]
    merged = hours[0]
    for slot in hours[1:]:
        merged.merge(slot)
    assert sum(merged.runs.values()) == 3
    run = quantile(merged.runs, 0.5)
    assert run is not None
    assert 0.5 <= run <= 0.5 * 1.2
    for key, kept in (("m", DAY), ("h", 30 * DAY)):
        names = [k for k in await _keys(connection) if f":history:{key}:" in k]
        assert names
        for name in names:
            assert 0 < await connection.command("TTL", name) <= kept + 4 * 3600 + DAY


async def test_a_busy_queues_history_stays_under_two_megabytes(
    broker: Broker, connection: Connection, clock_offset: ClockOffset
) -> None:
    """Every minute of a day and every hour of thirty days, each slot as full as it can be."""
    del broker, clock_offset
    slot = _full_slot()
    for hour in range(25):
        fields = [x for minute in range(60) for x in (minute, slot)]
        await connection.command("HSET", f"{keys.history(QUEUE)}:m:{hour}", *fields)
    for day in range(31):
        fields = [x for hour in range(24) for x in (hour, slot)]
        await connection.command("HSET", f"{keys.history(QUEUE)}:h:{day}", *fields)
    used = 0
    for name in await _keys(connection):
        used += await connection.command("MEMORY USAGE", name, "SAMPLES", 0)
    assert used < 2 * 1024 * 1024, used


def _full_slot() -> bytes:
    """Durations spread over three decades, as a busy queue has them: 40 buckets each."""
    import msgspec

    spread = [x for index in range(30, 70) for x in (index, 1000 + index)]
    return msgspec.msgpack.encode([60000, 1000, spread, spread])


async def _keys(connection: Connection) -> list[str]:
    from harness.keyspace import all_keys

    return [key for key in await all_keys(connection) if ":history:" in key]


@pytest.mark.parametrize("seconds", [0, 0.00005, 0.0001, 0.001, 0.0123, 1, 59.9, 3600, 86400])
async def test_scripts_and_readers_share_their_buckets(
    broker: Broker, connection: Connection, clock_offset: ClockOffset, seconds: float
) -> None:
    """The same duration falls into the same bucket whether the worker or the script counted it."""
    task = await active(broker)
    await finish(broker, task, FAIL, run_time=seconds)
    now = time.time()
    (slot,) = await History(connection).hours(QUEUE, now - 3600, now + 3600)
    assert slot.runs == ({bucket(seconds): 1} if seconds else {})
    assert bucket_end(bucket(seconds)) >= seconds
    assert clock_offset.microseconds == 0


async def test_a_batch_of_many_is_found_whole(broker: Broker, inspector: Inspector) -> None:
    tasks = [new_task() for _ in range(50)]
    await broker.enqueue(tasks)
    await take(broker, limit=20)
    assert len(await inspector.list_tasks(QUEUE, State.PENDING, limit=100)) == 30
    assert len(await inspector.list_tasks(QUEUE, State.ACTIVE, limit=100)) == 20
