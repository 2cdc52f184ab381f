"""`sys.stdout` and `sys.stderr` in a worker's process: text goes to the log of the task that printed it."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any, TextIO, cast

from .context import tasks_here


class TaskStream(io.TextIOBase):
    """A text stream that logs what a task prints, line by line, and passes everything else to stderr."""

    def __init__(self, name: str, beyond: TextIO | None) -> None:
        super().__init__()
        self._stream = name
        self._beyond = beyond
        self._lock = threading.RLock()
        self._buffer = _Bytes(self)

    @property
    def name(self) -> str:
        return f"<{self._stream}>"

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    @property
    def buffer(self) -> io.RawIOBase:
        return self._buffer

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        tasks = tasks_here()
        if tasks:
            with self._lock:
                for task in tasks:
                    task.print(self._stream, text)
        elif self._beyond is not None:
            self._beyond.write(text)
        return len(text)

    def flush(self) -> None:
        if self._beyond is not None:
            self._beyond.flush()

    def fileno(self) -> int:
        # For children that are given this stream: descriptor 1 leads to stderr as well.
        return 2

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def reconfigure(self, **options: Any) -> None:
        """Accepted for code that sets its encoding at start; the text goes out as JSON whatever it says."""

    def close(self) -> None:
        """Stays open: a library that closes stdout must not make the next print fail."""


class _Bytes(io.RawIOBase):
    """The binary side of a TaskStream."""

    def __init__(self, text: TaskStream) -> None:
        super().__init__()
        self._text = text

    def write(self, data: Any) -> int:
        self._text.write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)

    def flush(self) -> None:
        self._text.flush()

    def fileno(self) -> int:
        return self._text.fileno()

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Stays open, as the text side does."""


def to_stderr() -> None:
    """Point `sys.stdout` at stderr, as version 1 of the protocol has it."""
    _write_at_once()
    old = sys.stdout
    sys.stdout = sys.stderr
    _redirect_loggers(old, sys.stderr)


def to_task_logs() -> None:
    """Give both streams to the running tasks, and take loggers along that hold the old ones."""
    _write_at_once()
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        new = TaskStream(name, sys.__stderr__)
        setattr(sys, name, new)
        _redirect_loggers(old, cast(TextIO, new))


def _write_at_once() -> None:
    """Let text through at each line end, also on a kept old stream (stdout buffers on a pipe)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _redirect_loggers(old: TextIO | None, new: TextIO | None) -> None:
    # Where nothing has imported it, there is no logger to redirect, and nothing to pay for.
    logging = sys.modules.get("logging")
    if old is None or new is None or logging is None:
        return
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and handler.stream is old:
                handler.setStream(new)
