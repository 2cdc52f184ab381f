"""`runqy serve`: its rows of the failure table, keys, and the files that tell other shells where it is."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from pathlib import Path

import pytest
from harness.programs import Program, run
from harness.redis_servers import RedisServer, free_port

YAML = """
queues:
  inference:
    priority: 6
    deployment:
      git_url: https://example.com/inference.git
      branch: main
      startup_cmd: python main.py
      startup_timeout_secs: 300
      limits: {max_retry: 1, ttl_completed: 1h, ttl_archived: 24h, pending_timeout: 5m, active_timeout: 30s}
"""


def serve(folder: Path, *arguments: str, env: dict[str, str] | None = None, port: int | None = None) -> Program:
    return Program(["serve", "--host", "127.0.0.1", "--port", str(port or free_port()), *arguments], folder, env)


def configuration(folder: Path, text: str = YAML) -> Path:
    queues = folder / "queues"
    queues.mkdir()
    (queues / "inference.yaml").write_text(text)
    return queues


def test_it_makes_a_key_says_where_and_is_found_by_other_commands(tmp_path: Path) -> None:
    """R26 by YAML and HTTP among it: the page's example, enqueued and explained."""
    configuration(tmp_path)
    with serve(tmp_path, "--config", "queues") as program:
        key_file = Path(program.wait_for(r"admin key +(\S+)").group(1))
        assert key_file == tmp_path / ".runqy" / "api-key"
        assert key_file.stat().st_mode & 0o777 == 0o600
        place = tmp_path / ".runqy" / "server.json"
        program.wait_for("queues +1")
        assert place.stat().st_mode & 0o777 == 0o600
        assert json.loads(place.read_text())["key_file"] == str(key_file)
        done = run(["--json", "task", "enqueue", "-q", "inference"], tmp_path)
        assert done.code == 0, done.err
        task = run(["--json", "task", "get", json.loads(done.out)["id"]], tmp_path)
        values = {name: entry["value"] for name, entry in json.loads(task.out)["limits"].items()}
        assert values == {
            "max_retry": 1,
            "ttl_completed": 3600,
            "ttl_archived": 86400,
            "pending_timeout": 300,
            "active_timeout": 30,
        }
        assert program.stop(signal.SIGTERM) == 0
        assert program.left_behind() == []
        assert not place.exists()
        assert key_file.read_text().strip() not in program.output


def test_it_starts_by_itself_when_no_command_is_given(tmp_path: Path) -> None:
    with Program([], tmp_path, {"PORT": str(free_port())}) as program:
        program.wait_for("runqy server +http://")
        assert program.stop() == 0


def test_an_external_redis_and_a_key_from_a_file(tmp_path: Path, valkey: RedisServer) -> None:
    (tmp_path / "key").write_text("a-key-of-my-own-1234\n")
    port = free_port()
    env = {"RUNQY_REDIS_URL": valkey.url, "RUNQY_API_KEY_FILE": str(tmp_path / "key")}
    with serve(tmp_path, env=env, port=port) as program:
        program.wait_for("admin key +from RUNQY_API_KEY")
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/queues", headers={"Authorization": "Bearer a-key-of-my-own-1234"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200
        assert program.stop() == 0
        assert program.left_behind() == []


def test_the_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        said = run(["serve", "--host", "127.0.0.1", "--port", str(other.getsockname()[1])], tmp_path)
    assert said.code == 1
    assert "can't be used" in said.err
    assert "fix:" in said.err
    assert not (tmp_path / ".runqy" / "valkey").exists()


def test_the_data_folder_is_in_use(tmp_path: Path) -> None:
    with serve(tmp_path) as program:
        program.wait_for("runqy server")
        said = run(["serve", "--host", "127.0.0.1", "--port", str(free_port())], tmp_path)
        assert said.code == 1
        assert "is in use" in said.err
        assert program.stop() == 0


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ({"RUNQY_DEFAULT_ACTIVE_TIMEOUT": "30"}, "RUNQY_DEFAULT_ACTIVE_TIMEOUT"),
        ({"RUNQY_DEFAULT_MAX_RETRY": "x"}, "RUNQY_DEFAULT_MAX_RETRY"),
        ({"RUNQY_DEFAULT_TTL_ARCHIVED": "-1s"}, "RUNQY_DEFAULT_TTL_ARCHIVED"),
        ({"PORT": "http"}, "PORT"),
        ({"RUNQY_REDIS_URL": "http://nowhere"}, "RUNQY_REDIS_URL"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_r62_a_bad_setting_stops_the_start_by_name(tmp_path: Path, env: dict[str, str], shown: str) -> None:
    said = run(["serve"], tmp_path, env)
    assert said.code == 1
    assert shown in said.err
    assert "Traceback" not in said.err


def test_a_wrong_flag_is_a_wrong_use(tmp_path: Path) -> None:
    said = run(["serve", "--prot", "1"], tmp_path)
    assert said.code == 2
    assert "--port" in said.err


def test_malformed_queue_files_leave_the_stored_configuration_in_force(tmp_path: Path) -> None:
    """R57..R60: refused loudly at start and at a reload, by `config validate` with exit 1."""
    queues = configuration(tmp_path)
    with serve(tmp_path, "--config", "queues") as program:
        program.wait_for("queues +1")
        program.stop()
    (queues / "inference.yaml").write_text(YAML.replace("1h", "1hh"))
    checked = run(["config", "validate", "--dir", "queues"], tmp_path)
    assert checked.code == 1
    assert 'limits.ttl_completed: invalid duration "1hh"' in checked.err
    with serve(tmp_path, "--config", "queues") as program:
        program.wait_for("the stored configuration stays in force")
        program.wait_for("queues +1")
        assert run(["task", "enqueue", "-q", "inference"], tmp_path).code == 0
        reloaded = run(["config", "reload"], tmp_path)
        assert reloaded.code == 1
        assert '"1hh"' in reloaded.err
        (queues / "inference.yaml").write_text(YAML)
        reloaded = run(["config", "reload"], tmp_path)
        assert reloaded.code == 0, reloaded.err
        assert "inference.default" in reloaded.out
        program.stop()


def test_without_redis_it_waits_says_so_and_can_be_stopped(tmp_path: Path) -> None:
    env = {"RUNQY_REDIS_URL": f"redis://:canary-password@127.0.0.1:{free_port()}"}
    with serve(tmp_path, env=env) as program:
        program.wait_for("waiting for Redis")
        assert program.stop(signal.SIGTERM) == 0
        assert "canary-password" not in program.output
