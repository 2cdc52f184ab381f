"""A task process over pipes, as a worker starts it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 20.0


class Child:
    """A task process over pipes. Every read has a deadline, so a test that fails does so soon."""

    def __init__(self, script: Path, package: Path, python: str, protocol: int) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNQY_")}
        environment["PYTHONPATH"] = str(package)
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        environment.pop("PYTHONUNBUFFERED", None)
        if protocol != 1:
            environment["RUNQY_PROTOCOL"] = str(protocol)
        self.process = subprocess.Popen(
            [python, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=script.parent,
        )
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._stderr: list[bytes] = []
        self._stderr_grew = threading.Condition()
        self._threads = [
            threading.Thread(target=self._read_stdout, daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def write(self, *lines: str | bytes) -> None:
        """Write raw lines in one piece."""
        data = b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines)
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, *messages: dict[str, Any]) -> None:
        self.write(*map(json.dumps, messages))

    def raw_line(self) -> bytes:
        """The next line that is not empty."""
        while True:
            line = self._lines.get(timeout=PATIENCE)
            if line is None:
                raise EOFError(f"the process ended; its stderr was:\n{self.stderr()}")
            if line.strip():
                return line

    def line(self) -> Any:
        return json.loads(self.raw_line())

    def lines(self, count: int) -> list[Any]:
        return [self.line() for _ in range(count)]

    def until_reply(self) -> list[Any]:
        """All lines up to the next reply, which is the last of them."""
        lines = [self.line()]
        while "retry" not in lines[-1]:
            lines.append(self.line())
        return lines

    def reply(self) -> Any:
        return self.until_reply()[-1]

    def ask(self, payload: Any, task_id: str = "t", **fields: Any) -> Any:
        """Send one task and return its reply."""
        self.send({"task_id": task_id, "payload": payload, **fields})
        return self.reply()

    def ready(self) -> Any:
        line = self.line()
        assert line["status"] == "ready", line
        return line

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> int:
        """Close its input and wait for its end."""
        self.close_input()
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)
        return code

    def rest(self) -> list[bytes]:
        """The lines that nobody has read, of a process that has ended."""
        lines = []
        while (line := self._lines.get(timeout=PATIENCE)) is not None:
            lines.append(line)
        return lines

    def stderr(self) -> str:
        return b"".join(self._stderr).decode()

    def wait_for_stderr(self, text: str) -> None:
        with self._stderr_grew:
            assert self._stderr_grew.wait_for(lambda: text in self.stderr(), PATIENCE), self.stderr()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _read_stdout(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        while data := os.read(self.process.stderr.fileno(), 65536):
            with self._stderr_grew:
                self._stderr.append(data)
                self._stderr_grew.notify_all()


Start = Callable[..., Child]
