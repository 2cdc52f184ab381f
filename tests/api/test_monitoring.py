"""The original's monitoring routes: shapes, actions by state, and what an impossible call answers."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from harness.api import ADMIN, CLIENT, Api, complete, take

from runqy.broker.transitions import AttemptEnd
from runqy.tasks.outcome import Archive, Ending, Retry
from runqy.tasks.state import ACTIONS, Action, State

BASE = "/monitoring/api"
STATS = {
    *("queue", "memory_usage_bytes", "size", "groups", "latency_msec", "display_latency", "active", "pending"),
    *("aggregating", "scheduled", "retry", "archived", "completed", "processed", "succeeded", "failed", "paused"),
    "timestamp",
}
ROW = {"id", "type", "payload", "queue", "max_retry", "retried", "error_message"}
MORE = {
    State.PENDING: set(),
    State.ACTIVE: {"start_time", "deadline", "is_orphaned"},
    State.SCHEDULED: {"next_process_at"},
    State.RETRY: {"next_process_at"},
    State.ARCHIVED: {"last_failed_at"},
    State.COMPLETED: {"completed_at", "result", "ttl_seconds"},
}
TASK = {
    *("id", "queue", "type", "payload", "state", "max_retry", "retried", "error_message", "last_failed_at"),
    *("timeout_seconds", "deadline", "next_process_at", "completed_at", "result", "ttl_seconds"),
}


async def one_in(api: Api, client: httpx2.AsyncClient, state: State) -> str:
    """A new task of `echo.default` in that state; the queue holds no other that waits."""
    body: dict[str, Any] = {"queue": "echo", "data": {"text": "hi"}}
    if state is State.SCHEDULED:
        body["delay"] = 3600
    task_id = str((await client.post("/queue/add", json=body)).json()["info"]["id"])
    if state in {State.PENDING, State.SCHEDULED}:
        return task_id
    task = await take(api, "echo.default")
    assert task.id == task_id
    if state is State.COMPLETED:
        await complete(api, task)
    elif state is not State.ACTIVE:
        decision = Archive(Ending.FAILED, "boom") if state is State.ARCHIVED else Retry(3600.0, Ending.ERROR, "boom")
        assert await api.broker.finish([AttemptEnd(task.queue, task.id, task.token, decision, task.limits, 0.01)])
    return task_id


async def test_queues_have_the_original_shape(api: Api) -> None:
    async with api.client() as admin:
        for state in (State.COMPLETED, State.ARCHIVED, State.PENDING):
            await one_in(api, admin, state)
        rows = {row["queue"]: row for row in (await admin.get(f"{BASE}/queues")).json()["queues"]}
        echo = rows["echo.default"]
        assert set(echo) == STATS
        assert (echo["size"], echo["processed"], echo["succeeded"], echo["failed"]) == (3, 2, 1, 1)
        assert echo["memory_usage_bytes"] > 500
        assert rows["one.low"]["memory_usage_bytes"] == 0
        one = (await admin.get(f"{BASE}/queues/echo.default")).json()
        assert len(one["history"]) == 10
        assert set(one["history"][0]) == {"queue", "processed", "succeeded", "failed", "date"}
        assert (one["history"][0]["processed"], one["history"][1]["processed"]) == (2, 0)
        stats = (await admin.get(f"{BASE}/queue_stats")).json()["stats"]
        assert (set(stats), len(stats["echo.default"])) == (set(rows), 90)
        assert (await admin.get(f"{BASE}/queues/nope")).status_code == 404
        groups = (await admin.get(f"{BASE}/queues/echo.default/groups")).json()
        assert groups["groups"] == []


@pytest.mark.parametrize("state", list(State))
async def test_a_list_shows_the_tasks_of_its_state(api: Api, state: State) -> None:
    async with api.client() as admin:
        task_id = await one_in(api, admin, state)
        for other in State:
            document = (await admin.get(f"{BASE}/queues/echo.default/{other}_tasks")).json()
            assert [task["id"] for task in document["tasks"]] == ([task_id] if other is state else [])
            assert set(document["stats"]) == STATS
            for row in document["tasks"]:
                assert set(row) == ROW | MORE[state]
                assert row["payload"] == '{"text":"hi"}'
        task = (await admin.get(f"{BASE}/queues/echo.default/tasks/{task_id}")).json()
        assert (set(task), task["state"]) == (TASK, state.value)
        empty = (await admin.get(f"{BASE}/queues/echo.default/aggregating_tasks")).json()
        assert empty["tasks"] == []


@pytest.mark.parametrize("state", list(State))
async def test_one_task_takes_exactly_the_actions_of_its_state(api: Api, state: State) -> None:
    """What is legal comes from the state table, here as everywhere."""
    async with api.client() as admin:
        for action in (Action.RUN, Action.ARCHIVE, Action.CANCEL, Action.DELETE):
            task_id = await one_in(api, admin, state)
            path = f"{BASE}/queues/echo.default/{state}_tasks/{task_id}"
            if action is Action.DELETE:
                answer = await admin.delete(path)
            else:
                answer = await admin.post(f"{path}:{action}")
            assert answer.status_code == (204 if action in ACTIONS[state] else 409), (action, answer.text)
            # Whatever it became, the next round begins with an empty queue.
            for each in State:
                if each is not State.ACTIVE:
                    await admin.delete(f"{BASE}/queues/echo.default/{each}_tasks:delete_all")
            if state is State.ACTIVE:
                await finish_active(api, task_id)


async def finish_active(api: Api, task_id: str) -> None:
    view = await api.state.inspector.get("echo.default", task_id)
    if view is not None and view.state is State.ACTIVE:
        end = AttemptEnd(view.queue, view.id, "w#1", Archive(Ending.CANCELLED, "x"), view.limits, 0.01)
        await api.broker.finish([end])
        await api.state.operator.act(Action.DELETE, view.queue, [task_id])


async def test_many_are_acted_on_at_once(api: Api) -> None:
    async with api.client() as admin:
        jobs = [{"data": {}}] * 1203
        ids = (await admin.post("/queue/add-batch", json={"queue": "echo", "jobs": jobs})).json()["task_ids"]
        path = f"{BASE}/queues/echo.default"
        some = {"task_ids": [ids[0], "nope"]}
        batch = (await admin.post(f"{path}/pending_tasks:batch_archive", json=some)).json()
        assert batch == {"archived_ids": [ids[0]], "error_ids": ["nope"]}
        assert (await admin.post(f"{path}/pending_tasks:archive_all")).json() == {"archived": 1202}
        assert (await admin.post(f"{path}/archived_tasks:run_all")).json() == {"scheduled": 1203}
        gone = (await admin.request("DELETE", f"{path}/pending_tasks:batch_delete", json={"task_ids": ids[:2]})).json()
        assert (sorted(gone["deleted_ids"]), gone["failed_ids"]) == (sorted(ids[:2]), [])
        assert (await admin.delete(f"{path}/pending_tasks:delete_all")).json() == {"deleted": 1201}
        assert (await admin.delete(f"{path}/aggregating_tasks:delete_all")).json() == {"deleted": 0}
        task_id = await one_in(api, admin, State.ACTIVE)
        assert (await admin.post(f"{path}/active_tasks:cancel_all")).status_code == 204
        cancelled = (await admin.post(f"{path}/active_tasks:batch_cancel", json={"task_ids": [task_id]})).json()
        assert cancelled == {"canceled_ids": [task_id], "error_ids": []}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "queues/echo.default/nope_tasks", None, 404),
        ("GET", "queues/nope/pending_tasks", None, 404),
        ("POST", "queues/nope:pause", None, 404),
        ("POST", "queues/nope:resume", None, 404),
        ("POST", "queues/echo.default/pending_tasks:fly", None, 404),
        ("POST", "queues/echo.default/pending_tasks:run_all", None, 409),
        ("POST", "queues/echo.default/completed_tasks:archive_all", None, 409),
        ("POST", "queues/echo.default/pending_tasks:batch_archive", {"ids": []}, 400),
        ("POST", "queues/echo.default/pending_tasks:batch_archive", {"task_ids": [1]}, 400),
        ("POST", "queues/echo.default/pending_tasks:batch_archive", {"task_ids": [], "more": 1}, 400),
        ("POST", "queues/echo.default/pending_tasks/nope:archive", None, 404),
        ("DELETE", "queues/echo.default/pending_tasks/nope", None, 404),
        ("DELETE", "queues/echo.default/pending_tasks:archive_all", None, 404),
        ("GET", "queues/echo.default/tasks/nope", None, 404),
        ("GET", "workers/nope/logs/stream", None, 404),
    ],
)
async def test_an_impossible_call_is_refused(api: Api, method: str, path: str, body: Any, status: int) -> None:
    async with api.client() as admin:
        answer = await admin.request(method, f"{BASE}/{path}", json=body)
        assert (answer.status_code, list(answer.json())) == (status, ["errors"]), answer.text


async def test_pause_resume_and_delete_a_queue(api: Api) -> None:
    async with api.client() as admin:
        await admin.post("/queue/add", json={"queue": "echo", "data": {}})
        path = f"{BASE}/queues/echo.default"
        assert (await admin.post(f"{path}:pause")).status_code == 204
        assert (await admin.get(path)).json()["current"]["paused"]
        assert (await admin.post(f"{path}:resume")).status_code == 204
        refused = await admin.delete(path)
        assert (refused.status_code, "not empty" in refused.json()["errors"][0]) == (409, True)
        assert (await admin.delete(path, params={"force": "true"})).status_code == 204
        assert (await admin.get(path)).status_code == 404


async def test_the_system_tells_about_itself_without_secrets(api: Api) -> None:
    async with api.client() as admin:
        info = (await admin.get(f"{BASE}/redis_info")).json()
        assert set(info) == {"address", "info", "raw_info", "cluster", "raw_cluster_nodes", "queue_locations"}
        assert "redis_version" in info["info"]
        assert (await admin.get(f"{BASE}/database_info")).json()["connected"]
        env = await admin.get(f"{BASE}/system/env")
        names = {row["name"] for row in env.json()["vars"]}
        assert {"PORT", "RUNQY_API_KEY"} <= names
        assert ADMIN not in env.text
        assert CLIENT not in env.text
        for path, key in (("servers", "servers"), ("scheduler_entries", "entries"), ("workers", "workers")):
            assert (await admin.get(f"{BASE}/{path}")).json() == {key: []}


async def test_the_playground_enqueues_as_every_other_way(api: Api) -> None:
    async with api.client() as admin:
        body = {"queue": "one.high", "payload": {"n": 1}, "count": 3, "timeout": 7}
        answer = (await admin.post(f"{BASE}/playground/enqueue", json=body)).json()
        assert (answer["count"], {task["queue"] for task in answer["tasks"]}) == (3, {"one.high"})
        task = (await admin.get(f"{BASE}/queues/one.high/tasks/{answer['tasks'][0]['id']}")).json()
        assert task["timeout_seconds"] == 7
        for change, status, text in (
            ({"queue": ""}, 400, "queue is required"),
            ({"queue": "nope"}, 404, "queue not found: nope.default"),
            ({"count": 101}, 400, "count must be at most 100"),
            ({"timeout": -1}, 400, "timeout must be >= 0"),
            ({"payload": {"n": "x"}}, 400, "expected one of: int"),
        ):
            refused = await admin.post(f"{BASE}/playground/enqueue", json={**body, **change})
            assert refused.status_code == status
            assert text in refused.json()["errors"][0]
