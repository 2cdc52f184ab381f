"""Lost leases, and a Redis that goes away: work in hand goes on, nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harness.redis_servers import RedisServer, running, valkey_binary
from harness.registrar import Registrar
from harness.waiting import eventually
from harness.workers import QUEUE, Bench, worker_on

from runqy.broker import keys
from runqy.broker.connection import connected
from runqy.tasks.state import State


@pytest.fixture
def own_valkey(tmp_path: Path) -> Any:
    """A Valkey for this test alone, with its data on disk, to be killed."""
    with running(valkey_binary(), tmp_path / "valkey", "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
async def own_bench(
    own_valkey: RedisServer, server: Registrar, tmp_path: Path, deployments: Path
) -> AsyncIterator[Bench]:
    async with connected(own_valkey.target) as connection:
        yield Bench(connection, server, tmp_path, deployments)


@pytest.mark.parametrize("speak", [1, 2])
async def test_a_worker_that_lost_its_lease_gives_up_and_changes_nothing(
    bench: Bench, speak: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 15: the superseded attempt is stopped; what the new owner has stays as it is."""
    monkeypatch.setattr("runqy.worker.long_running.CANCEL_GRACE_SECONDS", 0.1)
    bench.environment["SPEAK"] = str(speak)
    bench.order()
    async with worker_on(bench) as running:
        task = await bench.send({"sleep": 60}, max_retry=3)
        await bench.running(task)
        # Another worker owns it now.
        await bench.connection.command("HSET", keys.task(QUEUE, task), "attempt", "other:1:ffffff#1 0 0")
        before = await bench.connection.command("HGETALL", keys.task(QUEUE, task))
        await running.worker._heartbeat.renew()
        await eventually(lambda: len(bench.loads()) == 2)
        await eventually(lambda: running.worker._finisher.backlog == 0)
        assert not running.worker._processor.held()
        assert await bench.connection.command("HGETALL", keys.task(QUEUE, task)) == before
        following = await bench.send({"echo": 1})
        await bench.ended(following)


async def test_a_result_that_comes_after_the_lease_was_lost_is_not_written(bench: Bench) -> None:
    """Decision 15: a superseded worker can change nothing."""
    gate = bench.gate()
    async with worker_on(bench) as running:
        task = await bench.send({"gate": str(gate)})
        await bench.running(task)
        await bench.connection.command("HSET", keys.task(QUEUE, task), "attempt", "other:1:ffffff#1 0 0")
        gate.touch()
        await eventually(lambda: running.worker._finisher.superseded == 1)
        view = await bench.view(task)
    assert view.state is State.ACTIVE
    assert view.worker == "other:1:ffffff"


async def test_a_task_taken_again_while_its_lost_attempt_still_runs_leaks_no_slot(bench: Bench) -> None:
    """Frozen past its lease, thawed, and faster at the queue than at its leases: no id runs twice at once here."""
    gate = bench.gate()
    async with worker_on(bench, concurrency=2) as running:
        task = await bench.send({"gate": str(gate)}, max_retry=5)
        await bench.running(task)
        await bench.connection.command("ZADD", keys.lease(QUEUE), 1, task)
        await bench.broker.recover(QUEUE)
        await eventually(lambda: len(bench.loads()) == 2, 15)
        gate.touch()
        (view,) = await bench.ended(task)
        lane = running.worker._processor.lanes["a"]
        await eventually(lambda: not lane.held)
        assert lane.within == 0
    assert view.state is State.COMPLETED
    assert view.retried == 1
    assert len(bench.starts(task)) == 2


async def test_leases_are_renewed_while_task_code_spins(bench: Bench) -> None:
    """Decision 16: renewed by something that CPU-bound code can't starve."""
    async with worker_on(bench, lease_seconds=1.0, lease_renew_seconds=0.2):
        task = await bench.send({"spin": True}, active_timeout=2, max_retry=0)
        await bench.running(task)
        seen = set()

        async def renewed() -> bool:
            seen.add(await bench.connection.command("ZSCORE", keys.lease(QUEUE), task))
            assert not (await bench.view(task)).is_orphaned
            return len(seen) >= 4

        await eventually(renewed)
        (view,) = await bench.ended(task)
    assert "active timeout" in view.error


async def test_redis_killed_during_work_loses_nothing_and_runs_nothing_twice(
    own_bench: Bench, own_valkey: RedisServer
) -> None:
    """Results are kept and delivered when it is back; nothing is taken meanwhile."""
    bench = own_bench
    gate = bench.gate()
    async with worker_on(bench, concurrency=2):
        inside = await bench.send_all([{"gate": str(gate), "echo": n} for n in range(2)], max_retry=0)
        waiting = await bench.send_all([{"echo": n} for n in range(20)], max_retry=0)
        await bench.running(inside[0])
        await bench.in_state(inside[1], State.ACTIVE)
        own_valkey.kill()
        gate.touch()
        await eventually(lambda: bench.ends(inside[0]) and bench.ends(inside[1]))
        assert not any(bench.starts(id_) for id_ in waiting)
        own_valkey.start()
        await bench.redis_is_back()
        views = await bench.ended(*inside, *waiting)
    assert {view.state for view in views} == {State.COMPLETED}
    assert all(len(bench.starts(id_)) == 1 for id_ in [*inside, *waiting])
    assert all(view.retried == 0 for view in views)


async def test_redis_killed_and_restarted_again_and_again_under_load(
    own_bench: Bench, own_valkey: RedisServer, is_long: bool
) -> None:
    """Every task ends once, whatever the moment."""
    bench = own_bench
    bench.environment |= {"SPEAK": "2", "CAPACITY": "4"}
    bench.order()
    async with worker_on(bench, concurrency=4):
        ids: list[str] = []
        for round_ in range(30 if is_long else 3):
            batch = await bench.send_all([{"sleep": 0.005, "echo": n} for n in range(60)], max_retry=0)
            ids += batch
            await eventually(lambda batch=batch: any(bench.starts(id_) for id_ in batch))
            own_valkey.kill()
            await asyncio.sleep(0.05 * (round_ % 3))
            own_valkey.start()
            await bench.redis_is_back()
        views = await bench.ended(*ids, seconds=40)
    assert {view.state for view in views} == {State.COMPLETED}
    started = [id_ for word, id_, *_ in bench.marked() if word == "start"]
    assert len(started) == len(set(started)) == len(ids)


async def test_a_worker_waits_for_redis_and_says_so(own_bench: Bench, own_valkey: RedisServer) -> None:
    """Not reachable at the start: it waits and tells what for."""
    bench = own_bench
    own_valkey.stop()
    async with worker_on(bench, until_ready=False) as running:
        said: list[str] = []
        running.worker._on_status = lambda status, detail: said.append(f"{status} {detail}")
        await eventually(lambda: any("waiting for Redis" in line for line in said))
        own_valkey.start()
        await bench.redis_is_back()
        await eventually(lambda: "running " in said, 15)
        (view,) = await bench.ended(await bench.send({"echo": 1}))
        assert view.state is State.COMPLETED


async def test_a_stop_while_redis_is_gone_ends_in_time(own_bench: Bench, own_valkey: RedisServer) -> None:
    """Exit within the shutdown timeout plus 2 s; the task is recovered, not lost."""
    bench = own_bench
    async with worker_on(bench, shutdown_timeout=0.5) as running:
        task = await bench.send({"sleep": 60}, max_retry=3)
        await bench.running(task)
        own_valkey.kill()
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert await running.stop() == 0
        assert loop.time() - before < 2.5
    own_valkey.start()
    await bench.redis_is_back()
    assert (await bench.view(task)).state is State.ACTIVE


async def test_a_stop_while_redis_hangs_ends_in_time(own_bench: Bench, own_valkey: RedisServer) -> None:
    """A Redis that is frozen holds nobody up either."""
    bench = own_bench
    assert own_valkey.process is not None
    async with worker_on(bench, shutdown_timeout=0.5) as running:
        task = await bench.send({"sleep": 60}, max_retry=3)
        await bench.running(task)
        os.kill(own_valkey.process.pid, signal.SIGSTOP)
        try:
            loop = asyncio.get_running_loop()
            before = loop.time()
            assert await running.stop() == 0
            assert loop.time() - before < 2.5
        finally:
            os.kill(own_valkey.process.pid, signal.SIGCONT)


async def test_scripts_that_redis_forgot_are_loaded_again(bench: Bench) -> None:
    async with worker_on(bench):
        (before,) = await bench.ended(await bench.send({"echo": 1}))
        await bench.connection.command("SCRIPT", "FLUSH")
        (after,) = await bench.ended(await bench.send({"echo": 2}))
        assert (before.state, after.state, len(after.attempts)) == (State.COMPLETED, State.COMPLETED, 1)


async def test_a_full_redis_keeps_results_in_the_worker_until_there_is_room(
    own_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full memory: the result is kept and delivered; the task is not run again."""
    monkeypatch.setattr("runqy.worker.finisher.LONGEST_DELAY", 0.1)
    bench = own_bench
    gate = bench.gate()
    async with worker_on(bench) as running:
        task = await bench.send({"gate": str(gate)}, max_retry=0)
        await bench.running(task)
        await bench.connection.command("CONFIG", "SET", "maxmemory", "1")
        gate.touch()
        await eventually(lambda: bench.ends(task))
        await eventually(lambda: running.worker._finisher.backlog == 1)
        await bench.connection.command("CONFIG", "SET", "maxmemory", "0")
        (view,) = await bench.ended(task)
    assert view.state is State.COMPLETED
    assert len(bench.starts(task)) == 1
