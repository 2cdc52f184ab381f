"""A paused worker takes nothing, finishes what it has, and otherwise lives on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.api import CLIENT, WORKER, Api, running_server
from harness.redis_servers import RedisServer
from harness.waiting import eventually
from harness.workers import QUEUE, TASK_CODE, Bench, Running, worker_on

from runqy.broker.workers import Order
from runqy.errors import UnavailableError
from runqy.tasks.state import State


async def shown(bench: Bench, status: str) -> None:
    """Wait until the worker's record has this status."""

    async def look() -> bool:
        record = await bench.record()
        return record is not None and record.status == status

    await eventually(look, 5, status)


async def told(bench: Bench, running: Running, order: Order, status: str) -> None:
    await bench.registry.order(order, running.worker.worker_id)
    await shown(bench, status)


async def pending(bench: Bench) -> int:
    return (await bench.inspector.counts(QUEUE)).pending


async def test_a_paused_worker_takes_nothing_and_finishes_what_it_has(bench: Bench) -> None:
    gate = bench.gate()
    async with worker_on(bench) as running:
        first = await bench.send({"gate": str(gate)})
        await bench.running(first)
        await told(bench, running, Order.PAUSE, "paused")
        waiting = await bench.send({"echo": 1})
        gate.touch()
        (view,) = await bench.ended(first)
        assert view.state is State.COMPLETED
        # Longer than the look for tasks that nobody tells about.
        await asyncio.sleep(1.5)
        assert (await bench.view(waiting)).state is State.PENDING
        await told(bench, running, Order.RESUME, "running")
        (view,) = await bench.ended(waiting, seconds=5)
        assert (view.state, view.retried) == (State.COMPLETED, 0)


async def test_a_pause_gives_look_ahead_back_at_no_cost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decision 3: a pause charges nothing to what had not started; the order of the queue stays."""
    monkeypatch.setattr("runqy.worker.processor.RECALL_SECONDS", 60)
    bench.environment["SPEAK"] = "2"
    bench.order()
    gate = bench.gate()
    async with worker_on(bench) as running:
        await bench.ended(*await bench.send_all([{"echo": n} for n in range(30)]))
        first = await bench.send({"gate": str(gate)})
        await bench.running(first)
        ahead = await bench.send_all([{"echo": n} for n in range(4)], max_retry=0)
        lane = running.worker._processor.lanes["a"]
        await eventually(lambda: len(lane.held) > 1, 5, "some held ahead")
        later = await bench.send({"echo": 9})
        await told(bench, running, Order.PAUSE, "paused")
        await eventually(lambda: list(lane.held) == [first], 5, "look-ahead recalled")

        async def all_back() -> bool:
            return await pending(bench) == len(ahead) + 1

        await eventually(all_back)
        waiting = [view.id for view in await bench.inspector.list_tasks(QUEUE, State.PENDING)]
        assert set(waiting) == {*ahead, later}
        gate.touch()
        (view,) = await bench.ended(first)
        assert view.state is State.COMPLETED
        await told(bench, running, Order.RESUME, "running")
        views = await bench.ended(*ahead, later)
    assert {(view.state, view.retried) for view in views} == {(State.COMPLETED, 0)}
    assert all(len(bench.starts(id_)) == 1 for id_ in ahead)


async def test_a_paused_worker_renews_its_leases(bench: Bench) -> None:
    """What it runs stays its own far beyond one lease."""
    gate = bench.gate()
    async with worker_on(bench, lease_seconds=2.0, lease_renew_seconds=0.5) as running:
        first = await bench.send({"gate": str(gate)}, max_retry=0)
        await bench.running(first)
        await told(bench, running, Order.PAUSE, "paused")
        await asyncio.sleep(4)
        gate.touch()
        (view,) = await bench.ended(first)
    assert (view.state, view.retried) == (State.COMPLETED, 0)
    assert len(bench.starts(first)) == 1


async def test_a_paused_worker_restarts_and_stays_paused_then_drains(bench: Bench) -> None:
    async with worker_on(bench) as running:
        await told(bench, running, Order.PAUSE, "paused")
        await bench.registry.order(Order.RESTART, running.worker.worker_id)
        await eventually(lambda: len(bench.loads()) == 2, 10, "a second start of the task code")
        waiting = await bench.send({"echo": 1})
        await eventually(lambda: running.runtime.ready, 10, "ready again")
        await shown(bench, "paused")
        await bench.registry.order(Order.DRAIN, running.worker.worker_id)
        assert await asyncio.wait_for(running.run, 10) == 0
    assert (await bench.view(waiting)).state is State.PENDING
    assert await bench.record() is None


async def test_a_worker_paused_before_it_is_ready_begins_paused(bench: Bench) -> None:
    bench.starts_as("gate")
    task = await bench.send({"echo": 1})
    async with worker_on(bench, until_ready=False) as running:
        await eventually(bench.record)
        await bench.registry.order(Order.PAUSE, running.worker.worker_id)
        await eventually(lambda: running.worker._processor.paused)
        bench.starts_as("")
        Path(f"{bench.marks}.ready").touch()
        await shown(bench, "paused")
        assert (await bench.view(task)).state is State.PENDING
        await bench.registry.order(Order.RESUME, running.worker.worker_id)
        await bench.ended(task)


async def test_a_pickup_whose_answer_is_lost_in_a_pause_is_given_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stays with a paused worker that does not know of it."""
    async with worker_on(bench) as running:
        processor = running.worker._processor
        real, called = processor._broker.pick_up, asyncio.Event()

        async def deaf(*arguments: Any, **options: Any) -> Any:
            pickup = await real(*arguments, **options)
            called.set()
            if pickup.tasks and not options["answer_lost"]:
                processor.pause()
                raise UnavailableError("the answer got lost")
            return pickup

        monkeypatch.setattr(processor._broker, "pick_up", deaf)
        await called.wait()
        task = await bench.send({"echo": 1}, max_retry=0)
        await eventually(lambda: processor.paused)
        await bench.in_state(task, State.PENDING, seconds=5)
        assert not processor._lost_answer
        monkeypatch.undo()
        await told(bench, running, Order.RESUME, "running")
        (view,) = await bench.ended(task)
    assert (view.state, view.retried) == (State.COMPLETED, 0)
    assert len(bench.starts(task)) == 1


async def test_pause_and_resume_over_http(tmp_path: Path, valkey: RedisServer, bench: Bench) -> None:
    """From the route to the process of a worker and back, by both addresses."""
    async with running_server(tmp_path, valkey.url) as api, api.client() as admin:
        await configured(api)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "runqy", "worker",
            cwd=tmp_path,
            env={**os.environ, "RUNQY_SERVER_URL": api.url, "RUNQY_API_KEY": WORKER, "RUNQY_QUEUES": "p",
                 "RUNQY_DEPLOYMENT_DIR": str(bench.deployments), "MARKS": str(bench.marks)},
        )  # fmt: skip
        try:

            async def status(wanted: str) -> str | None:
                rows = (await admin.get("/workers")).json()["workers"]
                return rows[0]["worker_id"] if rows and rows[0]["status"] == wanted else None

            worker = await eventually(lambda: status("running"), 60, "a running worker")
            answer = await admin.post(f"/workers/{worker}/pause")
            assert (answer.status_code, answer.json()["message"]) == (200, "worker told to pause")
            await eventually(lambda: status("paused"), 5, "paused")
            assert (await admin.get(f"/api/workers/{worker}")).json()["status"] == "paused"
            async with api.client(CLIENT) as client:
                sent = await client.post("/queue/add", json={"queue": "p.default", "data": {"echo": 1}})
                task = sent.json()["info"]["id"]
            await asyncio.sleep(1.5)
            assert (await bench.view(task)).state is State.PENDING
            assert (await admin.post(f"/api/workers/{worker}/resume")).status_code == 200
            await bench.ended(task, seconds=10)
            assert (await admin.post(f"/workers/{worker}/pause")).status_code == 200
            await eventually(lambda: status("paused"), 5, "paused again")
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 10) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def configured(api: Api) -> None:
    """A queue whose code is the task code of these tests."""
    async with api.client() as admin:
        deployment = {"path": str(TASK_CODE), "startup_cmd": "python main.py"}
        answer = await admin.post("/workers/queues", json={"name": "p", "priority": 1, "deployment": deployment})
        assert answer.status_code == 201, answer.text
