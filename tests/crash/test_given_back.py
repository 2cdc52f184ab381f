"""What had not started goes back to the front of its queue at no cost: look-ahead, recalls, stops at bad moments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness.waiting import eventually
from harness.workers import QUEUE, Bench, Running, worker_on

from runqy.errors import UnavailableError
from runqy.tasks.state import State


async def held_ahead(bench: Bench, running: Running, gate: str, count: int = 4, **levers: int) -> tuple[str, list[str]]:
    """A task that runs, and some that the worker holds ahead behind it."""
    await bench.ended(*await bench.send_all([{"echo": n} for n in range(30)]))
    first = await bench.send({"gate": gate}, **levers)
    await bench.running(first)
    ahead = await bench.send_all([{"echo": n} for n in range(count)], max_retry=0)
    lane = running.worker._processor.lanes["a"]
    await eventually(lambda: len(lane.held) > 1, 5, "some held ahead")
    return first, ahead


@pytest.fixture
def two(bench: Bench) -> Bench:
    bench.environment["SPEAK"] = "2"
    bench.order()
    return bench


async def test_what_was_held_ahead_too_long_is_recalled_to_the_front(two: Bench) -> None:
    """Decision 10: short tasks flow, long ones are never hoarded."""
    gate = two.gate()
    async with worker_on(two) as running:
        first, ahead = await held_ahead(two, running, str(gate))
        lane = running.worker._processor.lanes["a"]
        await eventually(lambda: len(lane.held) == 1, 5, "all recalled")

        async def all_back() -> bool:
            return (await two.inspector.counts(QUEUE)).pending >= len(ahead)

        await eventually(all_back)
        gate.touch()
        views = await two.ended(first, *ahead)
    assert {(view.state, view.retried) for view in views} == {(State.COMPLETED, 0)}
    assert all(len(two.starts(id_)) == 1 for id_ in ahead)


async def test_a_timeout_gives_look_ahead_back_at_no_cost(two: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """R42, decision 3: only what was sent fails; look-ahead had not started."""
    monkeypatch.setattr("runqy.worker.processor.RECALL_SECONDS", 60)
    async with worker_on(two) as running:
        late, ahead = await held_ahead(two, running, str(two.gate("never")), active_timeout=1, max_retry=0)
        views = await two.ended(late, *ahead)
    assert views[0].state is State.ARCHIVED
    assert {(view.state, view.retried) for view in views[1:]} == {(State.COMPLETED, 0)}


async def test_a_stop_recalls_look_ahead_in_its_order(two: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop: the rest goes back to the front of the queue, the first one first."""
    # A recall of what was held too long would race the one of the stop.
    monkeypatch.setattr("runqy.worker.processor.RECALL_SECONDS", 60)
    gate = two.gate()
    async with worker_on(two) as running:
        first, ahead = await held_ahead(two, running, str(gate))
        later = await two.send({"echo": 9})
        running.worker.stop()
        await eventually(lambda: not running.worker._processor.taking)
        lane = running.worker._processor.lanes["a"]
        await eventually(lambda: len(lane.held) == 1)
        gate.touch()
        assert await running.run == 0
    assert (await two.view(first)).state is State.COMPLETED
    waiting = [view.id for view in await two.inspector.list_tasks(QUEUE, State.PENDING)]
    assert set(waiting) == {*ahead, later}
    assert waiting[-1] == later


async def test_a_stop_during_a_planned_restart_tells_what_was_decided(bench: Bench) -> None:
    """Q23 of the lifecycle: the restart is abandoned, the timeout stands, nothing is left active."""
    bench.order()
    async with worker_on(bench, kill_grace=1.0, concurrency=2) as running:
        late = await bench.send({"sleep": 60, "ignore_term": True}, active_timeout=1, max_retry=3)
        await bench.running(late)
        second = await bench.send({"echo": 1}, max_retry=3)
        await bench.in_state(second, State.ACTIVE)
        await eventually(lambda: running.runtime._decided, 5, "the process is being stopped")
        running.worker.stop()
        running.worker.stop()
        assert await asyncio.wait_for(running.run, 5) == 0
        counts = await bench.inspector.counts(QUEUE)
        assert counts.active == 0
        view = await bench.view(late)
        assert (view.attempts[0].ending, view.retried) == ("timeout", 1)


async def test_a_stop_while_a_pickup_is_under_way_gives_its_tasks_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes after the signal: the tasks were never started, so they cost nothing."""
    async with worker_on(bench) as running:
        broker = running.worker._processor._broker
        real, called, taken, go_on = broker.pick_up, asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def slow(*arguments: Any, **options: Any) -> Any:
            answer = await real(*arguments, **options)
            called.set()
            if answer.tasks:
                taken.set()
                await go_on.wait()
            return answer

        monkeypatch.setattr(broker, "pick_up", slow)
        await called.wait()
        task = await bench.send({"echo": 1}, max_retry=0)
        await asyncio.wait_for(taken.wait(), 10)
        running.worker.stop()
        await eventually(lambda: not running.worker._processor.taking)
        go_on.set()
        assert await running.run == 0
        view = await bench.view(task)
    assert (view.state, view.retried) == (State.PENDING, 0)
    assert not bench.starts(task)


@pytest.mark.parametrize("stop", [False, True])
async def test_tasks_of_a_pickup_whose_answer_got_lost_are_asked_for_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stop: bool
) -> None:
    """The connection broke after the script ran: the next call, or the stop, finds what was taken."""
    async with worker_on(bench) as running:
        broker = running.worker._processor._broker
        real, called, lost = broker.pick_up, asyncio.Event(), asyncio.Event()

        async def losing(*arguments: Any, **options: Any) -> Any:
            answer = await real(*arguments, **options)
            called.set()
            if answer.tasks and not lost.is_set():
                lost.set()
                if stop:
                    running.worker.stop()
                raise UnavailableError("the connection broke")
            return answer

        monkeypatch.setattr(broker, "pick_up", losing)
        await called.wait()
        task = await bench.send({"echo": 1}, max_retry=0)
        await asyncio.wait_for(lost.wait(), 10)
        if stop:
            assert await running.run == 0
            view = await bench.view(task)
            assert (view.state, view.retried, bench.starts(task)) == (State.PENDING, 0, [])
        else:
            (view,) = await bench.ended(task)
            assert (view.state, len(bench.starts(task))) == (State.COMPLETED, 1)
