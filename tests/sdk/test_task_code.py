"""Task code can't break the protocol, whatever it prints, raises, starts or returns (cases C18, C27, C37)."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from task_process import Child, Start

NOISY = """
import ctypes, io, logging, os, subprocess, sys, threading
logging.basicConfig(stream=sys.stdout, level="INFO", format="%(message)s")
stdout_at_import = sys.stdout
print("at import")
from runqy_python import log, run, task

def fake(): return '{"task_id": "t", "result": "fake"}'

def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()

@task
def handle(payload):
    exec(payload)
    return "real"
run()
print("after the end")
"""


@pytest.fixture
def noisy(start: Start) -> Child:
    child = start(NOISY)
    child.ready()
    return child


def logged(lines: list[Any]) -> list[str]:
    return [line["text"] for line in lines if line.get("event") == "log"]


def run_code(child: Child, code: str) -> list[Any]:
    """Run a statement as a task; its lines, which hold nothing but its own start, logs and reply."""
    child.send({"task_id": "t", "payload": code})
    lines = child.until_reply()
    assert lines[0] == {"event": "start", "task_id": "t"}
    assert all(line.get("event") == "log" and line["task_id"] == "t" for line in lines[1:-1])
    assert lines[-1] == {"task_id": "t", "result": "real", "error": None, "retry": False}
    return lines


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print('hello')", ["hello"]),
        ("print(fake())", ['{"task_id": "t", "result": "fake"}']),
        ("print('no line end', end='')", ["no line end"]),
        ("print('a'); print('b', file=sys.stderr); print('c')", ["a", "b", "c"]),
        ("sys.stdout.write('one\\ntwo\\nthree')", ["one\ntwo", "three"]),
        ("sys.stdout.buffer.write(b'bytes \\xff\\n'); sys.stdout.buffer.flush()", ["bytes \\xff"]),
        ("logging.info('by a logger made at import')", ["by a logger made at import"]),
        ("in_thread(print, 'from a thread')", ["from a thread"]),
        ("sys.stdout.close(); print('still here')", ["still here"]),
        ("print('10%\\r20%\\r', end=''); print('100%')", ["100%"]),
        ("print('windows\\r\\n', end='')", ["windows"]),
        ("log('half a pair \\ud83d')", ["half a pair \ufffd"]),
        ("print('x' * 40000)", ["x" * 32768, "x" * 7232]),
        ("sys.stdout.reconfigure(encoding='latin-1'); print('\u20ac')", ["\u20ac"]),
        ("", []),
    ],
)
def test_what_a_task_prints_is_its_log(noisy: Child, code: str, text: list[str]) -> None:
    assert logged(run_code(noisy, code)) == text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("os.write(1, b'native without a line end')", "native without a line end"),
        ("os.write(1, fake().encode() + b'\\n')", '"fake"'),
        ("ctypes.CDLL(None).puts(b'by the C library'); ctypes.CDLL(None).fflush(None)", "by the C library"),
        ("subprocess.run(['echo', 'by a child'])", "by a child"),
        ("subprocess.run(['echo', 'by a child'], stdout=sys.stdout)", "by a child"),
        ("print('on the old stream', file=stdout_at_import)", "on the old stream"),
        ("print('on the original', file=sys.__stdout__)", "on the original"),
        ("sys.stdout = io.TextIOWrapper(io.FileIO(1, 'w', closefd=False)); print('x'); sys.stdout.flush()", "x"),
    ],
)
def test_what_goes_past_python_reaches_stderr(noisy: Child, code: str, text: str) -> None:
    run_code(noisy, code)
    noisy.wait_for_stderr(text)


def test_prints_outside_tasks_reach_stderr(noisy: Child) -> None:
    assert noisy.end() == 0
    assert noisy.rest() == []
    assert noisy.stderr().splitlines() == ["at import", "after the end"]


def test_reading_stdin_takes_no_requests(noisy: Child) -> None:
    noisy.send(
        {"task_id": "t", "payload": "assert sys.stdin.read() == '' and os.read(0, 10) == b''"},
        {"task_id": "u", "payload": "subprocess.run(['cat'], check=True)"},
    )
    assert noisy.reply()["result"] == "real"
    assert noisy.reply()["result"] == "real"


def test_protocol_descriptors_are_not_inherited(noisy: Child) -> None:
    # A child that holds the pipe open would hide the end of this process from the worker.
    code = "print(subprocess.run(['ls', '-l', '/proc/self/fd'], close_fds=False, stdout=-1, text=True).stdout)"
    held = "\n".join(logged(run_code(noisy, code)))
    assert "pipe:[" in held
    for pipe in (noisy.process.stdin, noisy.process.stdout):
        assert pipe is not None
        assert f"pipe:[{os.fstat(pipe.fileno()).st_ino}]" not in held


def test_forked_process_neither_answers_nor_holds_the_pipe(start: Start) -> None:
    child = start(
        """
        import os
        from runqy_python import run, task
        @task
        def handle(payload):
            pid = os.fork()
            if pid == 0:
                return "from the copy"
            os.waitpid(pid, 0)
            return "from the parent"
        run()
        """
    )
    child.ready()
    for _ in range(3):
        assert child.ask(None)["result"] == "from the parent"
    assert child.end() == 0
    assert child.rest() == []


def test_thread_that_prints_without_end_does_not_disturb_replies(start: Start) -> None:
    child = start(
        """
        import threading
        from runqy_python import load, run, task
        def chatter():
            while True:
                print("chatter")
        @load
        def prepare():
            threading.Thread(target=chatter, daemon=True).start()
        @task
        def handle(payload): return payload
        run()
        """
    )
    child.ready()
    for n in range(100):
        assert child.ask(n, str(n)) == {"task_id": str(n), "result": n, "error": None, "retry": False}


RAISING = """
import asyncio
from runqy_python import run, task

class BadText(Exception):
    def __str__(self): raise RuntimeError("no text")
    __repr__ = __str__
class Needs(Exception):
    def __init__(self, *, code): super().__init__(code)
class Base(BaseException): pass
class Empty(Exception):
    def __str__(self): return ""

def deep():
    deep()

@task
def handle(payload):
    if payload == "group":
        raise ExceptionGroup("several", [ValueError("one"), Needs(code=2)])
    if payload == "cause":
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise ValueError("second") from error
    if payload == "deep":
        deep()
    if payload == "surrogate":
        raise ValueError("half \\ud800 pair")
    if payload == "long":
        raise ValueError("x" * 1_000_000)
    raise {"text": BadText(), "needs": Needs(code=3), "base": Base("b"), "exit": GeneratorExit(), "empty": Empty(),
           "interrupt": KeyboardInterrupt(), "cancel": asyncio.CancelledError(), "stop": StopIteration(1)}[payload]
run()
"""


@pytest.fixture(scope="module")
def raising(start_shared: Start) -> Child:
    child = start_shared(RAISING)
    child.ready()
    return child


@pytest.mark.parametrize(
    ("what", "end"),
    [
        ("text", "BadText: <exception str() failed>"),
        ("needs", "Needs: 3"),
        ("base", "Base: b"),
        ("exit", "GeneratorExit"),
        ("empty", "Empty"),
        ("interrupt", "KeyboardInterrupt"),
        ("cancel", "CancelledError"),
        ("stop", "StopIteration: 1"),
        ("deep", "RecursionError: maximum recursion depth exceeded"),
        ("surrogate", "ValueError: half \ufffd pair"),
        ("long", "x" * 1000),
        ("cause", "ValueError: second"),
        ("group", "+------------------------------------"),
    ],
)
def test_every_exception_is_a_readable_error_and_the_process_lives_on(raising: Child, what: str, end: str) -> None:
    for _ in range(2):
        reply = raising.ask(what)
        assert reply["error"].startswith("  + Exception Group" if what == "group" else ("Traceback", "ZeroDiv")), reply
        assert reply["error"].rstrip().endswith(end)
        assert len(reply["error"]) < 300_000
        assert reply["retry"] is False
        assert "runqy_python" not in reply["error"]


RETURNING = '''
import collections, dataclasses, datetime, decimal, enum, pathlib, types, typing, uuid
from runqy_python import run, task

@dataclasses.dataclass
class Point:
    x: int
    when: datetime.date
class Color(enum.Enum):
    RED = "red"
class Level(enum.IntEnum):
    HIGH = 3
class Pair(typing.NamedTuple):
    a: int
    b: int
class Array:
    """Looks like a numpy array or a torch tensor."""
    dtype = "float32"
    def __init__(self, data): self.data = data
    def tolist(self): return self.data
class Model:
    def model_dump(self): return {"of": Point(1, datetime.date(2024, 1, 2))}
class BadRepr:
    def __repr__(self): raise RuntimeError("no")
class BadProperty:
    @property
    def tolist(self): raise RuntimeError("no")
ring = [1]; ring.append({"again": ring})
deep = []
for _ in range(100_000): deep = [deep]
nan, inf = float("nan"), float("inf")
@task
def handle(payload): return eval(payload)
run()
'''


@pytest.fixture(scope="module")
def returning(start_shared: Start) -> Child:
    child = start_shared(RETURNING)
    child.ready()
    return child


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("Point(1, datetime.date(2024, 1, 2))", {"x": 1, "when": "2024-01-02"}),
        (
            "datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)",
            "2024-01-02T03:04:05+00:00",
        ),
        ("[datetime.time(1, 2), datetime.timedelta(minutes=1.5)]", ["01:02:00", 90.0]),
        ("decimal.Decimal('1.10')", "1.10"),
        ("uuid.UUID(int=1)", "00000000-0000-0000-0000-000000000001"),
        ("[b'abc', bytearray(b'abc'), memoryview(b'abc')]", ["YWJj"] * 3),
        ("[Color.RED, Level.HIGH, {Color.RED: 1}.get(Color.RED)]", ["red", 3, 1]),
        ("[{3, 1, 2}, frozenset('ba'), collections.deque([1])]", [[1, 2, 3], ["a", "b"], [1]]),
        ("[(1, 2), Pair(1, 2)]", [[1, 2], [1, 2]]),
        ("pathlib.Path('/tmp/x')", "/tmp/x"),
        ("types.MappingProxyType({'a': 1})", {"a": 1}),
        ("[Array(1.5), Array([[1, 2], [3, 4]]), Array(True)]", [1.5, [[1, 2], [3, 4]], True]),
        ("Model()", {"of": {"x": 1, "when": "2024-01-02"}}),
        ("{'int': 2**70, 'bool': True}", {"int": 2**70, "bool": True}),
        ("'h\\u00e9 \\u20ac'", "h\u00e9 \u20ac"),
        ("dict(zip('abc', range(3)))", {"a": 0, "b": 1, "c": 2}),
    ],
)
def test_documented_forms_of_values_that_json_does_not_have(returning: Child, code: str, result: Any) -> None:
    assert returning.ask(code)["result"] == result


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("nan", "NaN is not a JSON number (return None or a text instead) at result"),
        ("[1, {'s': (inf,)}]", "Infinity is not a JSON number (return None or a text instead) at result[1]['s'][0]"),
        ("{'a': -inf}", "-Infinity is not a JSON number (return None or a text instead) at result['a']"),
        ("Array([1.0, nan])", "NaN is not a JSON number (return None or a text instead) at result[1]"),
        ("{nan: 1}", "NaN can't be a key, at result"),
        ("{'k': {(1, 2): 3}}", "keys must be str, int, float, bool or None, not tuple, at result['k']"),
        ("ring", "Circular reference detected at result[1]['again']"),
        ("deep", "it is nested too deeply; flatten it or return it as text"),
        ("[object()]", "Object of type object is not JSON serializable at result[0]"),
        ("{'a': BadRepr()}", "Object of type BadRepr is not JSON serializable at result['a']"),
        ("BadProperty()", "RuntimeError: no"),
        ("[1j]", "Object of type complex is not JSON serializable at result[0]"),
        ("[Point]", "Object of type type is not JSON serializable at result[0]"),
        ("lambda: 1", "Object of type function is not JSON serializable at result"),
        ("10**10000", "Exceeds the limit"),
    ],
)
def test_other_values_are_refused_with_their_place(returning: Child, code: str, reason: str) -> None:
    reply = returning.ask(code, "mine")
    assert reply["task_id"] == "mine"
    assert reply["error"].startswith(f"Result not JSON-serializable: {reason}")
    assert returning.ask("1")["result"] == 1


def test_request_that_no_parser_can_take_is_answered_under_its_own_id(start: Start) -> None:
    child = start("from runqy_python import run, task\n@task\ndef handle(payload): return payload\nrun()")
    child.ready()
    child.write('{"task_id":"d\\u00e9","payload":' + "[" * 100_000 + "]" * 100_000 + "}")
    reply = child.line()
    assert reply["task_id"] == "d\u00e9"
    assert reply["error"] == "Invalid JSON input: it is nested too deeply for this Python's JSON parser"
    child.write(b'{"task_id":"a","payload":"\xff"}')
    assert child.line()["error"].startswith("Invalid JSON input: 'utf-8' codec can't decode byte 0xff")
    assert child.ask(1)["result"] == 1


def test_large_lines_pass_in_both_directions_and_leave_the_stream_in_step(start: Start) -> None:
    child = start("from runqy_python import run, task\n@task\ndef handle(payload): return payload\nrun()")
    child.ready()
    for size in (65_535, 65_536, 65_537, 1 << 20, 32 << 20):
        child.write(json.dumps({"task_id": "t", "payload": "x" * size}))
        assert len(child.reply()["result"]) == size
    assert child.ask(1)["result"] == 1
