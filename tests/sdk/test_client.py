"""The client against a server that answers, fails, cuts connections and is slow, as told."""

from __future__ import annotations

import asyncio
import datetime
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import runqy_python
from fake_server import Seen, Server
from runqy_python import (
    AsyncRunqyClient,
    ConflictError,
    InvalidRequestError,
    PayloadEncodingError,
    PermissionDeniedError,
    ResultNotStoredError,
    RunqyClient,
    RunqyError,
    ServerUnavailableError,
    TaskFailedError,
    TaskInfo,
    TaskNotFoundError,
    WaitTimeoutError,
    transport,
)

pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once, and the machine's own settings do not count."""
    monkeypatch.setattr(transport, "FIRST_PAUSE", 0.0)
    for name in ("RUNQY_SERVER", "RUNQY_API_KEY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def client(server: Server) -> Iterator[RunqyClient]:
    with RunqyClient(server.url, "key", timeout=10) as client:
        yield client


def added(task_id: str = "t1") -> tuple[int, Any]:
    return 200, {"info": {"id": task_id, "queue": "q.default", "state": "pending"}, "data": {}}


def info(state: str, result: str = "", **more: Any) -> tuple[int, Any]:
    task = {"id": "t1", "queue": "q.default", "state": state, "Result": result, "LastErr": "", "payload": "{}", **more}
    return 200, {"Info": task}


def in_turn(server: Server, *answers: Any) -> None:
    """Answer the requests in this order."""
    left = list(answers)
    server.answer = lambda seen: left.pop(0)


# Enqueue


def test_timeout_is_left_out_unless_given(client: RunqyClient, server: Server) -> None:
    in_turn(server, added(), (200, {"enqueued": 1, "failed": 0, "task_ids": ["a"]}), added())
    client.enqueue("q", {"x": 1})
    client.enqueue_batch("q", [{"x": 1}])
    client.enqueue("q", {"x": 1}, "90s")
    assert [seen.body for seen in server.seen] == [
        {"queue": "q", "data": {"x": 1}},
        {"queue": "q", "jobs": [{"data": {"x": 1}}]},
        {"queue": "q", "timeout": "90s", "data": {"x": 1}},
    ]


def test_options_go_beside_the_payload(client: RunqyClient, server: Server) -> None:
    server.answer = lambda seen: added()
    moment = datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    client.enqueue(
        "q", [1], task="embed", delay=datetime.timedelta(minutes=1), task_id="mine", webhook_url="https://example.com"
    )
    client.enqueue("q", [1], run_at=moment)
    client.enqueue("q", [1], run_at=moment.replace(tzinfo=None))
    assert server.seen[0].body == {
        "queue": "q",
        "data": [1],
        "task": "embed",
        "delay": 60.0,
        "task_id": "mine",
        "webhook_url": "https://example.com",
    }
    assert server.seen[1].body["run_at"] == "2030-01-02T03:04:05+00:00"
    # A time without a zone is local time, never sent without one.
    local = datetime.datetime.fromisoformat(server.seen[2].body["run_at"])
    assert local == moment.replace(tzinfo=None).astimezone()


def test_payload_takes_the_forms_of_results(client: RunqyClient, server: Server) -> None:
    server.answer = lambda seen: added()
    client.enqueue("q", {"day": datetime.date(2024, 1, 2), "data": b"abc"})
    assert server.seen[0].body["data"] == {"day": "2024-01-02", "data": "YWJj"}
    for payload in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(PayloadEncodingError, match=r"^Payload not JSON-serializable: .* at payload\['x'\]$") as bad:
            client.enqueue("q", payload)
        assert isinstance(bad.value, (TypeError, ValueError))
    assert len(server.seen) == 1


def test_large_batch_is_sent_in_parts_with_a_key_each(client: RunqyClient, server: Server) -> None:
    def answer(seen: Seen) -> Any:
        ids = [str(job["data"]) for job in seen.body["jobs"]]
        return 200, {"enqueued": len(ids), "failed": 0, "task_ids": ids}

    server.answer = answer
    result = client.enqueue_batch("q", iter(range(2500)), 60, task="embed", idempotency_key="mine")
    assert result.enqueued == 2500
    assert result.task_ids == [str(n) for n in range(2500)]
    assert [len(seen.body["jobs"]) for seen in server.seen] == [1000, 1000, 500]
    assert [seen.headers["Idempotency-Key"] for seen in server.seen] == ["mine.1", "mine.2", "mine.3"]
    assert server.seen[0].body["jobs"][0] == {"timeout": 60, "data": 0, "task": "embed"}


def test_large_payloads_make_small_parts(client: RunqyClient, server: Server) -> None:
    server.answer = lambda seen: (200, {"enqueued": len(seen.body["jobs"]), "failed": 0, "task_ids": None})
    assert client.enqueue_batch("q", ["x" * 3_000_000] * 5).enqueued == 5
    assert [len(seen.body["jobs"]) for seen in server.seen] == [2, 2, 1]


def test_failure_of_a_later_part_tells_what_was_accepted(client: RunqyClient, server: Server) -> None:
    part = (200, {"enqueued": 1000, "failed": 0, "task_ids": ["x"] * 1000})
    in_turn(server, part, (400, {"errors": ["bad job"]}))
    with pytest.raises(InvalidRequestError) as caught:
        client.enqueue_batch("q", range(1500))
    assert caught.value.accepted.enqueued == 1000
    key = caught.value.idempotency_key
    assert [seen.headers["Idempotency-Key"] for seen in server.seen] == [f"{key}.1", f"{key}.2"]


def test_refused_jobs_are_counted(client: RunqyClient, server: Server) -> None:
    in_turn(server, (200, {"enqueued": 1, "failed": 1, "task_ids": ["a"], "errors": ["job 1: text is required"]}))
    result = client.enqueue_batch("q", [{}, {}])
    assert (result.enqueued, result.failed, result.errors) == (1, 1, ["job 1: text is required"])


# Retries


def test_enqueue_is_repeated_with_the_same_key_until_the_server_answers(client: RunqyClient, server: Server) -> None:
    in_turn(server, None, (502, "bad gateway"), (503, {"errors": ["starting"]}, ("Retry-After", "0")), added())
    assert client.enqueue("q", {}).task_id == "t1"
    assert len(server.seen) == 4
    assert len({seen.headers["Idempotency-Key"] for seen in server.seen}) == 1


def test_every_enqueue_has_its_own_key(client: RunqyClient, server: Server) -> None:
    server.answer = lambda seen: added()
    client.enqueue("q", {})
    client.enqueue("q", {})
    client.enqueue("q", {}, idempotency_key="mine")
    keys = [seen.headers["Idempotency-Key"] for seen in server.seen]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


def test_retries_end(client: RunqyClient, server: Server) -> None:
    server.answer = lambda seen: (503, {"errors": ["down"]})
    with pytest.raises(ServerUnavailableError, match=r'^HTTP 503: {"errors": \["down"\]}$') as caught:
        client.enqueue("q", {})
    assert len(server.seen) == 4
    assert (caught.value.status, caught.value.errors) == (503, ["down"])


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 500])
def test_answers_that_a_repetition_would_not_change_are_not_repeated(
    client: RunqyClient, server: Server, status: int
) -> None:
    server.answer = lambda seen: (status, {"error": "no"})
    with pytest.raises(RunqyError) as caught:
        client.enqueue("q", {})
    assert len(server.seen) == 1
    assert (caught.value.status, caught.value.errors) == (status, ["no"])


def test_timeout_of_a_call_is_not_repeated(server: Server) -> None:
    release = threading.Event()
    server.answer = lambda seen: release.wait(20) and None
    with (
        RunqyClient(server.url, "key", timeout=0.05) as client,
        pytest.raises(ServerUnavailableError, match=r"^Connection error: .*timed out"),
    ):
        client.get_task("t1")
    release.set()
    assert len(server.seen) == 1


def test_connection_is_used_again(client: RunqyClient, server: Server) -> None:
    server.answer = lambda seen: info("pending")
    for _ in range(5):
        client.get_task("t1")
    assert server.connections == 1


def test_connection_that_the_server_closed_is_replaced(client: RunqyClient, server: Server) -> None:
    in_turn(server, info("pending"), None, info("completed"))
    client.get_task("t1")
    assert client.get_task("t1").state == "completed"
    assert server.connections == 2


def test_threads_share_a_client(client: RunqyClient, server: Server) -> None:
    server.answer = lambda seen: (200, {"Info": {"id": seen.path.rpartition("/")[2], "state": "pending"}})
    wrong: list[str] = []

    def ask(name: str) -> None:
        wrong.extend(name for _ in range(20) if client.get_task(name).task_id != name)

    threads = [threading.Thread(target=ask, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert server.connections <= 4


# Errors


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequestError),
        (401, runqy_python.AuthenticationError),
        (403, PermissionDeniedError),
        (404, TaskNotFoundError),
        (409, ConflictError),
        (413, InvalidRequestError),
        (429, ServerUnavailableError),
        (501, RunqyError),
    ],
)
def test_error_class_by_status(client: RunqyClient, server: Server, status: int, kind: type[RunqyError]) -> None:
    server.answer = lambda seen: (status, {"errors": ["first", "second"]})
    with pytest.raises(kind) as caught:
        client.get_task("t1")
    assert type(caught.value) is kind
    assert caught.value.errors == ["first", "second"]


def test_server_that_is_something_else_is_named_as_such(client: RunqyClient, server: Server) -> None:
    in_turn(server, (200, "<html>hello"), (301, "", ("Location", "https://other/")))
    with pytest.raises(RunqyError, match=r"not a JSON object; is it a runqy server\? It begins with '<html>hello'"):
        client.get_task("t1")
    with pytest.raises(RunqyError, match=r"redirects to https://other/; use that address as server_url"):
        client.get_task("t1")


def test_bad_addresses_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(RunqyError, match=r"No server is known: pass server_url or set RUNQY_SERVER"):
        RunqyClient()
    with pytest.raises(RunqyError, match=r"'localhost:3000' is not an http:// or https:// address"):
        RunqyClient("localhost:3000", "key")


def test_key_is_not_shown(client: RunqyClient) -> None:
    client.api_key = "secret"
    assert "secret" not in repr(client)


def test_environment_names_server_and_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNQY_SERVER", server.url + "/")
    monkeypatch.setenv("RUNQY_API_KEY", "from the environment")
    server.answer = lambda seen: added()
    assert runqy_python.enqueue("q", {}).task_id == "t1"
    assert server.seen[0].headers["Authorization"] == "Bearer from the environment"
    RunqyClient(server.url, "given").enqueue("q", {})
    assert server.seen[1].headers["Authorization"] == "Bearer given"


def test_path_before_the_routes_and_odd_ids_are_kept(server: Server) -> None:
    server.answer = lambda seen: info("pending")
    with RunqyClient(server.url + "/base/", "key") as client:
        client.get_task("a/b c?d")
    assert server.seen[0].path == "/base/queue/a%2Fb%20c%3Fd"


def test_proxy_of_the_environment_is_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url.replace("://", "://user:pass%21@"))
    monkeypatch.setenv("no_proxy", "direct.example")
    server.answer = lambda seen: info("pending")
    with RunqyClient("http://runqy.example:3000", "key") as client:
        client.get_task("t1")
    assert server.seen[0].path == "http://runqy.example:3000/queue/t1"
    assert server.seen[0].headers["Proxy-Authorization"] == "Basic dXNlcjpwYXNzIQ=="


# Wait, result


def test_wait_asks_again_until_the_task_has_ended(client: RunqyClient, server: Server) -> None:
    in_turn(server, (408, {"errors": ["timeout waiting for task result"]}), info("completed", '{"y": 1}'))
    assert client.wait("t1").result == {"y": 1}
    assert [seen.path for seen in server.seen] == ["/queue/t1?wait=true&timeout=300"] * 2


def test_wait_ends_with_its_time(client: RunqyClient, server: Server) -> None:
    in_turn(server, info("active"))
    with pytest.raises(WaitTimeoutError, match=r"^Task t1 has not ended within 0 s; it is active and goes on$") as over:
        client.wait(TaskInfo("t1", "q", "pending"), timeout=0)
    assert isinstance(over.value, TimeoutError)


def test_wait_ends_with_its_time_also_when_the_server_keeps_silent(server: Server) -> None:
    release = threading.Event()
    server.answer = lambda seen: release.wait(20) and None
    with RunqyClient(server.url, "key") as client, pytest.raises(WaitTimeoutError, match=r"within 0\.05 s and goes on"):
        client.wait("t1", timeout=0.05)
    release.set()


def test_result_of_a_completed_task(client: RunqyClient, server: Server) -> None:
    in_turn(server, info("completed", "null"), info("completed", '"text"'), info("completed", "not JSON"))
    assert [client.result("t1") for _ in range(3)] == [None, "text", "not JSON"]


def test_result_of_a_failed_task_is_its_error(client: RunqyClient, server: Server) -> None:
    in_turn(server, info("archived", LastErr="ValueError: bad"), info("archived"))
    with pytest.raises(TaskFailedError, match=r"^Task t1 is archived: ValueError: bad$") as caught:
        client.result("t1")
    assert (caught.value.error, caught.value.task.state) == ("ValueError: bad", "archived")
    with pytest.raises(TaskFailedError, match=r"the server gave no reason"):
        client.result("t1")


@pytest.mark.parametrize("inside", [True, False])
def test_result_that_was_not_stored_names_the_setting(client: RunqyClient, server: Server, inside: bool) -> None:
    status, body = info("completed")
    (body["Info"] if inside else body)["result_stored"] = False
    server.answer = lambda seen: (status, body)
    with pytest.raises(ResultNotStoredError, match=r"redis_storage: false"):
        client.result("t1")
    assert client.get_task("t1").result_stored is False


# Stream


def sse(kind: str, data: Any, number: int | None = None) -> bytes:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def test_stream_yields_events_until_the_task_has_ended(client: RunqyClient, server: Server) -> None:
    pieces = [
        b": ping\n\n",
        sse("state", {"state": "active"}),
        sse("progress", {"fraction": 0.5}),
        b'event: log\r\ndata: {"text":\r\ndata: "two lines"}\r\n\r\n',
        sse("output", {"seq": 0, "data": "a"}),
        sse("state", {"state": "completed"}),
        sse("log", {"text": "never read"}),
    ]
    server.answer = lambda seen: (200, pieces)
    events = [(event.kind, event.data) for event in client.stream("t1")]
    assert events == [
        ("state", {"state": "active"}),
        ("progress", {"fraction": 0.5}),
        ("log", {"text": "two lines"}),
        ("output", {"seq": 0, "data": "a"}),
        ("state", {"state": "completed"}),
    ]
    assert server.seen[0].path == "/queue/t1/events"
    assert server.seen[0].headers["Accept"] == "text/event-stream"


def test_stream_goes_on_after_a_lost_connection_without_doubles(client: RunqyClient, server: Server) -> None:
    outputs = [sse("output", {"seq": n, "data": n}, n + 10) for n in range(4)]
    in_turn(
        server,
        (200, [*outputs[:2], b"event: output\ndata: {"]),
        (503, "busy"),
        (200, [*outputs[1:], sse("state", {"state": "archived"})]),
    )
    events = list(client.stream("t1"))
    assert [event.data["seq"] for event in events[:-1]] == [0, 1, 2, 3]
    assert [seen.headers.get("Last-Event-ID") for seen in server.seen] == [None, "11", "11"]


def test_stream_of_no_task_and_of_no_server(client: RunqyClient, server: Server) -> None:
    server.answer = lambda seen: (404, {"errors": ["task not found"]})
    with pytest.raises(TaskNotFoundError):
        next(client.stream("t1"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        lost = RunqyClient(f"http://127.0.0.1:{taken.getsockname()[1]}", "key")
        with pytest.raises(ServerUnavailableError, match=r"^Connection error: \[Errno 111\] Connection refused$"):
            next(lost.stream("t1"))


# Async


def test_async_client_does_the_same(server: Server) -> None:
    def answer(seen: Seen) -> Any:
        if seen.path.endswith("/events"):
            return 200, [sse("output", {"seq": 0, "data": 1}), sse("state", {"state": "completed"})]
        if seen.path == "/queue/add":
            return added()
        if seen.path == "/queue/add-batch":
            return 200, {"enqueued": len(seen.body["jobs"]), "failed": 0, "task_ids": []}
        return info("completed", "5") if "t1" in seen.path else (404, {"errors": ["task not found"]})

    server.answer = answer

    async def program() -> None:
        async with AsyncRunqyClient(server.url, "key") as client:
            assert "key" not in repr(client)
            tasks = await asyncio.gather(*(client.enqueue("q", {"n": n}, task="embed") for n in range(10)))
            assert {task.task_id for task in tasks} == {"t1"}
            assert (await client.enqueue_batch("q", [1, 2])).enqueued == 2
            assert (await client.get_task("t1")).state == "completed"
            assert (await client.wait(tasks[0], timeout=5)).ended
            assert await client.result(tasks[0]) == 5
            assert [event.kind async for event in client.stream("t1")] == ["output", "state"]
            with pytest.raises(TaskNotFoundError):
                await client.get_task("other")

    asyncio.run(program())


def test_async_client_closes_although_a_wait_and_a_stream_were_given_up(server: Server) -> None:
    asked = threading.Semaphore(0)
    release = threading.Event()

    def answer(seen: Seen) -> Any:
        asked.release()
        release.wait(20)

    server.answer = answer

    async def program() -> None:
        async with AsyncRunqyClient(server.url, "key") as client:
            waiting = asyncio.create_task(client.wait("t1"))
            streaming = asyncio.create_task(anext(client.stream("t1")))
            for _ in range(2):
                await asyncio.to_thread(asked.acquire)
            waiting.cancel()
            streaming.cancel()
            await asyncio.gather(waiting, streaming, return_exceptions=True)
        with pytest.raises(ServerUnavailableError, match=r"^Connection error: the client was closed$"):
            await asyncio.to_thread(client._client.get_task, "t1")

    asyncio.run(program())
    release.set()
