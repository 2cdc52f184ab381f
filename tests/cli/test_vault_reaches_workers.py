"""A vault's values in running task code: there at the start, and new ones within ten seconds (product decision 41)."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import psutil
from harness.programs import Program, Result, run
from harness.redis_servers import free_port

TASK = """
import os
from runqy_python import run, task

@task
def work(payload):
    return os.environ.get(payload["name"])

run()
"""
QUEUES = """
queues:
  q:
    priority: 1
    deployment: {path: CODE, startup_cmd: python main.py, vaults: [keys]}
"""
FIRST, SECOND = "canary-first-value", "canary-second-value"


def asked(folder: Path, name: str) -> object:
    done = run(["task", "enqueue", "-q", "q", "-p", json.dumps({"name": name}), "--wait"], folder)
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_task_code_sees_the_vault_and_its_changes_and_nobody_else_does(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text(TASK)
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "q.yaml").write_text(QUEUES.replace("CODE", str(tmp_path / "code")))
    port = free_port()
    master = {"RUNQY_VAULT_MASTER_KEY": base64.b64encode(b"m" * 32).decode()}
    worker_settings = {
        "RUNQY_SERVER_URL": f"http://127.0.0.1:{port}",
        "RUNQY_API_KEY_FILE": str(tmp_path / ".runqy" / "api-key"),
        "RUNQY_QUEUES": "q",
        "RUNQY_DEPLOYMENT_DIR": str(tmp_path / "deployment"),
    }

    def put(value: str) -> Result:
        return run(["vault", "set", "keys", "TOKEN", "-"], tmp_path, stdin=value)

    arguments = ["serve", "--host", "127.0.0.1", "--port", str(port), "--config", "queues"]
    with Program(arguments, tmp_path, master) as server:
        server.wait_for("queues +1")
        with Program(["worker"], tmp_path, worker_settings) as worker:
            worker.wait_for("failed to resolve vaults")
            assert run(["vault", "create", "keys"], tmp_path).code == 0
            assert put(FIRST).code == 0
            worker.wait_for("ready for tasks")
            assert asked(tmp_path, "TOKEN") == FIRST
            assert asked(tmp_path, "RUNQY_API_KEY") is None
            assert put(SECOND).code == 0
            changed_at = time.monotonic()
            while asked(tmp_path, "TOKEN") != SECOND:
                assert time.monotonic() - changed_at < 10, worker.output
            argv = [word for process in worker.remember() for word in _command(process)]
            assert not any("canary" in word for word in argv)
            worker.stop()
        assert "canary" not in worker.output + server.output
        # Where the task's own results are kept is the one place that may hold them.
        for folder in ("deployment", ".runqy/runqy.db", ".runqy/server.json"):
            place = tmp_path / folder
            assert place.exists()
            files = place.rglob("*") if place.is_dir() else [place]
            assert not [path for path in files if path.is_file() and b"canary" in path.read_bytes()]
        server.stop()


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
