"""`runqy demo`: the main job, end to end, as README's first command runs it."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from harness.programs import Program, run


@pytest.mark.timeout(600)
def test_the_demo_is_as_promised_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with Program(["--json", "demo"], tmp_path, {"TMPDIR": str(tmp_path)}) as program:
        program.wait_for("ready after", 400)
        program.remember()
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
