"""Roles, registration, queue configuration and what happens without Redis."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.api import ADMIN, CLIENT, WORKER, Api, running_server
from harness.redis_servers import RedisServer, free_port, valkey_binary
from harness.waiting import eventually

DEPLOYMENT = {"git_url": "https://example.com/r.git", "branch": "main", "startup_cmd": "python main.py"}

ROUTES = [
    ("POST", "/queue/add", {CLIENT}),
    ("POST", "/queue/add-batch", {CLIENT}),
    ("GET", "/queue/x", {CLIENT}),
    ("POST", "/worker/register", {WORKER}),
    ("GET", "/workers", set()),
    ("GET", "/workers/x", set()),
    ("GET", "/workers/x/logs", set()),
    ("POST", "/workers/x/restart", set()),
    ("GET", "/workers/queues", set()),
    ("POST", "/workers/queues", set()),
    ("GET", "/workers/config/echo", set()),
    ("DELETE", "/workers/queues/x", set()),
    ("POST", "/workers/queues/x/restore", set()),
    ("POST", "/workers/reload", set()),
    ("GET", "/api/queues", set()),
    ("GET", "/api/queues/echo", set()),
    ("POST", "/api/queues/x/pause", set()),
    ("POST", "/api/queues/x/unpause", set()),
    ("GET", "/api/queues/echo/tasks", set()),
    ("GET", "/api/queues/echo/tasks/x", set()),
    ("DELETE", "/api/queues/echo/tasks/x", set()),
    ("GET", "/api/queues/echo/tasks/x/log", set()),
    ("POST", "/api/tasks/x/cancel", set()),
]


async def test_every_route_asks_for_its_role(api: Api) -> None:
    """C66: no key and unknown keys 401, the wrong role 403, an admin passes; the same by both headers."""
    for method, path, roles in ROUTES:
        for key in (None, "unknown", ADMIN[:-1], ADMIN + "x"):
            async with api.client(key) as client:
                answer = await client.request(method, path)
            assert (answer.status_code, answer.json()["errors"]) == (401, ["access unauthorized"]), (method, path, key)
        for key in (WORKER, CLIENT, ADMIN):
            allowed = key == ADMIN or key in roles
            for headers in ({"Authorization": f"Bearer {key}"}, {"X-API-Key": key}):
                async with api.client(None) as client:
                    answer = await client.request(method, path, headers=headers)
                if allowed:
                    assert answer.status_code not in {401, 403}, (method, path)
                    assert answer.status_code < 500, (method, path, answer.text)
                elif path.startswith("/api/"):
                    # The original's admin routes know no other key.
                    assert (answer.status_code, answer.json()["errors"]) == (401, ["access unauthorized"])
                else:
                    assert (answer.status_code, answer.json()["errors"]) == (403, ["insufficient permissions"])


async def test_health_needs_no_key(api: Api) -> None:
    async with api.client(None) as client:
        assert (await client.get("/health")).json()["status"] == "ok"
        ready = await client.get("/healthz")
        assert (ready.status_code, ready.json()["redis"], ready.json()["database"]) == (200, True, True)
        assert (await client.get("/nowhere")).json() == {"errors": ["404 page not found"]}
        assert (await client.put("/queue/add")).status_code == 404


async def test_a_worker_is_told_everything_it_needs(api: Api, valkey: RedisServer) -> None:
    async with api.client(WORKER) as client:
        answer = (await client.post("/worker/register", json={"queue": "one", "hostname": "h"})).json()
        assert answer["redis"] == {"addr": f"127.0.0.1:{valkey.port}", "password": "", "use_tls": False, "db": 0}
        assert answer["queue"] == {"name": "one", "priority": 10}
        assert answer["sub_queues"] == [{"name": "one.high", "priority": 10}, {"name": "one.low", "priority": 2}]
        assert answer["deployment"]["mode"] == "one_shot"
        assert answer["deployment"]["redis_storage"] is True
        single = (await client.post("/worker/register", json={"queue": "one.low"})).json()
        assert single["sub_queues"] == [{"name": "one.low", "priority": 2}]
        for body, status, text in (
            ({}, 400, "queue name is required"),
            ({"queue": "!"}, 400, "invalid queue name: must be 1-128 chars"),
            ({"queue": "nope"}, 404, "queue 'nope' not found (also tried 'nope.default')"),
            ({"queue": "one.nope"}, 404, "queue 'one.nope' not found"),
        ):
            refused = await client.post("/worker/register", json=body)
            assert refused.status_code == status
            assert refused.json()["error"].startswith(text)
            assert refused.json()["errors"][0] == refused.json()["error"]


async def test_a_queue_is_created_with_limits_through_the_api(api: Api) -> None:
    """R20: create with limits; R14, R18: a change touches only tasks enqueued later."""
    async with api.client() as client:
        body: dict[str, Any] = {"name": "made", "priority": 3, "deployment": {**DEPLOYMENT, "limits": {"max_retry": 0}}}
        created = await client.post("/workers/queues", json=body)
        assert created.status_code == 201, created.text
        assert created.json()["queue"]["deployment"]["limits"] == {"max_retry": 0}
        before = (await client.post("/queue/add", json={"queue": "made", "data": 1})).json()["info"]["id"]
        assert (await client.post("/workers/queues", json=body)).status_code == 409
        body["deployment"]["limits"] = {"ttl_completed": "2h"}
        assert (await client.post("/workers/queues?force=true", json=body)).status_code == 201
        after = (await client.post("/queue/add", json={"queue": "made", "data": 1})).json()["info"]["id"]
        limits = [(await client.get(f"/queue/{id_}")).json()["Info"]["limits"] for id_ in (before, after)]
    assert [entry["max_retry"] for entry in limits] == [
        {"value": 0, "source": "queue"},
        {"value": 3, "source": "default"},
    ]
    assert [entry["ttl_completed"]["value"] for entry in limits] == [86400, 7200]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"limits": {"ttl_completed": "24hh"}}, '"24hh"'),
        ({"limits": {"pending_timeout": 30}}, "pending_timeout"),
        ({"limits": {"max_retry": -1}}, "max_retry must be >= 0"),
        ({"limits": {"max_retries": 1}}, "max_retries"),
        ({"git_url": ""}, "git_url is required for deployment"),
        ({"startup_cmd": ""}, "startup_cmd is required for deployment"),
        ({"mode": "sometimes"}, "mode"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_is_wrong_in_a_queue_is_refused_and_nothing_is_stored(
    api: Api, change: dict[str, Any], text: str
) -> None:
    """R61."""
    async with api.client() as client:
        body = {"name": "bad", "priority": 1, "deployment": {**DEPLOYMENT, **change}}
        refused = await client.post("/workers/queues", json=body)
        assert refused.status_code == 400
        assert any(text in error for error in refused.json()["errors"]), refused.text
        assert (await client.get("/workers/config/bad")).status_code == 404


async def test_a_deleted_queue_takes_no_tasks_until_it_is_restored(api: Api) -> None:
    async with api.client() as client:
        assert (await client.delete("/workers/queues/nope")).status_code == 404
        assert (await client.delete("/workers/queues/echo")).status_code == 200
        assert (await client.post("/queue/add", json={"queue": "echo", "data": 1})).status_code == 404
        assert (await client.post("/workers/queues/echo/restore")).status_code == 200
        assert (await client.post("/queue/add", json={"queue": "echo", "data": 1})).status_code == 200


async def test_a_bad_file_applies_nothing_at_a_reload(api: Api, tmp_path: Path) -> None:
    """R60."""
    bad = tmp_path / "queues" / "bad.yaml"
    bad.write_text(
        "queues:\n  new:\n    priority: 1\n    deployment: {git_url: x, startup_cmd: y, limits: {ttl_archived: 5}}\n"
    )
    async with api.client() as client:
        answer = (await client.post("/workers/reload")).json()
        assert answer["reloaded"] is None
        assert "bad.yaml:4:" in answer["errors"][0]
        assert (await client.get("/workers/config/new")).status_code == 404
        bad.unlink()
        assert "echo.default" in (await client.post("/workers/reload")).json()["reloaded"]


async def test_pausing_and_acting_on_what_does_not_exist_is_a_404(api: Api) -> None:
    """Product rule 33."""
    async with api.client() as client:
        for path in (
            "/api/queues/nope/pause",
            "/api/queues/nope/unpause",
            "/api/tasks/nope/cancel",
            "/api/tasks/nope/run",
        ):
            assert (await client.post(path)).status_code == 404, path
        assert (await client.post("/api/queues/echo/pause")).json() == {
            "message": "queue paused",
            "queue": "echo.default",
        }
        assert (await client.post("/api/queues/echo/pause")).status_code == 409
        assert (await client.post("/api/queues/echo/unpause")).status_code == 200
        assert (await client.post("/api/queues/echo/unpause")).status_code == 409
        assert (await client.get("/api/queues/echo/tasks?state=bogus")).json()["errors"] == ["invalid state: bogus"]


async def test_a_task_is_cancelled_run_archived_and_deleted_as_its_state_allows(api: Api) -> None:
    async with api.client() as client:
        task_id = (await client.post("/queue/add", json={"queue": "echo", "data": 1})).json()["info"]["id"]
        assert (await client.post(f"/api/tasks/{task_id}/cancel")).json()["message"] == "task cancelled"
        info = (await client.get(f"/queue/{task_id}")).json()["Info"]
        assert (info["state"], info["LastErr"], info["actions"]) == ("archived", "cancelled", ["run", "delete"])
        assert (await client.post(f"/api/tasks/{task_id}/archive")).status_code == 409
        assert (await client.post(f"/api/tasks/{task_id}/run")).status_code == 200
        assert (await client.post(f"/api/tasks/{task_id}/archive")).status_code == 200
        assert (await client.delete(f"/api/queues/echo/tasks/{task_id}")).status_code == 200
        assert (await client.delete(f"/api/queues/echo/tasks/{task_id}")).status_code == 404


async def test_two_servers_agree_within_a_second(api: Api, tmp_path: Path, valkey: RedisServer) -> None:
    database = f"sqlite:///{tmp_path / 'data' / 'runqy.db'}"
    second = tmp_path / "second"
    second.mkdir()
    async with running_server(second, valkey.url, RUNQY_DATABASE_URL=database) as other, api.client() as client:
        body = {"name": "shared", "priority": 1, "deployment": DEPLOYMENT}
        assert (await client.post("/workers/queues", json=body)).status_code == 201
        await eventually(lambda: other.state.queues.catalog.lookup("shared"), 2, "the other server knows the queue")


async def test_without_redis_everything_is_answered_fast_and_works_again_when_it_is_back(tmp_path: Path) -> None:
    data = tmp_path / "redis"
    data.mkdir()
    server = RedisServer(valkey_binary(), data, free_port(), ("--appendonly", "yes")).start()
    try:
        async with running_server(tmp_path, server.url) as api, api.client() as client:
            server.kill()
            for method, path, body in (
                ("POST", "/queue/add", {"queue": "echo", "data": 1}),
                ("GET", "/queue/x", None),
                ("GET", "/api/queues", None),
                ("GET", "/workers", None),
                ("GET", "/healthz", None),
            ):
                async with asyncio.timeout(5):
                    answer = await client.request(method, path, json=body)
                assert answer.status_code == 503, (path, answer.text)
            server.start()

            async def accepted() -> bool:
                return (await client.post("/queue/add", json={"queue": "echo", "data": 1})).status_code == 200

            await eventually(accepted, 10, "Redis is used again")
    finally:
        server.stop()


async def test_who_waits_is_answered_when_the_server_stops(tmp_path: Path, valkey: RedisServer) -> None:
    async with running_server(tmp_path, valkey.url) as api:
        client = api.client()
        task_id = (await client.post("/queue/add", json={"queue": "echo", "data": 1})).json()["info"]["id"]
        waiting = asyncio.create_task(client.get(f"/queue/{task_id}?wait=true&timeout=60"))
        while not api.state.events.waiting(task_id):
            await asyncio.sleep(0.005)
    answer = await waiting
    await client.aclose()
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
