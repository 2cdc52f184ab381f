"""The commands' faces: help, texts, JSON, exit codes, how fast they answer."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.programs import ROOT, RUNQY, Program, environment, run
from harness.redis_servers import free_port

from runqy import __version__
from runqy.cli.app import COMMANDS

YAML = """
queues:
  a:
    sub_queues: [{name: high, priority: 5}, {name: low, priority: 1}]
    deployment: {git_url: "https://example.com/a.git", startup_cmd: python main.py}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a server with two queues runs, and no worker."""
    place = tmp_path_factory.mktemp("server")
    (place / "queues").mkdir()
    (place / "queues" / "a.yaml").write_text(YAML)
    port = str(free_port())
    with Program(["serve", "--host", "127.0.0.1", "--port", port, "--config", "queues"], place) as program:
        program.wait_for("queues +2")
        yield place
        program.stop()


def test_help_names_every_command_and_each_has_a_help_of_its_own(tmp_path: Path) -> None:
    said = run(["--help"], tmp_path)
    assert said.code == 0
    for name in COMMANDS:
        assert f"  {name} " in said.out
        own = run([name, "--help"], tmp_path)
        assert own.code == 0
        assert own.out.startswith("Usage: runqy")


@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_the_version_is_printed_as_the_original_prints_it(tmp_path: Path, flag: str) -> None:
    assert run([flag], tmp_path).out.startswith(f"runqy version {__version__} (commit: ")


def test_a_misspelt_command_is_a_wrong_use_with_a_suggestion(tmp_path: Path) -> None:
    said = run(["task", "enqeue"], tmp_path)
    assert said.code == 2
    assert "did you mean 'enqueue'?" in said.err
    assert said.out == ""


def test_without_a_server_it_says_how_to_get_one(tmp_path: Path) -> None:
    said = run(["queue", "list"], tmp_path)
    assert said.code == 5
    assert said.err.splitlines()[0] == "error: No server is known"
    assert len(said.err.splitlines()) == 3


def test_a_server_that_does_not_answer_is_unreachable(tmp_path: Path) -> None:
    said = run(["--server", f"http://127.0.0.1:{free_port()}", "queue", "list"], tmp_path)
    assert said.code == 5
    assert "--server" in said.err


def test_tasks_are_enqueued_listed_shown_cancelled_run_and_deleted(folder: Path) -> None:
    done = run(["task", "enqueue", "-q", "a.high", "-p", '{"x": 1}'], folder)
    assert done.code == 0, done.err
    first, *rest = done.out.splitlines()
    assert first == "Task enqueued successfully!"
    task_id = rest[0].removeprefix("  ID: ")
    assert rest[1:] == ["  Queue: a.high", "  Type: a.high"]
    listed = run(["task", "list", "a.high"], folder)
    assert listed.out.splitlines()[0].split() == ["ID", "TYPE", "PAYLOAD"]
    assert task_id in listed.out
    shown = run(["task", "get", "a.high", task_id, "--explain"], folder)
    assert "State:" in shown.out
    assert "active_timeout" in shown.out
    assert run(["task", "cancel", task_id], folder).out == f"Task '{task_id}' cancelled.\n"
    again = run(["task", "cancel", task_id], folder)
    assert again.code == 1
    assert "archived" in again.err
    assert run(["task", "run", task_id], folder).code == 0
    assert run(["task", "archive", task_id], folder).code == 0
    assert run(["task", "delete", "a.high", task_id], folder).code == 0
    assert run(["task", "get", task_id], folder).code == 3


def test_waiting_for_a_task_that_is_cancelled_ends_with_six(folder: Path) -> None:
    with Program(["task", "enqueue", "-q", "a.low", "--wait", "--task-id", "waited-for"], folder) as program:
        deadline = time.monotonic() + 20
        while run(["task", "get", "waited-for"], folder).code == 3:
            assert time.monotonic() < deadline
        assert run(["task", "cancel", "waited-for"], folder).code == 0
        assert program.wait() == 6
        assert "cancelled" in program.output


@pytest.mark.parametrize("arguments", [["-p", "@input.json"], ["-p", "-"]], ids=["file", "stdin"])
def test_a_payload_comes_from_a_file_or_standard_input_byte_for_byte(folder: Path, arguments: list[str]) -> None:
    text = '{"big":12345678901234567890123,"text":"\\u00e9 ☃"}'
    (folder / "input.json").write_text(text)
    done = run(["--json", "task", "enqueue", "-q", "a.low", *arguments], folder, stdin=text)
    assert done.code == 0, done.err
    shown = run(["--json", "task", "get", json.loads(done.out)["id"]], folder)
    assert json.loads(shown.out)["payload"] == text


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["task", "enqueue", "-q", "nope"], 3, "queue not found: nope.default"),
        (["task", "enqueue", "-q", "a.high", "-p", "{x}"], 2, "invalid JSON payload"),
        (["task", "enqueue", "-q", "a.high", "-p", "@none.json"], 2, "none.json"),
        (["task", "enqueue", "-q", "a.high", "-t", "0"], 2, "must be positive"),
        (["task", "enqueue", "-q", "a.high", "-t", "5 m"], 1, "5 m"),
        (["task", "enqueue"], 2, "--queue"),
        (["task", "list", "a.high", "--state", "done"], 2, "invalid state 'done', valid: pending"),
        (["task", "list", "nope"], 3, "nope"),
        (["task", "get", " "], 3, ""),
        (["queue", "pause", "nope"], 3, "nope"),
        (["queue", "unpause", "a.high"], 1, "is not paused"),
        (["queue", "inspect", " "], 2, "queue name cannot be empty"),
        (["worker", "info", "nobody"], 3, "worker 'nobody' not found"),
        (["config", "validate", "--dir", "nowhere"], 1, "nowhere"),
        (["-k", "wrong-key-12345", "queue", "list"], 4, "access unauthorized"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_wrong_is_said_in_short_lines_with_the_right_exit_code(
    folder: Path, arguments: list[str], code: int, shown: str
) -> None:
    said = run(arguments, folder)
    assert said.code == code, said.err
    assert shown in said.err
    assert said.out == ""
    assert "Traceback" not in said.err
    errors = said.err[said.err.index("error: ") :]
    assert len(errors.strip().splitlines()) <= 3


def test_queues_are_listed_inspected_paused_and_resumed(folder: Path) -> None:
    listed = run(["queue", "list"], folder)
    heading, *rows = listed.out.splitlines()
    assert heading.split() == ["QUEUE", "PENDING", "ACTIVE", "SCHEDULED", "RETRY", "ARCHIVED", "COMPLETED", "PAUSED"]
    assert [row.split()[0] for row in rows] == ["a.high", "a.low"]
    assert run(["queue", "pause", "a.high"], folder).out == "Queue 'a.high' paused successfully.\n"
    assert "Paused:         true" in run(["queue", "inspect", "a.high"], folder).out
    assert run(["queue", "unpause", "a.high"], folder).out == "Queue 'a.high' unpaused successfully.\n"


def test_json_is_printed_by_every_reading_command(folder: Path) -> None:
    for arguments in (["queue", "list"], ["config", "list"], ["worker", "list"], ["task", "list", "a.high"]):
        for form in (["--json", *arguments], [*arguments, "--json"]):
            said = run(form, folder)
            assert said.code == 0, said.err
            assert isinstance(json.loads(said.out), list)


def test_errors_are_json_where_json_was_asked_for(folder: Path) -> None:
    said = run(["--json", "queue", "inspect", "nope"], folder)
    assert said.code == 3
    assert json.loads(said.err)["code"] == 3


def test_a_key_in_the_arguments_is_warned_about(folder: Path) -> None:
    key = (folder / ".runqy" / "api-key").read_text().strip()
    said = run(["-k", key, "queue", "list"], folder)
    assert said.code == 0
    assert "RUNQY_API_KEY" in said.err
    assert key not in said.err


def test_nothing_heavy_is_imported_and_help_comes_fast(tmp_path: Path) -> None:
    heavy = ("sqlalchemy", "redis", "fastapi", "uvicorn", "httpx2", "pydantic")
    code = f"import sys; import runqy.cli.app; print([m for m in {heavy!r} if m in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert loaded.stdout == "[]\n"

    def median(command: tuple[str, ...]) -> float:
        """CPU seconds: what the wall clock shows on an idle machine, also on a busy one."""
        times = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, env=environment(tmp_path), cwd=tmp_path, capture_output=True, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return statistics.median(times)

    bare = median((sys.executable, "-c", "pass"))
    assert median((*RUNQY, "--help")) - bare < 0.2


def test_a_bare_installation_says_which_extra_brings_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('No module named uvicorn', name='uvicorn')\n")
    said = run(["serve"], tmp_path, {"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"})
    assert said.code == 1
    assert "pip install 'runqy[server]'" in said.err
