"""Mode one_shot with processes started ahead, and cancelling in both modes and protocols."""

from __future__ import annotations

from typing import Any

import pytest
from harness.waiting import eventually
from harness.workers import QUEUE, Bench, alive, worker_on

from runqy.broker.operator import Operator
from runqy.broker.transitions import ActionStatus
from runqy.tasks.state import Action, State


def once(bench: Bench, **options: Any) -> None:
    bench.environment["ONCE"] = "1"
    bench.order(mode="one_shot", **options)


async def cancel(bench: Bench, *ids: str) -> set[ActionStatus]:
    return {acted.status for acted in await Operator(bench.connection).act(Action.CANCEL, QUEUE, list(ids))}


async def test_one_shot_starts_a_process_for_each_task(bench: Bench) -> None:
    once(bench)
    async with worker_on(bench, concurrency=3):
        ids = await bench.send_all([{"echo": n} for n in range(6)])
        views = await bench.ended(*ids)
    assert {view.state for view in views} == {State.COMPLETED}
    assert len(set(bench.loads())) == 6


async def test_one_shot_runs_as_many_at_once_as_the_concurrency(bench: Bench) -> None:
    once(bench)
    gate = bench.gate()
    async with worker_on(bench, concurrency=3):
        ids = await bench.send_all([{"gate": str(gate)}] * 5)
        await eventually(lambda: len(bench.marked()) == 3)
        assert (await bench.inspector.counts(QUEUE)).pending == 2
        gate.touch()
        await bench.ended(*ids)


async def test_a_prestarted_process_waits_and_gets_the_next_task(bench: Bench) -> None:
    """Decision 34: running and waiting ones together within the concurrency."""
    once(bench, prestart=True)
    gate = bench.gate()
    async with worker_on(bench, concurrency=2):
        await eventually(lambda: len(bench.loads()) == 1)
        first = await bench.send({"gate": str(gate)})
        await bench.running(first)
        assert bench.marked()[0][3] == bench.loads()[0], "the waiting process took it"
        await eventually(lambda: len(bench.loads()) == 2)
        second = await bench.send({"gate": str(gate)})
        await bench.running(second)
        assert len(alive(bench.loads())) == 2
        gate.touch()
        await bench.ended(first, second)


async def test_a_prestarted_process_that_died_is_replaced_when_a_task_comes(bench: Bench) -> None:
    import os
    import signal

    once(bench, prestart=True)
    async with worker_on(bench, concurrency=1):
        await eventually(lambda: len(bench.loads()) == 1)
        os.kill(bench.loads()[0], signal.SIGKILL)
        await eventually(lambda: not alive(bench.loads()))
        task = await bench.send({"echo": 1}, max_retry=0)
        (view,) = await bench.ended(task)
    assert view.state is State.COMPLETED


async def test_one_shot_that_ends_without_a_reply_is_a_crash_of_the_task(bench: Bench) -> None:
    once(bench)
    async with worker_on(bench):
        task = await bench.send({"exit": 0}, max_retry=1)
        (view,) = await bench.ended(task)
    assert view.state is State.ARCHIVED
    assert [attempt.ending for attempt in view.attempts] == ["crashed", "crashed"]
    assert "exited with code 0 before its reply" in view.error


async def test_one_shot_starts_that_fail_are_no_fault_of_the_task(bench: Bench) -> None:
    """Decision 3: given back at no cost; the breaker opens, and an order to restart ends it."""
    once(bench)
    async with worker_on(bench, recovery_max_restarts=2) as running:
        bench.starts_as("raise")
        task = await bench.send({"echo": 1}, max_retry=0)
        await eventually(lambda: running.runtime.degraded)
        view = await bench.in_state(task, State.PENDING)
        assert view.retried == 0
        assert any("no weights" in line for line in running.runtime.trouble)
        bench.starts_as("")
        await running.runtime.restart()
        assert (await bench.ended(task))[0].state is State.COMPLETED


async def test_one_shot_start_up_counts_in_the_limit(bench: Bench) -> None:
    """R34, decision 10: the clock runs from the start of the process."""
    once(bench)
    async with worker_on(bench):
        bench.starts_as("hang")
        task = await bench.send({"echo": 1}, active_timeout=1, max_retry=0)
        (view,) = await bench.ended(task)
    assert view.state is State.ARCHIVED
    assert "active timeout exceeded" in view.error


@pytest.mark.parametrize("kind", ["lines"])
async def test_one_shot_that_lingers_after_its_reply_is_ended(
    bench: Bench, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply counts; the process may take a while to leave, but not for ever."""
    monkeypatch.setattr("runqy.worker.one_shot.EXIT_SECONDS", 0.2)
    once(bench)
    async with worker_on(bench):
        task = await bench.send({"echo": kind, "then_hang": True}, max_retry=0)
        (view,) = await bench.ended(task)
        await bench.nothing_is_left_running()
    assert view.state is State.COMPLETED


async def test_a_stop_while_a_one_shot_lingers_keeps_its_reply(bench: Bench) -> None:
    """Nothing runs once too often: what has answered is completed, not given back."""
    once(bench)
    async with worker_on(bench, shutdown_timeout=0.1) as running:
        task = await bench.send({"echo": 1, "then_hang": True}, max_retry=0)
        await eventually(lambda: bench.ends(task))
        shot = await eventually(lambda: running.runtime._shots.get(task))
        await eventually(lambda: shot.reply is not None)
        assert await running.stop() == 0
    assert (await bench.view(task)).state is State.COMPLETED


@pytest.mark.parametrize("speak", [1, 2])
@pytest.mark.parametrize("mode", ["long_running", "one_shot"])
async def test_cancelling_stops_a_running_task(
    bench: Bench, mode: str, speak: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 19: archived with reason cancelled, no retry, its process gone."""
    monkeypatch.setattr("runqy.worker.long_running.CANCEL_GRACE_SECONDS", 0.2)
    bench.environment["SPEAK"] = str(speak)
    if mode == "one_shot":
        once(bench)
    else:
        bench.order()
    async with worker_on(bench):
        task = await bench.send({"sleep": 60}, max_retry=5)
        await bench.running(task)
        pid = bench.marked()[0][3]
        assert await cancel(bench, task) == {ActionStatus.ASKED}
        (view,) = await bench.ended(task)
        assert (view.state, view.error, view.retried) == (State.ARCHIVED, "cancelled", 0)
        assert view.attempts[-1].ending == "cancelled"
        await eventually(lambda: not alive([pid]))
        following = await bench.send({"echo": 1})
        assert (await bench.ended(following))[0].state is State.COMPLETED


async def test_code_that_heeds_a_cancel_ends_without_a_restart(bench: Bench) -> None:
    """Decision 19: the task code is told first; its answer, whatever it says, is the cancellation."""
    bench.environment |= {"SPEAK": "2", "CAPACITY": "2"}
    bench.order()
    gate = bench.gate()
    async with worker_on(bench):
        neighbour = await bench.send({"gate": str(gate)}, max_retry=0)
        task = await bench.send({"gate": str(bench.gate("never")), "heed": True}, max_retry=5)
        await bench.running(neighbour)
        await bench.running(task)
        await cancel(bench, task)
        (view,) = await bench.ended(task)
        gate.touch()
        (other,) = await bench.ended(neighbour)
    assert (view.state, view.error) == (State.ARCHIVED, "cancelled")
    assert (other.state, other.retried) == (State.COMPLETED, 0)
    assert len(bench.loads()) == 1


@pytest.mark.parametrize("speak", [1, 2])
async def test_a_cancel_costs_the_neighbours_nothing(bench: Bench, speak: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decision 3: a restart because of a cancel gives all neighbours back."""
    monkeypatch.setattr("runqy.worker.long_running.CANCEL_GRACE_SECONDS", 0.1)
    bench.environment |= {"SPEAK": str(speak), "CAPACITY": "2"}
    bench.order()
    gate = bench.gate()
    async with worker_on(bench, concurrency=2):
        task = await bench.send({"sleep": 60}, max_retry=0)
        await bench.running(task)
        neighbour = await bench.send({"gate": str(gate)}, max_retry=0)
        await bench.in_state(neighbour, State.ACTIVE)
        await cancel(bench, task)
        (view,) = await bench.ended(task)
        gate.touch()
        (other,) = await bench.ended(neighbour)
    assert view.error == "cancelled"
    assert (other.state, other.retried, other.attempts[:-1]) == (State.COMPLETED, 0, ())


async def test_a_waiting_task_that_is_cancelled_never_starts(bench: Bench) -> None:
    """Decision 19: also one that already stands in the pipe of a process that speaks protocol 2."""
    bench.environment["SPEAK"] = "2"
    bench.order()
    gate = bench.gate()
    async with worker_on(bench, concurrency=2):
        first = await bench.send({"gate": str(gate)}, max_retry=0)
        await bench.running(first)
        in_pipe = await bench.send({"echo": 1})
        await bench.in_state(in_pipe, State.ACTIVE)
        waiting = await bench.send({"echo": 1})
        assert await cancel(bench, waiting) == {ActionStatus.DONE}
        await cancel(bench, in_pipe)
        views = await bench.ended(waiting, in_pipe)
        gate.touch()
        (done,) = await bench.ended(first)
    assert {(view.state, view.error) for view in views} == {(State.ARCHIVED, "cancelled")}
    assert not bench.starts(waiting)
    assert not bench.starts(in_pipe)
    assert done.state is State.COMPLETED
    assert len(bench.loads()) == 1


async def test_a_reply_that_beats_the_stop_finishes_the_task_as_usual(bench: Bench) -> None:
    """Decision 19: whichever ends first counts."""
    bench.environment["SPEAK"] = "2"
    bench.order()
    gate = bench.gate()
    async with worker_on(bench):
        task = await bench.send({"gate": str(gate)})
        await bench.running(task)
        running_worker_told = await cancel(bench, task)
        gate.touch()
        (view,) = await bench.ended(task)
    assert running_worker_told == {ActionStatus.ASKED}
    assert view.state is State.COMPLETED
