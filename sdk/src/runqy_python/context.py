"""What task code can say and ask while it runs, without being handed anything."""

from __future__ import annotations

import math
import sys
import time
from contextvars import ContextVar
from typing import Any, Callable

from .events import EventSink

# A longer text is sent in pieces, so that no line of the protocol grows with what a task prints.
LOG_PIECE = 32768
SMALLEST_STEP = 0.001
STEP_INTERVAL = 0.2


class TaskContext:
    """One running task, as its helpers see it. `key` is the task id as JSON text."""

    __slots__ = (
        "_events",
        "_partial",
        "_progress",
        "_progress_at",
        "_sent",
        "cancelled",
        "closed",
        "key",
        "on_cancel",
    )

    def __init__(self, key: str, events: EventSink) -> None:
        self.key = key
        self.cancelled = False
        self.closed = False
        self.on_cancel: Callable[[], Any] | None = None
        self._events = events
        self._partial: dict[str, str] | None = None
        self._progress: tuple[float, str | None] = (-1.0, None)
        self._progress_at = 0.0
        self._sent = 0

    def cancel(self) -> None:
        self.cancelled = True
        if self.on_cancel is not None:
            self.on_cancel()

    def progress(self, fraction: float, message: str | None) -> None:
        # A loop over a million items must not become a million lines.
        last, last_message = self._progress
        is_small = abs(fraction - last) < SMALLEST_STEP and message == last_message and fraction < 1
        if is_small and time.monotonic() - self._progress_at < STEP_INTERVAL:
            return
        self._progress = (fraction, message)
        self._progress_at = time.monotonic()
        self._events.progress(self.key, fraction, message)

    def output(self, data: str) -> None:
        """Send a piece of the result, given as JSON text."""
        self._events.output(self.key, self._sent, data)
        self._sent += 1

    def log(self, stream: str, text: str) -> None:
        for begin in range(0, len(text), LOG_PIECE):
            self._events.log(self.key, stream, text[begin : begin + LOG_PIECE])

    def print(self, stream: str, text: str) -> None:
        """Take text as a stream gets it, and log it by whole lines.

        A progress bar rewrites its line after a carriage return: only what would stay on a terminal is kept.
        """
        if self._partial is None:
            self._partial = {}
        whole, newline, rest = (self._partial.get(stream, "") + text).rpartition("\n")
        if newline:
            self.log(stream, "\n".join(map(_as_shown, whole.split("\n"))) if "\r" in whole else whole)
        if "\r" in rest:
            kept = rest.rpartition("\r")[2]
            # The end may be half of a Windows line end, so the line before it stays until it is known.
            rest = kept if kept else _as_shown(rest) + "\r"
        if len(rest) > LOG_PIECE:
            self.log(stream, rest)
            rest = ""
        self._partial[stream] = rest

    def close(self) -> None:
        """Log what was printed without a line end; from now on the task has no events."""
        if self._partial is not None:
            for stream, rest in self._partial.items():
                if rest:
                    self.log(stream, _as_shown(rest))
        self.closed = True


def _as_shown(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]


# All tasks of one call: several for a batch, else one.
current: ContextVar[tuple[TaskContext, ...] | None] = ContextVar("runqy_tasks", default=None)

# Every running task of the process, by key.
running: dict[str, TaskContext] = {}


def tasks_here() -> tuple[TaskContext, ...]:
    """The tasks that the calling code works for; empty outside a task.

    A thread that task code started itself has no context of its own. While a single task runs, it can only
    belong to that one.
    """
    tasks = current.get()
    if tasks is None:
        if len(running) != 1:
            return ()
        tasks = tuple(running.values())
    return tasks if not any(task.closed for task in tasks) else tuple(t for t in tasks if not t.closed)


def progress(fraction: float, message: str | None = None) -> None:
    """Tell how far the current task is: 0 to 1, with a short text; in a batch it is told for every task.

    Values outside 0 to 1 are taken as the nearest end. Without a task, or under a worker that does not ask
    for it, nothing happens. Raises TypeError or ValueError for what is not a number.
    """
    value = float(fraction)
    if math.isnan(value):
        raise ValueError("progress(nan): expected a number from 0 to 1")
    value = min(max(value, 0.0), 1.0)
    for task in tasks_here():
        task.progress(value, None if message is None else str(message))


def log(*values: object, sep: str = " ") -> None:
    """Add a line to the current task's log, written like `print`; without a task it goes to stderr."""
    text = sep.join(map(str, values))
    tasks = tasks_here()
    if not tasks:
        print(text, file=sys.stderr, flush=True)
    for task in tasks:
        task.log("stdout", text)


def cancelled() -> bool:
    """Whether someone asked to cancel the current task; in a batch, whether that is so for every task of it.

    A handler that sees True should stop soon: the process is restarted five seconds after the request.
    """
    tasks: list[TaskContext] = list(tasks_here())
    return bool(tasks) and all(task.cancelled for task in tasks)
