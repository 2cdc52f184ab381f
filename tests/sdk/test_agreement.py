"""What the release 0.2.2 and ours must do alike: every test runs with both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from fake_server import Server
from task_process import Start

READY = b'{"status": "ready"}\n'

ECHO = """
from runqy_python import task, run, RetryableError

class Opaque:
    pass

@task
def handle(payload):
    what = payload.get("do") if isinstance(payload, dict) else None
    if what == "retry":
        raise RetryableError(payload["text"])
    if what == "fail":
        raise ValueError(payload["text"])
    if what == "opaque":
        return Opaque()
    if what == "int keys":
        return {2: "a", None: "b", True: (1, 2)}
    if what == "cycle":
        ring = []
        ring.append(ring)
        return ring
    if what == "tuple key":
        return {(1, 2): 3}
    if what == "print":
        print("noise")
        print('{"task_id": "x", "result": 1}')
    return payload

run()
"""


@pytest.fixture(scope="module")
def echo(start_shared: Start, package: Path) -> Any:
    child = start_shared(ECHO, protocol=1, package=package)
    assert child.raw_line() == READY
    return child


@pytest.mark.parametrize(
    ("request_line", "reply"),
    [
        (
            '{"task_id":"a","type":"q.default","payload":{"x":[1,2.5,null,true]},"retry_count":0}',
            '{"task_id": "a", "result": {"x": [1, 2.5, null, true]}, "error": null, "retry": false}',
        ),
        (
            '{"task_id":"a","payload":{"t":"h\\u00e9 \u20ac \U0001f600"}}',
            '{"task_id": "a", "result": {"t": "h\\u00e9 \\u20ac \\ud83d\\ude00"}, "error": null, "retry": false}',
        ),
        ('{"payload":1}', '{"task_id": "unknown", "result": 1, "error": null, "retry": false}'),
        ('{"task_id":7,"payload":1}', '{"task_id": 7, "result": 1, "error": null, "retry": false}'),
        ('{"task_id":"a"}', '{"task_id": "a", "result": {}, "error": null, "retry": false}'),
        ('{"task_id":"a","payload":null}', '{"task_id": "a", "result": null, "error": null, "retry": false}'),
        ('  {"task_id":"a","payload":1}\t\r', '{"task_id": "a", "result": 1, "error": null, "retry": false}'),
        (
            '{"task_id":"a","payload":{"do":"retry","text":"try \\"again\\""}}',
            '{"task_id": "a", "result": null, "error": "try \\"again\\"", "retry": true}',
        ),
        (
            '{"task_id":"a","payload":{"do":"int keys"}}',
            '{"task_id": "a", "result": {"2": "a", "null": "b", "true": [1, 2]}, "error": null, "retry": false}',
        ),
        (
            "{broken",
            '{"task_id": "unknown", "result": null, "error": "Invalid JSON input: Expecting property name enclosed '
            'in double quotes: line 1 column 2 (char 1)", "retry": false}',
        ),
        (
            '{"task_id":"a"} x',
            '{"task_id": "unknown", "result": null, "error": "Invalid JSON input: Extra data: line 1 column 17 '
            '(char 16)", "retry": false}',
        ),
    ],
)
def test_reply_is_the_same_to_the_byte(echo: Any, request_line: str, reply: str) -> None:
    echo.write(request_line)
    assert echo.raw_line().decode() == reply + "\n"
    assert echo.ask({"next": 1})["result"] == {"next": 1}


def test_exception_is_reported_with_its_traceback_and_not_retried(echo: Any) -> None:
    reply = echo.ask({"do": "fail", "text": "bad input"})
    assert list(reply) == ["task_id", "result", "error", "retry"]
    assert reply["error"].startswith("Traceback (most recent call last):\n")
    assert 'raise ValueError(payload["text"])\n' in reply["error"]
    assert reply["error"].endswith("\nValueError: bad input\n")
    assert reply["retry"] is False


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("opaque", "Object of type Opaque is not JSON serializable"),
        ("cycle", "Circular reference detected"),
        ("tuple key", "keys must be str, int, float, bool or None, not tuple"),
    ],
)
def test_result_that_is_not_json_is_an_error_of_its_own_task(echo: Any, what: str, reason: str) -> None:
    reply = echo.ask({"do": what}, "mine")
    assert reply["task_id"] == "mine"
    assert reply["error"].startswith(f"Result not JSON-serializable: {reason}")
    assert reply["retry"] is False
    assert echo.ask(1)["result"] == 1


def test_request_that_is_not_an_object_is_answered_for_an_unknown_task(echo: Any) -> None:
    for text in ("[1]", "5", '"x"', "null"):
        echo.write(text)
        reply = echo.line()
        assert (reply["task_id"], reply["result"], reply["retry"]) == ("unknown", None, False)
        assert reply["error"]


def test_many_requests_in_the_pipe_are_answered_in_order(echo: Any) -> None:
    echo.send(*({"task_id": str(n), "payload": n} for n in range(500)))
    assert [reply["result"] for reply in echo.lines(500)] == list(range(500))


def test_blank_lines_are_skipped(start: Start, package: Path) -> None:
    echo = start(ECHO, protocol=1, package=package)
    echo.ready()
    echo.write("", "   ", '{"task_id":"a","payload":1}', "")
    assert echo.line()["result"] == 1
    assert echo.end() == 0
    assert echo.rest() == []


def test_last_line_needs_no_line_end(start: Start, package: Path) -> None:
    echo = start(ECHO, protocol=1, package=package)
    echo.ready()
    echo.process.stdin.write(b'{"task_id":"a","payload":1}')
    assert echo.end() == 0
    assert [json.loads(line)["result"] for line in echo.rest()] == [1]


def test_prints_never_reach_the_protocol(start: Start, package: Path) -> None:
    echo = start(ECHO, protocol=1, package=package)
    echo.ready()
    assert echo.ask({"do": "print"})["result"] == {"do": "print"}
    assert echo.end() == 0
    assert "noise" in echo.stderr()


def test_large_values_pass(echo: Any) -> None:
    for size in (65_535, 65_536, 65_537, 1 << 20, 16 << 20):
        assert len(echo.ask("x" * size)["result"]) == size


@pytest.mark.parametrize(
    ("loader", "handler", "result"),
    [
        ("return {'model': 3}", "def handle(payload, ctx): return [payload, ctx]", [1, {"model": 3}]),
        ("return 0", "def handle(payload, ctx): return [payload, ctx]", [1, 0]),
        ("return None", "def handle(payload): return [payload]", [1]),
        ("return None", "def handle(payload, ctx='unset'): return [payload, ctx]", [1, "unset"]),
    ],
)
def test_loaded_value_is_the_second_argument(
    start: Start, package: Path, loader: str, handler: str, result: Any
) -> None:
    source = f"from runqy_python import *\n@load\ndef prepare():\n    {loader}\n@task\n{handler}\nrun()"
    child = start(source, protocol=1, package=package)
    assert child.raw_line() == READY
    assert child.ask(1)["result"] == result


def test_failed_load_is_told_and_exits_with_1(start: Start, package: Path) -> None:
    child = start(
        """
        from runqy_python import load, run, task
        @load
        def prepare():
            print("loading")
            raise RuntimeError("no GPU")
        @task
        def handle(payload): pass
        run()
        """,
        protocol=1,
        package=package,
    )
    assert child.raw_line() == b'{"status": "error", "error": "@load failed: no GPU"}\n'
    assert child.wait() == 1
    assert child.rest() == []


@pytest.mark.parametrize("runner", ["run", "run_once"])
def test_without_a_handler_nothing_is_said(start: Start, package: Path, runner: str) -> None:
    child = start(f"import runqy_python; runqy_python.{runner}()", protocol=1, package=package)
    assert child.wait() == 1
    assert child.rest() == []
    assert "RuntimeError: No task handler registered. Use @task decorator." in child.stderr()


def test_run_once_answers_one_task_and_ends(start: Start, package: Path) -> None:
    child = start(ECHO.replace("run()", "run_once()").replace(", run,", ", run_once,"), protocol=1, package=package)
    assert child.raw_line() == READY
    child.send({"task_id": "a", "payload": 1}, {"task_id": "b", "payload": 2})
    assert child.line() == {"task_id": "a", "result": 1, "error": None, "retry": False}
    assert child.wait() == 0
    assert child.rest() == []


@pytest.mark.parametrize("first", ["", "\n"])
def test_run_once_without_a_task_says_nothing(start: Start, package: Path, first: str) -> None:
    child = start(ECHO.replace("run()", "run_once()").replace(", run,", ", run_once,"), protocol=1, package=package)
    assert child.raw_line() == READY
    child.process.stdin.write(first.encode())  # type: ignore[union-attr]
    assert child.end() == 0
    assert child.rest() == []


SLOW = """
import os, sys, time
from runqy_python import run, task
@task
def handle(payload):
    print("begun", file=sys.stderr, flush=True)
    while not os.path.exists(payload):
        time.sleep(0.005)
    return "done"
run()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_lets_the_running_task_finish(start: Start, package: Path, tmp_path: Path, number: int) -> None:
    child = start(SLOW, protocol=1, package=package)
    child.ready()
    child.send({"task_id": "a", "payload": str(tmp_path / "go")}, {"task_id": "b", "payload": "never"})
    child.wait_for_stderr("begun")
    child.signal(number)
    (tmp_path / "go").touch()
    assert child.line() == {"task_id": "a", "result": "done", "error": None, "retry": False}
    assert child.wait() == 0
    assert child.rest() == []


def test_second_signal_ends_the_process_with_1(start: Start, package: Path) -> None:
    noting = """
import signal
install = signal.signal
def noted(number, handler):
    def note(*arguments):
        handler(*arguments)
        # Not print: the signal may have come in the middle of one.
        os.write(2, b"signal was taken")
    install(number, note)
signal.signal = noted
"""
    child = start(SLOW.replace("from runqy_python", noting + "from runqy_python", 1), protocol=1, package=package)
    child.ready()
    child.send({"task_id": "a", "payload": "/nowhere"})
    child.wait_for_stderr("begun")
    child.signal()
    child.wait_for_stderr("signal was taken")
    child.signal()
    assert child.wait() == 1
    assert child.rest() == []


@pytest.mark.parametrize(
    ("statement", "code"), [("sys.exit(3)", 3), ("sys.exit(0)", 0), ("os._exit(9)", 9), ("raise SystemExit", 0)]
)
def test_exit_inside_a_handler_ends_the_process_without_a_reply(
    start: Start, package: Path, statement: str, code: int
) -> None:
    source = f"import os, sys\nfrom runqy_python import run, task\n@task\ndef handle(payload): {statement}\nrun()"
    child = start(source, protocol=1, package=package)
    child.ready()
    child.send({"task_id": "a", "payload": 1})
    assert child.wait() == code
    assert child.rest() == []


def test_worker_that_is_gone_ends_the_process_with_1(start: Start, package: Path, tmp_path: Path) -> None:
    source = textwrap.dedent(ECHO)
    script = tmp_path / "main.py"
    script.write_text(source)
    reading, writing = os.pipe()
    environment = {**os.environ, "PYTHONPATH": str(package)}
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=writing, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        os.close(writing)
        assert os.read(reading, 100) == READY
        os.close(reading)
        assert process.stdin is not None
        process.stdin.write(b'{"task_id":"a","payload":1}\n')
        process.stdin.flush()
        assert process.wait(20) == 1


def run_program(source: str, package: Path, *arguments: str) -> Any:
    """What a program prints, as JSON."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("proxy")}
    environment["PYTHONPATH"] = str(package)
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_public_names_and_registry(package: Path) -> None:
    assert run_program(
        """
        import json, runqy_python as r
        from runqy_python.decorator import _reset, get_handler, get_loader
        def first(payload): pass
        def prepare(): pass
        said = []
        assert get_handler() is None and get_loader() is None
        assert r.task(first) is first and r.load(prepare) is prepare
        assert get_handler() is first and get_loader() is prepare
        for decorator in (r.task, r.load):
            try:
                decorator(lambda payload: None)
            except RuntimeError as error:
                said.append(str(error))
        _reset()
        assert get_handler() is None and get_loader() is None
        names = ["RunqyClient", "TaskInfo", "BatchResult", "RunqyError", "AuthenticationError", "TaskNotFoundError",
                 "enqueue", "enqueue_batch", "RetryableError", "run", "run_once", "task", "load"]
        assert set(names) <= set(r.__all__) and all(hasattr(r, name) for name in names)
        assert issubclass(r.AuthenticationError, r.RunqyError) and issubclass(r.TaskNotFoundError, r.RunqyError)
        info = r.TaskInfo("id", "queue", "pending")
        assert (info.result, info.error, info.payload) == (None, None, None)
        batch = r.BatchResult(1, 2, ["a"], ["b"])
        assert (batch.enqueued, batch.failed, batch.task_ids, batch.errors) == (1, 2, ["a"], ["b"])
        print(json.dumps(said))
        """,
        package,
    ) == [
        "@task handler already registered (first). Only one @task handler is allowed per process.",
        "@load handler already registered (prepare). Only one @load handler is allowed per process.",
    ]


def test_client_enqueues_and_asks(package: Path, server: Server) -> None:
    def answer(seen: Any) -> Any:
        if seen.path == "/queue/add":
            return 200, {"info": {"id": "t1", "queue": "q.default", "state": "pending", "Result": None}, "data": {}}
        if seen.path == "/queue/add-batch":
            return 200, {"enqueued": 2, "failed": 1, "task_ids": ["a", "b"]}
        info = {"id": "t1", "queue": "q.default", "state": "completed", "payload": '{"x": 1}', "Result": '{"y": 2}'}
        return 200, {"Info": info}

    server.answer = answer
    said = run_program(
        """
        import dataclasses, json, sys
        from runqy_python import RunqyClient, enqueue, enqueue_batch
        url = sys.argv[1]
        client = RunqyClient(url + "/", "key", 10)
        assert client.server_url == url and client.api_key == "key" and client.timeout == 10
        batch = client.enqueue_batch("q", [{"x": 1}, {"x": 2}, {"x": 3}], 60)
        tasks = [client.enqueue("q", {"x": 1}, 60), client.get_task("t1"), enqueue("q", {"x": 1}, url, "key", 60)]
        assert enqueue_batch("q", payloads=[{}], server_url=url, api_key="key").enqueued == 2
        print(json.dumps([dataclasses.astuple(batch)] + [list(dataclasses.astuple(task))[:6] for task in tasks]))
        """,
        package,
        server.url,
    )
    pending = ["t1", "q.default", "pending", None, None, {"x": 1}]
    assert said[0] == [2, 1, ["a", "b"], []]
    assert said[1] == said[3] == pending
    assert said[2] == ["t1", "q.default", "completed", {"y": 2}, None, {"x": 1}]
    batch, single, asked, *_ = server.seen
    assert (batch.method, batch.path) == ("POST", "/queue/add-batch")
    jobs = [{"timeout": 60, "data": {"x": number}} for number in (1, 2, 3)]
    assert batch.body == {"queue": "q", "timeout": 60, "jobs": jobs}
    assert (single.method, single.path) == ("POST", "/queue/add")
    assert single.body == {"queue": "q", "timeout": 60, "data": {"x": 1}}
    assert (asked.method, asked.path) == ("GET", "/queue/t1")
    for seen in server.seen:
        headers = {name.title(): value for name, value in seen.headers.items()}
        assert headers["Authorization"] == "Bearer key"
        assert headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (401, "AuthenticationError", 'Authentication failed: {"errors": ["no"]}'),
        (404, "TaskNotFoundError", 'Task not found: {"errors": ["no"]}'),
        (400, "RunqyError", 'HTTP 400: {"errors": ["no"]}'),
        (500, "RunqyError", 'HTTP 500: {"errors": ["no"]}'),
    ],
)
def test_client_errors_have_their_class_and_text(
    package: Path, server: Server, status: int, kind: str, text: str
) -> None:
    server.answer = lambda seen: (status, {"errors": ["no"]})
    said = run_program(
        """
        import json, sys, runqy_python as r
        said = []
        for call in (lambda c: c.get_task("t"), lambda c: c.enqueue("q", {}), lambda c: c.enqueue_batch("q", [{}])):
            try:
                call(r.RunqyClient(sys.argv[1], "key"))
            except getattr(r, sys.argv[2]) as error:
                said.append(str(error))
        print(json.dumps(said))
        """,
        package,
        server.url,
        kind,
    )
    assert said == [text] * 3


def test_client_without_a_server_names_the_reason(package: Path) -> None:
    said = run_program(
        """
        import json, socket, runqy_python as r
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            try:
                r.RunqyClient("http://127.0.0.1:%d" % taken.getsockname()[1], "key").enqueue("q", {})
            except r.RunqyError as error:
                print(json.dumps(str(error)))
        """,
        package,
    )
    assert said == "Connection error: [Errno 111] Connection refused"
