"""Worker processes without the wait for imports: a process that has imported everything forks them.

Run as a program it reads one JSON line per worker (`log`, `options`), answers its pid, and later its exit code.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Nursery:
    """Starts workers from one parent; knows the exit code of each."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._codes: dict[int, int] = {}
        self._pids: list[int] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._news:
                if "code" in told:
                    self._codes[told["pid"]] = told["code"]
                else:
                    self._pids.append(told["pid"])
                self._news.notify_all()

    def start(self, log: Path, options: Mapping[str, Any]) -> int:
        """Fork a worker; its pid."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"log": str(log), "options": options}).encode() + b"\n")
        self._process.stdin.flush()
        with self._news:
            assert self._news.wait_for(lambda: self._pids, 30), "the nursery does not answer"
            return self._pids.pop()

    def exit_code(self, pid: int, seconds: float) -> int | None:
        """The exit code (negative for a signal), None when it has not ended in time."""
        with self._news:
            self._news.wait_for(lambda: pid in self._codes, seconds)
            return self._codes.get(pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def run(options: dict[str, Any]) -> int:
    """The worker itself, as the command line runs it."""
    import asyncio

    import uvloop

    from runqy import telemetry
    from runqy.settings.secret import Secret
    from runqy.settings.worker import WorkerSettings
    from runqy.worker.worker import run_worker

    options["api_key"] = Secret(options["api_key"])
    options["queues"] = tuple(options["queues"])
    options["deployment_dir"] = Path(options["deployment_dir"])
    telemetry.configure()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_worker(WorkerSettings(**options)))


def _become(log: str, options: dict[str, Any]) -> None:
    code = 70
    try:
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(target, 1)
        os.dup2(target, 2)
        code = run(options)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Fork on request until stdin ends."""
    import uvloop  # noqa: F401

    import runqy.worker.worker  # noqa: F401

    def tell(**line: int) -> None:
        os.write(1, json.dumps(line).encode() + b"\n")

    rest = b""
    while True:
        if select.select([0], [], [], 0.005)[0]:
            data = os.read(0, 65536)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    _become(**json.loads(line))
                tell(pid=pid)
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            continue
        if pid:
            tell(pid=pid, code=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    serve()
