"""Which server a command talks to: flag, variable, saved profile, a server of this folder; and the saved ones."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.programs import Program, run
from harness.redis_servers import free_port

KEY = "an-admin-key-0123456789"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server's address, and the folder that it runs in."""
    place = tmp_path_factory.mktemp("server")
    port = str(free_port())
    with Program(["serve", "--host", "127.0.0.1", "--port", port], place, {"RUNQY_API_KEY": KEY}) as program:
        program.wait_for("listening|queues|server")
        yield f"http://127.0.0.1:{port}", place
        program.stop()


def test_a_login_is_saved_for_this_user_alone_and_used(server: tuple[str, Path], tmp_path: Path) -> None:
    url, _ = server
    said = run(["login", "--server", url + "/"], tmp_path, stdin=KEY + "\n")
    assert (said.code, said.out) == (0, f'Logged in to {url} (saved as "default")\n'), said.err
    file = tmp_path / ".runqy" / "credentials.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    text = file.read_text()
    assert json.loads(text) == {"servers": {"default": {"url": url, "api_key": KEY}}, "current": "default"}
    assert text.startswith('{\n  "servers": {\n    "default": {')
    assert run(["queue", "list"], tmp_path).code == 0
    status = run(["auth", "status"], tmp_path)
    assert status.out.splitlines() == [
        "Current server: default",
        f"URL:            {url}",
        "API Key:        an-a...6789",
    ]
    assert KEY not in status.out + status.err


def test_profiles_are_listed_switched_and_removed(server: tuple[str, Path], tmp_path: Path) -> None:
    url, _ = server
    more = {"RUNQY_API_KEY": KEY}
    assert run(["login", "-s", url, "-n", "one"], tmp_path, more).code == 0
    assert run(["login", "-s", url, "-n", "two"], tmp_path, more).code == 0
    rows = [line.split() for line in run(["auth", "list"], tmp_path).out.splitlines()]
    assert rows == [["NAME", "URL", "CURRENT"], ["one", url, "*"], ["two", url]]
    assert run(["auth", "switch", "two"], tmp_path).out == f'Switched to "two"\n  URL: {url}\n'
    assert run(["auth", "switch", "six"], tmp_path).code == 3
    assert run(["logout"], tmp_path).out == 'Logged out from "two"\n'
    assert json.loads(run(["auth", "status", "--json"], tmp_path).out)["current"] == "one"
    assert run(["logout", "--name", "two"], tmp_path).code == 3
    assert run(["logout", "--all"], tmp_path).out == "Removed all saved credentials.\n"
    assert run(["auth", "list"], tmp_path).out == "No saved servers.\n"
    assert run(["logout"], tmp_path).out == "Not logged in.\n"
    assert run(["auth", "status"], tmp_path).out == "Not logged in.\n"


def test_flag_beats_variable_beats_profile(server: tuple[str, Path], tmp_path: Path) -> None:
    url, place = server
    closed = f"http://127.0.0.1:{free_port()}"
    key = {"RUNQY_API_KEY": KEY}
    saved = run(["login", "-s", closed], tmp_path, key)
    assert saved.code == 0
    assert "was not checked" in saved.err
    assert run(["queue", "list"], tmp_path, key).code == 5
    assert run(["queue", "list"], tmp_path, {**key, "RUNQY_SERVER": url}).code == 0
    assert run(["-s", url, "queue", "list"], tmp_path, {**key, "RUNQY_SERVER": closed}).code == 0
    below = place / "deep" / "er"
    below.mkdir(parents=True)
    assert run(["queue", "list"], below, key).code == 0
    used = json.loads(run(["auth", "status", "--json"], below).out)["used"]
    assert used == {"url": url, "source": str(place / ".runqy" / "server.json")}


def test_the_saved_key_goes_to_no_other_server(server: tuple[str, Path], tmp_path: Path) -> None:
    url, _ = server
    assert run(["login", "-s", url], tmp_path, {"RUNQY_API_KEY": KEY}).code == 0
    assert run(["--server", url, "queue", "list"], tmp_path).code == 4


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["login"], 2, "--server is required"),
        (["login", "-s", "host:3000"], 2, "must begin with http://"),
        (["login", "-s", "http://127.0.0.1:1"], 2, "API key is required"),
        (["login", "-s", "http://127.0.0.1:1", "-n", " "], 2, "profile name cannot be empty"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, arguments: list[str], code: int, shown: str) -> None:
    said = run(arguments, tmp_path)
    assert said.code == code
    assert shown in said.err


def test_a_refused_key_is_not_saved(server: tuple[str, Path], tmp_path: Path) -> None:
    said = run(["login", "-s", server[0]], tmp_path, {"RUNQY_API_KEY": "wrong-key-0123456789abc"})
    assert said.code == 4
    assert not (tmp_path / ".runqy" / "credentials.json").exists()


def test_a_damaged_file_is_named_without_its_text(tmp_path: Path) -> None:
    (tmp_path / ".runqy").mkdir()
    (tmp_path / ".runqy" / "credentials.json").write_text('{"servers": {"a": "sesame-street"}}')
    said = run(["queue", "list"], tmp_path)
    assert said.code == 1
    assert "credentials.json is damaged" in said.err
    assert "sesame" not in said.err
    assert run(["logout", "--all"], tmp_path).code == 0
