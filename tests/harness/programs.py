"""Real runs of the command line: started, watched line by line, ended, with nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
RUNQY = (sys.executable, "-m", "runqy")


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The machine's environment without anything that configures runqy, and with a home of its own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RUNQY_", "REDIS_", "DATABASE_", "CONFIG_", "QUEUE_WORKERS", "SQLITE_"))
        and name not in {"PORT", "NO_COLOR", "FORCE_COLOR"}
    }
    return {**kept, "HOME": str(home), "PYTHONWARNINGS": "error", "PYTHONPATH": str(ROOT / "src"), **(more or {})}


@dataclass(frozen=True)
class Result:
    """How a short command ended."""

    code: int
    out: str
    err: str


def run(arguments: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, stdin: str = "") -> Result:
    """Run `runqy` with these arguments to its end."""
    done = subprocess.run(
        [*RUNQY, *arguments],
        cwd=cwd,
        env=environment(cwd, env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Result(done.returncode, done.stdout, done.stderr)


class Program:
    """A `runqy` that goes on running. Use it in a `with` block: whatever happens, its whole tree is ended."""

    def __init__(self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [*RUNQY, *arguments],
            cwd=cwd,
            env=environment(cwd, env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._seen: dict[int, psutil.Process] = {}

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.remember()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)
        for process in self._seen.values():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        """Everything that it has printed."""
        with self._news:
            return "\n".join(self._lines)

    def wait_for(self, pattern: str, seconds: float = 30.0, after: int = 0) -> re.Match[str]:
        """Wait for a line that matches, from line number ``after`` on."""
        deadline = time.monotonic() + seconds
        at = after
        with self._news:
            while True:
                while at < len(self._lines):
                    found = re.search(pattern, self._lines[at])
                    if found:
                        return found
                    at += 1
                left = deadline - time.monotonic()
                ended = self._process.poll() is not None and not self._reader.is_alive()
                if left <= 0 or ended:
                    shown = "\n".join(self._lines[-40:])
                    raise AssertionError(f"{'it ended' if ended else 'timed out'} without {pattern!r}:\n{shown}")
                self._news.wait(min(left, 0.2))

    def line_count(self) -> int:
        with self._news:
            return len(self._lines)

    def remember(self) -> list[psutil.Process]:
        """Note its descendants, to see later that none is left."""
        try:
            found = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            found = []
        self._seen.update({process.pid: process for process in found})
        return found

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = 30.0) -> int:
        """Its exit code."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {seconds} s:\n{self.output[-4000:]}") from None
        self._reader.join(10)
        return code

    def stop(self, number: signal.Signals = signal.SIGINT, seconds: float = 30.0) -> int:
        """Signal it and wait for its end."""
        self.remember()
        self.send(number)
        return self.wait(seconds)

    def left_behind(self, seconds: float = 10.0) -> list[str]:
        """Command lines of descendants that outlive it."""
        deadline = time.monotonic() + seconds
        while True:
            alive = []
            for process in self._seen.values():
                try:
                    if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                        alive.append(" ".join(process.cmdline()))
                except psutil.NoSuchProcess:
                    continue
            if not alive or time.monotonic() > deadline:
                return alive
            time.sleep(0.05)
