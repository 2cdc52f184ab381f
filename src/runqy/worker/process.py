"""One task process with its whole tree: started bound to our life, its streams drained, ended for certain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import psutil

from runqy.errors import DeploymentError
from runqy.lifeline import bound_command
from runqy.worker.protocol import LineSplitter

STDERR_LINE_LIMIT = 64 * 1024
_STDIN, _STDOUT = 0, 1
_READ_BYTES = 64 * 1024
_READS_AT_ONCE = 16

MARK = "RUNQY_TASK_PROCESS"
"""Variable that marks every descendant of one task process, so that none is left whatever it did."""

DEAF_SECONDS = 0.5
"""A process whose stdin is gone for this long has closed it; one that is just ending is gone by then."""

LineHandler = Callable[[bytes, bool], None]


class TaskProcess(asyncio.SubprocessProtocol):
    """A child in a session and process group of its own.

    ``on_line`` gets each line of stdout and whether it was cut, ``on_error`` each line of stderr; both are
    called in the event loop and must not block. ``exited`` is set once the process has ended and its streams
    are read to their end; then ``code`` holds the exit code, negative for a signal.
    """

    def __init__(self, on_line: LineHandler, on_error: LineHandler, marker: bytes) -> None:
        self._on_line = on_line
        self._on_error = on_error
        self._out = LineSplitter()
        self._err = LineSplitter(STDERR_LINE_LIMIT)
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._known: dict[int, psutil.Process] = {}
        self._marker = marker
        self._errors: int | None = None
        self._told_end = False
        self.on_deaf: Callable[[float], None] = lambda since: None
        """called when the process lives on but takes no more input, with the monotonic time since when"""
        self.code: int | None = None
        self.pid = 0
        self.exited = asyncio.Event()

    @classmethod
    async def start(
        cls, argv: Sequence[str], cwd: Path, env: Mapping[str, str], on_line: LineHandler, on_error: LineHandler
    ) -> TaskProcess:
        """Start the program. Raises `DeploymentError` when the system refuses to."""
        loop = asyncio.get_running_loop()
        mark = f"{uuid.uuid4().hex}"
        # A pipe of our own: the loop's would not let us read what was printed before an answer.
        errors, stderr = os.pipe()
        try:
            transport, process = await loop.subprocess_exec(
                lambda: cls(on_line, on_error, f"{MARK}={mark}".encode()),
                *bound_command(argv, signal.SIGKILL),
                cwd=cwd,
                env={**env, MARK: mark},
                stderr=stderr,
                start_new_session=True,
            )
        except BaseException as error:
            os.close(errors)
            if isinstance(error, OSError):
                raise DeploymentError(f"{argv[0]} can't be started", why=str(error)) from error
            raise
        finally:
            os.close(stderr)
        process.pid = transport.get_pid()
        process._follow_errors(errors)
        return process

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's classes.
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(_STDIN))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        # What was printed before an answer belongs to its task, so it is read first.
        self._read_errors()
        for line, cut in self._out.feed(data):
            self._on_line(line, cut)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == _STDOUT and (rest := self._out.flush()):
            self._on_line(rest, False)
        if fd == _STDIN and not self._told_end:
            since = time.monotonic()
            asyncio.get_running_loop().call_later(DEAF_SECONDS, self._look_if_deaf, since)

    def _look_if_deaf(self, since: float) -> None:
        if self.running and not self._told_end:
            self.on_deaf(since)

    def _follow_errors(self, errors: int) -> None:
        os.set_blocking(errors, False)
        self._errors = errors
        if self.exited.is_set():
            self._end_errors()
        else:
            asyncio.get_running_loop().add_reader(errors, self._read_errors)

    def _read_errors(self) -> None:
        """Take what stands in the stderr pipe, within bounds."""
        for _ in range(_READS_AT_ONCE):
            if self._errors is None:
                return
            try:
                data = os.read(self._errors, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._close_errors()
                return
            for line, cut in self._err.feed(data):
                self._on_error(line, cut)

    def _close_errors(self) -> None:
        errors, self._errors = self._errors, None
        if errors is not None:
            asyncio.get_running_loop().remove_reader(errors)
            os.close(errors)
        if rest := self._err.flush():
            self._on_error(rest, False)

    def _end_errors(self) -> None:
        self._read_errors()
        self._close_errors()

    def process_exited(self) -> None:
        assert self._transport is not None
        self.code = self._transport.get_returncode()
        # A grandchild may hold the pipes open for ever; the process's own end is what counts.
        asyncio.get_running_loop().call_later(0.2, self._over)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over()

    def _over(self) -> None:
        if not self.exited.is_set():
            self._end_errors()
            self.exited.set()

    @property
    def running(self) -> bool:
        return self.code is None

    @property
    def unwritten(self) -> int:
        """Bytes that the child has not read yet."""
        return self._stdin.get_write_buffer_size() if self._stdin is not None else 0

    def write(self, data: bytes) -> None:
        """Hand bytes to the child's stdin; never blocks. What a dead child does not take is dropped."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(data)

    def close_stdin(self) -> None:
        """Tell the child that nothing more comes."""
        self._told_end = True
        if self._stdin is not None and not self._stdin.is_closing():
            with contextlib.suppress(NotImplementedError):
                self._stdin.write_eof()

    async def stop(self, grace: float) -> None:
        """End the whole tree: SIGTERM, and SIGKILL after ``grace`` seconds to whatever is left.

        Returns when no process of the tree is left and the exit is known.
        """
        self._told_end = True
        self._remember_tree()
        if self.running and grace > 0:
            self._signal_tree(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    while self._alive():
                        await asyncio.sleep(0.01)
                        self._remember_tree()
        await self.kill()

    async def kill(self) -> None:
        """End the whole tree at once."""
        self._told_end = True
        self._remember_tree()
        for _ in range(500):
            self._signal_tree(signal.SIGKILL)
            if not self._alive():
                break
            await asyncio.sleep(0.01)
            self._remember_tree()
        await self.exited.wait()
        if self._transport is not None:
            self._transport.close()

    def _remember_tree(self) -> None:
        """Note every process that descends from ours, also those in sessions of their own.

        Each is kept with its start time, so that a pid which the system gives to a stranger is never signalled.
        """
        try:
            root = psutil.Process(self.pid)
            if self.running:
                self._known.setdefault(root.pid, root)
        except psutil.NoSuchProcess:
            pass
        for process in list(self._known.values()):
            with contextlib.suppress(psutil.Error):
                for child in process.children(recursive=True):
                    self._known.setdefault(child.pid, child)
        for process in _strays(self.pid, self._marker):
            if process.pid != self.pid or self.running:
                self._known.setdefault(process.pid, process)

    def _signal_tree(self, number: signal.Signals) -> None:
        for process in list(self._known.values()):
            # is_running compares the start time as well as the pid.
            with contextlib.suppress(psutil.Error):
                if process.is_running():
                    process.send_signal(number)

    def _alive(self) -> bool:
        for pid, process in list(self._known.items()):
            try:
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    return True
            except psutil.NoSuchProcess:
                pass
            del self._known[pid]
        return self.running


def _strays(session: int, marker: bytes) -> list[psutil.Process]:
    """Descendants that lost their parent: they keep the session, or at least the marked environment."""
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session or marker in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(psutil.Process(pid))
        except (OSError, psutil.Error):
            continue
    return found
