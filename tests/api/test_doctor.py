"""The doctor: each check is made to find what it is for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from harness.api import CLIENT, Api

from runqy.broker import keys
from runqy.broker.broker import Broker
from runqy.broker.connection import Connection
from runqy.broker.inspector import Inspector
from runqy.broker.workers import WorkerRecord, WorkerRegistry
from runqy.doctor import Patient, Status, examine
from runqy.settings.server import load_server_settings
from runqy.store.database import Database
from runqy.store.queues import QueueStore
from runqy.tasks.limits import Limits
from runqy.tasks.message import NewTask


async def checks(api: Api) -> dict[str, dict[str, Any]]:
    async with api.client() as admin:
        answer = await admin.get("/api/doctor")
        assert answer.status_code == 200, answer.text
        return {check["name"]: check for check in answer.json()["checks"]}


def record(status: str, *, beat: float = 0.0, **queues: int) -> WorkerRecord:
    now = int(time.time())
    named = {f"{name}.default": priority for name, priority in queues.items()}
    return WorkerRecord("host:1:abcdef", now, int(now - beat), 1, named, status, detail=("pip failed",))


async def test_a_system_at_rest_is_well(api: Api) -> None:
    found = await checks(api)
    wrong = {name: check for name, check in found.items() if check["status"] == "problem"}
    assert wrong == {}
    assert found["redis"]["detail"].startswith("Valkey 9")
    assert found["workers"]["fix"] == "runqy worker start --queues QUEUE"
    assert "SQLite" in found["database"]["detail"]
    assert all(check["fix"] for check in found.values() if check["status"] != "ok")


async def test_waiting_tasks_without_a_worker_are_found(api: Api) -> None:
    async with api.client(CLIENT) as client:
        await client.post("/queue/add", json={"queue": "echo", "data": {}})
    check = (await checks(api))["queues without workers"]
    assert (check["status"], check["fix"]) == ("problem", "runqy worker start --queues echo")
    assert "echo.default (1)" in check["detail"]
    await api.state.workers.beat(record("running", echo=1))
    assert (await checks(api))["queues without workers"]["status"] == "ok"


@pytest.mark.parametrize(
    ("word", "beat", "status", "fix"),
    [
        ("running", 0.0, "ok", ""),
        ("degraded", 0.0, "problem", "runqy worker restart host:1:abcdef"),
        ("running", 60.0, "warning", "look at those machines; their tasks are given to others"),
    ],
)
async def test_workers_that_are_ill_are_named(api: Api, word: str, beat: float, status: str, fix: str) -> None:
    await api.state.workers.beat(record(word, beat=beat, echo=1))
    check = (await checks(api))["workers"]
    assert (check["status"], check["fix"]) == (status, fix)


async def test_a_paused_queue_is_named(api: Api) -> None:
    await api.broker.pause("one.low")
    check = (await checks(api))["paused queues"]
    assert (check["status"], check["fix"]) == ("warning", "runqy queue unpause one.low")


async def test_a_redis_that_evicts_is_a_problem(api: Api) -> None:
    for name, value in (("maxmemory", "1gb"), ("maxmemory-policy", "allkeys-lru")):
        await api.state.connection.command("CONFIG", "SET", name, value)
    try:
        check = (await checks(api))["redis memory"]
    finally:
        for name, value in (("maxmemory", "0"), ("maxmemory-policy", "noeviction")):
            await api.state.connection.command("CONFIG", "SET", name, value)
    assert (check["status"], "allkeys-lru" in check["detail"]) == ("problem", True)


async def test_tasks_that_nobody_recovers_are_found(tmp_path: Path, connection: Connection) -> None:
    """Where no server and no worker runs the recovery, a task whose lease ran out long ago stays active."""
    settings = load_server_settings({"data_dir": str(tmp_path)}, {}, tmp_path)
    database = Database(settings.effective_database_url)
    await database.open()
    workers, catalog = WorkerRegistry(connection), QueueStore(database).catalog
    patient = Patient(settings, connection, Inspector(connection), workers, database, catalog, True)
    try:
        await Inspector(connection).register_queues(["lonely.default"])
        broker = Broker(connection)
        await broker.enqueue([NewTask("t1", "lonely.default", b"{}", Limits())])
        await broker.pick_up(["lonely.default"], 1, token="w#1", starting=1, fallback=Limits())
        named = {finding.name: finding for finding in await examine(patient)}
        assert named["stuck tasks"].status is Status.OK
        await connection.command("ZADD", keys.lease("lonely.default"), int(time.time()) - 500, "t1")
        named = {finding.name: finding for finding in await examine(patient)}
        assert named["stuck tasks"].status is Status.PROBLEM
        assert "lonely.default" in named["stuck tasks"].detail
    finally:
        await database.close()


async def test_tasks_near_their_pending_timeout_are_found(api: Api) -> None:
    async with api.client(CLIENT) as client:
        added = await client.post("/queue/add", json={"queue": "one.low", "data": {"n": 1}})
    task_id = added.json()["info"]["id"]
    since = str(time.time_ns() - 200 * 10**9)
    await api.state.connection.command("HSET", keys.task("one.low", task_id), "pending_since", since)
    check = (await checks(api))["waiting tasks"]
    assert (check["status"], check["fix"]) == ("problem", "add workers, or raise pending_timeout")
    assert "of 5m0s" in check["detail"]
