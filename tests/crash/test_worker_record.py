"""What Redis says about a worker from the first second to its stop, and how it follows its configuration."""

from __future__ import annotations

import json
import re
from typing import Any

from harness.waiting import eventually
from harness.workers import QUEUE, Bench, worker_on

from runqy import __version__
from runqy.broker import keys
from runqy.broker.workers import Order
from runqy.tasks.state import State


async def test_the_record_shows_what_the_worker_is_and_does(bench: Bench) -> None:
    """Decision 39; R44."""
    gate = bench.gate()
    async with worker_on(bench, concurrency=3) as running:
        task = await bench.send({"gate": str(gate)})
        await bench.running(task)
        await running.worker._heartbeat.beat()
        fields = {
            key.decode(): value.decode()
            for key, value in (await bench.connection.command("HGETALL", keys.worker(running.worker.worker_id))).items()
        }
        record = await bench.registry.get(running.worker.worker_id)
        ttl = await bench.connection.command("TTL", keys.worker(running.worker.worker_id))
        gate.touch()
        await bench.ended(task)
    assert re.fullmatch(r"[\w.-]+:\d+:[0-9a-f]{6}", fields["worker_id"])
    assert fields["queues"] == f"map[{QUEUE}:1]"
    assert json.loads(fields["queues_json"]) == {QUEUE: 1}
    assert fields["status"] == "running"
    assert fields["concurrency"] == "3"
    assert fields["version"] == __version__
    assert record is not None
    assert record.healthy
    assert record.current == (task,)
    assert record.recovery == {"a": {"state": "idle", "consecutive_fails": 0, "total_restarts": 0}}
    assert record.metrics["memory_total_bytes"] > record.metrics["worker_rss_bytes"] > 0
    assert 290 < ttl <= 300


async def test_the_record_is_there_from_the_first_second_and_gone_after_a_clean_stop(bench: Bench) -> None:
    bench.starts_as("gate")
    async with worker_on(bench, until_ready=False) as running:
        record = await eventually(bench.record)
        assert record.status == "bootstrapping"
        assert record.queues == {"a": 0}

        async def deploying() -> Any:
            found = await bench.record()
            return found and any("deploying a" in line for line in found.detail)

        await eventually(deploying)
        assert await running.stop() == 0
        assert await bench.record() is None
        assert not await bench.connection.command("EXISTS", keys.worker_log(running.worker.worker_id))
        assert not await bench.connection.command("ZCARD", keys.WORKERS)


async def test_it_drains_before_it_stops_and_shows_that(bench: Bench) -> None:
    gate = bench.gate()
    async with worker_on(bench) as running:
        task = await bench.send({"gate": str(gate)})
        waiting = await bench.send({"echo": 1})
        await bench.running(task)
        running.worker.stop()

        async def draining() -> Any:
            found = await bench.record()
            return found and found.status == "draining"

        await eventually(draining)
        gate.touch()
        assert await running.run == 0
    assert (await bench.view(task)).state is State.COMPLETED
    assert (await bench.view(waiting)).state is State.PENDING


async def test_an_order_to_drain_stops_the_worker(bench: Bench) -> None:
    async with worker_on(bench) as running:
        await eventually(bench.record)
        await bench.registry.order(Order.DRAIN, "someone:1:else00")
        await bench.registry.order(Order.DRAIN, running.worker.worker_id)
        assert await running.run == 0


async def test_changed_code_and_queues_reach_a_running_worker(bench: Bench) -> None:
    """Decision 41: finish, redeploy, go on; the old deployment stays when the new one can't be made."""
    gate = bench.gate()
    async with worker_on(bench) as running:
        task = await bench.send({"gate": str(gate)}, max_retry=0)
        await bench.running(task)
        bench.environment["MODEL"] = "new"
        bench.order(queues={"a.default": 1, "a.high": 5})
        await bench.registry.publish_config_change()
        await eventually(lambda: running.worker._processor.lanes["a"].draining)
        gate.touch()
        (view,) = await bench.ended(task)
        assert view.state is State.COMPLETED
        high = await bench.send({"echo": 1}, queue="a.high")
        await bench.ended(high)
        assert len(bench.loads()) == 2
        bench.order(path="/nowhere/at/all")
        await bench.registry.publish_config_change()

        async def told() -> Any:
            found = await bench.record()
            return found and any("/nowhere/at/all" in line for line in found.detail)

        await eventually(told)
        again = await bench.send({"echo": 1})
        await bench.ended(again)
        assert len(bench.loads()) == 2


async def test_a_change_of_the_mode_takes_over_as_well(bench: Bench) -> None:
    async with worker_on(bench) as running:
        await bench.ended(await bench.send({"echo": 1}))
        bench.environment["ONCE"] = "1"
        bench.order(mode="one_shot")
        await bench.registry.publish_config_change()
        await eventually(lambda: type(running.runtime).__name__ == "OneShot")
        ids = await bench.send_all([{"echo": n} for n in range(3)])
        views = await bench.ended(*ids)
    assert {view.state for view in views} == {State.COMPLETED}
    assert len(bench.loads()) == 4


async def test_queues_by_priority(bench: Bench) -> None:
    """Decision 18: strictly by priority."""
    bench.order(queues={"a.low": 1, "a.high": 9})
    low = await bench.send_all([{"echo": n} for n in range(5)], queue="a.low")
    high = await bench.send_all([{"echo": n} for n in range(5)], queue="a.high")
    async with worker_on(bench):
        await bench.ended(*low, *high)
    order = [id_ for word, id_, *_ in bench.marked() if word == "start"]
    assert set(order[:5]) == set(high)


async def test_a_paused_queue_is_left_alone_at_once(bench: Bench) -> None:
    async with worker_on(bench):
        await bench.broker.pause(QUEUE)
        task = await bench.send({"echo": 1})
        other = await bench.send({"echo": 1}, queue="a.default")
        assert (await bench.inspector.counts(QUEUE)).pending == 2
        await bench.broker.resume(QUEUE)
        await bench.ended(task, other)
