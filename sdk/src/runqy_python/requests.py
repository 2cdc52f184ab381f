"""Requests as they arrive: read, sorted to the lanes, handed back or cancelled while they wait."""

from __future__ import annotations

import json
import re
from typing import Any, Callable

from .calls import Caller
from .context import running
from .encoding import encode_text
from .errors import text_of
from .failures import Failure
from .handlers import Handlers
from .replies import reply_line
from .stdio import Channel

UNKNOWN = '"unknown"'
CANCELLED_WAITING = Failure("The task was cancelled before it started.")

_decode = json.JSONDecoder().decode
_encode = json.JSONEncoder().encode
_task_id = re.compile(r'\s*\{\s*"task_id"\s*:\s*("(?:[^"\\]|\\.)*")')


class Request:
    """One task in this process. `key` is its id as JSON text; a request with a fault has no caller.

    `claimable` requests stand in `Intake.waiting` and belong to whoever takes them out of it.
    """

    __slots__ = ("caller", "claimable", "fault", "key", "payload")

    def __init__(self, key: str, payload: Any, caller: Caller | None, fault: Failure | None = None) -> None:
        self.key = key
        self.payload = payload
        self.caller = caller
        self.fault = fault
        self.claimable = False


class Intake:
    """Reads the worker's lines in a thread of its own, so that a recall is answered while a handler runs.

    `waiting` holds what has not started. To take a key out of it decides who owns the task, the lane that
    starts it or the recall that hands it back; a dictionary's `pop` is atomic, so no lock is needed.
    """

    def __init__(
        self,
        channel: Channel,
        handlers: Handlers,
        callers: dict[str, Caller],
        deliver: Callable[[Request], None],
        version: int,
    ) -> None:
        self.waiting: dict[str, Request] = {}
        self._channel = channel
        self._handlers = handlers
        self._callers = callers
        self._deliver = deliver
        self._has_events = version >= 2

    def read_all(self) -> None:
        """Take every line until the end of input."""
        for lines in self._channel.chunks():
            for line in lines:
                text = line.strip()
                if text:
                    self._take(text)

    def read_one(self, done: Callable[[], None]) -> None:
        """Take the first line, call `done`, and from then on only events."""
        first = True
        for lines in self._channel.chunks():
            for line in lines:
                text = line.strip()
                if first:
                    first = False
                    if text:
                        self._take(text)
                    done()
                elif self._has_events and b'"event"' in text:
                    self._take(text, events_only=True)
        if first:
            done()

    def claim(self, request: Request) -> Request | None:
        """The request to run in this one's place in the queue, or None if it was handed back.

        A task that was handed back and then sent again is taken at the first of its two places.
        """
        if not request.claimable:
            return request
        return self.waiting.pop(request.key, None)

    def _take(self, line: bytes, events_only: bool = False) -> None:
        try:
            message = _decode(line.decode("utf-8"))
        except Exception as error:
            self._deliver(_broken(line, error))
            return
        if type(message) is not dict:
            fault = Failure(f"Invalid JSON input: expected an object, got {type(message).__name__}")
            self._deliver(Request(UNKNOWN, None, None, fault))
            return
        if self._has_events and "event" in message:
            self._on_event(message)
        elif not events_only:
            self._on_request(message)

    def _on_request(self, message: dict[str, Any]) -> None:
        task_id = message.get("task_id", "unknown")
        key = _encode(task_id)
        name = message.get("task") if self._has_events else None
        handler = self._handlers.chosen(name)
        if handler is None:
            self._deliver(Request(key, None, None, self._no_such_task(name)))
            return
        request = Request(key, message.get("payload", {}), self._callers[handler.name])
        if self._has_events and type(task_id) is str and key not in self.waiting:
            request.claimable = True
            self.waiting[key] = request
        self._deliver(request)

    def _on_event(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event not in ("recall", "cancel"):
            return
        key = _encode(message.get("task_id"))
        was_waiting = self.waiting.pop(key, None) is not None
        if event == "recall":
            if was_waiting:
                self._channel.write('{"event": "recalled", "task_id": ' + key + "}\n")
        elif was_waiting:
            self._channel.write(reply_line(key, CANCELLED_WAITING, with_delay=False))
        else:
            context = running.get(key)
            if context is not None:
                context.cancel()

    def _no_such_task(self, name: Any) -> Failure:
        known = ", ".join(map(repr, self._handlers.by_name))
        if name is None:
            return Failure(
                f"The request names no task and there is no plain @task here. Known tasks: {known}."
            )
        return Failure(f"There is no handler for task {name!r} in this process. Known tasks: {known}.")


def _broken(line: bytes, error: Exception) -> Request:
    """A request that can't be read. If it is too deep or too large for the parser, its id still can."""
    if isinstance(error, RecursionError):
        reason = "it is nested too deeply for this Python's JSON parser"
    else:
        reason = text_of(error)
    key = UNKNOWN
    if not isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        found = _task_id.match(line[:4096].decode("utf-8", "replace"))
        if found is not None:
            key = encode_text(_decode(found.group(1)))
    return Request(key, None, None, Failure(f"Invalid JSON input: {reason}"))
