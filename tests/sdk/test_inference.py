"""Batches, threads, coroutines, generators: handlers that work on several tasks or stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from task_process import Child, Start

BATCH = """
import sys
from runqy_python import RetryableError, cancelled, log, run, task
@task(batch=4, max_wait={max_wait})
def handle(payloads):
    if "exit" in payloads:
        sys.exit(5)
    if "raise" in payloads:
        raise RetryableError("GPU is out of memory", delay=2)
    if "short" in payloads:
        return [1]
    if "dict" in payloads:
        return {{}}
    if "print" in payloads:
        print("for all")
    results = [{{"n": payload, "of": len(payloads)}} for payload in payloads]
    return [ValueError("bad image") if result["n"] == "bad" else result for result in results]
run()
"""


def batch_of(child: Child, *payloads: Any) -> list[Any]:
    """Send the payloads together; the replies by payload order. Only for batches that go in one call."""
    child.send(*({"task_id": str(n), "payload": payload} for n, payload in enumerate(payloads)))
    lines = child.lines(2 * len(payloads))
    assert [line["event"] for line in lines[: len(payloads)]] == ["start"] * len(payloads)
    return lines[len(payloads) :]


def test_full_batch_goes_in_one_call_and_each_task_keeps_its_result(start: Start) -> None:
    child = start(BATCH.format(max_wait=20))
    assert child.ready()["capacity"] == 4
    replies = batch_of(child, "a", "b", "c", "d")
    assert [reply["task_id"] for reply in replies] == ["0", "1", "2", "3"]
    assert [reply["result"] for reply in replies] == [{"n": name, "of": 4} for name in "abcd"]


def test_batch_that_is_not_full_goes_after_its_wait(start: Start) -> None:
    child = start(BATCH.format(max_wait=0.01))
    child.ready()
    assert child.ask("a")["result"] == {"n": "a", "of": 1}


def test_exception_in_the_list_fails_that_task_alone(start: Start) -> None:
    child = start(BATCH.format(max_wait=20))
    child.ready()
    replies = batch_of(child, "a", "bad", "c", "d")
    assert [reply["error"] for reply in replies] == [None, "ValueError: bad image\n", None, None]


def test_exception_of_the_call_fails_every_task_alike(start: Start) -> None:
    child = start(BATCH.format(max_wait=20))
    child.ready()
    for reply in batch_of(child, "a", "raise", "c", "d"):
        assert (reply["error"], reply["retry"], reply["delay"]) == ("GPU is out of memory", True, 2.0)
    assert batch_of(child, "a", "b", "c", "d")[0]["error"] is None


def test_results_that_can_not_be_matched_fail_with_the_reason(start: Start) -> None:
    child = start(BATCH.format(max_wait=20))
    child.ready()
    beginning = (
        "The batch handler handle was given 4 payloads and must return a list of 4 results in the same order, but it "
    )
    assert {reply["error"] for reply in batch_of(child, "a", "short", "c", "d")} == {f"{beginning}returned 1."}
    assert {reply["error"] for reply in batch_of(child, "a", "dict", "c", "d")} == {f"{beginning}returned dict."}


def test_exit_in_a_batch_ends_the_process(start: Start) -> None:
    child = start(BATCH.format(max_wait=0))
    child.ready()
    child.send({"task_id": "a", "payload": "exit"})
    assert child.wait() == 5


def test_what_a_batch_prints_is_logged_for_each_of_its_tasks(start: Start) -> None:
    child = start(BATCH.format(max_wait=20))
    child.ready()
    child.send(*({"task_id": name, "payload": "print"} for name in "abcd"))
    logs = [line for line in child.lines(12) if line.get("event") == "log"]
    assert [(line["task_id"], line["text"]) for line in logs] == [(name, "for all") for name in "abcd"]


def test_batch_waits_beside_other_tasks_of_the_main_thread(start: Start) -> None:
    child = start(
        """
        from runqy_python import run, task
        @task
        def plain(payload): return "plain"
        @task("many", batch=2, max_wait=30)
        def many(payloads): return [len(payloads)] * len(payloads)
        run()
        """
    )
    child.ready()
    child.send(
        {"task_id": "a", "payload": 1, "task": "many"},
        {"task_id": "b", "payload": 1},
        {"task_id": "c", "payload": 1, "task": "many"},
    )
    replies = [line for line in child.lines(6) if "retry" in line]
    assert [(reply["task_id"], reply["result"]) for reply in replies] == [("a", 2), ("c", 2), ("b", "plain")]


def test_payload_that_does_not_fit_leaves_the_batch_and_the_others_go_on(start: Start) -> None:
    child = start(
        """
        from dataclasses import dataclass
        from typing import List
        from runqy_python import run, task
        @dataclass
        class Item:
            size: int
        @task(batch=3, max_wait=30)
        def handle(items: List[Item]): return [item.size for item in items]
        run()
        """
    )
    child.ready()
    replies = batch_of(child, {"size": 1}, {"size": "x"}, {"size": 3})
    assert [reply["result"] for reply in replies] == [1, None, 3]
    assert replies[1]["error"] == "Invalid payload: size: expected int, got 'x'"


MEET = """
import asyncio, sys, threading
from runqy_python import cancelled, progress, run, task
"""


def test_threads_run_at_the_same_time_and_keep_their_output_apart(start: Start) -> None:
    child = start(
        MEET
        + """
barrier = threading.Barrier(3, timeout=20)
@task(threads=3)
def handle(payload):
    barrier.wait()
    print(payload)
    barrier.wait()
    return payload
run()
"""
    )
    assert child.ready()["capacity"] == 3
    child.send(*({"task_id": str(n), "payload": n} for n in range(3)))
    lines = child.lines(9)
    for n in range(3):
        mine = [line for line in lines if line["task_id"] == str(n)]
        assert [line.get("event") for line in mine] == ["start", "log", None]
        assert mine[1]["text"] == str(n)
        assert mine[2]["result"] == n


def test_coroutines_run_at_the_same_time_up_to_the_limit(start: Start) -> None:
    child = start(
        MEET
        + """
count = most = 0
@task(concurrency=3)
async def handle(payload):
    global count, most
    count += 1
    most = max(most, count)
    while most < 3:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    print(payload)
    count -= 1
    return most
run()
"""
    )
    assert child.ready()["capacity"] == 3
    child.send(*({"task_id": str(n), "payload": n} for n in range(10)))
    lines = child.lines(30)
    assert [line["result"] for line in lines if "retry" in line] == [3] * 10
    for line in lines:
        if line.get("event") == "log":
            assert line["text"] == line["task_id"]


def test_cancel_ends_a_coroutine_at_its_next_await(start: Start) -> None:
    child = start(
        MEET
        + """
@task(concurrency=2)
async def handle(payload):
    if payload == "clean up":
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "cleaned up"
    if payload == "long":
        await asyncio.sleep(3600)
    return payload
run()
"""
    )
    child.ready()
    child.send({"task_id": "a", "payload": "long"}, {"task_id": "b", "payload": "clean up"})
    assert [line["event"] for line in child.lines(2)] == ["start", "start"]
    child.send({"event": "cancel", "task_id": "a"})
    reply = child.line()
    assert (reply["task_id"], reply["error"]) == ("a", "The task was cancelled while it ran.")
    child.send({"event": "cancel", "task_id": "b"})
    assert child.line()["result"] == "cleaned up"
    assert child.ask("short")["result"] == "short"


def test_async_loader_shares_the_loop_of_its_handlers(start: Start) -> None:
    child = start(
        MEET
        + """
from runqy_python import load, unload
@load
async def prepare(): return {"loop": asyncio.get_running_loop()}
@unload
async def release(ctx): print("released", ctx["loop"] is asyncio.get_running_loop(), file=sys.stderr)
@task
async def handle(payload, ctx): return ctx["loop"] is asyncio.get_running_loop()
run()
"""
    )
    child.ready()
    assert child.ask(1)["result"] is True
    assert child.end() == 0
    assert "released True" in child.stderr()


def test_async_batches(start: Start) -> None:
    child = start(
        MEET
        + """
@task(batch=2, max_wait=30, concurrency=2)
async def handle(payloads):
    await asyncio.sleep(0)
    return [payload if payload else KeyError("zero") for payload in payloads]
run()
"""
    )
    assert child.ready()["capacity"] == 4
    child.send(*({"task_id": str(n), "payload": n} for n in range(4)))
    replies = {line["task_id"]: line for line in child.lines(8) if "retry" in line}
    assert replies["0"]["error"] == "KeyError: 'zero'\n"
    assert [replies[str(n)]["result"] for n in (1, 2, 3)] == [1, 2, 3]


def test_async_generator_streams(start: Start) -> None:
    child = start(
        MEET
        + """
@task
async def handle(payload):
    for token in payload.split():
        await asyncio.sleep(0)
        yield token
run()
"""
    )
    child.ready()
    child.send({"task_id": "a", "payload": "the cat sat"})
    lines = child.until_reply()
    pieces = [(line["seq"], line["data"]) for line in lines if line.get("event") == "output"]
    assert pieces == [(0, "the"), (1, "cat"), (2, "sat")]
    assert lines[-1]["result"] == ["the", "cat", "sat"]


def test_pieces_are_sent_while_the_generator_runs_and_cancel_closes_it(start: Start) -> None:
    child = start(
        MEET
        + """
@task
def handle(payload):
    try:
        n = 0
        while True:
            yield n
            n += 1
            while n >= 2 and not cancelled():
                pass
    finally:
        print("closed")
run()
"""
    )
    child.ready()
    child.send({"task_id": "a", "payload": None})
    assert [line.get("data") for line in child.lines(3)] == [None, 0, 1]
    child.send({"event": "cancel", "task_id": "a"})
    lines = child.until_reply()
    assert lines[-1]["error"] == "The task was cancelled while it ran."
    assert "closed" in [line.get("text") for line in lines]


def test_piece_that_is_not_json_fails_the_task(start: Start) -> None:
    child = start("from runqy_python import *\n@task\ndef handle(payload):\n    yield 1\n    yield object()\nrun()")
    child.ready()
    assert child.ask(None)["error"].startswith("Result not JSON-serializable: Object of type object")
    assert child.end() == 0


def test_exit_in_a_thread_or_a_coroutine_ends_the_process(start: Start) -> None:
    for code, decorated in (
        (3, "@task(threads=2)\ndef handle(payload): sys.exit(3)"),
        (4, "@task\nasync def handle(payload): sys.exit(4)"),
    ):
        child = start(MEET + decorated + "\nrun()")
        child.ready()
        child.send({"task_id": "a", "payload": None})
        assert child.wait() == code


def test_payload_is_let_go_when_the_task_has_ended(start: Start) -> None:
    child = start(
        """
        import gc, weakref
        from dataclasses import dataclass
        from runqy_python import run, task
        @dataclass
        class Big:
            data: str
        seen = []
        @task
        def handle(payload: Big):
            alive = sum(reference() is not None for reference in seen)
            seen.append(weakref.ref(payload))
            return alive
        run()
        """
    )
    child.ready()
    assert [child.ask({"data": "x"})["result"] for _ in range(3)] == [0, 0, 0]


def test_plain_function_may_return_a_coroutine_or_a_generator(start: Start, tmp_path: Path) -> None:
    child = start(
        MEET
        + """
async def later(payload): return payload
@task
def handle(payload): return later(payload) if payload == 1 else (n for n in range(3))
run()
"""
    )
    child.ready()
    assert child.ask(1)["result"] == 1
    assert child.ask(2)["result"] == [0, 1, 2]


@pytest.mark.parametrize(
    "decorated",
    [
        "@task(batch=8, max_wait=30, threads=4)\ndef handle(many): return [len(many)] * len(many)",
        "@task(batch=8, max_wait=30, concurrency=4)\nasync def handle(many): return [len(many)] * len(many)",
    ],
    ids=["threads", "async"],
)
def test_idle_workers_do_not_tear_a_batch_apart(start: Start, decorated: str) -> None:
    child = start(f"from runqy_python import run, task\n{decorated}\nrun()")
    assert child.ready()["capacity"] == 32
    for n in range(24):
        child.send({"task_id": str(n), "payload": n})
    assert [line["result"] for line in child.lines(48) if "retry" in line] == [8] * 24
