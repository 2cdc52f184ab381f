"""`runqy config`: queues made, changed, planned, removed and restored, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.programs import Program, Result, run
from harness.redis_servers import free_port

SERVED = """
queues:
  a:
    priority: 5
    deployment: {git_url: "https://example.com/a.git", startup_cmd: python main.py}
"""
FULL = """
queues:
  full:
    sub_queues: [{name: high, priority: 9}, {name: low, priority: 1}]
    description: everything
    max_pending: 7
    deployment: {git_url: "https://example.com/f.git", startup_cmd: python main.py, limits: {max_retry: 1}}
    input: [{name: n, type: [int]}]
"""
# Each test runs many commands; on a machine that is busy a start takes seconds.
pytestmark = pytest.mark.timeout(400)
INLINE = ["--git-url", "https://example.com/i.git", "--startup-cmd", "python main.py"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in which a server with one queue runs."""
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "a.yaml").write_text(SERVED)
    arguments = ["serve", "--host", "127.0.0.1", "--port", str(free_port()), "--config", "queues"]
    with Program(arguments, tmp_path) as program:
        program.wait_for("queues +1")
        yield tmp_path
        program.stop()


def config(folder: Path, *arguments: str) -> Result:
    return run(["config", *arguments], folder)


def test_queues_are_created_from_a_file_changed_by_force_removed_and_restored(folder: Path) -> None:
    file = folder / "full.yaml"
    file.write_text(FULL)
    made = config(folder, "create", "-f", "full.yaml")
    assert (made.code, made.out) == (0, "Created 1 queue configuration(s):\n  - full\n"), made.err
    again = config(folder, "create", "-f", "full.yaml")
    assert again.code == 1
    assert "queue(s) already exist: [full]. Use --force to update existing queues" in again.err
    file.write_text(FULL.replace("    description: everything\n", "").replace(", {name: low, priority: 1}", ""))
    changed = config(folder, "create", "-f", "full.yaml", "--force")
    assert (changed.code, changed.out) == (0, "Updated 1 queue configuration(s):\n  - full\n"), changed.err
    assert config(folder, "plan", "--dir", "full.yaml").out == "No changes.\n"
    assert [line.split() for line in config(folder, "list").out.splitlines()[1:]] == [
        ["a.default", "5"],
        ["full.high", "9"],
    ]
    assert config(folder, "remove", "full").out == "Queue 'full' deleted successfully\n"
    gone = config(folder, "remove", "--name", "full")
    assert (gone.code, gone.err.splitlines()[0]) == (3, "error: queue 'full' not found")
    assert config(folder, "remove").code == 2
    assert config(folder, "restore", "full").out == "Queue 'full' restored successfully\n"
    rows = json.loads(config(folder, "history", "full", "--json").out)
    assert [row["action"] for row in rows] == ["restored", "deleted", "updated", "created"]
    assert "description, sub_queues.low.enabled" in config(folder, "history").out


def test_one_queue_is_created_from_flags(folder: Path) -> None:
    made = config(folder, "create", "--name", "inline", "--priority", "3", "--mode", "one_shot", *INLINE)
    assert made.code == 0, made.err
    assert [line.split(None, 1) for line in made.out.splitlines()] == [
        ["Queue", "created successfully:"],
        ["Name:", "inline"],
        ["Priority:", "3"],
        ["Git", "URL:  https://example.com/i.git"],
        ["Mode:", "one_shot"],
    ]
    again = config(folder, "create", "--name", "inline", *INLINE)
    assert again.code == 1
    assert "already exists" in again.err
    assert "updated" in config(folder, "create", "--name", "inline", "--force", *INLINE).out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--name", "x", *INLINE, "--mode", "often"], 2, "invalid mode 'often', must be 'long_running' or 'one_shot'"),
        (INLINE, 2, "--name is required when not using --file"),
        (["--name", "x", "--git-url", "u"], 2, "--startup-cmd is required when not using --file"),
        (["--name", "x", "--startup-cmd", "u"], 2, "--git-url is required when not using --file"),
        (["-f", "none.yaml"], 1, "none.yaml"),
        (["-f", "bad.yaml"], 1, "bad.yaml:1:"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_wrong_is_said_before_any_server_is_asked(
    tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    (tmp_path / "bad.yaml").write_text("name: x\npriorty: 1\n")
    said = config(tmp_path, "create", *arguments)
    assert said.code == code
    assert text in said.err


def test_a_plan_shows_every_difference_and_what_no_file_names(folder: Path) -> None:
    assert config(folder, "plan").out == "No changes.\n"
    assert config(folder, "create", "--name", "extra", *INLINE).code == 0
    (folder / "queues" / "a.yaml").write_text(SERVED.replace("priority: 5", "priority: 6"))
    (folder / "queues" / "b.yaml").write_text(FULL)
    planned = config(folder, "plan")
    assert planned.code == 0
    lines = planned.out.splitlines()
    assert lines[:2] == ["~ a (updated)", "    sub_queues.default.priority: 5 -> 6"]
    assert "+ full (created)" in lines
    assert "    max_pending: (not set) -> 7" in lines
    assert lines[-1] == "Plan: 1 to be created, 1 to be updated."
    assert "No file names extra" in planned.err
    assert config(folder, "reload").code == 0
    assert config(folder, "plan").out == "No changes.\n"
    (folder / "queues" / "b.yaml").write_text("queues: {x: {priorty: 1}}\n")
    broken = config(folder, "plan")
    assert broken.code == 1
    assert "b.yaml:1:" in broken.err
