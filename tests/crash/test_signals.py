"""Real worker processes under SIGTERM and SIGKILL at random moments: nothing lost, stuck, left, or run too often."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.keyspace import misplaced, read_keyspace
from harness.nursery import Nursery
from harness.waiting import eventually
from harness.workers import QUEUE, QUICK, Bench, alive

from runqy.tasks.outcome import MAX_FREE_LOSSES
from runqy.tasks.state import State


class Program:
    """A worker as a process of its own."""

    def __init__(self, bench: Bench, nursery: Nursery, **options: Any) -> None:
        settings = {
            **QUICK,
            "server_url": bench.registrar.url,
            "api_key": "test-worker-key",
            "queues": ["a"],
            "deployment_dir": str(bench.deployments),
            **options,
        }
        self.log = bench.folder / f"worker-{time.monotonic_ns()}.log"
        self.log.touch()
        self._nursery = nursery
        self.pid = nursery.start(self.log, settings)

    async def ready(self) -> None:
        await eventually(lambda: b"ready for tasks" in self.log.read_bytes(), 20, "the worker is ready")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def exit(self, seconds: float) -> int:
        """Its exit code, in time."""
        code = await asyncio.to_thread(self._nursery.exit_code, self.pid, seconds)
        said = self.log.read_text()
        assert code is not None, f"it did not end in {seconds} s: {said}"
        assert "Traceback" not in said, said
        return code

    def end(self) -> None:
        while self._nursery.exit_code(self.pid, 0) is None:
            os.kill(self.pid, signal.SIGKILL)
            self._nursery.exit_code(self.pid, 0.5)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    parent = Nursery()
    yield parent
    parent.close()


@pytest.fixture
def start(bench: Bench, nursery: Nursery) -> Any:
    """Starts workers that are ended with the test, whatever happens."""
    programs: list[Program] = []

    def begin(**options: Any) -> Program:
        programs.append(Program(bench, nursery, **options))
        return programs[-1]

    yield begin
    for program in programs:
        program.end()


async def test_sigterm_lets_work_finish_gives_back_the_rest_and_exits_0(bench: Bench, start: Any) -> None:
    """Stop: at no cost, to the front, record gone."""
    gate = bench.gate()
    worker = start(concurrency=1)
    task = await bench.send({"gate": str(gate)}, max_retry=0)
    await bench.running(task)
    waiting = await bench.send_all([{"echo": n} for n in range(3)])
    worker.signal(signal.SIGTERM)

    async def draining() -> bool:
        record = await bench.record()
        return record is not None and record.status == "draining"

    await eventually(draining)
    gate.touch()
    assert await worker.exit(7) == 0
    assert (await bench.view(task)).state is State.COMPLETED
    assert [view.id for view in await bench.inspector.list_tasks(QUEUE, State.PENDING)] == waiting
    assert await bench.record() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_does_not_finish_in_time_goes_back_to_the_front_at_no_cost(
    bench: Bench, start: Any, number: signal.Signals
) -> None:
    """Exit within the timeout plus 2 s; the task keeps its former pending_since."""
    worker = start(shutdown_timeout=0.3)
    task = await bench.send({"sleep": 60, "ignore_term": True}, max_retry=0, pending_timeout=100)
    since = (await bench.view(task)).pending_since
    await bench.running(task)
    later = await bench.send({"echo": 1})
    began = time.monotonic()
    worker.signal(number)
    assert await worker.exit(5) == 0
    assert time.monotonic() - began < 2.3
    view = await bench.view(task)
    assert (view.state, view.retried, view.pending_since) == (State.PENDING, 0, since)
    assert [waiting.id for waiting in await bench.inspector.list_tasks(QUEUE, State.PENDING)] == [task, later]
    await bench.nothing_is_left_running()


async def test_a_second_signal_ends_at_once_still_giving_back(bench: Bench, start: Any) -> None:
    worker = start(shutdown_timeout=60)
    task = await bench.send({"sleep": 60}, max_retry=0)
    await bench.running(task)
    worker.signal(signal.SIGTERM)

    async def draining() -> bool:
        record = await bench.record()
        return record is not None and record.status == "draining"

    await eventually(draining)
    worker.signal(signal.SIGINT)
    assert await worker.exit(3) == 0
    assert (await bench.view(task)).state is State.PENDING
    await bench.nothing_is_left_running()


async def test_sigkill_takes_the_task_processes_along(bench: Bench, start: Any) -> None:
    """Decision 12: when the worker itself dies, its task processes die too."""
    worker = start(concurrency=1)
    task = await bench.send({"sleep": 60}, max_retry=0)
    await bench.running(task)
    assert alive(bench.loads())
    worker.signal(signal.SIGKILL)
    await bench.nothing_is_left_running()


@pytest.mark.parametrize("how", ["gate", "hang"])
async def test_sigterm_while_the_code_is_loading_exits_0_in_time(bench: Bench, start: Any, how: str) -> None:
    """At any moment of its life."""
    bench.starts_as(how)
    worker = start(shutdown_timeout=10.0)
    await eventually(bench.loads, 20)
    worker.signal(signal.SIGTERM)
    assert await worker.exit(2) == 0
    await bench.nothing_is_left_running()
    assert await bench.record() is None


async def test_sigterm_while_it_waits_for_the_server_exits_0_in_time(bench: Bench, start: Any) -> None:
    bench.registrar.refusals["a"] = (503, "not yet")
    worker = start(shutdown_timeout=10.0)
    await eventually(lambda: b"waiting for the server" in worker.log.read_bytes(), 20)
    worker.signal(signal.SIGTERM)
    assert await worker.exit(2) == 0


async def test_sigterm_while_it_restarts_a_crashed_process_exits_0_in_time(bench: Bench, start: Any) -> None:
    worker = start(recovery_initial_delay=60.0, recovery_max_delay=60.0)
    await bench.ended(await bench.send({"exit": 1}, max_retry=0))
    worker.signal(signal.SIGTERM)
    assert await worker.exit(2) == 0


def _check_runs(bench: Bench, views: list[Any], number: signal.Signals, rounds: int) -> None:
    """All completed, and executed no more often than was charged (or, for a stop, given back)."""
    starts = Counter(id_ for word, id_, *_ in bench.marked() if word == "start")
    for view in views:
        assert view.state is State.COMPLETED, (view.id, view.state, view.error, view.attempts)
        # A start whose note died with the worker counts as held ahead, three times at most.
        most = view.retried + 1 + (rounds if number is signal.SIGTERM else MAX_FREE_LOSSES)
        assert 1 <= starts[view.id] <= most
    if number is signal.SIGTERM:
        assert all(view.retried == 0 for view in views), "a stop costs no retry"


def _was_up(worker: Program) -> bool:
    return b"registering" in worker.log.read_bytes()


async def _storm(bench: Bench, start: Any, number: signal.Signals, rounds: int, seed: int) -> None:
    """Workers that get a signal at a random moment while tasks flow; then a calm one ends everything."""
    chance = random.Random(seed)
    modes: list[dict[str, Any]] = [{"SPEAK": "1"}, {"SPEAK": "2", "CAPACITY": "3"}]
    ids: list[str] = []
    for _ in range(rounds):
        bench.environment.clear()
        bench.environment |= chance.choice(modes)
        bench.order()
        ids += await bench.send_all(
            [{"sleep": chance.choice([0, 0.002, 0.02, 0.1]), "echo": n} for n in range(12)], max_retry=50
        )
        worker = start(concurrency=3, shutdown_timeout=0.05, lease_seconds=1.0, lease_renew_seconds=0.3)
        if chance.random() < 0.8:
            await worker.ready()
        await asyncio.sleep(chance.random() * 0.15)
        worker.signal(number)
        code = await worker.exit(8)
        # Before it has set up its handlers, SIGTERM ends it as it ends any program.
        assert code == (0 if number is signal.SIGTERM and _was_up(worker) else -number)
        await bench.nothing_is_left_running()
        if number is signal.SIGTERM and code == 0:
            counts = await bench.inspector.counts(QUEUE)
            assert counts.active == 0, "a clean stop holds nothing"
            assert await bench.record() is None
    last = start(concurrency=3, lease_seconds=1.0, lease_renew_seconds=0.3)
    views = await bench.ended(*ids, seconds=40)
    _check_runs(bench, views, number, rounds)
    last.signal(signal.SIGTERM)
    assert await last.exit(8) == 0
    assert not misplaced(await read_keyspace(bench.connection), [QUEUE])
    await bench.nothing_is_left_running()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(2))
async def test_sigterm_at_random_moments(bench: Bench, start: Any, is_long: bool, part: int) -> None:
    """At any moment of its life: exit 0, nothing active, nothing charged, nothing left."""
    await _storm(bench, start, signal.SIGTERM, 100 if is_long else 10, seed=part)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(2))
async def test_sigkill_at_random_moments(bench: Bench, start: Any, is_long: bool, part: int) -> None:
    """Task processes die with it; another worker recovers the tasks."""
    await _storm(bench, start, signal.SIGKILL, 100 if is_long else 10, seed=100 + part)


async def test_a_frozen_worker_that_wakes_changes_nothing_of_others(bench: Bench, start: Any) -> None:
    """SIGSTOP past the lease: another worker takes over; the thawed one gives up."""
    gate = bench.gate()
    frozen = start(lease_seconds=0.6, lease_renew_seconds=0.2)
    task = await bench.send({"gate": str(gate), "echo": 1}, max_retry=3)
    await bench.running(task)
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        other = start(lease_seconds=0.6, lease_renew_seconds=0.2)
        await eventually(lambda: len(bench.starts(task)) == 2, 20)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    await eventually(lambda: b"lease of a task was lost" in frozen.log.read_bytes())
    gate.touch()
    (view,) = await bench.ended(task)
    assert view.state is State.COMPLETED
    assert view.retried == 1
    assert str(other.pid) in view.attempts[-1].worker
    for worker in (frozen, other):
        worker.signal(signal.SIGTERM)
        assert await worker.exit(8) == 0


def test_the_program_holds_no_key_in_its_argument_list_when_started_by_the_cli(tmp_path: Path) -> None:
    """Decision 25: the settings come from the environment; the process listing shows no secret."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("RUNQY_")},
        "RUNQY_SERVER_URL": "http://127.0.0.1:9",
        "RUNQY_API_KEY": "canary-key-1234567890",
        "RUNQY_QUEUES": "a",
        "RUNQY_BOOTSTRAP_RETRIES": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", "from runqy.cli.app import worker_main; worker_main()"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        timeout=30,
    )
    assert done.returncode == 5
    assert b"canary" not in done.stdout + done.stderr
    assert b"Traceback" not in done.stderr
