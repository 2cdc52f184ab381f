"""What task code prints: nothing of it blocks, kills or confuses; it is kept per task and per worker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.waiting import eventually
from harness.workers import QUEUE, Bench, worker_on

from runqy.broker import keys
from runqy.tasks.state import State

NOISE = {
    "text": ["just words\n", "\n", "  \n"],
    "json-of-its-own": ['{"loss": 0.5}\n', "[1, 2]\n", "7\n"],
    "odd-events": ['{"event": "strange"}\n', '{"event": "start"}\n', '{"event": "recalled", "task_id": "x"}\n'],
    "reply-of-nobody": ['{"task_id": "nobody", "result": 1}\n'],
    "second-ready": ['{"status": "ready"}\n', '{"status": "error", "error": "late"}\n'],
    "binary": ["\x00\xff\xfe\x80\n", "\x1b[31m red \x1b[0m\n"],
    "broken-json": ['{"task_id": \n', '{"task_id": 5, "result": 1}\n'],
    "carriage-returns": ["10%\r20%\r30%\n"],
}


@pytest.mark.parametrize("mode", ["long_running", "one_shot"])
async def test_noise_on_stdout_never_counts_as_an_answer(bench: Bench, mode: str) -> None:
    bench.environment |= {"ONCE": "1"} if mode == "one_shot" else {}
    bench.order(mode=mode)
    async with worker_on(bench):
        ids = await bench.send_all([{"lines": lines, "echo": name} for name, lines in NOISE.items()], max_retry=0)
        views = await bench.ended(*ids)
    assert {view.state for view in views} == {State.COMPLETED}
    assert [json.loads(view.result or b"{}")["echo"] for view in views] == list(NOISE)


async def test_a_partial_line_joined_to_the_reply_is_the_childs_own_loss_but_nothing_hangs(bench: Bench) -> None:
    """A print without line end glues itself to the reply: the task ends by its limit, and the next one is fine."""
    async with worker_on(bench):
        glued = await bench.send({"lines": ["no end"]}, active_timeout=1, max_retry=0)
        following = await bench.send({"echo": 1})
        views = await bench.ended(glued, following)
    assert [view.state for view in views] == [State.ARCHIVED, State.COMPLETED]


@pytest.mark.parametrize("mode", ["long_running", "one_shot"])
async def test_a_flood_on_stderr_without_line_ends_changes_nothing(bench: Bench, mode: str) -> None:
    """50 MB without a newline: the task completes, the neighbours too, memory stays bounded."""
    bench.environment |= {"ONCE": "1"} if mode == "one_shot" else {}
    bench.order(mode=mode)
    async with worker_on(bench):
        task = await bench.send({"flood": [2, 50, ""]})
        following = await bench.send({"echo": 1})
        views = await bench.ended(task, following)
        kept = await bench.connection.command("STRLEN", keys.log(QUEUE, task))
    assert {view.state for view in views} == {State.COMPLETED}
    assert 0 < kept <= 128 * 1024


async def test_a_huge_line_on_stdout_is_kept_as_its_end_only(bench: Bench) -> None:
    """30 MB in one line that is no reply: it costs neither the worker nor Redis more than a bounded text."""
    async with worker_on(bench) as running:
        task = await bench.send({"flood": [1, 30, "\n"]})
        (view,) = await bench.ended(task)
        kept = await bench.connection.command("STRLEN", keys.log(QUEUE, task))
        assert sum(len(line) for line in running.worker._outputs.lines) < 1 << 20
    assert view.state is State.COMPLETED
    assert 0 < kept <= 128 * 1024


async def test_a_large_result_comes_through(bench: Bench) -> None:
    async with worker_on(bench):
        task = await bench.send({"size": 12 << 20})
        (view,) = await bench.ended(task)
    assert view.state is State.COMPLETED
    assert len(json.loads(view.result or b"")) == 12 << 20


async def test_a_reply_over_the_line_limit_fails_its_task_and_leaves_the_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runqy.worker.protocol.LineSplitter.__init__.__defaults__", (1 << 20,))
    async with worker_on(bench):
        task = await bench.send({"size": 3 << 20}, max_retry=3)
        following = await bench.send({"echo": 1})
        views = await bench.ended(task, following)
    assert views[0].state is State.ARCHIVED
    assert "larger than 64 MiB" in views[0].error
    assert views[1].state is State.COMPLETED
    assert len(bench.loads()) == 1


@pytest.mark.parametrize("speak", [1, 2])
@pytest.mark.parametrize("mode", ["long_running", "one_shot"])
async def test_what_a_very_short_task_prints_is_beside_it(bench: Bench, mode: str, speak: int) -> None:
    """Kept in Redis with the task, with the task's own life."""
    bench.environment |= {"SPEAK": str(speak)} | ({"ONCE": "1"} if mode == "one_shot" else {})
    bench.order(mode=mode)
    payload: dict[str, Any] = {"tell": ["hello", "world"]} if speak == 2 else {"print": ["hello", "world"]}
    async with worker_on(bench):
        task = await bench.send(payload, ttl_completed=100)
        (view,) = await bench.ended(task)
        text = await bench.inspector.task_log(QUEUE, task)
        ttl = await bench.connection.command("TTL", keys.log(QUEUE, task))
    assert view.state is State.COMPLETED
    assert text is not None
    assert text.splitlines()[-2:] == ["hello", "world"]
    assert 90 <= ttl <= 100


async def test_lines_carry_their_task_and_stream_in_the_workers_log(bench: Bench) -> None:
    async with worker_on(bench) as running:
        task = await bench.send({"print": ["out"], "warn": ["err"]})
        await bench.ended(task)
        record = await eventually(bench.record)

        async def logged() -> Any:
            running.worker._heartbeat._beats.nudge()
            lines = [json.loads(line) for line in await bench.registry.logs(record.worker_id)]
            return lines if len(lines) >= 3 else None

        lines = await eventually(logged)
        assert [(task_id, text) for task_id, _, text in bench.printed if task_id] == [(task, "out"), (task, "err")] or [
            (task_id, text) for task_id, _, text in bench.printed if task_id
        ] == [(task, "err"), (task, "out")]
    assert {(line["src"], line["text"]) for line in lines} >= {
        ("stderr", "loading the model"),
        ("stdout", "out"),
        ("stderr", "err"),
    }
    assert [line["seq"] for line in lines] == sorted(line["seq"] for line in lines)
    assert all(line.get("task_id") == task for line in lines if line["text"] in {"out", "err"})


async def test_progress_and_pieces_of_a_result_are_told(bench: Bench) -> None:
    """Protocol 2: the last progress stands in the task, the pieces go out in order."""
    bench.environment["SPEAK"] = "2"
    bench.order()
    gate = bench.gate()
    async with worker_on(bench):
        subscriber = bench.connection.client.pubsub()
        task = await bench.send({"progress": 0.25, "pieces": ["a", {"b": 1}], "gate": str(gate)})
        await subscriber.subscribe(keys.progress_channel(task))
        await bench.running(task)

        async def reported() -> Any:
            return (await bench.view(task)).fields.get("progress")

        assert json.loads(await eventually(reported))["fraction"] == 0.25
        gate.touch()
        (view,) = await bench.ended(task)
        await subscriber.aclose()
    assert view.state is State.COMPLETED


async def test_an_error_of_the_task_code_is_permanent_unless_it_asks_for_a_retry(bench: Bench) -> None:
    """R11, decision 2; protocol 2: `delay` replaces the queue's delay for this retry."""
    async with worker_on(bench):
        permanent = await bench.send({"error": "bad input"}, max_retry=5)
        retriable = await bench.send({"error": "busy", "retry": True, "until_retry": 2}, max_retry=2)
        delayed = await bench.send({"error": "later", "retry": True, "delay": 3600}, max_retry=2)
        views = await bench.ended(permanent, retriable)
        later = await bench.in_state(delayed, State.RETRY)
    assert [view.state for view in views] == [State.ARCHIVED, State.COMPLETED]
    assert "bad input" in views[0].error
    assert len(bench.starts(permanent)) == 1
    assert len(bench.starts(retriable)) == 3
    assert later.next_process_at is not None
    assert later.next_process_at - (later.last_failed_at or 0) > 3500


async def test_a_queue_that_keeps_no_results_keeps_everything_else(bench: Bench) -> None:
    """Decision 1."""
    bench.order(redis_storage=False)
    async with worker_on(bench):
        task = await bench.send({"echo": 1})
        (view,) = await bench.ended(task)
    assert view.state is State.COMPLETED
    assert view.result is None
    assert not view.result_stored
