"""Task code written for `runqy-python` 0.2.2 runs unchanged: with that release from PyPI, and with our own SDK."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from harness.programs import Program, run
from harness.redis_servers import free_port

TASK = """
import json
import os
import sys

import runqy_python
from runqy_python import RetryableError, load, run, run_once, task


@load
def setup():
    return {"loaded": True}


@task
def work(payload, ctx):
    print("printed on stdout")
    if payload.get("fail") == "retry":
        raise RetryableError("try again")
    if payload.get("fail") == "for good":
        raise ValueError("bad input")
    return {"payload": payload, "ctx": ctx, "version": runqy_python.__version__, "file": runqy_python.__file__}


if __name__ == "__main__":
    run_once() if "once" in sys.argv else run()
"""

QUEUE = """
  {name}:
    priority: 1
    deployment:
      path: {folder}
      startup_cmd: python main.py {argument}
      mode: {mode}
      retry: {{delay: 100ms, backoff: fixed}}
      limits: {{max_retry: 1, active_timeout: 20s}}
"""


@pytest.mark.timeout(300)
def test_the_same_task_code_runs_with_the_published_release_and_with_ours(tmp_path: Path) -> None:
    text = "queues:"
    for sdk in ("published", "ours"):
        folder = tmp_path / sdk
        folder.mkdir()
        (folder / "main.py").write_text(TASK)
        for mode, argument in (("long_running", ""), ("one_shot", "once")):
            name = f"{sdk}-{mode.replace('_', '-')}"
            text += QUEUE.format(name=name, folder=sdk, argument=argument, mode=mode)
    (tmp_path / "published" / "requirements.txt").write_text("runqy-python==0.2.2\n")
    (tmp_path / "queues.yaml").write_text(text)
    with Program(["dev", "queues.yaml", "--port", str(free_port())], tmp_path) as program:
        program.wait_for("^Enqueue", 200)
        for name in ("published-long-running", "published-one-shot", "ours-long-running", "ours-one-shot"):
            _check(tmp_path, name, "0.2.0" if name.startswith("published") else "0.3.0")
        assert program.stop() == 0
        assert program.left_behind() == []
    shutil.rmtree(tmp_path / ".runqy")


def _check(folder: Path, queue: str, version: str) -> None:
    done = run(["task", "enqueue", "-q", queue, "-p", '{"n": 1}', "--wait"], folder)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert (result["payload"], result["ctx"], result["version"]) == ({"n": 1}, {"loaded": True}, version)
    for fail, attempts in (("retry", ["error", "error"]), ("for good", ["failed"])):
        task_id = f"{queue}-{fail.replace(' ', '-')}"
        payload = json.dumps({"fail": fail})
        ended = run(["task", "enqueue", "-q", queue, "-p", payload, "--task-id", task_id, "--wait"], folder)
        assert ended.code == 6, ended
        shown = json.loads(run(["--json", "task", "get", task_id], folder).out)
        assert (shown["state"], [a["outcome"] for a in shown["attempts"]]) == ("archived", attempts)
