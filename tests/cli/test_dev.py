"""`runqy dev`: one's own code, running with everything it needs (issue rows "dev" of the failure table among it)."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from harness.programs import ROOT, Program, environment, run
from harness.redis_servers import free_port

MAIN = """
import time
from runqy_python import load, run, task

@load
def setup():
    return "warm"

@task
def work(payload, ctx):
    time.sleep(payload.get("sleep", 0))
    return {"got": payload, "ctx": ctx, "version": 1}

run()
"""


UNREACHABLE = 5
"""The exit code when the storage can't be reached."""


def project(folder: Path, main: str = MAIN) -> Path:
    code = folder / "my app"
    code.mkdir()
    (code / "main.py").write_text(main)
    return code


def dev(folder: Path, *arguments: str, port: int | None = None, env: dict[str, str] | None = None) -> Program:
    return Program(["dev", *arguments, "--port", str(port or free_port())], folder, env)


def enqueue(folder: Path, payload: object, *more: str) -> dict[str, object]:
    said = run(["--json", "task", "enqueue", "-q", "my-app", "-p", json.dumps(payload), *more], folder)
    assert said.code == 0, said.err
    document: dict[str, object] = json.loads(said.out)
    return document


def test_a_folder_with_just_a_main_py_runs_and_its_printed_command_works(tmp_path: Path) -> None:
    project(tmp_path)
    began = time.monotonic()
    with dev(tmp_path, "my app") as program:
        program.wait_for("^API +http://127.0.0.1:")
        key = Path(program.wait_for("^Key +(.+)$").group(1))
        command = program.wait_for("^Enqueue +(.+)$").group(1)
        assert key.stat().st_mode & 0o777 == 0o600
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"got": {}, "ctx": "warm", "version": 1}
        assert program.stop() == 0
        assert program.left_behind() == []
    assert time.monotonic() - began < 60


def test_it_is_ready_within_five_seconds_when_the_environment_is_built(tmp_path: Path) -> None:
    project(tmp_path)
    with dev(tmp_path, "my app") as program:
        program.wait_for("^Enqueue")
        program.stop()
    began = time.monotonic()
    with dev(tmp_path, "my app") as program:
        program.wait_for("^Enqueue")
        taken = time.monotonic() - began
        program.stop()
    assert taken < 5, taken


def test_a_second_start_finds_the_earlier_tasks_again(tmp_path: Path) -> None:
    project(tmp_path)
    with dev(tmp_path, "my app") as program:
        program.wait_for("^Enqueue")
        done = enqueue(tmp_path, {"n": 1}, "--wait")
        assert run(["queue", "pause", "my-app"], tmp_path).code == 0
        waiting = enqueue(tmp_path, {"n": 2})
        program.stop(signal.SIGTERM)
    with dev(tmp_path, "my app") as program:
        program.wait_for("^Enqueue")
        shown = run(["--json", "task", "get", str(done["id"])], tmp_path)
        assert json.loads(shown.out)["state"] == "completed"
        assert run(["queue", "unpause", "my-app"], tmp_path).code == 0
        ended = _wait_for_end(tmp_path, str(waiting["id"]))
        assert json.loads(str(ended["Result"]))["got"] == {"n": 2}
        program.stop()


def _wait_for_end(folder: Path, task_id: str, seconds: float = 30) -> dict[str, object]:
    deadline = time.monotonic() + seconds
    while True:
        said = run(["--json", "task", "get", task_id], folder)
        if said.code == UNREACHABLE:  # the storage is on its way back: the caller asks again
            assert time.monotonic() < deadline, said.err
            time.sleep(0.1)
            continue
        assert said.code == 0, said.err
        document: dict[str, object] = json.loads(said.out)
        if document["state"] in {"completed", "archived"}:
            return document
        assert time.monotonic() < deadline, document
        time.sleep(0.1)


def test_changed_code_is_taken_over(tmp_path: Path) -> None:
    code = project(tmp_path)
    with dev(tmp_path, "my app") as program:
        program.wait_for("^Enqueue")
        (code / "main.py").write_text(MAIN.replace('"version": 1', '"version": 2'))
        program.wait_for("a new configuration is in force")
        done = enqueue(tmp_path, {}, "--wait")
        assert json.loads(str(done["Result"]))["version"] == 2
        program.stop()


def test_files_that_are_written_beside_the_code_do_not_restart_it(tmp_path: Path) -> None:
    code = project(tmp_path, MAIN.replace('"version": 1', '"process": __import__("os").getpid()'))
    with dev(tmp_path, "my app") as program:
        program.wait_for("^Enqueue")
        first = json.loads(str(enqueue(tmp_path, {}, "--wait")["Result"]))["process"]
        for name in ("run.log", "result.json", "data.csv", "model.bin"):
            (code / name).write_text("written by the task")
        time.sleep(1)
        assert json.loads(str(enqueue(tmp_path, {}, "--wait")["Result"]))["process"] == first
        assert "reloading" not in program.output
        program.stop()


def test_the_readmes_own_example_runs_as_it_says(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found
    (tmp_path / "main.py").write_text(found.group(1))
    port = free_port()
    with dev(tmp_path, port=port) as program:
        command = program.wait_for("^Enqueue +(.+)$").group(1)
        assert '"question": "text"' in command
        env = environment(tmp_path)
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
        assert json.loads(done.stdout) == {"answer": "TEXT"}, done.stderr
        curl = re.search(r"^curl .*?\n.*$", text, re.MULTILINE)
        assert curl
        queue = re.search(r"-q (\S+)", command)
        assert queue
        called = curl.group().replace(":3000", f":{port}").replace("QUEUE", queue.group(1))
        said = subprocess.run(["bash", "-c", called], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
        assert json.loads(said.stdout)["info"]["state"] == "pending", said.stderr
        program.stop()


@pytest.mark.parametrize(
    ("broken", "shown"),
    [
        (MAIN.replace('return "warm"', 'raise RuntimeError("no such model")'), "no such model"),
        (MAIN.replace("import time", "import nothing_of_that_name"), "nothing_of_that_name"),
        ("print('not a task process')\n", "before it was ready"),
    ],
    ids=["load raises", "import fails", "never ready"],
)
def test_code_that_cannot_run_is_shown_and_tried_again_when_it_changes(tmp_path: Path, broken: str, shown: str) -> None:
    code = project(tmp_path, broken)
    with dev(tmp_path, "my app") as program:
        program.wait_for("can't run yet")
        assert shown in program.output
        waiting = enqueue(tmp_path, {"n": 1})
        (code / "main.py").write_text(MAIN)
        ended = _wait_for_end(tmp_path, str(waiting["id"]))
        assert (ended["state"], ended["retried"]) == ("completed", 0)
        program.stop()
        assert "Traceback" not in program.output or shown in program.output


def test_the_storage_is_killed_while_it_runs_and_work_goes_on(tmp_path: Path) -> None:
    project(tmp_path)
    with dev(tmp_path, "my app") as program:
        program.wait_for("^Enqueue")
        running = enqueue(tmp_path, {"sleep": 2})
        storage = [p for p in program.remember() if "valkey" in p.name()]
        assert len(storage) == 1
        storage[0].kill()
        ended = _wait_for_end(tmp_path, str(running["id"]))
        assert ended["state"] == "completed"
        assert len(ended["attempts"]) == 1  # type: ignore[arg-type]
        assert json.loads(str(enqueue(tmp_path, {"n": 3}, "--wait")["Result"]))["got"] == {"n": 3}
        assert program.stop() == 0
        assert program.left_behind() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_stopped_at_a_random_moment_every_accepted_task_is_still_there_and_ends(
    tmp_path: Path, number: signal.Signals
) -> None:
    project(tmp_path)
    accepted: list[str] = []
    for _ in range(3):
        with dev(tmp_path, "my app") as program:
            program.wait_for("^Enqueue")
            accepted += [str(enqueue(tmp_path, {"sleep": 0.3, "n": n})["id"]) for n in range(3)]
            time.sleep(random.uniform(0, 0.6))
            program.stop(number)
            assert program.left_behind() == []
    with dev(tmp_path, "my app") as program:
        program.wait_for("^Enqueue")
        for task_id in accepted:
            ended = _wait_for_end(tmp_path, task_id, 90)
            assert ended["state"] == "completed", ended
        counts = json.loads(run(["--json", "queue", "inspect", "my-app"], tmp_path).out)
        assert counts["completed"] == len(accepted)
        program.stop()


def test_the_port_is_taken(tmp_path: Path) -> None:
    project(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = run(["dev", "my app", "--port", str(port)], tmp_path)
    assert said.code == 1
    assert f"Port {port} can't be used" in said.err
    assert "--port" in said.err
    assert "Traceback" not in said.err
    assert not _storage_processes(tmp_path)


def _storage_processes(folder: Path) -> list[psutil.Process]:
    processes = psutil.process_iter(["cmdline"])
    return [p for p in processes if any(str(folder) in part for part in p.info["cmdline"] or [])]


def test_the_data_folder_is_in_use(tmp_path: Path) -> None:
    project(tmp_path)
    with dev(tmp_path, "my app") as program:
        program.wait_for("^Enqueue")
        said = run(["dev", "my app", "--port", str(free_port())], tmp_path)
        assert said.code == 1
        assert "is in use" in said.err
        assert str(program.pid) in said.err
        assert "--data-dir" in said.err
        assert json.loads(str(enqueue(tmp_path, {}, "--wait")["Result"]))["version"] == 1
        program.stop()


def test_the_data_folder_cannot_be_written(tmp_path: Path) -> None:
    """Root may write everywhere, so another user tries."""
    project(tmp_path)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder != Path(folder.anchor) and folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    code = (
        "import os, sys\n"
        "import runqy.cli.dev, runqy.cli.local, runqy.telemetry, uvloop\n"
        "from runqy.cli.app import run\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    if os.getuid() != 0:
        tmp_path.chmod(0o555)
        code = code.replace("os.setgid(65534); os.setuid(65534)\n", "")
    said = subprocess.run(
        [sys.executable, "-c", code, "dev", "my app", "--port", str(free_port())],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.returncode == 1, said.stderr
    assert ".runqy" in said.stderr
    assert "Permission denied" in said.stderr
    assert "--data-dir" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [("RUNQY_DEFAULT_TTL_COMPLETED", "24hh"), ("RUNQY_DEFAULT_MAX_RETRY", "-1"), ("RUNQY_DURABILITY", "sometimes")],
)
def test_a_bad_setting_is_named(tmp_path: Path, name: str, value: str) -> None:
    project(tmp_path)
    said = run(["dev", "my app", "--port", str(free_port())], tmp_path, {name: value})
    assert said.code == 1
    assert name in said.err
    assert value in said.err
    assert not _storage_processes(tmp_path)


def test_a_bad_flag_is_a_wrong_use(tmp_path: Path) -> None:
    said = run(["dev", "--prot", "3"], tmp_path)
    assert said.code == 2
    assert "--port" in said.err


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_nothing_to_run_says_what_is_needed(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    said = run(["dev", name], tmp_path)
    assert said.code == 2
    assert "fix:" in said.err


YAML = """
queues:
  one:
    priority: 1
    deployment:
      path: .
      startup_cmd: python main.py
      limits: {ttl_completed: 1h}
"""


def test_malformed_yaml_ends_it_at_the_start_and_is_refused_at_a_reload(tmp_path: Path) -> None:
    code = project(tmp_path)
    file = code / "queues.yaml"
    file.write_text(YAML.replace("1h", "1hh"))
    said = run(["dev", "my app", "--port", str(free_port())], tmp_path)
    assert said.code == 1
    assert "queues.yaml:8:" in said.err
    assert '"1hh"' in said.err
    file.write_text(YAML)
    with dev(tmp_path, "my app") as program:
        program.wait_for("^Enqueue")
        file.write_text(YAML.replace("ttl_completed", "ttl_complete"))
        program.wait_for("the former queue configuration stays in force")
        assert "ttl_completed" in program.output
        done = run(["task", "enqueue", "-q", "one", "--wait"], tmp_path)
        assert done.code == 0, done.err
        file.write_text(YAML.replace("1h", "2h"))
        at = program.line_count()
        program.wait_for("changed: queues.yaml", after=at)
        program.stop()


def test_startup_command_not_found_is_named(tmp_path: Path) -> None:
    code = project(tmp_path)
    (code / "queues.yaml").write_text(YAML.replace("python main.py", "pythn main.py"))
    with dev(tmp_path, "my app") as program:
        program.wait_for("can't run yet")
        assert "'pythn' was not found" in program.output
        assert program.stop() == 0


def test_the_quickstart_runs_as_its_readme_says(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    text = (ROOT / "examples" / "quickstart" / "README.md").read_text()
    commands = [shlex.split(line[2:]) for line in text.splitlines() if line.startswith("$ ")]
    assert [command[:2] for command in commands] == [["runqy", "dev"], *[["runqy", "task"]] * 2, ["runqy", "queue"]]
    with dev(tmp_path, *commands[0][2:]) as program:
        program.wait_for("^Enqueue")
        hello, words, queues = (run(command[1:], tmp_path) for command in commands[1:])
        assert json.loads(hello.out)["greeting"] == "Hello, you!"
        assert json.loads(words.out)["words"] == 3
        assert "hello.default" in queues.out
        busy = run(["task", "enqueue", "-q", "hello", "-p", '{"name": "busy"}', "--wait"], tmp_path)
        assert busy.code == 6
        assert "try me again later" in busy.err
        program.stop()
