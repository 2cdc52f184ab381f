"""The life of a task process: load, report ready, answer requests, stop in order."""

from __future__ import annotations

import inspect
import os
import queue
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, Callable

from .calls import Caller, awaited
from .encoding import encode_text
from .errors import text_of
from .events import EventLines, EventSink
from .handlers import Handlers, registered
from .lanes import Desk, SerialLane, ThreadLane
from .replies import reply_line
from .requests import Intake, Request
from .signals import StopSignals
from .stdio import Channel
from .streams import to_stderr, to_task_logs
from .version import __version__

if TYPE_CHECKING:
    from .async_lane import AsyncLane


def run() -> None:
    """Answer task requests until the input ends or the process is asked to stop, then return.

    Runs the `@load` function, reports ready on stdout, then calls the handlers. The first SIGTERM or SIGINT
    lets running tasks finish, their replies are written and `run` returns; the second ends the process at
    once with exit code 1.

    Everything that is printed from here on goes to stderr, or to the log of the task that prints it.

    Raises RuntimeError if there is no handler; SystemExit(1) if `@load` raises or the worker has gone.
    """
    _Process(registered).serve(once=False)


def run_once() -> None:
    """Answer exactly one task request, then return; like `run` in all else."""
    _Process(registered).serve(once=True)


class _Process:
    """Wires the parts of one task process together."""

    def __init__(self, handlers: Handlers) -> None:
        if not handlers.by_name:
            raise RuntimeError("No task handler registered. Use @task decorator.")
        self._handlers = handlers
        # Taken out, so that programs which a task starts do not believe that they talk to the worker.
        self._version = 2 if os.environ.pop("RUNQY_PROTOCOL", "1") == "2" else 1
        self._channel = Channel.take_over()
        self._events: EventSink
        if self._version == 2:
            to_task_logs()
            self._events = EventLines(self._channel.write)
        else:
            to_stderr()
            self._events = EventSink()
        self._desk = Desk(self._channel, self._events, self._version)
        self._main_inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._async_lane: AsyncLane | None = None
        self._lanes: dict[str, ThreadLane | AsyncLane] = {}

    def serve(self, once: bool) -> None:
        StopSignals(self._stop).install()
        loaded = self._load()
        callers = {
            name: Caller(handler, loaded, self._handlers.loader is not None)
            for name, handler in self._handlers.by_name.items()
        }
        self._open_lanes(callers)
        deliver = self._main_inbox.put if not self._lanes else self._deliver
        intake = Intake(self._channel, self._handlers, callers, deliver, self._version)
        self._desk.intake = intake
        self._channel.write(self._ready_line())
        self._start_reading(intake, once)
        SerialLane(self._desk, self._main_inbox).work()
        # A stop that came during the load found no lanes to tell.
        self._finish()
        for lane in self._beside():
            lane.join()
        self._unload(loaded)

    def _ready_line(self) -> str:
        if self._version == 1:
            return '{"status": "ready"}\n'
        tasks = ", ".join(map(encode_text, self._handlers.by_name))
        # The empty line ends whatever was written without one while the program was imported.
        return (
            f'\n{{"status": "ready", "protocol": 2, "sdk": "runqy-python/{__version__}", '
            f'"capacity": {self._handlers.capacity()}, "tasks": [{tasks}]}}\n'
        )

    def _load(self) -> Any:
        loader = self._handlers.loader
        asynchronous = any(handler.is_async for handler in self._handlers.by_name.values())
        if asynchronous:
            # Imported here: asyncio takes longer than all the rest, and every one_shot task would pay.
            from .async_lane import AsyncLane

            self._async_lane = AsyncLane(self._desk)
            self._async_lane.start()
        if loader is None:
            return None
        try:
            return self._finished(loader())
        except Exception as error:
            traceback.print_exc()
            told = encode_text(f"@load failed: {text_of(error)}")
            self._channel.write(f'{{"status": "error", "error": {told}}}\n')
            sys.exit(1)

    def _finished(self, value: Any) -> Any:
        """The value itself, or what it comes to if it is a coroutine."""
        if not inspect.iscoroutine(value):
            return value
        return awaited(value) if self._async_lane is None else self._async_lane.call(value)

    def _open_lanes(self, callers: dict[str, Caller]) -> None:
        in_loop: list[Caller] = []
        for name, caller in callers.items():
            handler = caller.handler
            if handler.is_async:
                assert self._async_lane is not None
                in_loop.append(caller)
                self._lanes[name] = self._async_lane
            elif handler.threads is not None:
                lane = ThreadLane(self._desk, name, handler.threads, batches=handler.batch is not None)
                lane.start()
                self._lanes[name] = lane
        if self._async_lane is not None:
            self._async_lane.open(in_loop)

    def _beside(self) -> list[ThreadLane | AsyncLane]:
        """The lanes other than the main thread's, each once."""
        return list(dict.fromkeys(self._lanes.values()))

    def _deliver(self, request: Request) -> None:
        if request.fault is not None:
            # The main thread may be busy for long, and nothing has to run for this answer.
            self._channel.write(reply_line(request.key, request.fault, with_delay=False))
            return
        assert request.caller is not None
        lane = self._lanes.get(request.caller.handler.name)
        if lane is None:
            self._main_inbox.put(request)
        else:
            lane.put(request)

    def _start_reading(self, intake: Intake, once: bool) -> None:
        def read() -> None:
            try:
                if once:
                    intake.read_one(self._finish)
                else:
                    intake.read_all()
            finally:
                self._finish()

        threading.Thread(target=read, name="runqy-requests", daemon=True).start()

    def _finish(self) -> None:
        """No more requests will come: every lane ends after those that it has."""
        for lane in self._beside():
            lane.finish()
        self._main_inbox.put(None)

    def _stop(self) -> None:
        """End after the running calls; what has not started is the worker's again."""
        self._desk.stopping = True
        self._finish()

    def _unload(self, loaded: Any) -> None:
        unloader: Callable[..., Any] | None = self._handlers.unloader
        if unloader is not None:
            try:
                takes_context = bool(inspect.signature(unloader).parameters)
                self._finished(unloader(loaded) if takes_context else unloader())
            except Exception:
                # The tasks are answered; a failed clean-up is for the log.
                traceback.print_exc()
        if self._async_lane is not None:
            self._async_lane.close()
