"""The child's half of the line protocol, version 2 (and what version 1 does with its features)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from task_process import Start

ECHO = """
from runqy_python import run, task
@task
def handle(payload): return payload
run()
"""

# Runs until the file named by the payload exists.
GATE = """
import os, sys, time
from runqy_python import cancelled, run, task
def passed(path):
    while not os.path.exists(path) and not cancelled():
        time.sleep(0.002)
    return "cancelled" if cancelled() else "passed"
"""


def events(lines: list[dict[str, object]], kind: str) -> list[dict[str, object]]:
    return [line for line in lines if line.get("event") == kind]


def test_ready_line_answers_the_version(start: Start) -> None:
    child = start(ECHO)
    assert child.raw_line() == (
        b'{"status": "ready", "protocol": 2, "sdk": "runqy-python/0.3.0", "capacity": 1, "tasks": ["default"]}\n'
    )


def test_version_1_is_spoken_unless_version_2_is_offered(start: Start) -> None:
    for offered in (1, 3):
        child = start(ECHO, protocol=offered)
        assert child.raw_line() == b'{"status": "ready"}\n'
        child.send({"task_id": "a", "payload": 1})
        assert child.line() == {"task_id": "a", "result": 1, "error": None, "retry": False}


def test_ready_line_stands_alone_after_text_without_a_line_end(start: Start) -> None:
    child = start("import os; os.write(1, b'loading...')\nprint('hello', end='')\n" + ECHO)
    assert child.raw_line() == b"loading...\n"
    child.ready()


def test_capacity_counts_what_can_run_at_once(start: Start) -> None:
    child = start(
        """
        from runqy_python import run, task
        @task
        def plain(payload): pass
        @task("embed", batch=32)
        def embed(payloads): return payloads
        @task("io", threads=4)
        def io(payload): pass
        @task("net", concurrency=10)
        async def net(payload): pass
        run()
        """
    )
    ready = child.ready()
    assert ready["capacity"] == 32 + 4 + 10
    assert ready["tasks"] == ["default", "embed", "io", "net"]


def test_start_line_then_reply_in_order_for_every_task(start: Start) -> None:
    child = start(ECHO)
    child.ready()
    child.send(*({"task_id": str(n), "payload": n, "attempt": 1} for n in range(300)))
    for n in range(300):
        assert child.line() == {"event": "start", "task_id": str(n)}
        assert child.line() == {"task_id": str(n), "result": n, "error": None, "retry": False}


def test_earlier_replies_and_the_start_line_are_out_when_a_handler_kills_the_process(start: Start) -> None:
    child = start(
        """
        import os
        from runqy_python import run, task
        @task
        def handle(payload):
            if payload == "die":
                os._exit(7)
            return payload
        run()
        """
    )
    child.ready()
    child.send({"task_id": "a", "payload": 1}, {"task_id": "b", "payload": "die"}, {"task_id": "c", "payload": 3})
    assert child.wait() == 7
    assert [line["task_id"] for line in child.lines(3)] == ["a", "a", "b"]
    assert child.rest() == []


def test_recall_hands_back_what_has_not_started(start: Start, tmp_path: Path) -> None:
    child = start(GATE + "@task\ndef handle(payload): return passed(payload)\nrun()")
    child.ready()
    go = str(tmp_path / "go")
    child.send(*({"task_id": name, "payload": go} for name in "abc"))
    assert child.line() == {"event": "start", "task_id": "a"}
    child.send({"event": "recall", "task_id": "b"}, {"event": "recall", "task_id": "a"})
    child.send({"event": "recall", "task_id": "nobody"}, {"event": "recall", "task_id": "b"}, {"event": "other"})
    assert child.line() == {"event": "recalled", "task_id": "b"}
    Path(go).touch()
    assert [line["task_id"] for line in child.lines(3)] == ["a", "c", "c"]
    assert child.end() == 0
    assert child.rest() == []


def test_recalled_task_can_be_sent_again(start: Start, tmp_path: Path) -> None:
    child = start(GATE + "@task\ndef handle(payload): return passed(payload)\nrun()")
    child.ready()
    go = str(tmp_path / "go")
    child.send({"task_id": "a", "payload": go}, {"task_id": "b", "payload": go})
    assert child.line() == {"event": "start", "task_id": "a"}
    child.send({"event": "recall", "task_id": "b"}, {"task_id": "b", "payload": go})
    assert child.line() == {"event": "recalled", "task_id": "b"}
    Path(go).touch()
    assert child.reply()["task_id"] == "a"
    assert [line["task_id"] for line in child.lines(2)] == ["b", "b"]
    assert child.end() == 0
    assert child.rest() == []


def test_cancel_reaches_the_running_handler(start: Start) -> None:
    child = start(GATE + "@task\ndef handle(payload): return passed('/nowhere')\nrun()")
    child.ready()
    child.send({"task_id": "a", "payload": None})
    assert child.line()["event"] == "start"
    child.send({"event": "cancel", "task_id": "a"})
    assert child.line()["result"] == "cancelled"
    child.send({"task_id": "a", "payload": None})
    assert child.line()["event"] == "start"
    child.send({"event": "cancel", "task_id": "a"})
    assert child.line()["result"] == "cancelled"


def test_cancel_of_a_waiting_task_is_answered_at_once(start: Start, tmp_path: Path) -> None:
    child = start(GATE + "@task\ndef handle(payload): return passed(payload)\nrun()")
    child.ready()
    child.send({"task_id": "a", "payload": str(tmp_path / "go")}, {"task_id": "b", "payload": None})
    assert child.line()["event"] == "start"
    child.send({"event": "cancel", "task_id": "b"})
    reply = child.line()
    assert (reply["task_id"], reply["error"], reply["retry"]) == (
        "b",
        "The task was cancelled before it started.",
        False,
    )
    (tmp_path / "go").touch()
    assert child.reply()["task_id"] == "a"


def test_retry_with_a_delay_of_its_own(start: Start) -> None:
    source = """
        from datetime import timedelta
        from runqy_python import RetryableError, run, task
        class Mine(RetryableError):
            def __init__(self, code): self.code = code
        @task
        def handle(payload):
            raise {"s": RetryableError("busy", delay=30), "t": RetryableError("busy", delay=timedelta(minutes=1)),
                   "n": RetryableError("busy"), "e": RetryableError(), "m": Mine(5)}[payload]
        run()
        """
    child = start(source)
    child.ready()
    base = {"task_id": "t", "result": None, "error": "busy", "retry": True}
    assert child.ask("s") == {**base, "delay": 30.0}
    assert child.ask("t") == {**base, "delay": 60.0}
    assert child.ask("n") == base
    assert child.ask("e") == {**base, "error": "RetryableError"}
    # An exception class that never called the base class still has a text and no delay.
    assert child.ask("m") == {**base, "error": "5"}
    child = start(source, protocol=1)
    child.ready()
    assert child.ask("s") == base


def test_exception_classes_named_by_retry_on_are_retried(start: Start) -> None:
    child = start(
        """
        from runqy_python import run, task
        @task(retry_on=(ConnectionError, KeyError))
        def handle(payload):
            raise {"c": ConnectionResetError("gone"), "k": KeyError("x"), "v": ValueError("bad")}[payload]
        run()
        """
    )
    child.ready()
    assert [child.ask(name)["retry"] for name in "ckv"] == [True, True, False]
    assert child.ask("c")["error"].endswith("ConnectionResetError: gone\n")


def test_progress_log_and_output_are_events_of_their_task(start: Start) -> None:
    child = start(
        """
        from runqy_python import log, progress, run, task
        @task
        def handle(payload):
            progress(0.25, "step 1")
            log("weights", 3)
            progress(7)
            yield {"piece": 1}
            yield 2
        run()
        """
    )
    child.ready()
    child.send({"task_id": "a", "payload": None})
    assert child.until_reply() == [
        {"event": "start", "task_id": "a"},
        {"event": "progress", "task_id": "a", "fraction": 0.25, "message": "step 1"},
        {"event": "log", "task_id": "a", "stream": "stdout", "text": "weights 3"},
        {"event": "progress", "task_id": "a", "fraction": 1.0},
        {"event": "output", "task_id": "a", "seq": 0, "data": {"piece": 1}},
        {"event": "output", "task_id": "a", "seq": 1, "data": 2},
        {"task_id": "a", "result": [{"piece": 1}, 2], "error": None, "retry": False},
    ]


def test_version_1_has_no_events_and_the_same_results(start: Start) -> None:
    child = start(
        """
        from runqy_python import log, progress, run, task
        @task
        def handle(payload):
            progress(0.5)
            log("to stderr")
            print("also there")
            yield 1
            yield 2
        @task("other", threads=2)
        def other(payload): pass
        run()
        """,
        protocol=1,
    )
    assert child.raw_line() == b'{"status": "ready"}\n'
    child.send({"task_id": "a", "payload": None})
    assert child.line() == {"task_id": "a", "result": [1, 2], "error": None, "retry": False}
    assert child.end() == 0
    assert child.stderr().splitlines() == ["to stderr", "also there"]


def test_tight_progress_loop_is_thinned_out(start: Start) -> None:
    child = start(
        """
        from runqy_python import progress, run, task
        @task
        def handle(payload):
            for i in range(100_000):
                progress((i + 1) / 100_000)
        run()
        """
    )
    child.ready()
    child.send({"task_id": "a", "payload": None})
    told = events(child.until_reply(), "progress")
    assert len(told) <= 1100
    assert told[-1]["fraction"] == 1.0


def test_task_is_chosen_by_its_name(start: Start) -> None:
    child = start(
        """
        from runqy_python import run, task
        @task
        def plain(payload): return "plain"
        @task("embed")
        def embed(payload): return "embed"
        run()
        """
    )
    child.ready()
    assert child.ask(1)["result"] == "plain"
    assert child.ask(1, task="embed")["result"] == "embed"
    assert child.ask(1, task="default")["result"] == "plain"
    assert child.ask(1, task="emebd")["error"] == (
        "There is no handler for task 'emebd' in this process. Known tasks: 'default', 'embed'."
    )


def test_single_named_task_needs_no_name_in_the_request(start: Start) -> None:
    child = start("from runqy_python import run, task\n@task('embed')\ndef embed(payload): return payload\nrun()")
    child.ready()
    assert child.ask(1)["result"] == 1


def test_stop_lets_running_tasks_finish_and_starts_no_other(start: Start, tmp_path: Path) -> None:
    child = start(
        GATE
        + """
from runqy_python import load, signals, unload
act = signals.StopSignals._act
def act_and_tell(self, seen):
    act(self, seen)
    # Not print: the signal may have come in the middle of one.
    os.write(2, b"stop was seen")
signals.StopSignals._act = act_and_tell
@load
def prepare(): return "model"
@unload
def release(ctx): print("released", ctx, file=sys.stderr)
@task
def handle(payload, ctx): return passed(payload)
@task("threads", threads=2)
def threads(payload, ctx): return passed(payload)
@task("loop", concurrency=2)
async def loop(payload, ctx):
    import asyncio
    while not os.path.exists(payload):
        await asyncio.sleep(0.002)
    return "passed"
run()
"""
    )
    child.ready()
    go = str(tmp_path / "go")
    for name, count in (("default", 2), ("threads", 3), ("loop", 3)):
        child.send(*({"task_id": f"{name}{n}", "payload": go, "task": name} for n in range(count)))
    started = {line["task_id"] for line in child.lines(5)}
    assert started == {"default0", "threads0", "threads1", "loop0", "loop1"}
    child.signal(signal.SIGTERM)
    child.wait_for_stderr("stop was seen")
    child.send({"event": "recall", "task_id": "loop2"})
    assert child.line() == {"event": "recalled", "task_id": "loop2"}
    Path(go).touch()
    assert {child.line()["task_id"] for _ in range(5)} == started
    assert child.wait() == 0
    assert child.rest() == []
    assert "released model" in child.stderr()


def test_idle_process_stops_at_the_first_signal(start: Start) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        child = start(ECHO)
        child.ready()
        child.signal(number)
        assert child.wait() == 0


def test_second_signal_ends_a_handler_that_holds_the_main_thread_in_native_code(start: Start) -> None:
    child = start(
        """
        import sys, threading
        from runqy_python import run, task
        @task
        def handle(payload):
            import ctypes
            # Blocks outside Python, where no signal handler of Python's can run.
            ctypes.CDLL(None).usleep.restype = ctypes.c_int
            print("native", file=sys.__stderr__, flush=True)
            while True:
                ctypes.CDLL(None).sleep(30)
        run()
        """
    )
    child.ready()
    child.send({"task_id": "a", "payload": None})
    child.wait_for_stderr("native")
    for _ in range(200):
        child.signal()
        try:
            child.process.wait(0.02)
            break
        except subprocess.TimeoutExpired:
            continue
    assert child.wait() == 1


def test_end_of_input_answers_what_was_sent(start: Start) -> None:
    child = start(
        """
        import time
        from runqy_python import run, task
        @task(threads=3)
        def handle(payload): return payload
        run()
        """
    )
    child.ready()
    child.send(*({"task_id": str(n), "payload": n} for n in range(50)))
    assert child.end() == 0
    replies = [line for line in map(os.fsdecode, child.rest()) if '"retry"' in line]
    assert len(replies) == 50


def test_programs_started_by_a_task_are_not_told_of_the_protocol(start: Start) -> None:
    child = start(
        """
        import os
        from runqy_python import run, task
        @task
        def handle(payload): return os.environ.get("RUNQY_PROTOCOL")
        run()
        """
    )
    child.ready()
    assert child.ask(None) == {"task_id": "t", "result": None, "error": None, "retry": False}


def test_run_once_in_version_2(start: Start) -> None:
    child = start(
        GATE + "from runqy_python import run_once\n@task\ndef handle(payload): return passed(payload)\nrun_once()"
    )
    child.ready()
    child.send({"task_id": "a", "payload": "/nowhere"}, {"task_id": "b", "payload": "/nowhere"})
    assert child.line() == {"event": "start", "task_id": "a"}
    child.send({"event": "cancel", "task_id": "a"})
    assert child.line()["result"] == "cancelled"
    assert child.wait() == 0
    assert child.rest() == []


def test_stop_during_the_load_ends_every_lane(start: Start, tmp_path: Path) -> None:
    child = start(
        GATE
        + f"""
from runqy_python import load
@load
def prepare():
    print("loading", file=sys.stderr, flush=True)
    passed({str(tmp_path / "go")!r})
@task("threads", threads=2)
def threads(payload): pass
@task("loop", concurrency=2)
async def loop(payload): pass
run()
"""
    )
    child.wait_for_stderr("loading")
    child.signal()
    (tmp_path / "go").touch()
    child.ready()
    assert child.wait() == 0


@pytest.mark.parametrize(
    "decorated",
    [
        "@task\ndef handle(payload): return payload",
        "@task(batch=8, max_wait=0)\ndef handle(payloads): return payloads",
        "@task(threads=4)\ndef handle(payload): return payload",
        "@task(concurrency=4)\nasync def handle(payload): return payload",
    ],
    ids=["plain", "batch", "threads", "async"],
)
def test_each_task_ends_once_although_all_are_recalled_while_they_run(start: Start, decorated: str) -> None:
    count = 1000
    child = start(f"from runqy_python import run, task\n{decorated}\nrun()")
    child.ready()
    for first in range(0, count, 50):
        names = [str(n) for n in range(first, first + 50)]
        child.send(*({"task_id": name, "payload": name} for name in names))
        child.send(*({"event": "recall", "task_id": name} for name in reversed(names)))
    assert child.end() == 0
    ended: dict[str, list[str]] = {}
    started: set[str] = set()
    for raw in child.rest():
        line = json.loads(raw)
        if line.get("event") == "start":
            started.add(line["task_id"])
        else:
            ended.setdefault(line["task_id"], []).append(line.get("event", "reply"))
    assert len(ended) == count
    assert all(ends == (["reply"] if name in started else ["recalled"]) for name, ends in ended.items())
