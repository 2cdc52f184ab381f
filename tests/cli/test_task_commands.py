"""Acting on tasks by id and by filter, and following one to its end."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.programs import Program, run
from harness.redis_servers import free_port

CODE = """
import sys
from runqy_python import run, task

@task
def work(payload):
    print("working on", payload["x"], flush=True)
    if payload["x"] < 0:
        raise ValueError("x is negative")
    return {"y": payload["x"] * 2}

run()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server with two queues; `q` has a worker, `idle` has none."""
    place = tmp_path_factory.mktemp("stack")
    code = place / "code"
    code.mkdir()
    (code / "main.py").write_text(CODE)
    git = ["git", "-C", str(code), "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "code"]):
        subprocess.run([*git, *words], check=True)
    (place / "queues").mkdir()
    queue = f'{{priority: 1, deployment: {{git_url: "file://{code}", branch: main, startup_cmd: python main.py}}}}'
    (place / "queues" / "all.yaml").write_text(f"queues:\n  q: {queue}\n  idle: {queue}\n")
    port = free_port()
    worker = {
        "RUNQY_SERVER_URL": f"http://127.0.0.1:{port}",
        "RUNQY_API_KEY_FILE": str(place / ".runqy" / "api-key"),
        "RUNQY_QUEUES": "q",
        "RUNQY_DEPLOYMENT_DIR": str(place / "deployment"),
    }
    with Program(["serve", "--host", "127.0.0.1", "--port", str(port), "--config", "queues"], place) as server:
        server.wait_for("queues +2")
        with Program(["worker"], place, worker) as program:
            deadline = time.monotonic() + 90
            while json.loads(run(["worker", "list", "--json"], place).out or "[]") == []:
                assert time.monotonic() < deadline, program.output
            yield place
            program.stop()
        server.stop()


def enqueue(folder: Path, queue: str, payload: str = "{}") -> str:
    done = run(["task", "enqueue", "-q", queue, "-p", payload, "--json"], folder)
    assert done.code == 0, done.err
    return str(json.loads(done.out)["id"])


def test_a_task_is_followed_to_its_result(folder: Path) -> None:
    said = run(["task", "watch", enqueue(folder, "q", '{"x": 21}')], folder)
    assert said.code == 0, said.err
    assert json.loads(said.out[said.out.index("{") :]) == {"y": 42}
    assert "completed" in said.err.splitlines()
    assert "\x1b" not in said.out + said.err


def test_a_failed_task_ends_the_watch_with_six(folder: Path) -> None:
    task_id = enqueue(folder, "q", '{"x": -1}')
    said = run(["task", "watch", task_id, "--json"], folder)
    assert said.code == 6
    events = [json.loads(line) for line in said.out.splitlines()]
    assert [event["event"] for event in events][-1] == "end"
    assert events[-1]["data"]["state"] == "archived"
    assert "x is negative" in json.loads(said.err)["why"]
    assert "working on -1" in run(["task", "logs", task_id], folder).out


def test_a_watch_of_nothing_is_not_found(folder: Path) -> None:
    assert run(["task", "watch", "nothing"], folder).code == 3


def test_a_workers_log_and_its_orders(folder: Path) -> None:
    run(["task", "watch", enqueue(folder, "q", '{"x": 5}')], folder)
    (row,) = json.loads(run(["worker", "list", "--json"], folder).out)
    said = run(["worker", "logs", row["worker_id"]], folder)
    assert said.code == 0, said.err
    with Program(["worker", "logs", row["worker_id"], "--follow"], folder) as program:
        program.wait_for("working on 5")
        enqueue(folder, "q", '{"x": 6}')
        program.wait_for("working on 6")
        assert program.stop() == 130
    for command, effect in (("pause", "paused"), ("resume", "running")):
        told = run(["worker", command, row["worker_id"]], folder)
        assert told.code == 0, told.err
        assert f"Worker '{row['worker_id']}' takes " in told.out
        eventually_status(folder, effect)
    for command in ("info", "logs", "drain", "restart", "pause", "resume"):
        refused = run(["worker", command, "nobody"], folder)
        assert refused.code == 3
        assert "worker 'nobody' not found" in refused.err


def eventually_status(folder: Path, wanted: str) -> None:
    """Wait until the one worker has this status."""
    end = time.monotonic() + 15
    while (rows := json.loads(run(["worker", "list", "--json"], folder).out))[0]["status"] != wanted:
        assert time.monotonic() < end, rows
        time.sleep(0.1)


def test_a_filter_is_counted_first_and_acts_only_with_yes(folder: Path) -> None:
    ids = {enqueue(folder, "idle") for _ in range(7)}
    dry = run(["task", "cancel", "-q", "idle", "--dry-run"], folder)
    assert dry.out.splitlines()[0] == "7 task(s) would be cancelled."
    assert dry.out.splitlines()[-1] == "  and 2 more"
    refused = run(["task", "cancel", "-q", "idle"], folder)
    assert refused.code == 2
    assert "7 pending task(s) of 'idle' will be cancelled." in refused.err
    assert run(["task", "cancel", "-q", "idle", "--yes"], folder).out == "7 task(s) cancelled.\n"
    again = run(["task", "retry", "-q", "idle", "--error", "CANCELLED", "--yes", "--json"], folder)
    assert set(json.loads(again.out)["done"]) == ids
    none = run(["task", "retry", "-q", "idle", "--error", "cancelled", "--yes"], folder)
    assert none.out == "0 task(s) pending again.\n"
    first, second, *_ = sorted(ids)
    assert run(["task", "archive", first, second], folder).out == "2 task(s) archived.\n"
    some = run(["task", "retry", first, "nothing"], folder)
    assert some.code == 1
    assert some.out == "1 task(s) pending again.\n"
    assert "nothing: " in some.err
    assert run(["task", "delete", "idle", first], folder).out == f"Task '{first}' deleted from queue 'idle'.\n"
    assert run(["task", "delete", second], folder).out == f"Task '{second}' deleted from queue 'idle.default'.\n"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["task", "cancel"], "task ID is missing"),
        (["task", "cancel", " "], "task ID cannot be empty"),
        (["task", "retry", "x", "-q", "idle"], "not both"),
    ],
)
def test_a_choice_that_makes_no_sense_is_a_wrong_use(folder: Path, arguments: list[str], shown: str) -> None:
    said = run(arguments, folder)
    assert said.code == 2
    assert shown in said.err


def test_queues_are_shown_again_and_again(folder: Path) -> None:
    with Program(["queue", "list", "--watch", "0.2", "--json"], folder) as program:
        program.wait_for(r'^\{"at": \d+, "queues": \[')
        program.wait_for(r'^\{"at": ', after=1)
        assert program.stop() == 130
