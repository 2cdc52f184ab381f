"""The private descriptors of the line protocol.

The worker talks to this process over descriptors 0 and 1. Task code writes there too: prints, loggers, native
libraries, child processes. So the protocol moves to duplicates that nobody else knows of, descriptor 1 leads
to stderr from then on, and descriptor 0 to nothing.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Iterator

# A pipe holds 64 KiB unless someone enlarged it, so a larger read would only cost memory.
READ_SIZE = 65536


class Channel:
    """Lines in, lines out. Reading is for one thread; `write` is for all."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._lock = threading.Lock()
        self._forked = False

    @classmethod
    def take_over(cls) -> Channel:
        """Move the protocol off descriptors 0 and 1. What Python had buffered for stdout goes to stderr."""
        for descriptor in (0, 1, 2):
            _ensure_open(descriptor)
        channel = cls(os.dup(0), os.dup(1))
        os.set_blocking(channel._reading, True)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.close(nothing)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=channel._let_go)
        _flush(sys.stdout)
        return channel

    def write(self, text: str) -> None:
        """Write whole lines, in one piece with respect to other threads. Ends the process if nobody listens.

        The text must be ASCII, which is what the JSON encoder makes.
        """
        if self._forked:
            # A forked copy of this process came back from a handler: its parent answers, not it.
            end_process(0)
        data = text.encode("ascii")
        try:
            with self._lock:
                done = os.write(self._writing, data)
                while done < len(data):
                    done += os.write(self._writing, memoryview(data)[done:])
        except OSError:
            if threading.current_thread() is threading.main_thread():
                sys.exit(1)
            end_process(1)

    def chunks(self) -> Iterator[list[bytes]]:
        """The lines of each piece that arrives, without line ends; stops at the end of input."""
        begun: list[bytes] = []
        while True:
            try:
                data = os.read(self._reading, READ_SIZE)
            except OSError:
                data = b""
            if not data:
                break
            lines = data.split(b"\n")
            if len(lines) == 1:
                begun.append(data)
                continue
            if begun:
                begun.append(lines[0])
                lines[0] = b"".join(begun)
                begun = []
            rest = lines.pop()
            if rest:
                begun.append(rest)
            yield lines
        if begun:
            yield [b"".join(begun)]

    def _let_go(self) -> None:
        """In a forked child: hold the worker's pipes open no longer, and never write to them."""
        self._forked = True
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self._reading, inheritable=False)
        os.dup2(nothing, self._writing, inheritable=False)
        os.close(nothing)


def end_process(code: object) -> None:
    """End the process from any thread with the exit code that SystemExit(code) would give."""
    if code is None:
        status = 0
    elif isinstance(code, int):
        status = code & 0xFF
    else:
        status = 1
        try:
            print(code, file=sys.stderr)
        except Exception:
            pass
    _flush(sys.stdout)
    _flush(sys.stderr)
    os._exit(status)


def _ensure_open(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        # The lowest free number is this one, as the lower ones are open.
        os.open(os.devnull, os.O_RDWR)


def _flush(stream: object | None) -> None:
    try:
        stream.flush()  # type: ignore[union-attr]
    except Exception:
        # A closed or missing stream has nothing left to show.
        pass
