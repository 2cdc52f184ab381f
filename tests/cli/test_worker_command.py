"""`runqy worker`: settings, registration, and its rows of the failure table."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from harness.programs import Program, run
from harness.redis_servers import free_port

from runqy import __version__

TASK = """
from runqy_python import run, task

@task
def work(payload):
    return payload

run()
"""


def make_repository(folder: Path) -> str:
    code = folder / "code"
    code.mkdir()
    (code / "main.py").write_text(TASK)
    commit(code, "init", "--quiet", "--initial-branch", "main")
    commit_all(code)
    return f"file://{code}"


def commit(code: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments], cwd=code, check=True)


def commit_all(code: Path) -> None:
    commit(code, "add", ".")
    commit(code, "commit", "--quiet", "-m", "code")


def write_queue(folder: Path, repository: str, **more: str) -> None:
    queues = folder / "queues"
    queues.mkdir(exist_ok=True)
    lines = {"git_url": repository, "branch": "main", "startup_cmd": "python main.py", **more}
    body = "\n".join(f"      {name}: {value}" for name, value in lines.items())
    (queues / "q.yaml").write_text(f"queues:\n  q:\n    priority: 1\n    deployment:\n{body}\n")


def worker_environment(folder: Path, port: int) -> dict[str, str]:
    return {
        "RUNQY_SERVER_URL": f"http://127.0.0.1:{port}",
        "RUNQY_API_KEY_FILE": str(folder / ".runqy" / "api-key"),
        "RUNQY_QUEUES": "q",
        "RUNQY_DEPLOYMENT_DIR": str(folder / "deployment"),
        "RUNQY_RECOVERY_MAX_RESTARTS": "2",
        "RUNQY_RECOVERY_INITIAL_DELAY": "100ms",
    }


def serve(folder: Path, port: int) -> Program:
    arguments = ["serve", "--host", "127.0.0.1", "--port", str(port), "--config", "queues"]
    return Program(arguments, folder)


def test_server_and_worker_over_git_run_a_task(tmp_path: Path) -> None:
    write_queue(tmp_path, make_repository(tmp_path))
    port = free_port()
    with serve(tmp_path, port) as server:
        server.wait_for("queues +1")
        with Program(["worker"], tmp_path, worker_environment(tmp_path, port)) as worker:
            worker.wait_for("ready for tasks")
            done = run(["task", "enqueue", "-q", "q", "-p", '{"big": 12345678901234567890}', "--wait"], tmp_path)
            assert json.loads(done.out) == {"big": 12345678901234567890}, done.err
            rows = json.loads(run(["--json", "worker", "list"], tmp_path).out)
            assert [(row["status"], row["version"]) for row in rows] == [("running", __version__)]
            shown = run(["worker", "info", rows[0]["worker_id"]], tmp_path)
            assert "Status:" in shown.out
            assert worker.stop(signal.SIGTERM) == 0
            assert worker.left_behind() == []
        assert json.loads(run(["--json", "worker", "list"], tmp_path).out) == []
        server.stop()


@pytest.mark.parametrize(
    ("change", "shown", "hint"),
    [
        ({"branch": "nope"}, "has no branch 'nope'", "deployment.branch"),
        ({"git_url": "file:///no/such/repository"}, "There is no repository at", "deployment.git_url"),
        ({"code_path": "missing"}, "There is no folder 'missing'", "deployment.code_path"),
        ({"startup_cmd": "pythn main.py"}, "'pythn' was not found", "deployment.startup_cmd"),
    ],
    ids=["branch", "repository", "path", "command"],
)
def test_a_deployment_that_cannot_work_ends_the_first_start(
    tmp_path: Path, change: dict[str, str], shown: str, hint: str
) -> None:
    repository = make_repository(tmp_path)
    write_queue(tmp_path, repository, **change)
    port = free_port()
    with serve(tmp_path, port) as server:
        server.wait_for("queues +1")
        said = run(["worker"], tmp_path, worker_environment(tmp_path, port))
        assert said.code == 1
        assert shown in said.err
        assert hint in said.err
        assert "Traceback" not in said.err
        server.stop()


@pytest.mark.parametrize(
    ("main", "shown"),
    [
        (
            TASK.replace("@task", "from runqy_python import load\n@load\ndef l(): raise RuntimeError('no GPU')\n@task"),
            "no GPU",
        ),
        ("import sys\nprint('last words', file=sys.stderr)\nsys.exit(7)\n", "last words"),
    ],
    ids=["load raises", "exits"],
)
def test_task_code_that_never_gets_ready_ends_the_first_start_with_its_last_lines(
    tmp_path: Path, main: str, shown: str
) -> None:
    repository = make_repository(tmp_path)
    (tmp_path / "code" / "main.py").write_text(main)
    commit_all(tmp_path / "code")
    write_queue(tmp_path, repository)
    port = free_port()
    with serve(tmp_path, port) as server:
        server.wait_for("queues +1")
        said = run(["worker"], tmp_path, worker_environment(tmp_path, port))
        assert said.code == 1
        assert shown in said.err
        server.stop()


def test_a_requirement_that_cannot_be_installed_is_shown_with_pips_last_lines(tmp_path: Path) -> None:
    repository = make_repository(tmp_path)
    (tmp_path / "code" / "requirements.txt").write_text("--no-index\nno-such-package-of-ours==1.0\n")
    commit_all(tmp_path / "code")
    write_queue(tmp_path, repository)
    port = free_port()
    with serve(tmp_path, port) as server:
        server.wait_for("queues +1")
        said = run(["worker"], tmp_path, worker_environment(tmp_path, port))
        assert said.code == 1
        assert "could not be installed" in said.err
        assert "no-such-package-of-ours" in said.err
        server.stop()


def test_without_a_key_it_ends_and_says_which_setting(tmp_path: Path) -> None:
    said = run(["worker"], tmp_path, {"RUNQY_SERVER_URL": "http://127.0.0.1:1", "RUNQY_QUEUES": "q"})
    assert said.code == 1
    assert "server.api_key is required" in said.err
    assert "RUNQY_API_KEY" in said.err


def test_a_wrong_key_and_an_unknown_queue_end_it_at_once(tmp_path: Path) -> None:
    write_queue(tmp_path, make_repository(tmp_path))
    port = free_port()
    with serve(tmp_path, port) as server:
        server.wait_for("queues +1")
        env = worker_environment(tmp_path, port)
        wrong = run(["worker"], tmp_path, {**env, "RUNQY_API_KEY_FILE": "", "RUNQY_API_KEY": "wrong-key-1234567890"})
        assert wrong.code == 4
        assert "RUNQY_API_KEY" in wrong.err
        assert "wrong-key-1234567890" not in wrong.err
        unknown = run(["worker"], tmp_path, {**env, "RUNQY_QUEUES": "nope"})
        assert unknown.code == 3
        assert "queue 'nope' not found" in unknown.err
        server.stop()


def test_a_server_that_cannot_be_reached_is_waited_for(tmp_path: Path) -> None:
    env = worker_environment(tmp_path, free_port()) | {"RUNQY_API_KEY_FILE": "", "RUNQY_API_KEY": "some-key-1234567890"}
    with Program(["worker"], tmp_path, env) as worker:
        worker.wait_for("waiting for the server, next try in")
        worker.wait_for("waiting for the server, next try in", after=worker.line_count())
        assert worker.stop(signal.SIGTERM) == 0
    limited = run(["worker"], tmp_path, {**env, "RUNQY_BOOTSTRAP_RETRIES": "2", "RUNQY_BOOTSTRAP_RETRY_DELAY": "50ms"})
    assert limited.code == 5
    assert "Giving up after 2 tries" in limited.err


@pytest.mark.parametrize("variable", ["RUNQY_TTL_COMPLETED", "RUNQY_PENDING_TIMEOUT", "RUNQY_SHUTDOWN_TIMEOUT"])
def test_r63_a_bad_setting_is_refused(tmp_path: Path, variable: str) -> None:
    env = {"RUNQY_SERVER_URL": "http://x", "RUNQY_API_KEY": "k", "RUNQY_QUEUES": "q", variable: "10"}
    said = run(["worker", "--validate"], tmp_path, env)
    assert said.code == 1
    assert variable in said.err


def test_the_flags_of_the_original_work(tmp_path: Path) -> None:
    (tmp_path / "w.yml").write_text(
        "server: {url: 'http://x', api_key: '${KEY:-from-default}'}\nworker: {queues: [a, b.c], concurrency: 2}\n"
    )
    valid = run(["worker", "-config", "w.yml", "-validate"], tmp_path)
    assert (valid.code, valid.out) == (0, "Configuration is valid\n"), valid.err
    version = run(["worker", "-version"], tmp_path)
    assert version.out.startswith(f"runqy-worker version {__version__}")
