"""POST /queue/add, /queue/add-batch and GET /queue/{id} as callers see them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx2
import pytest
from harness.api import Api, complete, take

from runqy.broker import keys
from runqy.tasks.limits import Limits

CLIENT = "client-key-0123456789abcdef"


async def add(api: Api, body: Any, **headers: str) -> httpx2.Response:
    async with api.client(CLIENT) as client:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await client.post("/queue/add", content=content, headers=headers)


async def test_a_task_is_stamped_with_the_limits_of_its_queue(api: Api) -> None:
    """R16, R19, R22, R26: the page's example, stamped as 1, 3600, 86400, 300, 30."""
    answer = await add(api, {"queue": "one.high", "data": {"n": 1}})
    assert answer.status_code == 200, answer.text
    info = answer.json()["info"]
    assert (info["queue"], info["type"], info["state"], info["max_retry"]) == ("one.high", "one.high", "pending", 1)
    stored = await api.state.connection.command("HGETALL", keys.task("one.high", info["id"]))
    stamps = {
        name: stored[name.encode()] for name in ("ttl_completed", "ttl_archived", "pending_timeout", "active_timeout")
    }
    assert list(stamps.values()) == [b"3600", b"86400", b"300", b"30"]


@pytest.mark.parametrize(
    ("timeout", "stamped", "source"),
    [(5, 5, "request"), (1.5, 2, "request"), ("2m", 120, "request"), (0, 30, "queue"), (None, 30, "queue")],
)
async def test_the_requests_timeout_replaces_the_active_timeout(
    api: Api, timeout: Any, stamped: int, source: str
) -> None:
    """R37 and product rule: 0 and absent mean "as the queue says"."""
    task_id = (await add(api, {"queue": "one.low", "timeout": timeout, "data": {"n": 1}})).json()["info"]["id"]
    async with api.client() as client:
        limits = (await client.get(f"/queue/{task_id}")).json()["Info"]["limits"]
    assert limits["active_timeout"] == {"value": stamped, "source": source}
    assert limits["max_retry"] == {"value": 1, "source": "queue"}


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "EOF"),
        (b"{nope", 400, "not valid JSON"),
        (b"[]", 400, "must be a JSON object"),
        ({"data": {}}, 400, "queue is required"),
        ({"queue": "", "data": {}}, 400, "queue is required"),
        ({"queue": 7, "data": {}}, 400, "invalid queue field"),
        ({"queue": "nope", "data": {}}, 404, "queue not found: nope.default"),
        ({"queue": "echo.nope", "data": {}}, 404, "queue not found: echo.nope"),
        ({"queue": "one", "data": {"n": 1}}, 404, "queue not found: one.default"),
        ({"queue": "a.b.c", "data": {}}, 400, "invalid queue name"),
        ({"queue": "{echo}", "data": {}}, 400, "invalid queue name"),
        ({"queue": "echo", "timeout": -5, "data": {}}, 400, "timeout must be >= 0, got -5"),
        ({"queue": "echo", "timeout": "5 s", "data": {}}, 400, '"5 s"'),
        ({"queue": "echo", "timeout": True, "data": {}}, 400, "invalid timeout field"),
        ({"queue": "echo", "timeout": [], "data": {}}, 400, "invalid timeout field"),
        ({"queue": "one.high", "data": {"n": "x"}}, 400, "field 'n' has type string, expected one of: int"),
        ({"queue": "one.high", "data": {}}, 400, "n is required"),
        ({"queue": "one.high", "data": [1]}, 400, "must be a JSON object"),
        ({"queue": "echo", "task_id": "a b", "data": {}}, 400, "invalid task_id field"),
        ({"queue": "echo", "delay": "1s", "run_at": 5, "data": {}}, 400, "not both"),
        ({"queue": "echo", "run_at": "2030-01-01T00:00:00", "data": {}}, 400, "with its zone"),
        (b'{"queue":"echo","data":{"x":NaN}}', 400, "not valid JSON"),
        (b'{"queue":"echo","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "JSON"),
        (b'{"queue":"echo","data":"\xff"}', 400, "JSON"),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, int) else None,
)
async def test_what_is_wrong_is_refused_and_nothing_is_enqueued(api: Api, body: Any, status: int, text: str) -> None:
    answer = await add(api, body)
    assert answer.status_code == status
    assert text in answer.json()["errors"][0]
    counts = await api.state.inspector.counts_of(await api.state.inspector.queues())
    assert sum(entry.size for entry in counts) == 0


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (b'{"queue":"echo","data":{"a":1234567890123456789, "b" : 1.50}}', b'{"a":1234567890123456789, "b" : 1.50}'),
        (b'{"queue":"echo","data":12345678901234567890123456789}', b"12345678901234567890123456789"),
        ('{"queue":"echo","data":"é☃\\u00e9\\n"}'.encode(), '"é☃\\u00e9\\n"'.encode()),
        (b'{"queue":"echo","data":null}', b"null"),
        (b'{"queue":"echo","data":[1, 2]}', b"[1, 2]"),
        (b'{"queue":"echo","text":"flat","n":1,"timeout":7}', b'{"text":"flat","n":1}'),
        (b'{"queue":"echo"}', b"{}"),
        (b'{"queue":"echo","delay":5,"task":"x"}', b'{"delay":5,"task":"x"}'),
    ],
    ids=[
        "spaces and digits",
        "huge number",
        "texts",
        "null",
        "list",
        "flat",
        "empty",
        "our keys as payload",
    ],
)
async def test_the_payload_is_kept_byte_for_byte(api: Api, body: bytes, payload: bytes) -> None:
    task_id = (await add(api, body)).json()["info"]["id"]
    assert (await take(api, "echo.default")).payload == payload
    async with api.client() as client:
        assert (await client.get(f"/queue/{task_id}")).json()["Info"]["payload"] == payload.decode()


async def test_a_misspelt_key_beside_data_is_told(api: Api) -> None:
    answer = await add(api, {"queue": "echo", "data": {}, "time_out": 5})
    assert answer.json()["warnings"] == ["time_out is not known and was ignored; did you mean timeout?"]


async def test_the_body_has_a_limit(api: Api) -> None:
    answer = await add(api, b'{"queue":"echo","data":"' + b"x" * 53_000_000 + b'"}')
    assert answer.status_code == 413
    assert answer.json()["errors"][0].startswith("http: request body too large")


async def test_waiting_is_answered_at_once_when_the_task_ends(api: Api) -> None:
    task_id = (await add(api, {"queue": "echo", "data": {}})).json()["info"]["id"]
    task = await take(api, "echo.default")
    async with api.client(CLIENT) as client:
        waiting = asyncio.create_task(client.get(f"/queue/{task_id}?wait=true&timeout=20"))
        while not api.state.events.waiting(task_id):
            await asyncio.sleep(0.005)
        ended = time.perf_counter()
        await complete(api, task, b'{"big":123456789012345678901}')
        info = (await waiting).json()["Info"]
        assert time.perf_counter() - ended < 1
    assert (info["state"], info["Result"]) == ("completed", '{"big":123456789012345678901}')


async def test_waiting_in_vain_is_a_408_and_an_unknown_id_a_404(api: Api) -> None:
    task_id = (await add(api, {"queue": "echo", "data": {}})).json()["info"]["id"]
    async with api.client(CLIENT) as client:
        late = await client.get(f"/queue/{task_id}?wait=true&timeout=50ms")
        assert (late.status_code, late.json()) == (408, {"errors": ["timeout waiting for task result"]})
        for query in ("", "?wait=true"):
            unknown = await client.get(f"/queue/no-such-id{query}")
            assert (unknown.status_code, unknown.json()) == (404, {"errors": ["task not found"]})
        for timeout in ("-1", "301", "1 s", "x"):
            assert (await client.get(f"/queue/{task_id}?wait=true&timeout={timeout}")).status_code == 400


async def test_the_same_idempotency_key_gives_the_same_task(api: Api) -> None:
    body = {"queue": "echo", "data": {"x": 1}}
    answers = await asyncio.gather(*(add(api, body, **{"Idempotency-Key": "k1"}) for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["info"]["id"] for answer in answers}) == 1
    assert (await api.state.inspector.counts("echo.default")).pending == 1
    other = await add(api, {"queue": "echo", "data": {"x": 2}}, **{"Idempotency-Key": "k1"})
    assert other.status_code == 409
    task = await take(api, "echo.default")
    await complete(api, task)
    again = (await add(api, body, **{"Idempotency-Key": "k1"})).json()
    assert (again["info"]["id"], again["info"]["state"]) == (task.id, "completed")
    async with api.client() as client:
        assert (await client.delete(f"/api/queues/echo.default/tasks/{task.id}")).status_code == 200
    gone = (await add(api, body, **{"Idempotency-Key": "k1"})).json()
    assert (gone["info"]["id"], gone["info"]["state"]) == (task.id, "expired")


async def test_a_task_id_is_used_once(api: Api) -> None:
    first = await add(api, {"queue": "echo", "task_id": "mine", "data": {"x": 1}})
    assert first.json()["info"]["id"] == "mine"
    assert (await add(api, {"queue": "echo", "task_id": "mine", "data": {"x": 1}})).status_code == 200
    assert (await add(api, {"queue": "echo", "task_id": "mine", "data": {"x": 2}})).status_code == 409
    elsewhere = await add(api, {"queue": "small", "task_id": "mine", "data": {"x": 1}})
    assert elsewhere.status_code == 409
    assert "echo.default" in elsewhere.json()["errors"][0]


async def test_a_full_queue_says_when_to_come_again(api: Api) -> None:
    for _ in range(2):
        assert (await add(api, {"queue": "small", "data": {}})).status_code == 200
    full = await add(api, {"queue": "small", "data": {}})
    assert full.status_code == 429
    assert int(full.headers["retry-after"]) >= 1
    assert (await api.state.inspector.counts("small.default")).pending == 2


async def test_a_delayed_task_is_scheduled(api: Api) -> None:
    answer = (await add(api, {"queue": "echo", "delay": "1h", "data": {}})).json()
    assert answer["info"]["state"] == "scheduled"
    assert (await api.state.inspector.counts("echo.default")).scheduled == 1


async def test_a_batch_answers_item_by_item(api: Api) -> None:
    """C56: each job in order with its id or its error; wrappers are unwrapped, anything else is the payload."""
    jobs = [{"n": 1}, {"data": {"n": 2}, "timeout": 9}, {"data": {"n": "x"}}, {"data": {"n": 3}, "timeout": -1}, 5]
    async with api.client(CLIENT) as client:
        answer = await client.post("/queue/add-batch", json={"queue": "one.high", "timeout": 20, "jobs": jobs})
        document = answer.json()
        assert (answer.status_code, document["enqueued"], document["failed"]) == (200, 2, 3)
        assert [e.partition(":")[0] for e in document["errors"]] == ["job 2", "job 3", "job 4"]
        assert [list(result) for result in document["results"]] == [["id"], ["id"], ["error"], ["error"], ["error"]]
        tasks = (await api.broker.pick_up(["one.high"], 9, token="w#1", starting=9, fallback=Limits())).tasks
        assert [(json.loads(t.payload), t.limits.active_timeout) for t in tasks] == [({"n": 1}, 20), ({"n": 2}, 9)]
        atomic = await client.post("/queue/add-batch", json={"queue": "one.high", "atomic": True, "jobs": jobs})
        assert atomic.status_code == 400
        for bad, text in (([], "cannot be empty"), ({}, "must be an array"), (None, "jobs is required")):
            refused = await client.post(
                "/queue/add-batch", json={"queue": "echo", "jobs": bad} if bad is not None else {"queue": "echo"}
            )
            assert refused.status_code == 400
            assert text in refused.json()["errors"][0]
    assert (await api.state.inspector.counts("one.high")).pending == 0


async def test_an_idempotency_key_covers_a_batch_job_by_job(api: Api) -> None:
    body = {"queue": "echo", "jobs": [{"a": n} for n in range(250)]}
    async with api.client(CLIENT) as client:
        first, second = [
            (await client.post("/queue/add-batch", json=body, headers={"Idempotency-Key": "b1"})).json()
            for _ in range(2)
        ]
    assert first["enqueued"] == second["enqueued"] == 250
    assert first["task_ids"] == second["task_ids"]
    assert (await api.state.inspector.counts("echo.default")).pending == 250
