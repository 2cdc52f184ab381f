"""`runqy vault`, against a server and against the local database."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.programs import Program, Result, run
from harness.redis_servers import free_port

MASTER, NEW_MASTER = (base64.b64encode(letter * 32).decode() for letter in (b"m", b"n"))
CANARY = "canary-of-the-command-line"
# Each test runs many commands; on a machine that is busy a start takes seconds.
pytestmark = pytest.mark.timeout(400)
ENV = {"RUNQY_VAULT_MASTER_KEY": MASTER}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a server runs."""
    place = tmp_path_factory.mktemp("server")
    arguments = ["serve", "--host", "127.0.0.1", "--port", str(free_port())]
    with Program(arguments, place, ENV) as program:
        program.wait_for("queues +0")
        yield place
        assert CANARY not in program.output
        program.stop()


@pytest.fixture(params=["server", "local"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return request.getfixturevalue("served") if request.param == "server" else tmp_path


def vault(place: Path, *arguments: str, stdin: str = "", env: dict[str, str] | None = None) -> Result:
    return run(["vault", *arguments], place, {**ENV, **(env or {})}, stdin)


def test_a_vault_lives_its_life(place: Path) -> None:
    assert vault(place, "list").out == "No vaults found.\n"
    assert vault(place, "create", "keys", "-d", "for tests").out == "Vault 'keys' created successfully.\n"
    again = vault(place, "create", "keys")
    assert (again.code, again.err.splitlines()[-1]) == (1, "error: vault 'keys' already exists")
    assert vault(place, "entries", "keys").out == "No entries.\n"
    done = vault(place, "set", "keys", "TOKEN", "-", stdin=f"{CANARY}\n")
    assert (done.code, done.out) == (0, "Entry 'TOKEN' set in vault 'keys'.\n"), done.err
    open_ = vault(place, "set", "keys", "REGION", "0755", "--no-secret")
    assert "warning" not in open_.err
    listed = vault(place, "entries", "keys").out.splitlines()
    assert listed[0].split() == ["KEY", "VALUE", "SECRET", "UPDATED"]
    assert [line.split()[:3] for line in listed[1:]] == [["REGION", "0755", "no"], ["TOKEN", "****", "yes"]]
    shown = vault(place, "show", "keys").out
    assert "Description: for tests" in shown
    assert "Entries (2):" in shown
    assert vault(place, "list").out.splitlines()[1].split() == ["keys", "for", "tests", "2"]
    got = vault(place, "get", "keys", "TOKEN")
    assert (got.code, got.out) == (0, f"{CANARY}\n"), got.err
    assert vault(place, "unset", "keys", "REGION").out == "Entry 'REGION' removed from vault 'keys'.\n"
    assert vault(place, "delete", "keys", stdin="n\n").out == "Cancelled.\n"
    assert vault(place, "delete", "keys", "--force").out == "Vault 'keys' deleted successfully.\n"
    for arguments in (["show", "keys"], ["set", "keys", "A", "-"], ["get", "keys", "A"]):
        gone = vault(place, *arguments, stdin="x")
        assert gone.code == 3, arguments
        assert "error: vault 'keys' not found" in gone.err


def test_a_value_in_the_arguments_is_warned_about_and_never_repeated(place: Path) -> None:
    assert vault(place, "create", "argv").code == 0
    done = vault(place, "set", "argv", "TOKEN", CANARY)
    assert done.code == 0
    assert "standard input" in done.err
    refused = vault(place, "set", "argv", "PATH", CANARY)
    assert refused.code in {1, 2}
    assert "reserved key name" in refused.err
    assert CANARY not in done.err + done.out + refused.err + refused.out


def test_answers_are_json_where_asked_for(place: Path) -> None:
    assert json.loads(vault(place, "create", "json", "--json").out)["vault"]["name"] == "json"
    assert vault(place, "set", "json", "A", "-", stdin="b").code == 0
    (row,) = json.loads(vault(place, "entries", "json", "--json").out)
    assert (row["key"], row["value"], row["is_secret"]) == ("A", "****", True)


def test_without_a_master_key_the_local_vaults_are_off(tmp_path: Path) -> None:
    said = run(["vault", "list"], tmp_path)
    assert said.code == 1
    assert "vaults not enabled. Set RUNQY_VAULT_MASTER_KEY environment variable." in said.err
    assert "openssl rand -base64 32" in said.err
    assert not (tmp_path / ".runqy").exists()


def test_a_value_is_not_read_from_another_machine(served: Path, tmp_path: Path) -> None:
    url = json.loads((served / ".runqy" / "server.json").read_text())["url"]
    said = run(["--server", url, "vault", "get", "keys", "TOKEN"], tmp_path, ENV)
    assert said.code == 2
    assert "vault get is local-only and cannot be used in remote mode" in said.err


def test_the_master_key_is_rotated_from_files(tmp_path: Path) -> None:
    (tmp_path / "old").write_text(MASTER + "\n")
    (tmp_path / "new").write_text(NEW_MASTER + "\n")
    vault(tmp_path, "create", "keys")
    vault(tmp_path, "set", "keys", "TOKEN", "-", stdin=CANARY)
    lacking = vault(tmp_path, "rotate-key")
    assert lacking.code == 1
    assert "RUNQY_VAULT_NEW_MASTER_KEY is not set" in lacking.err
    bad = vault(tmp_path, "rotate-key", env={"RUNQY_VAULT_NEW_MASTER_KEY": "short-key"})
    assert bad.code == 1
    assert "short-key" not in bad.err
    files = {"RUNQY_VAULT_MASTER_KEY_FILE": "old", "RUNQY_VAULT_NEW_MASTER_KEY_FILE": "new"}
    done = run(["vault", "rotate-key"], tmp_path, files)
    assert (done.code, done.out) == (0, "1 value(s) are now encrypted with the new master key.\n"), done.err
    assert MASTER not in done.err
    assert NEW_MASTER not in done.err
    assert vault(tmp_path, "get", "keys", "TOKEN").code == 5
    assert vault(tmp_path, "get", "keys", "TOKEN", env={"RUNQY_VAULT_MASTER_KEY": NEW_MASTER}).out == f"{CANARY}\n"
