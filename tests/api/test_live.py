"""The overview and its stream, the history, and the stream of one task."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from harness.api import CLIENT, WORKER, Api, complete, take

from runqy.broker.transitions import Held

Event = tuple[str, Any]


@asynccontextmanager
async def stream(client: httpx2.AsyncClient, path: str) -> AsyncIterator[AsyncIterator[Event]]:
    """The events of a stream, each with its decoded data."""

    async def events(answer: httpx2.Response) -> AsyncIterator[Event]:
        kind = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, json.loads(line.removeprefix("data: "))

    async with client.stream("GET", path) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer)


async def add(client: httpx2.AsyncClient, queue: str = "echo", **data: Any) -> str:
    return str((await client.post("/queue/add", json={"queue": queue, "data": data})).json()["info"]["id"])


async def test_the_overview_counts_every_queue(api: Api) -> None:
    async with api.client() as admin:
        await add(admin)
        document = (await admin.get("/api/overview")).json()
    rows = {row["queue"]: row for row in document["queues"]}
    assert set(rows) == {"echo.default", "small.default", "one.high", "one.low"}
    assert (rows["echo.default"]["pending"], document["totals"]["pending"]) == (1, 1)
    assert document["workers"] == {"total": 0, "ready": 0, "degraded": 0, "stale": 0}
    assert document["redis"] == document["database"] == {"ok": True}
    assert abs(document["at"] / 1000 - time.time()) < 2


async def test_ten_watchers_cost_one_look_per_second(api: Api) -> None:
    """Viewers share the samples, and each sees a change within two seconds."""
    sampler = api.state.sampler
    async with api.client() as admin:

        async def watch() -> int:
            async with stream(admin, "/api/live") as events:
                async for kind, document in events:
                    assert kind == "snapshot"
                    if document["totals"]["pending"]:
                        return int(document["asked_at"])
            raise AssertionError("the stream ended")

        before, began = sampler.samples, time.monotonic()
        watching = [asyncio.create_task(watch()) for _ in range(10)]
        await asyncio.sleep(1.5)
        await add(admin)
        added = time.time() * 1000
        seen = await asyncio.wait_for(asyncio.gather(*watching), 10)
        assert max(seen) - added < 2000
        assert sampler.samples - before <= time.monotonic() - began + 2


async def test_sampling_ends_with_the_last_watcher(api: Api) -> None:
    async with api.client() as admin, stream(admin, "/api/live") as events:
        await anext(events)
    for _ in range(100):
        if api.state.sampler._watchers == 0:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.2)
    before = api.state.sampler.samples
    await asyncio.sleep(1.5)
    assert api.state.sampler.samples == before


async def test_the_history_tells_what_ended_and_how_long_it_took(api: Api) -> None:
    async with api.client() as admin:
        for _ in range(3):
            await add(admin)
        for _ in range(3):
            await complete(api, await take(api, "echo.default"))
        for span, step, most in (("1h", 60, 61), ("24h", 900, 97), ("7d", 3600, 169), ("30d", 14400, 181)):
            document = (await admin.get("/api/history", params={"queue": "echo", "range": span})).json()
            assert document["step_seconds"] == step
            points = document["points"]
            assert most - 2 <= len(points) <= most
            assert sum(point["processed"] for point in points) == 3
            (last,) = [point for point in points if point["processed"]]
            assert 0 < last["run"]["p50_ms"] <= last["run"]["p99_ms"] < 60_000
            assert all(point["wait"] is None for point in points if not point["processed"])
        everything = (await admin.get("/api/history", params={"range": "24h"})).json()
        assert sum(point["processed"] for point in everything["points"]) == 3
        assert (await admin.get("/api/history", params={"range": "2h"})).status_code == 400
        assert (await admin.get("/api/history", params={"queue": "nope"})).status_code == 404


async def test_a_task_is_followed_from_waiting_to_its_end(api: Api) -> None:
    """State, progress, printed lines, pieces of output, and the end, which closes the stream."""
    async with api.client(CLIENT) as client:
        task_id = await add(client)
        seen: list[Event] = []
        async with stream(client, f"/queue/{task_id}/events") as events:
            seen.append(await anext(events))
            assert api.state.events.followed == 1
            task = await take(api, "echo.default")
            held = Held(task.queue, task.id, task.token)
            await api.broker.append_log(held, "hello\n")
            await api.broker.progress(held, b'{"fraction":0.4,"message":"step 4"}')
            await api.broker.publish_output(held, b'{"piece":1}')
            await complete(api, task)
            seen += [event async for event in events]
        kinds = [kind for kind, _ in seen]
        assert kinds[0] == "state"
        assert kinds[-1] == "end"
        told = dict(seen)
        assert "hello" in told["log"]["text"]
        assert told["progress"]["fraction"] == 0.4
        assert told["output"] == {"piece": 1}
        assert told["end"]["Info"]["Result"] == '"done"'
        async with stream(client, f"/queue/{task_id}/events") as events:
            assert [kind async for kind, _ in events] == ["state", "log", "end"]
        assert (await client.get("/queue/nope/events")).status_code == 404
    async with api.client(WORKER) as worker:
        assert (await worker.get(f"/queue/{task_id}/events")).status_code == 403
    for _ in range(50):
        if not api.state.events.followed:
            break
        await asyncio.sleep(0.1)
    assert api.state.events.followed == 0


async def test_an_end_is_told_within_milliseconds_to_many_followers(api: Api) -> None:
    async with api.client(CLIENT) as client:
        task_id = await add(client)
        task = await take(api, "echo.default")

        async def until_end() -> float:
            async with stream(client, f"/queue/{task_id}/events") as events:
                async for kind, _ in events:
                    if kind == "state":
                        ready.release()
                    elif kind == "end":
                        return time.monotonic()
            raise AssertionError("no end")

        ready = asyncio.Semaphore(0)
        following = [asyncio.create_task(until_end()) for _ in range(50)]
        for _ in following:
            await ready.acquire()
        ended = time.monotonic()
        await complete(api, task)
        assert max(await asyncio.wait_for(asyncio.gather(*following), 20)) - ended < 1.0


async def test_streams_end_when_the_server_stops(api: Api) -> None:
    async with api.client(CLIENT) as client:
        task_id = await add(client)
        async with stream(client, f"/queue/{task_id}/events") as events:
            await anext(events)
            api.state.stopping.set()
            assert [kind async for kind, _ in events] == []
