"""Configuration before and after: checked, planned, changed by the dashboard's routes, its history, its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness.api import CLIENT, WORKER, Api
from harness.lives import FALLBACK, new_token

DEPLOYMENT = {"git_url": "https://example.com/r.git", "startup_cmd": "python main.py"}
CONFIGS = "/monitoring/api/queue_configs"


def queue(name: str = "made", **more: Any) -> dict[str, Any]:
    return {"name": name, "priority": 3, "deployment": DEPLOYMENT, **more}


async def test_the_dashboard_lists_every_sub_queue_with_its_schema(api: Api) -> None:
    async with api.client() as client:
        await client.delete("/workers/queues/one.low")
        answer = (await client.get(CONFIGS)).json()
        rows = {row["name"]: row for row in answer["queues"]}
        assert answer["count"] == len(rows) == 4
        assert [row["name"] for row in answer["queues"]] == ["echo.default", "one.high", "one.low", "small.default"]
        assert (rows["one.high"]["enabled"], rows["one.low"]["enabled"]) == (True, False)
        assert rows["one.high"]["input"] == [{"name": "n", "type": ["int"], "required": True}]
        assert rows["small.default"]["max_pending"] == 2
        assert rows["one.high"]["deployment"]["limits"]["max_retry"] == 1
        assert (await client.get(f"{CONFIGS}/one.low")).json() == rows["one.low"]
        assert (await client.get(f"{CONFIGS}/echo")).json() == rows["echo.default"]
        assert (await client.get(f"{CONFIGS}/nope")).status_code == 404


async def test_the_dashboard_creates_changes_deletes_and_restores_a_queue(api: Api) -> None:
    async with api.client() as client:
        created = await client.post(CONFIGS, json=queue(description="first"))
        assert (created.status_code, created.json()["message"]) == (201, "Queue created successfully")
        again = await client.post(CONFIGS, json=queue())
        assert again.status_code == 409
        assert again.json()["errors"] == ["queue 'made' already exists. Use force=true to update"]
        body = {"deployment": {**DEPLOYMENT, "limits": {"max_retry": 7}}, "priority": 0}
        changed = await client.put(f"{CONFIGS}/made", json=body)
        assert (changed.status_code, changed.json()["message"]) == (200, "Queue updated successfully"), changed.text
        row = changed.json()["queue"]
        assert (row["name"], row["priority"], row["description"]) == ("made.default", 3, "first")
        assert row["deployment"]["limits"] == {"max_retry": 7}
        assert (await client.put(f"{CONFIGS}/nope", json=body)).status_code == 404
        assert (await client.put(f"{CONFIGS}/made", json={**body, "name": "other"})).status_code == 400
        bad = await client.put(f"{CONFIGS}/made", json={"deployment": {**DEPLOYMENT, "limits": {"ttl_completed": 5}}})
        assert bad.status_code == 400
        assert "ttl_completed" in bad.json()["errors"][0]
        assert (await client.delete(f"{CONFIGS}/made")).json() == {"message": "Queue 'made' deleted successfully"}
        assert (await client.post("/queue/add", json={"queue": "made", "data": 1})).status_code == 404
        assert (await client.get(f"{CONFIGS}/made")).json()["enabled"] is False
        restored = await client.post(f"{CONFIGS}/made:restore")
        assert restored.json() == {"message": "Queue 'made' restored successfully"}
        assert (await client.post("/queue/add", json={"queue": "made", "data": 1})).status_code == 200


async def test_a_change_of_a_parent_without_a_default_adds_none(api: Api) -> None:
    async with api.client() as client:
        assert (await client.put(f"{CONFIGS}/one", json={"max_pending": 5})).status_code == 200
        names = [row["name"] for row in (await client.get(CONFIGS)).json()["queues"]]
    assert [name for name in names if name.startswith("one")] == ["one.high", "one.low"]


async def test_only_admins_change_and_only_viewers_look(api: Api) -> None:
    async with api.client() as client:
        keys = {
            role: (await client.post("/api/keys", json={"name": role, "role": role})).json()["key"]
            for role in ("viewer", "operator")
        }
    looks = [
        ("GET", CONFIGS),
        ("GET", f"{CONFIGS}/echo"),
        ("GET", "/api/config/changes"),
        ("POST", "/api/config/plan"),
        ("POST", "/api/queues/validate"),
    ]
    changes = [
        ("POST", CONFIGS),
        ("PUT", f"{CONFIGS}/echo"),
        ("DELETE", f"{CONFIGS}/echo"),
        ("POST", f"{CONFIGS}/echo:restore"),
        ("DELETE", "/api/queues/echo"),
    ]
    for key in (None, CLIENT, WORKER, keys["viewer"], keys["operator"]):
        async with api.client(key) as client:
            for method, path in looks + changes:
                status = (await client.request(method, path)).status_code
                is_allowed = key in keys.values() and (method, path) in looks
                assert (status not in {401, 403}) == is_allowed, (key, method, path, status)
                assert status < 500


async def test_a_queue_is_checked_without_being_stored(api: Api) -> None:
    async with api.client() as client:
        good = (await client.post("/api/queues/validate", json=queue())).json()
        assert (good["valid"], good["errors"]) == (True, [])
        assert good["queues"][0]["name"] == "made"
        limits = {"ttl_completed": "24hh", "max_retries": 1}
        bad = (
            await client.post("/api/queues/validate", json=queue(deployment={**DEPLOYMENT, "limits": limits}))
        ).json()
        assert bad["valid"] is False
        assert len(bad["errors"]) == 2
        files = {"a.yaml": "queues:\n  x:\n    priorty: 1\n    deployment: {git_url: g, startup_cmd: s}\n"}
        misspelt = (await client.post("/api/queues/validate", json={"files": files})).json()
        assert "a.yaml:3:5" in misspelt["errors"][0]
        assert "priority" in misspelt["errors"][0]
        assert (await client.post("/api/queues/validate", json={"files": []})).json()["valid"] is False
        assert (await client.get("/workers/config/made")).status_code == 404
        assert "validate" not in (await client.get("/api/audit")).text


async def test_a_plan_shows_what_a_reload_would_change_and_changes_nothing(api: Api, tmp_path: Path) -> None:
    async with api.client() as client:
        await client.post("/workers/queues", json=queue("extra"))
        still = (await client.post("/api/config/plan")).json()
        assert {entry["action"] for entry in still["changes"]} == {"unchanged"}
        assert all(entry["changed"] == [] for entry in still["changes"])
        assert still["unlisted"] == ["extra"]
        file = tmp_path / "queues" / "all.yaml"
        text = file.read_text().replace("max_pending: 2", "max_pending: 3").replace("echo.git", "new.git")
        text = text.replace("{name: low, priority: 2}", "{name: mid, priority: 2}").replace(
            "max_retry: 1", "max_retry: 4"
        )
        file.write_text(text)
        planned = (await client.post("/api/config/plan", json={})).json()
        changed = {entry["queue"]: entry for entry in planned["changes"]}
        assert changed["echo"]["action"] == "updated"
        assert changed["echo"]["changed"] == [
            {
                "path": "deployment.git_url",
                "before": "https://example.com/echo.git",
                "after": "https://example.com/new.git",
            }
        ]
        assert changed["small"]["changed"] == [{"path": "max_pending", "before": 2, "after": 3}]
        assert changed["one"]["changed"] == [
            {"path": "deployment.limits.max_retry.value", "before": 1, "after": 4},
            {"path": "sub_queues.low.enabled", "before": None, "after": False},
            {"path": "sub_queues.mid.priority", "before": None, "after": 2},
        ]
        assert (await client.get("/workers/config/echo")).json()["deployment"]["git_url"].endswith("echo.git")
        assert (await client.post("/workers/reload")).json()["errors"] is None
        again = (await client.post("/api/config/plan")).json()
        assert {entry["action"] for entry in again["changes"]} == {"unchanged"}
        file.write_text("queues: [")
        broken = (await client.post("/api/config/plan")).json()
        assert broken["changes"] == []
        assert "all.yaml:1" in broken["errors"][0]


async def test_a_plan_of_sent_files_says_where_a_limit_would_come_from(api: Api) -> None:
    deployment = '{git_url: "https://example.com/small.git", startup_cmd: python main.py, limits: {max_retry: 3}}'
    text = f"queues:\n  small:\n    priority: 1\n    max_pending: 2\n    deployment: {deployment}\n"
    async with api.client() as client:
        planned = (await client.post("/api/config/plan", json={"files": {"a.yaml": text}})).json()
    (entry,) = planned["changes"]
    assert entry["changed"] == [{"path": "deployment.limits.max_retry.source", "before": "default", "after": "queue"}]
    assert planned["unlisted"] == ["echo", "one"]


async def test_the_history_tells_who_changed_what(api: Api) -> None:
    async with api.client() as client:
        await client.post("/workers/queues", json=queue())
        await client.post("/workers/queues?force=true", json=queue(priority=9))
        await client.delete("/workers/queues/made")
        answer = (await client.get("/api/config/changes?queue=made")).json()
        assert [row["action"] for row in answer["changes"]] == ["deleted", "updated", "created"]
        assert {row["who"] for row in answer["changes"]} == {"admin key"}
        assert answer["changes"][1]["changed"] == [{"path": "sub_queues.default.priority", "before": 3, "after": 9}]
        assert answer["changes"][2]["before"] is None
        assert answer["changes"][0]["at"] > 1_700_000_000_000
        last = answer["changes"][0]["id"]
        page = (await client.get(f"/api/config/changes?limit=1&before={last}")).json()
        assert [row["action"] for row in page["changes"]] == ["updated"]
        started = (await client.get("/api/config/changes?queue=echo")).json()["changes"]
        assert [(row["action"], row["who"]) for row in started] == [("created", "start")]
        assert (await client.get("/api/config/changes?limit=x&before=y")).status_code == 200


async def test_a_queue_with_tasks_is_deleted_only_by_force(api: Api) -> None:
    async with api.client() as client:
        ids = [
            (await client.post("/queue/add", json={"queue": "echo", "data": n})).json()["info"]["id"] for n in range(3)
        ]
        late = (await client.post("/queue/add", json={"queue": "echo", "data": 1, "delay": "1h"})).json()["info"]["id"]
        await client.post(f"/api/tasks/{ids[0]}/cancel")
        refused = await client.delete("/api/queues/echo")
        assert refused.status_code == 409
        assert refused.json()["errors"][0].startswith("queue is not empty - use force=true to delete anyway")
        assert (await client.get("/api/queues/echo")).json()["pending"] == 2
        done = await client.delete("/api/queues/echo?force=true")
        assert (done.status_code, done.json()) == (200, {"message": "queue deleted", "queue": "echo.default"})
        for id_ in (*ids, late):
            assert (await client.get(f"/queue/{id_}")).status_code == 404
        names = [row["queue"] for row in (await client.get("/api/queues")).json()["queues"]]
        assert "echo.default" not in names
        assert (await client.post("/queue/add", json={"queue": "echo", "data": 1})).status_code == 404
        assert (await client.delete("/api/queues/echo?force=true")).status_code == 404
        assert (await client.delete("/api/queues/small")).status_code == 200
        assert (await client.post("/workers/queues/echo.default/restore")).status_code == 200
        assert (await client.get("/api/queues/echo")).json()["pending"] == 0


async def test_a_queue_with_a_running_task_is_not_deleted(api: Api) -> None:
    async with api.client() as client:
        task_id = (await client.post("/queue/add", json={"queue": "echo", "data": 1})).json()["info"]["id"]
        pickup = await api.broker.pick_up(["echo.default"], 1, token=new_token(), starting=1, fallback=FALLBACK)
        assert len(pickup.tasks) == 1
        refused = await client.delete("/api/queues/echo?force=true")
        assert refused.status_code == 409
        assert "1 running task" in refused.json()["errors"][0]
        assert (await client.get(f"/queue/{task_id}")).json()["Info"]["state"] == "active"
        assert (await client.get("/workers/config/echo")).status_code == 200


@pytest.mark.parametrize("path", ["queues", "queues/echo", "queues/echo/tasks", "vaults", "nowhere"])
async def test_the_documented_prefix_of_the_original_is_an_alias(api: Api, path: str) -> None:
    async with api.client() as client:
        real, alias = await client.get(f"/api/{path}"), await client.get(f"/api/cli/{path}")
        assert (alias.status_code, alias.json()) == (real.status_code, real.json())
    async with api.client(CLIENT) as client:
        assert (await client.get(f"/api/cli/{path}")).status_code == (404 if path == "nowhere" else 401)
