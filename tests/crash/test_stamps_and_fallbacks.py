"""pending_timeout at the worker, and its own fallbacks for tasks without stamps."""

from __future__ import annotations

import json
import time
from typing import Any

from harness.waiting import eventually
from harness.workers import QUEUE, Bench, worker_on

from runqy.broker import keys
from runqy.broker.connection import ClockOffset
from runqy.tasks.limits import Limits, Override, Source
from runqy.tasks.message import TaskMessage, new_task_id
from runqy.tasks.state import State


async def unstamped(
    bench: Bench, payload: Any, *, waited: float = 0.0, max_retry: int | None = 0, **stamps: str
) -> str:
    """A task as an old server, or a script of one's own, puts it into Redis."""
    task_id = new_task_id()
    data = json.dumps(payload).encode()
    fields: dict[str, Any] = {"state": "pending", "pending_since": int((time.time() - waited) * 1e9), **stamps}
    if max_retry is not None:
        message = TaskMessage(type=QUEUE, payload=data, id=task_id, queue=QUEUE, retry=max_retry)
        fields["msg"] = message.SerializeToString()
    else:
        fields |= {"type": QUEUE, "payload": data}
    await bench.inspector.register_queues([QUEUE])
    await bench.connection.command("HSET", keys.task(QUEUE, task_id), *[x for pair in fields.items() for x in pair])
    await bench.connection.command("HSET", keys.reverse(task_id), "queue", QUEUE)
    await bench.connection.command("LPUSH", keys.pending(QUEUE), task_id)
    return task_id


def fallback(**values: int) -> Limits:
    return Limits().override(Override(**values), Source.WORKER)


async def life_of(bench: Bench, task_id: str) -> float:
    """Seconds that Redis keeps the task from now; negative for ever."""
    return float(await bench.connection.command("PTTL", keys.task(QUEUE, task_id))) / 1000


async def test_a_task_that_waited_too_long_is_archived_by_the_worker_unexecuted(
    bench: Bench, clock_offset: ClockOffset
) -> None:
    """R6, R10, R47, R48, R52: no retry used up, its own ttl_archived set."""
    late = await bench.send({"echo": 1}, pending_timeout=5, max_retry=3, ttl_archived=500)
    fine = await bench.send({"echo": 2}, pending_timeout=3600)
    stamp = (time.time() - 6) * 1e9
    await bench.connection.command("HSET", keys.task(QUEUE, late), "pending_since", int(stamp))
    async with worker_on(bench):
        views = await bench.ended(late, fine)
    assert [view.state for view in views] == [State.ARCHIVED, State.COMPLETED]
    assert views[0].retried == 0
    assert "pending timeout" in views[0].error
    assert not bench.starts(late)
    assert 490 < await life_of(bench, late) <= 500


async def test_without_a_worker_nothing_is_purged_from_pending(bench: Bench) -> None:
    """R49, R50: the check is at the pickup; another queue's worker does not touch it."""
    late = await bench.send({"echo": 1}, queue="b.default", pending_timeout=1)
    await bench.connection.command("HSET", keys.task("b.default", late), "pending_since", int((time.time() - 99) * 1e9))
    async with worker_on(bench) as running:
        await running.worker._maintenance.janitor.wait_round()
        await bench.ended(await bench.send({"echo": 1}))
        assert (await bench.view(late)).state is State.PENDING


async def test_time_held_ahead_counts_like_pending_and_a_retry_waits_afresh(bench: Bench) -> None:
    """R47, decision 4: each entry into pending starts the wait again."""
    async with worker_on(bench):
        task = await bench.send({"error": "busy", "retry": True, "until_retry": 1}, pending_timeout=60, max_retry=1)
        (view,) = await bench.ended(task)
    assert view.state is State.COMPLETED


async def test_fallbacks_apply_to_tasks_without_stamps(bench: Bench) -> None:
    """R64, R66, R68, R69, R70, R73: an old server, or a task put into Redis directly."""
    limits = fallback(ttl_completed=111, ttl_archived=222, pending_timeout=30, active_timeout=1)
    async with worker_on(bench, fallback=limits, concurrency=1):
        fine = await unstamped(bench, {"echo": 1})
        failed = await unstamped(bench, {"error": "bad"})
        waited = await unstamped(bench, {"echo": 1}, waited=31)
        late = await unstamped(bench, {"sleep": 60})
        views = await bench.ended(fine, failed, waited, late)
        lives = [await life_of(bench, view.id) for view in views]
    assert [view.state for view in views] == [State.COMPLETED, State.ARCHIVED, State.ARCHIVED, State.ARCHIVED]
    assert "pending timeout" in views[2].error
    assert "active timeout exceeded (1s)" in views[3].error
    assert all(100 < lives[0] <= 111 < 200 < life <= 222 for life in lives[1:])


async def test_a_stamp_always_wins_also_one_of_zero(bench: Bench) -> None:
    """R65, R56: stamped 0 means for ever and off, whatever the worker's fallbacks are."""
    limits = fallback(ttl_completed=111, ttl_archived=222, pending_timeout=1, active_timeout=1)
    zeros = {"ttl_completed": "0", "ttl_archived": "0", "pending_timeout": "0", "active_timeout": "0"}
    gate = bench.gate()
    async with worker_on(bench, fallback=limits):
        task = await unstamped(bench, {"gate": str(gate)}, waited=50, **zeros)
        stamped = await bench.send({"echo": 1}, ttl_completed=77, pending_timeout=0, active_timeout=0)
        start = await eventually(lambda: bench.starts(task))
        await eventually(lambda: time.time() - start[0] > 1.2)
        gate.touch()
        views = await bench.ended(task, stamped)
        lives = [await life_of(bench, view.id) for view in views]
    assert [view.state for view in views] == [State.COMPLETED, State.COMPLETED]
    assert lives[0] < 0
    assert 70 < lives[1] <= 77


async def test_stamps_that_cannot_be_read_count_as_absent(bench: Bench) -> None:
    """R64: "abc" and a negative number are no stamps."""
    async with worker_on(bench, fallback=fallback(ttl_completed=111, active_timeout=1)):
        task = await unstamped(bench, {"echo": 1}, ttl_completed="abc", ttl_archived="-5", pending_timeout="x")
        (view,) = await bench.ended(task)
        life = await life_of(bench, task)
    assert view.state is State.COMPLETED
    assert 100 < life <= 111


async def test_a_task_without_a_message_has_three_retries(bench: Bench) -> None:
    """R3, decision 6: without message and hash field the default is 3; R72, R73: it runs."""
    async with worker_on(bench):
        task = await unstamped(bench, {"echo": 1}, max_retry=None)
        poison = await unstamped(
            bench, {"error": "bad", "retry": True, "until_retry": 3}, max_retry=None, retry_policy="f,0.0,1.0,0.0"
        )
        views = await bench.ended(task, poison)
    assert [view.state for view in views] == [State.COMPLETED, State.COMPLETED]
    assert len(bench.starts(poison)) == 4


async def test_fields_that_nobody_knows_change_nothing(bench: Bench) -> None:
    """R71, R74: a newer server may stamp more than this worker knows."""
    async with worker_on(bench):
        task = await unstamped(bench, {"echo": 1}, cpu_budget="7", ttl_completed="50")
        (view,) = await bench.ended(task)
        assert view.fields["cpu_budget"] == b"7"
        assert 40 < await life_of(bench, task) <= 50
