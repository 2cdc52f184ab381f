"""What every command shares: nothing heavy is imported to begin with; a pipe gets plain text, a terminal colour."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from harness.programs import RUNQY, environment, run

from runqy.cli.app import COMMANDS

HEAVY = ("sqlalchemy", "redis", "fastapi", "pydantic", "uvicorn", "rich", "ruamel", "httpx2")


def test_no_command_brings_anything_heavy_with_it(tmp_path: Path) -> None:
    modules = sorted({target.partition(":")[0] for target, _ in COMMANDS.values()})
    code = (
        f"import importlib, sys\nfor name in {modules!r}:\n    importlib.import_module(name)\n"
        f"    print(name, [m for m in {HEAVY!r} if m in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == [f"{name} []" for name in modules]


def on_a_terminal(arguments: list[str], cwd: Path, more: dict[str, str] | None = None) -> str:
    """What a terminal would show of standard output."""
    master, slave = pty.openpty()
    try:
        done = subprocess.Popen(
            [*RUNQY, *arguments],
            cwd=cwd,
            env=environment(cwd, more),
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=subprocess.DEVNULL,
        )
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
        assert done.wait(30) == 0
    finally:
        os.close(master)
    return shown.decode().replace("\r\n", "\n")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with two saved servers."""
    (tmp_path / ".runqy").mkdir()
    servers = {"default": {"url": "http://one:3000", "api_key": "k"}, "b": {"url": "http://two:3000", "api_key": ""}}
    (tmp_path / ".runqy" / "credentials.json").write_text(json.dumps({"servers": servers, "current": "default"}))
    return tmp_path


TABLE = """\
NAME     URL              CURRENT
default  http://one:3000  *
b        http://two:3000
"""


def test_a_table_is_plain_in_a_pipe_and_has_a_bold_heading_on_a_terminal(home: Path) -> None:
    piped = run(["auth", "list"], home)
    assert piped.out == TABLE
    assert piped.err == ""
    shown = on_a_terminal(["auth", "list"], home)
    heading, _, rest = TABLE.partition("\n")
    assert shown == f"\x1b[1m{heading}\x1b[0m\n{rest}"
    assert on_a_terminal(["auth", "list"], home, {"NO_COLOR": "1"}) == TABLE


def test_json_is_one_line_in_a_pipe(home: Path) -> None:
    said = run(["auth", "list", "--json"], home)
    assert len(said.out.splitlines()) == 1
    assert json.loads(said.out)[0] == {"name": "default", "url": "http://one:3000", "current": True}
    assert json.loads(on_a_terminal(["auth", "list", "--json"], home)) == json.loads(said.out)


def test_a_project_is_written_once_and_its_test_passes(tmp_path: Path) -> None:
    said = run(["init", "hello"], tmp_path)
    assert said.code == 0, said.err
    assert said.out.splitlines() == [
        f"  hello/{name}" for name in ("main.py", "test_main.py", "requirements.txt", "queue.yaml")
    ]
    assert run(["config", "validate", "--dir", "hello/queue.yaml"], tmp_path).code == 0
    own = subprocess.run(
        [sys.executable, "-m", "unittest"], cwd=tmp_path / "hello", capture_output=True, text=True, check=False
    )
    assert own.returncode == 0, own.stderr
    again = run(["init", "hello"], tmp_path)
    assert again.code == 1
    assert "nothing was written: main.py" in again.err


def test_the_origin_of_each_setting_is_shown_and_no_secret(tmp_path: Path) -> None:
    secret = "a-secret-admin-key-0123456789"
    (tmp_path / ".env").write_text("PORT=3111\n")
    said = run(["config", "show", "--origin", "--json"], tmp_path, {"RUNQY_API_KEY": secret, "RUNQY_NO_UI": "true"})
    assert said.code == 0, said.err
    rows = {row["name"]: row for row in json.loads(said.out)}
    assert rows["port"]["value"] == "3111"
    assert ".env" in rows["port"]["origin"]
    assert rows["host"]["origin"] == "default"
    assert rows["api_key"]["origin"] == "environment variable RUNQY_API_KEY"
    assert secret not in said.out + said.err
