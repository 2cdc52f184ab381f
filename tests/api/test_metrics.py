"""What Prometheus reads, and the charts that a configured Prometheus answers."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from harness.api import Api, complete, running_server, take
from harness.redis_servers import RedisServer
from prometheus_client.parser import text_string_to_metric_families

from runqy.broker.connection import Connection

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
QUEUES = {"echo.default", "small.default", "one.high", "one.low"}


async def scrape(api: Api) -> tuple[Series, dict[str, str]]:
    """All series of one look, which no other look answers, and the type of each family."""
    api.state.metrics._made_at = api.state.sampler._taken_at = float("-inf")
    async with api.client(None) as stranger:
        answer = await stranger.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    series: Series = {}
    types: dict[str, str] = {}
    for family in text_string_to_metric_families(answer.text):
        types[family.name] = family.type
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in series, key
            series[key] = sample.value
    return series, types


def of(series: Series, name: str, **labels: str) -> float:
    return series[name, tuple(sorted(labels.items()))]


async def test_a_stranger_reads_the_names_of_the_original_and_ours(api: Api) -> None:
    async with api.client() as admin:
        await admin.post("/queue/add", json={"queue": "echo", "data": {}})
    series, types = await scrape(api)
    assert of(series, "asynq_tasks_enqueued_total", queue="echo.default", state="pending") == 1
    assert of(series, "asynq_queue_size", queue="echo.default") == 1
    assert of(series, "asynq_queue_paused_total", queue="echo.default") == 0
    assert of(series, "asynq_tasks_processed_total", queue="echo.default") == 0
    assert of(series, "asynq_tasks_failed_total", queue="echo.default") == 0
    assert of(series, "asynq_queue_memory_usage_approx_bytes", queue="echo.default") > 100
    assert of(series, "runqy_redis_up") == 1
    assert (types["asynq_tasks_enqueued_total"], types["asynq_tasks_processed"]) == ("gauge", "counter")
    for name in ("asynq_queue_latency_seconds", "runqy_queue_oldest_waiting_seconds"):
        assert {dict(labels)["queue"] for found, labels in series if found == name} == QUEUES
    assert any(name == "process_resident_memory_bytes" for name, _ in series)


async def test_the_oldest_waiting_task_ages_without_a_worker(api: Api) -> None:
    async with api.client() as admin:
        await admin.post("/queue/add", json={"queue": "echo", "data": {}})
    await asyncio.sleep(1.1)
    series, _ = await scrape(api)
    assert of(series, "runqy_queue_workers", queue="echo.default") == 0
    assert 1 <= of(series, "runqy_queue_oldest_waiting_seconds", queue="echo.default") < 30


async def test_labels_are_few_and_no_stranger_makes_series(api: Api) -> None:
    async with api.client() as admin:
        for number in range(30):
            assert (await admin.get(f"/nowhere-{number}/x")).status_code in {200, 404}
            await admin.get(f"/queue/no-such-task-{number}")
            await admin.get(f"/api/cli/queues/{number}")
    series, _ = await scrape(api)
    labels = {label for (name, found) in series for label, _ in found if name.startswith(("runqy_", "asynq_"))}
    assert labels <= {"queue", "state", "route", "status", "le"}
    routes = {dict(found)["route"] for name, found in series if name == "runqy_http_request_seconds_count"}
    assert not [route for route in routes if any(letter.isdigit() for letter in route)]
    assert of(series, "runqy_http_request_seconds_count", route="/queue/{task_id}", status="4xx") == 30


async def test_requests_and_redis_calls_are_timed(api: Api) -> None:
    async with api.client() as admin:
        for _ in range(3):
            await admin.post("/queue/add", json={"queue": "echo", "data": {}})
    series, _ = await scrape(api)
    assert of(series, "runqy_http_request_seconds_count", route="/queue/add", status="2xx") == 3
    assert 0 < of(series, "runqy_http_request_seconds_sum", route="/queue/add", status="2xx") < 30
    assert of(series, "runqy_redis_call_seconds_count", status="ok") > 3
    assert of(series, "runqy_redis_call_seconds_count", status="error") == 0


async def test_waiting_and_run_times_only_grow(api: Api, connection: Connection) -> None:
    async def end_one() -> None:
        async with api.client() as admin:
            await admin.post("/queue/add", json={"queue": "echo", "data": {}})
        await complete(api, await take(api, "echo.default"))

    seen: list[Series] = []
    for _ in range(3):
        await end_one()
        seen.append((await scrape(api))[0])
    # Whatever is lost in Redis, a counter does not go back.
    await connection.command("FLUSHALL")
    await api.state.announce_change()
    seen.append((await scrape(api))[0])
    await end_one()
    seen.append((await scrape(api))[0])
    counts = [of(series, "runqy_task_run_seconds_count", queue="echo.default") for series in seen]
    assert counts[:3] == [1, 2, 3]
    assert counts == sorted(counts)
    for before, after in pairwise(seen):
        for key, value in before.items():
            if key[0].startswith(("runqy_task_wait_seconds", "runqy_task_run_seconds")):
                assert after[key] >= value, key
    buckets = [
        value
        for (name, labels), value in seen[2].items()
        if name == "runqy_task_run_seconds_bucket" and ("queue", "echo.default") in labels
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 3
    assert 10 < len(buckets) < 20


async def test_what_ended_before_the_server_is_not_counted(api: Api, valkey: RedisServer, tmp_path: Path) -> None:
    async with api.client() as admin:
        await admin.post("/queue/add", json={"queue": "echo", "data": {}})
    await complete(api, await take(api, "echo.default"))
    second = tmp_path / "second"
    second.mkdir()
    async with running_server(second, valkey.url) as other:
        series, _ = await scrape(other)
        assert of(series, "runqy_task_run_seconds_count", queue="echo.default") == 0
        assert of(series, "asynq_tasks_processed_total", queue="echo.default") == 1


async def test_many_scrapes_cost_one_look(api: Api) -> None:
    await scrape(api)
    before = of((await scrape(api))[0], "runqy_redis_call_seconds_count", status="ok")
    async with api.client(None) as stranger:
        answers = await asyncio.gather(*(stranger.get("/metrics") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert of((await scrape(api))[0], "runqy_redis_call_seconds_count", status="ok") - before < 30


async def test_without_redis_old_numbers_are_not_shown(api: Api, valkey: RedisServer) -> None:
    await scrape(api)
    valkey.kill()
    try:
        series, _ = await scrape(api)
    finally:
        valkey.start()
    assert of(series, "runqy_redis_up") == 0
    assert not any(name == "asynq_queue_size" for name, _ in series)
    assert of((await scrape(api))[0], "runqy_redis_up") == 1


async def test_charts_without_a_prometheus_say_what_to_do(api: Api) -> None:
    async with api.client() as admin:
        answer = await admin.get("/monitoring/api/metrics")
        assert answer.status_code == 503
        assert "PROMETHEUS_ADDRESS" in answer.text
    async with api.client(None) as stranger:
        assert (await stranger.get("/monitoring/api/metrics")).status_code == 401


async def test_charts_are_asked_of_prometheus(valkey: RedisServer, connection: Connection, tmp_path: Path) -> None:
    asked: list[dict[str, list[str]]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        assert urlsplit(target).path == "/api/v1/query_range"
        asked.append(parse_qs(urlsplit(target).query))
        body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    prometheus = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{prometheus.sockets[0].getsockname()[1]}"
    async with prometheus, running_server(tmp_path, valkey.url, PROMETHEUS_ADDRESS=address) as api:
        async with api.client() as admin:
            answer = await admin.get(
                "/monitoring/api/metrics", params={"duration": 90000, "endtime": 1_700_000_000, "queues": 'a.b,c"d'}
            )
            assert answer.status_code == 200, answer.text
            assert (await admin.get("/monitoring/api/metrics", params={"duration": 0})).status_code == 400
        assert len(answer.json()) == 9
        assert answer.json()["error_rate"]["status"] == "success"
    assert len(asked) == 9
    assert {query["step"][0] for query in asked} == {"180"}
    assert {float(query["end"][0]) - float(query["start"][0]) for query in asked} == {90000}
    assert 'asynq_queue_size{queue=~"a\\\\.b|c\\"d"}' in {query["query"][0] for query in asked}
