"""Crashes of task code: every unplanned exit is one; back-off, breaker, poison tasks, starts that fail."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from harness.waiting import eventually
from harness.workers import QUEUE, Bench, worker_on

from runqy.errors import DeploymentError
from runqy.tasks.state import State


@pytest.mark.parametrize("speak", [1, 2])
@pytest.mark.parametrize(
    ("how", "words"),
    [({"exit": 3}, "exited with code 3"), ({"exit": 0}, "exited with code 0"), ({"kill": 9}, "SIGKILL")],
)
async def test_any_unplanned_exit_is_a_crash(bench: Bench, how: dict[str, Any], words: str, speak: int) -> None:
    """Decision 11: code 0 too. The task is retried, the process is started again."""
    bench.environment["SPEAK"] = str(speak)
    bench.order()
    async with worker_on(bench) as running:
        task = await bench.send({**how, "until_retry": 1}, max_retry=1)
        (view,) = await bench.ended(task)
        assert running.runtime.describe() == {"state": "idle", "consecutive_fails": 1, "total_restarts": 1}
    assert view.state is State.COMPLETED
    assert view.attempts[0].ending == "crashed"
    assert words in view.attempts[0].reason
    assert len(bench.loads()) == 2


async def test_a_poison_task_is_bounded_by_its_retries(bench: Bench) -> None:
    """R3, R9, decision 3: starts are at most max_retry + 1, crashes counted; neighbours go on."""
    async with worker_on(bench, recovery_max_restarts=10):
        poison = await bench.send({"exit": 1}, max_retry=2)
        fine = await bench.send({"echo": 1})
        views = await bench.ended(poison, fine)
    assert [view.state for view in views] == [State.ARCHIVED, State.COMPLETED]
    assert len(bench.starts(poison)) == 3
    assert views[0].retried == 2


async def test_crashes_in_a_row_open_the_breaker_and_nothing_is_taken(bench: Bench) -> None:
    """Decision 11: degraded is visible with the last lines; nothing runs until `worker restart`."""
    async with worker_on(bench, recovery_max_restarts=2) as running:
        first = await bench.send({"exit": 7}, max_retry=1)
        await bench.ended(first)
        await eventually(lambda: running.runtime.degraded)
        waiting = await bench.send({"echo": 1})
        running.worker._heartbeat._beats.nudge()

        async def shown() -> Any:
            record = await bench.record()
            return record if record and record.status == "degraded" else None

        record = await eventually(shown)
        assert not record.healthy
        assert any("exited with code 7" in line for line in record.detail)
        assert record.recovery["a"]["consecutive_fails"] == 2
        running.worker._processor.wake()
        await asyncio.sleep(0.1)
        assert (await bench.view(waiting)).state is State.PENDING
        await bench.registry.order("restart", record.worker_id)
        await bench.ended(waiting)
        assert running.runtime.describe()["state"] == "idle"


async def test_nothing_is_taken_while_the_process_is_not_ready(bench: Bench) -> None:
    """Decision 11: during the back-off and the load the queue keeps its tasks."""
    async with worker_on(bench):
        bench.starts_as("gate")
        crashed = await bench.send({"exit": 1, "until_retry": 1}, max_retry=1)
        others = await bench.send_all([{"echo": n} for n in range(5)])
        await eventually(lambda: len(bench.loads()) == 2)
        counts = await bench.inspector.counts(QUEUE)
        assert (counts.active, counts.pending) == (0, 6)
        bench.marks.with_name("marks.ready").touch()
        views = await bench.ended(crashed, *others)
    assert {view.state for view in views} == {State.COMPLETED}
    assert all(view.retried == 0 for view in views[1:])


async def test_neighbours_of_a_crash_fail_with_it_and_look_ahead_is_given_back(bench: Bench) -> None:
    """Decision 3: what had started is charged; what was only held ahead costs nothing."""
    bench.environment |= {"SPEAK": "2", "CAPACITY": "2"}
    bench.order()
    gate = bench.gate()
    async with worker_on(bench) as running:
        await bench.ended(*await bench.send_all([{"echo": 0}] * 20))
        neighbour = await bench.send({"gate": str(gate)}, max_retry=3)
        await bench.running(neighbour)
        crash = await bench.send({"gate": str(bench.gate("crash")), "exit": 1, "until_retry": 1}, max_retry=1)
        await bench.running(crash)
        ahead = await bench.send_all([{"echo": n} for n in range(5)])
        lane = running.worker._processor.lanes["a"]
        await eventually(lambda: len(lane.held) > 2, 5, "some held ahead")
        bench.gate("crash").touch()
        gate.touch()
        views = await bench.ended(neighbour, crash, *ahead)
    assert {view.state for view in views} == {State.COMPLETED}
    assert [view.retried for view in views[1:]] == [1, 0, 0, 0, 0, 0]
    assert all(len(bench.starts(id_)) == 1 for id_ in ahead)


async def test_task_code_that_cannot_load_ends_the_first_start_with_its_last_lines(bench: Bench) -> None:
    """`@load` raises: DeploymentError after its tries, with what the child printed."""
    bench.starts_as("raise")
    with pytest.raises(DeploymentError) as caught:
        async with worker_on(bench, recovery_max_restarts=2):
            pass
    assert "no weights" in caught.value.why
    assert "ValueError: no weights" in caught.value.tail
    assert len(bench.loads()) == 2
    assert await bench.record() is None


async def test_a_process_that_leaves_before_it_is_ready_is_explained(bench: Bench) -> None:
    bench.starts_as("exit4")
    with pytest.raises(DeploymentError) as caught:
        async with worker_on(bench, recovery_max_restarts=1):
            pass
    assert "exited with code 4" in caught.value.what
    assert caught.value.tail == ("loading the model", "last words")


async def test_a_start_that_takes_too_long_is_ended(bench: Bench) -> None:
    bench.starts_as("hang")
    bench.order(startup_timeout_secs=1)
    with pytest.raises(DeploymentError, match="not ready within 1 s"):
        async with worker_on(bench, recovery_max_restarts=1):
            pass
    await bench.nothing_is_left_running()


async def test_with_stay_up_a_failed_start_is_shown_and_tried_again(bench: Bench) -> None:
    """`runqy dev`: shown in the record, again when the code changes."""
    bench.starts_as("raise")
    async with worker_on(bench, stay_up=True, until_ready=False) as running:

        async def shown() -> Any:
            record = await bench.record()
            return record if record and record.status == "degraded" else None

        record = await eventually(shown)
        assert any("no weights" in line for line in record.detail)
        bench.starts_as("")
        running.worker.reload()
        task = await bench.send({"echo": 1})
        assert (await bench.ended(task))[0].state is State.COMPLETED


async def test_one_parent_that_crashes_does_not_hold_up_another(bench: Bench) -> None:
    """Decision 11: other parents go on."""
    bench.order("b")
    async with worker_on(bench, queues=("a", "b"), recovery_max_restarts=1, concurrency=2):
        broken = await bench.send({"exit": 1}, max_retry=0)
        await bench.ended(broken)
        fine = await bench.send({"echo": 1}, queue="b.default")
        assert (await bench.ended(fine))[0].state is State.COMPLETED


_CLOSES_ITS_STDIN = """
import json, os, time
os.write(1, b'{"status":"ready"}\\n')
data = b""
while not data.endswith(b"\\n"):
    data += os.read(0, 1 << 16)
os.close(0)
for line in data.splitlines()[:1]:
    os.write(1, json.dumps({"task_id": json.loads(line)["task_id"], "result": os.getpid()}).encode() + b"\\n")
time.sleep(600)
"""


async def test_code_that_closes_its_stdin_is_restarted_and_nothing_hangs(bench: Bench, tmp_path: Path) -> None:
    """Closed pipes: a crash; what had answered counts, what was written after the end costs nothing."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text(_CLOSES_ITS_STDIN)
    bench.order(path=str(tmp_path / "code"))
    async with worker_on(bench):
        ids = [await bench.send(n, max_retry=0) for n in range(3)]
        views = await bench.ended(*ids)
    assert [(view.state, view.retried) for view in views] == [(State.COMPLETED, 0)] * 3
    assert len({view.result for view in views}) == 3


async def test_task_processes_get_no_signal_that_the_terminal_sends_to_the_worker(bench: Bench) -> None:
    """Decision 12: a session and process group of their own."""
    import os

    async with worker_on(bench):
        (pid,) = bench.loads()
        assert os.getsid(pid) == os.getpgid(pid) == pid != os.getsid(0)
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: len(bench.loads()) == 2)
