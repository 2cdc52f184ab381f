"""Where the events of running tasks go: to the worker as lines of version 2, or nowhere."""

from __future__ import annotations

import json
import sys
from typing import Callable

from .encoding import encode_text

_encode = json.JSONEncoder().encode


class EventSink:
    """Version 1 of the protocol has no events: logs go to stderr, the rest is dropped."""

    def start_line(self, key: str) -> str:
        """The line to send before the task with this key runs; may be empty."""
        return ""

    def progress(self, key: str, fraction: float, message: str | None) -> None:
        pass

    def log(self, key: str, stream: str, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def output(self, key: str, seq: int, data: str) -> None:
        pass


class EventLines(EventSink):
    """Version 2: one line per event, written at once. `key` and `data` are JSON texts."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def start_line(self, key: str) -> str:
        return '{"event": "start", "task_id": ' + key + "}\n"

    def progress(self, key: str, fraction: float, message: str | None) -> None:
        told = "" if message is None else f', "message": {encode_text(message)}'
        self._write(f'{{"event": "progress", "task_id": {key}, "fraction": {_encode(fraction)}{told}}}\n')

    def log(self, key: str, stream: str, text: str) -> None:
        self._write(
            f'{{"event": "log", "task_id": {key}, "stream": "{stream}", "text": {encode_text(text)}}}\n'
        )

    def output(self, key: str, seq: int, data: str) -> None:
        self._write(f'{{"event": "output", "task_id": {key}, "seq": {seq}, "data": {data}}}\n')
