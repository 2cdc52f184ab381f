"""Search with qualifiers, acting on selections and on all that match, failures in groups."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from harness.api import CLIENT, Api, take

from runqy.broker.transitions import AttemptEnd
from runqy.errors import UsageError
from runqy.tasks.outcome import Archive, Ending
from runqy.tasks.query import parse_query
from runqy.tasks.state import State


async def add(client: httpx2.AsyncClient, queue: str, count: int = 1, **data: Any) -> list[str]:
    jobs = [{"data": {**data, "n": n}} for n in range(count)]
    return list((await client.post("/queue/add-batch", json={"queue": queue, "jobs": jobs})).json()["task_ids"])


async def fail(api: Api, queue: str, reason: str) -> str:
    task = await take(api, queue)
    end = AttemptEnd(task.queue, task.id, task.token, Archive(Ending.FAILED, reason), task.limits, 0.01)
    assert await api.broker.finish([end])
    return task.id


async def found(client: httpx2.AsyncClient, q: str) -> list[str]:
    ids, cursor = [], ""
    while True:
        answer = await client.get("/api/search", params={"q": q, "cursor": cursor, "limit": "7"})
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert len(document["tasks"]) <= 7
        ids += [task["id"] for task in document["tasks"]]
        cursor = document["cursor"]
        if not cursor:
            return ids


def test_a_query_is_read_into_its_parts() -> None:
    query = parse_query('queue:echo state:archived error:"out of memory" payload.user.tags[0]:x older:1h30m word')
    assert (query.queues, query.states, query.errors) == (("echo",), (State.ARCHIVED,), ("out of memory",))
    assert (query.payload, query.older, query.words) == (((("user", "tags", "0"), "x"),), 5400.0, ("word",))
    assert not parse_query("queue:echo state:retry").needs_text
    assert parse_query('"queue:echo"').words == ("queue:echo",)


@pytest.mark.parametrize("text", ["state:gone", "older:1d", "older:1h older:2h", "que:echo", "x" * 1001])
def test_a_wrong_query_says_what_is_possible(text: str) -> None:
    with pytest.raises(UsageError):
        parse_query(text)


async def test_tasks_are_found_by_what_they_are_and_hold(api: Api) -> None:
    async with api.client() as admin:
        echo = await add(admin, "echo", 20, user={"name": "Ada"})
        one = await add(admin, "one.high", 3)
        failed = await fail(api, "echo.default", "Out of memory: 4096 bytes")
        waiting = set(echo) - {failed}
        assert sorted(await found(admin, "queue:echo")) == sorted(echo)
        assert set(await found(admin, "queue:echo state:pending")) == waiting
        assert set(await found(admin, "queue:echo queue:one")) == {*echo, *one}
        assert await found(admin, "error:memory") == [failed]
        assert await found(admin, f"id:{one[0]}") == [one[0]]
        assert await found(admin, f"id:{one[0]} queue:echo") == []
        assert set(await found(admin, "payload.user.name:ada")) == set(echo)
        assert len(await found(admin, "payload.n:2")) == 2
        assert await found(admin, "worker:w state:archived") == [failed]
        assert set(await found(admin, "newer:1h")) == {*echo, *one}
        assert await found(admin, "older:1h") == []
        assert await found(admin, echo[7][:13]) == [echo[7]]
        assert await found(admin, "queue:nope") == []
        for q, status in (("state:x", 400), ("older:1d", 400)):
            assert (await admin.get("/api/search", params={"q": q})).status_code == status
        assert (await admin.get("/api/search", params={"cursor": "x"})).status_code == 400
        offered = (await admin.get("/api/search/complete", params={"q": "state:archived queue:one"})).json()
        assert [each["text"] for each in offered["suggestions"]] == ["queue:one.high", "queue:one.low"]


async def test_a_scoped_key_finds_its_queues_alone(api: Api) -> None:
    async with api.client() as admin:
        echo, one = await add(admin, "echo"), await add(admin, "one.low")
        body = {"name": "eyes", "role": "operator", "queues": ["one"]}
        key = (await admin.post("/api/keys", json=body)).json()["key"]
    async with api.client(key) as eyes:
        assert await found(eyes, "") == one
        assert await found(eyes, f"id:{echo[0]}") == []
        assert (await eyes.get(f"/api/tasks/{echo[0]}")).status_code == 404
        assert (await eyes.get(f"/api/tasks/{one[0]}")).json()["task"]["queue"] == "one.low"
        acted = (await eyes.post("/api/tasks:act", json={"action": "delete", "task_ids": [*echo, *one]})).json()
        assert acted == {"done": one, "failed": [{"id": echo[0], "error": "task not found"}]}


async def test_a_selection_is_acted_on_one_by_one(api: Api) -> None:
    async with api.client() as admin:
        ids = await add(admin, "echo", 3)
        failed = await fail(api, "echo.default", "boom")
        body = {"action": "archive", "task_ids": [*ids, "nope"]}
        answer = (await admin.post("/api/tasks:act", json=body)).json()
        assert sorted(answer["done"]) == sorted(set(ids) - {failed})
        assert {each["id"]: each["error"] for each in answer["failed"]} == {
            failed: "a task that is archived can't be archived",
            "nope": "task not found",
        }
        for wrong in ({}, {"action": "fly", "task_ids": []}, {"action": "run", "task_ids": "x"}, {"action": "run"}):
            assert (await admin.post("/api/tasks:act", json=wrong)).status_code == 400
    async with api.client(CLIENT) as client:
        assert (await client.post("/api/tasks:act", json=body)).status_code == 401


async def test_all_that_match_are_counted_first_and_then_acted_on(api: Api) -> None:
    async with api.client() as admin:
        ids = await add(admin, "echo", 130)
        await add(admin, "one.high", 3)
        asked = {"action": "archive", "q": "queue:echo state:pending"}
        counted = (await admin.post("/api/bulk", json={**asked, "dry_run": True})).json()
        assert (counted["count"], len(counted["sample"])) == (130, 10)
        assert len(await found(admin, "state:pending")) == 133
        started = await admin.post("/api/bulk", json=asked)
        assert started.status_code == 202
        job = await ended(admin, started.json()["id"])
        assert (job["state"], job["total"], job["done"], job["failed"]) == ("done", 130, 130, 0)
        assert sorted(await found(admin, "state:archived")) == sorted(ids)
        again = await ended(
            admin, (await admin.post("/api/bulk", json={"action": "cancel", "q": "queue:echo"})).json()["id"]
        )
        assert (again["done"], again["failed"], len(again["errors"])) == (0, 130, 130)
        lines = (await admin.get("/api/audit")).json()["lines"]
        assert [line["detail"]["q"] for line in lines] == ["queue:echo", asked["q"]]
        assert (await admin.post("/api/bulk", json={"action": "delete", "q": " "})).status_code == 400
        assert (await admin.get("/api/bulk/nope")).status_code == 404


async def ended(client: httpx2.AsyncClient, job_id: str) -> dict[str, Any]:
    for _ in range(200):
        job: dict[str, Any] = (await client.get(f"/api/bulk/{job_id}")).json()
        if job["ended_at"] is not None:
            return job
        await asyncio.sleep(0.05)
    raise AssertionError("the bulk action did not end")


async def test_a_bulk_action_can_be_cancelled(api: Api) -> None:
    async with api.client() as admin:
        await add(admin, "echo", 3000)
        job_id = (await admin.post("/api/bulk", json={"action": "archive", "q": "queue:echo"})).json()["id"]
        job = (await admin.post(f"/api/bulk/{job_id}/cancel")).json()
        assert job["state"] == "cancelled"
        counts = (await admin.get("/api/queues/echo.default")).json()
        assert (counts["archived"], counts["pending"]) == (job["done"], 3000 - job["done"])


async def test_failures_that_differ_in_numbers_alone_are_one_group(api: Api) -> None:
    async with api.client() as admin:
        await add(admin, "echo", 4)
        ids = [await fail(api, "echo.default", f"CUDA out of memory: {n} bytes at 0x7f{n}") for n in range(3)]
        await fail(api, "echo.default", "Traceback (most recent call last):\n  File x\nKeyError: 'a'")
        groups = (await admin.get("/api/errors")).json()["groups"]
        assert [(group["error"], group["count"]) for group in groups] == [
            ("CUDA out of memory: # bytes at #", 3),
            ("KeyError: 'a'", 1),
        ]
        assert sorted(groups[0]["sample_ids"]) == sorted(ids)
        assert (await admin.get("/api/errors", params={"queue": "one"})).json()["groups"] == []


async def test_a_text_search_goes_on_behind_its_limit(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decision 43: the limit is stated, and there is a way to go on."""
    monkeypatch.setattr("runqy.broker.search.READ_AT_MOST", 100)
    async with api.client() as admin:
        ids = await add(admin, "echo", 170)
        first = (await admin.get("/api/search", params={"q": "payload.n:165"})).json()
        assert (first["tasks"], first["scanned"], first["limit_reached"]) == ([], 100, True)
        rest = (await admin.get("/api/search", params={"q": "payload.n:165", "cursor": first["cursor"]})).json()
        assert ([task["id"] for task in rest["tasks"]], rest["limit_reached"]) == ([ids[165]], False)
        asked = {"action": "archive", "q": "payload.n:165"}
        counted = (await admin.post("/api/bulk", json={**asked, "dry_run": True})).json()
        assert (counted["count"], counted["limit_reached"]) == (0, True)
        job = await ended(admin, (await admin.post("/api/bulk", json=asked)).json()["id"])
        assert job["done"] == 1


async def test_one_queue_full_of_failures_does_not_hide_those_of_another(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runqy.server.search_routes.GROUPED_TASKS", 4)
    monkeypatch.setattr("runqy.server.search_routes.LEAST_SHARE", 2)
    async with api.client() as admin:
        await add(admin, "echo", 6)
        await add(admin, "one.low", 1)
        for _ in range(6):
            await fail(api, "echo.default", "boom")
        await fail(api, "one.low", "rare")
        document = (await admin.get("/api/errors")).json()
        assert {group["error"]: group["count"] for group in document["groups"]} == {"boom": 2, "rare": 1}
        assert document["limit_reached"]
