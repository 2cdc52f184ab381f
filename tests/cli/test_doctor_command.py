"""`runqy doctor`, on a real server."""

from __future__ import annotations

import json
from pathlib import Path

from harness.programs import Program, run
from harness.redis_servers import free_port

YAML = """
queues:
  a:
    priority: 1
    deployment: {git_url: "https://example.com/a.git", startup_cmd: python main.py}
"""


def test_the_doctor_names_what_is_wrong_and_the_command_that_mends_it(tmp_path: Path) -> None:
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "a.yaml").write_text(YAML)
    arguments = ["serve", "--host", "127.0.0.1", "--port", str(free_port()), "--config", "queues"]
    with Program(arguments, tmp_path) as program:
        program.wait_for("queues +1")
        well = run(["doctor"], tmp_path)
        assert well.code == 0, well.err
        assert "ok       redis: Valkey" in well.out
        assert "ok       database: SQLite" in well.out
        assert "         fix: runqy worker start --queues QUEUE" in well.out
        assert run(["task", "enqueue", "-q", "a"], tmp_path).code == 0
        ill = run(["doctor", "--json"], tmp_path)
        assert ill.code == 1
        (found,) = [check for check in json.loads(ill.out) if check["status"] == "problem"]
        assert (found["name"], found["fix"]) == ("queues without workers", "runqy worker start --queues a")
        program.stop()
    assert run(["doctor"], tmp_path, {"RUNQY_SERVER": "http://127.0.0.1:9", "RUNQY_API_KEY": "x" * 20}).code == 5
