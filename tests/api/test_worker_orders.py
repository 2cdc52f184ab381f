"""Orders to one worker, and the addresses under which workers are found."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from harness.api import Api

from runqy.broker.events import Events
from runqy.broker.workers import Order, WorkerRecord

WORKER_ID = "box:7:a1b2c3"


@pytest.fixture
async def recorded(api: Api) -> Api:
    """A server that has heard of one worker."""
    now = int(time.time())
    await api.state.workers.beat(WorkerRecord(WORKER_ID, now, now, 2, {"echo.default": 5}, status="running"))
    return api


@pytest.mark.parametrize("prefix", ["", "/api", "/api/cli"])
async def test_every_order_is_published_for_its_worker(recorded: Api, prefix: str) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    events = Events(recorded.state.connection)
    events.subscribe_control(heard.put_nowait)
    await events.start()
    try:
        await asyncio.wait_for(events.wait_connected(), 5)
        async with recorded.client() as admin:
            for order in ("pause", "resume", "restart", "drain"):
                answer = await admin.post(f"{prefix}/workers/{WORKER_ID}/{order}")
                assert answer.status_code == 200
                assert answer.json() == {"message": f"worker told to {order}", "worker_id": WORKER_ID}
                text = await asyncio.wait_for(heard.get(), 5)
                assert msgspec.json.decode(text) == {"order": order, "worker": WORKER_ID}
    finally:
        await events.stop()
    assert {order.value for order in Order} == {"pause", "resume", "restart", "drain"}


@pytest.mark.parametrize("prefix", ["", "/api"])
async def test_unknown_orders_and_workers_are_not_found(recorded: Api, prefix: str) -> None:
    async with recorded.client() as admin:
        answer = await admin.post(f"{prefix}/workers/{WORKER_ID}/PAUSE")
        assert answer.status_code == 404
        (text,) = answer.json()["errors"]
        assert "there is no order 'PAUSE' for a worker" in text
        assert "restart, drain, pause, resume" in text
        for path in ("/pause", "/resume"):
            answer = await admin.post(f"{prefix}/workers/nobody{path}")
            assert (answer.status_code, answer.json()) == (404, {"errors": ["Worker not found"]})
        assert (await admin.get(f"{prefix}/workers/nobody")).status_code == 404


async def test_one_worker_is_the_same_under_both_addresses(recorded: Api) -> None:
    await recorded.state.workers.append_logs(WORKER_ID, ['{"text":"hello"}'])
    async with recorded.client() as admin:
        for path in (f"/workers/{WORKER_ID}", f"/workers/{WORKER_ID}/logs"):
            answer = await admin.get(path)
            assert answer.status_code == 200
            assert (await admin.get(f"/api{path}")).json() == answer.json()


async def test_the_originals_three_empty_lists(recorded: Api) -> None:
    async with recorded.client() as admin:
        for name, member in (("queue_stats", "stats"), ("workers", "workers"), ("servers", "servers")):
            answer = await admin.get(f"/api/{name}")
            assert (answer.status_code, answer.json()) == (200, {member: []})
