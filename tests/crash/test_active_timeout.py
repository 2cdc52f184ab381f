"""active_timeout in both modes: the limit holds, the whole tree dies, the slot waits, neighbours are decided."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from harness.waiting import eventually
from harness.workers import QUEUE, Bench, alive, worker_on

from runqy import __version__
from runqy.tasks.state import State

BODIES: dict[str, dict[str, Any]] = {
    "sleeps": {"sleep": 60},
    "spins": {"spin": True},
    "ignores-sigterm": {"ignore_term": True, "sleep": 60},
}


def mode(bench: Bench, name: str, speak: int = 1, **options: Any) -> None:
    """Order one of the two modes."""
    bench.environment |= {"SPEAK": str(speak)} | ({"ONCE": "1"} if name == "one_shot" else {})
    bench.order(mode=name, **options)


@pytest.mark.parametrize(("name", "speak"), [("long_running", 1), ("long_running", 2), ("one_shot", 1)])
async def test_a_task_over_its_limit_fails_and_is_retried_until_none_is_left(
    bench: Bench, name: str, speak: int
) -> None:
    """R32, R33, R36, R39, R40: each attempt gets the whole second; then it is archived."""
    mode(bench, name, speak)
    async with worker_on(bench):
        task = await bench.send({"sleep": 60}, active_timeout=1, max_retry=1)
        (view,) = await bench.ended(task)
    assert view.state is State.ARCHIVED
    assert view.retried == 1
    assert "active timeout exceeded (1s)" in view.error
    assert [attempt.ending for attempt in view.attempts] == ["timeout", "timeout"]
    assert all(1.0 <= attempt.ended_at - attempt.started_at < 2.0 for attempt in view.attempts)
    assert len(bench.starts(task)) == 2
    assert not bench.ends(task)


@pytest.mark.parametrize("name", ["long_running", "one_shot"])
@pytest.mark.parametrize("body", list(BODIES))
async def test_whatever_the_body_does_it_ends_in_time(bench: Bench, name: str, body: str) -> None:
    """R32, R39, R40: a body that sleeps, spins or ignores SIGTERM is dead within the limit and the grace."""
    mode(bench, name)
    async with worker_on(bench):
        task = await bench.send(BODIES[body], active_timeout=1, max_retry=0)
        (view,) = await bench.ended(task)
        (attempt,) = view.attempts
        assert attempt.ended_at - attempt.started_at < 2.0
        pid = next(pid for word, _, _, pid, _ in bench.marked() if word == "start")
        assert not alive([pid])
        following = await bench.send({"echo": 1})
        assert (await bench.ended(following))[0].state is State.COMPLETED


@pytest.mark.parametrize("name", ["long_running", "one_shot"])
async def test_children_and_daemons_of_a_task_die_with_it(bench: Bench, name: str) -> None:
    """R39, R40, decision 12: also one that left its session and its parent, and one that ignores SIGTERM."""
    mode(bench, name)
    family = bench.folder / "family"
    async with worker_on(bench):
        task = await bench.send({"family": str(family), "sleep": 60}, active_timeout=1, max_retry=0)
        pids = await eventually(lambda: _three(family), 10)
        await bench.ended(task)
        assert not alive(pids)


def _three(path: Path) -> list[int]:
    pids = [int(line) for line in path.read_text().split()] if path.exists() else []
    return pids if len(pids) == 3 else []


async def test_the_slot_stays_occupied_until_the_new_process_is_ready(bench: Bench) -> None:
    """R40, R41: the process is started and loaded again before the next task runs in it."""
    async with worker_on(bench):
        bench.starts_as("gate")
        late = await bench.send({"sleep": 60}, active_timeout=1, max_retry=0)
        following = await bench.send({"echo": "next"})
        await bench.ended(late)
        await eventually(lambda: len(bench.loads()) == 2)
        assert (await bench.inspector.counts(QUEUE)).pending == 1
        await asyncio.sleep(0.2)
        assert (await bench.view(following)).state is State.PENDING
        Path(f"{bench.marks}.ready").touch()
        (view,) = await bench.ended(following)
    assert view.state is State.COMPLETED
    assert bench.loads()[0] != bench.loads()[1]


async def test_neighbours_in_the_process_fail_and_retry_naming_the_cause(bench: Bench) -> None:
    """R42: what was sent to the restarted process is failed and retried, its history says why."""
    mode(bench, "long_running", 2)
    bench.environment["CAPACITY"] = "2"
    bench.order()
    gate = bench.gate()
    async with worker_on(bench):
        neighbour = await bench.send({"gate": str(gate)}, max_retry=2)
        await bench.running(neighbour)
        late = await bench.send({"sleep": 60}, active_timeout=1, max_retry=0)
        await bench.ended(late)
        gate.touch()
        (view,) = await bench.ended(neighbour)
    assert view.state is State.COMPLETED
    assert view.retried == 1
    assert view.attempts[0].ending == "crashed"
    assert "another task in it exceeded its active_timeout" in view.attempts[0].reason


async def test_in_protocol_1_what_waits_in_the_pipe_within_the_concurrency_was_sent(bench: Bench) -> None:
    """R42, R45: one runs at a time; the other, sent within the concurrency, fails retriably with it."""
    async with worker_on(bench, concurrency=2):
        late = await bench.send({"sleep": 60}, active_timeout=1, max_retry=0)
        await bench.running(late)
        second = await bench.send({"echo": 1}, active_timeout=1, max_retry=1)
        _, view = await bench.ended(late, second)
    assert view.state is State.COMPLETED
    assert view.retried == 1
    assert "another task in it" in view.attempts[0].reason
    assert len(bench.starts(second)) == 1, "it never ran beside the first"


async def test_more_timeouts_than_restarts_allow_leave_the_worker_healthy(bench: Bench) -> None:
    """R43: planned restarts do not count for the breaker."""
    async with worker_on(bench, recovery_max_restarts=1) as running:
        task = await bench.send({"sleep": 60}, active_timeout=1, max_retry=1)
        await bench.ended(task)
        following = await bench.send({"echo": 1})
        assert (await bench.ended(following))[0].state is State.COMPLETED
        assert running.runtime.describe() == {"state": "idle", "consecutive_fails": 0, "total_restarts": 0}
        record = await eventually(bench.record)
        assert record.status == "running"
    assert len(bench.loads()) == 3


async def test_waiting_does_not_count_and_a_request_limit_replaces_the_queues(bench: Bench) -> None:
    """R34, R35, R37, R38: the clock starts at the start of the execution, not at the enqueue."""
    gate = bench.gate()
    async with worker_on(bench):
        first = await bench.send({"gate": str(gate)})
        waiting = await bench.send({"sleep": 0.5}, active_timeout=1, max_retry=0)
        await bench.running(first)
        await asyncio.sleep(1.1)
        gate.touch()
        (view,) = await bench.ended(waiting)
    assert view.state is State.COMPLETED


@pytest.mark.parametrize("speak", [1, 2])
async def test_a_task_that_waits_in_the_pipe_of_its_process_has_not_started(bench: Bench, speak: int) -> None:
    """R34, R45, decision 10: its limit starts with its own execution, not when its line was written."""
    bench.environment["SPEAK"] = str(speak)
    bench.order()
    async with worker_on(bench, concurrency=3):
        ids = await bench.send_all([{"sleep": 0.7}] * 3, active_timeout=1, max_retry=0)
        views = await bench.ended(*ids)
    assert [view.state for view in views] == [State.COMPLETED] * 3
    spans = sorted((bench.starts(id_)[0], bench.ends(id_)[0]) for id_ in ids)
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans))


async def test_a_child_frozen_before_its_start_line_is_still_limited(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R32: protocol 2 without a start line counts as started after the silent time."""
    monkeypatch.setattr("runqy.worker.long_running.SILENT_START_SECONDS", 0.5)
    mode(bench, "long_running", 2)
    async with worker_on(bench):
        task = await bench.send({"silent": True, "sleep": 60}, active_timeout=1, max_retry=0)
        (view,) = await bench.ended(task)
    assert "active timeout exceeded" in view.error


async def test_several_timeouts_at_once_make_one_restart(bench: Bench) -> None:
    """R42, decision 11: both end as timeouts, the process is started once more."""
    mode(bench, "long_running", 2)
    bench.environment["CAPACITY"] = "3"
    bench.order()
    async with worker_on(bench):
        ids = await bench.send_all([{"sleep": 60}] * 3, active_timeout=1, max_retry=0)
        views = await bench.ended(*ids)
        await eventually(lambda: len(bench.loads()) == 2)
    assert {view.attempts[0].ending for view in views} <= {"timeout", "crashed"}
    assert len(bench.loads()) == 2


async def test_a_restart_that_does_not_get_ready_is_a_crash_from_then_on(bench: Bench) -> None:
    """R43, decision 11: back-off and breaker take over; an order to restart ends it."""
    async with worker_on(bench, recovery_max_restarts=2) as running:
        bench.starts_as("exit3")
        await bench.send({"sleep": 60}, active_timeout=1, max_retry=0)
        await eventually(lambda: running.runtime.degraded)
        waiting = await bench.send({"echo": 1})
        assert len(bench.loads()) == 3
        bench.starts_as("")
        record = await eventually(bench.record)
        await bench.registry.order("restart", record.worker_id)
        assert (await bench.ended(waiting))[0].state is State.COMPLETED


async def test_the_worker_reports_a_version_that_restarts_on_timeouts(bench: Bench) -> None:
    """R44: at least 0.4.0, at the registration and in its record."""
    async with worker_on(bench):
        record = await eventually(bench.record)
    asked = bench.registrar.asked[0]
    for version in (__version__, record.version, asked["version"]):
        assert tuple(int(part) for part in re.findall(r"\d+", version)[:3]) >= (0, 4, 0)
