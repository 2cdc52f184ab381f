"""Keys, accounts and completion, on a real server and on its database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.programs import Program, run
from harness.redis_servers import free_port

YAML = """
queues:
  a:
    sub_queues: [{name: high, priority: 5}, {name: low, priority: 1}]
    deployment: {git_url: "https://example.com/a.git", startup_cmd: python main.py}
"""
PASSWORD = "a long enough password"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a server with two queues runs."""
    place = tmp_path_factory.mktemp("server")
    (place / "queues").mkdir()
    (place / "queues" / "a.yaml").write_text(YAML)
    port = str(free_port())
    with Program(["serve", "--host", "127.0.0.1", "--port", port, "--config", "queues"], place) as program:
        program.wait_for("queues +2")
        yield place
        program.stop()


def test_a_key_is_made_shown_once_used_and_revoked(folder: Path) -> None:
    assert run(["key", "list"], folder).out == "No keys found.\n"
    made = run(["key", "create", "ci", "--role", "client", "-q", "a.high", "--expires-in", "1h"], folder)
    assert made.code == 0, made.err
    key = made.out.strip()
    assert len(key) > 20
    assert key not in made.err
    client = {"RUNQY_API_KEY": key}
    assert run(["task", "enqueue", "-q", "a.high"], folder, client).code == 0
    assert run(["queue", "list"], folder, client).code == 4
    listed = run(["key", "list"], folder)
    heading, row = listed.out.splitlines()
    assert heading.split() == ["NAME", "ROLE", "QUEUES", "STARTS_WITH", "CREATED", "LAST_USED", "EXPIRES"]
    assert row.split()[:3] == ["ci", "client", "a.high"]
    assert key not in listed.out
    assert run(["key", "revoke", "ci"], folder).code == 2
    assert run(["key", "revoke", "ci", "--yes"], folder).out == "Key 'ci' revoked.\n"
    assert run(["key", "revoke", "ci", "--yes"], folder).code == 3
    assert run(["key", "create", "x", "--role", "king"], folder).code == 2


@pytest.mark.parametrize("more", [[], ["--local"]], ids=["by the server", "in the database"])
def test_accounts_are_made_listed_changed_and_deleted(folder: Path, more: list[str]) -> None:
    listed = run(["account", "list", "--json"], folder)
    for row in json.loads(listed.out):
        # What the other round left: the last admin can't be deleted, so another one comes first.
        assert run(["account", "create", "zoe@example.com", "--role", "admin"], folder, stdin=PASSWORD).code == 0
        assert run(["account", "delete", row["email"], "--yes"], folder).code == 0
    made = run(["account", "create", "ann@example.com", "--role", "admin", *more], folder, stdin=PASSWORD + "\n")
    if json.loads(listed.out):
        assert run(["account", "delete", "zoe@example.com", "--yes"], folder).code == 0
    assert made.out == "Account 'ann@example.com' (admin) created.\n", made.err
    assert run(["account", "create", "Ann@example.com", *more], folder, stdin=PASSWORD + "\n").code == 1
    assert run(["account", "create", "bob@example.com", *more], folder, stdin="short\n").code in {1, 2}
    assert run(["account", "create", "bob@example.com", *more], folder, stdin=PASSWORD + "\n").code == 0
    rows = json.loads(run(["account", "list", "--json", *more], folder).out)
    assert [(row["email"], row["role"]) for row in rows] == [
        ("ann@example.com", "admin"),
        ("bob@example.com", "viewer"),
    ]
    changed = run(["account", "password", "bob@example.com", *more], folder, stdin="another " + PASSWORD)
    assert changed.code == 0, changed.err
    assert PASSWORD not in changed.out + changed.err
    assert run(["account", "delete", "bob@example.com", *more], folder).code == 2
    assert run(["account", "delete", "bob@example.com", "--yes", *more], folder).code == 0
    assert run(["account", "delete", "bob@example.com", "--yes", *more], folder).code == 3
    last = run(["account", "delete", "ann@example.com", "--yes", *more], folder)
    assert last.code == 1
    assert "last admin" in last.err


def complete(folder: Path, line: str) -> list[str]:
    """What bash would offer at the end of the line."""
    words = line.split(" ")
    env = {"_RUNQY_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    said = run([], folder, env)
    assert said.err == ""
    return [row.partition(",")[2] for row in said.out.splitlines() if row]


def test_commands_queues_states_and_ids_are_completed(folder: Path) -> None:
    assert run(["task", "enqueue", "-q", "a.low", "--task-id", "to-complete"], folder).code == 0
    assert complete(folder, "runqy que") == ["queue"]
    assert complete(folder, "runqy queue pause a.") == ["a.high", "a.low"]
    assert complete(folder, "runqy task list a.low --state arch") == ["archived"]
    assert complete(folder, "runqy task get to-") == ["to-complete"]
    assert complete(folder, "runqy task get a.low to-") == ["to-complete"]
    assert complete(folder, "runqy task enqueue -q a.l") == ["a.low"]


def test_without_a_server_nothing_is_completed(tmp_path: Path) -> None:
    assert complete(tmp_path, "runqy queue pause a") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(tmp_path: Path, shell: str) -> None:
    said = run(["completion", shell], tmp_path)
    assert said.code == 0
    assert f"_RUNQY_COMPLETE={shell}_complete" in said.out
