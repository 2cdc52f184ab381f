"""The lines between worker and task process: version 1 as the original speaks it, version 2 where both say so."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from runqy.tasks.message import PickedTask

LINE_LIMIT = 64 * 1024 * 1024
"""A longer line is cut: its task fails with a clear reason, and the stream stays in step."""

TEXT_LIMIT = 64 * 1024
"""Of a longer text that is only printed, the newest part is kept."""

NULL = msgspec.Raw(b"null")


class Line(msgspec.Struct):
    """A line, as far as it must be known to tell what it is. Everything is read leniently: a child may add keys of
    its own, and a reply with an odd one among them must not get lost."""

    task_id: str | None = None
    status: msgspec.Raw = NULL
    event: msgspec.Raw = NULL
    result: msgspec.Raw = NULL
    error: msgspec.Raw = NULL
    retry: msgspec.Raw = NULL
    delay: msgspec.Raw = NULL


_decode = msgspec.json.Decoder(Line).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Ready:
    """The child can work. ``capacity`` is how many tasks it takes at once; protocol 1 always has 1."""

    protocol: int = 1
    capacity: int = 1
    sdk: str = ""
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The child says that its start failed (`@load` raised)."""

    error: str


@dataclass(frozen=True, slots=True)
class Started:
    """Execution of the task begins."""

    task_id: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The end of a task. ``error`` is empty for a success; ``result`` is JSON text as the child wrote it."""

    task_id: str
    result: bytes
    error: str
    retry: bool
    delay: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    task_id: str
    fraction: float | None
    message: str


@dataclass(frozen=True, slots=True)
class TaskLog:
    """What a task printed."""

    task_id: str
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A piece of a streamed result: JSON text."""

    task_id: str
    seq: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Recalled:
    """The child hands back a task that it had not started."""

    task_id: str


@dataclass(frozen=True, slots=True)
class Noise:
    """Anything else on stdout: it belongs into the log."""

    text: str


Said = Ready | StartFailed | Started | Reply | Progress | TaskLog | OutputPiece | Recalled | Noise


def read_line(line: bytes) -> Said | None:
    """What a line of the child's stdout says; None for a blank one. Never raises."""
    if not line.strip():
        return None
    try:
        parsed = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _noise(line)
    event = bytes(parsed.event)
    if event != b"null":
        return _read_event(event, parsed.task_id or "", line)
    if parsed.task_id is not None:
        error, retry = _text(parsed.error), bytes(parsed.retry) == b"true"
        return Reply(parsed.task_id, bytes(parsed.result), error, retry, _number(parsed.delay))
    if bytes(parsed.status) == b'"ready"':
        return _read_ready(line)
    if bytes(parsed.status) == b'"error"':
        return StartFailed(_text(parsed.error) or "it gave no reason")
    return _noise(line)


def _noise(line: bytes) -> Noise:
    return Noise(_newest(line[-4 * TEXT_LIMIT :].decode("utf-8", "replace")))


def _newest(text: str) -> str:
    return text if len(text) <= TEXT_LIMIT else "… " + text[-TEXT_LIMIT:]


def _read_ready(line: bytes) -> Ready:
    said = _decode_any(line)
    protocol, capacity, tasks = said.get("protocol"), said.get("capacity"), said.get("tasks")
    if not isinstance(protocol, int) or protocol < 2:
        return Ready()
    return Ready(
        protocol,
        capacity if isinstance(capacity, int) and capacity > 0 else 1,
        str(said.get("sdk") or ""),
        tuple(map(str, tasks)) if isinstance(tasks, list) else (),
    )


def _read_event(event: bytes, task_id: str, line: bytes) -> Said:
    if event == b'"start"':
        return Started(task_id)
    said = _decode_any(line)
    match said.get("event"):
        case "progress":
            fraction = said.get("fraction")
            shown = float(fraction) if isinstance(fraction, (int, float)) else None
            return Progress(task_id, shown, str(said.get("message") or ""))
        case "log":
            return TaskLog(task_id, str(said.get("stream") or "stdout"), _newest(str(said.get("text") or "")))
        case "output":
            seq = said.get("seq")
            return OutputPiece(task_id, seq if isinstance(seq, int) else 0, _encode(said.get("data")))
        case "recalled":
            return Recalled(task_id)
        case _:
            return _noise(line)


def _number(raw: msgspec.Raw) -> float | None:
    """A delay in seconds; None where there is none, or none that is a number of at least 0."""
    value = _decode_any(bytes(raw))
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9:
        return float(value)
    return None


def _text(raw: msgspec.Raw) -> str:
    """An error as text: usually a JSON string; anything else that is not null is shown as it is."""
    data = bytes(raw)
    if data == b"null":
        return ""
    value = _decode_any(data)
    if isinstance(value, str):
        return value
    return data.decode("utf-8", "replace") if value else ""


class _Head(msgspec.Struct):
    task_id: str
    type: str
    payload: msgspec.Raw
    retry_count: int
    max_retry: int
    queue: str


class _HeadTwo(msgspec.Struct, omit_defaults=True):
    task_id: str
    type: str
    payload: msgspec.Raw
    retry_count: int
    max_retry: int
    queue: str
    attempt: int
    task: str = ""


def request_line(task: PickedTask, protocol: int) -> bytes:
    """The line that hands a task to the child. A payload that is not JSON becomes null, as in the original."""
    payload = msgspec.Raw(_one_line(task.payload))
    if protocol >= 2:
        request: _Head | _HeadTwo = _HeadTwo(
            task.id,
            task.type,
            payload,
            task.retried,
            task.limits.max_retry,
            task.queue,
            task.attempt,
            task.handler,
        )
    else:
        request = _Head(task.id, task.type, payload, task.retried, task.limits.max_retry, task.queue)
    return _encode(request) + b"\n"


def _one_line(payload: bytes) -> bytes:
    try:
        _decode_any(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return b"null"
    # Line breaks can stand only between JSON's tokens, never inside its strings.
    if b"\n" in payload or b"\r" in payload:
        return payload.replace(b"\r", b" ").replace(b"\n", b" ")
    return payload


def recall_line(task_id: str) -> bytes:
    """Ask for a task back that has not started."""
    return _encode({"event": "recall", "task_id": task_id}) + b"\n"


def cancel_line(task_id: str) -> bytes:
    """Tell the task code to stop."""
    return _encode({"event": "cancel", "task_id": task_id}) + b"\n"


class LineSplitter:
    """Turns chunks of bytes into lines, keeping at most `LINE_LIMIT` bytes of one that does not end.

    A line over the limit comes as its first part with ``cut`` true, once; the rest of it is dropped.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._dropping = False

    def feed(self, data: bytes) -> list[tuple[bytes, bool]]:
        """The lines that ended in this chunk, without their ends, each with whether it was cut."""
        lines: list[tuple[bytes, bool]] = []
        *ended, rest = data.split(b"\n")
        for piece in ended:
            if self._dropping:
                self._dropping = False
                continue
            if self._parts:
                self._parts.append(piece)
                piece = b"".join(self._parts)
                self._parts, self._size = [], 0
            lines.append((piece, False))
        if rest and not self._dropping:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > self._limit:
                lines.append((b"".join(self._parts)[: self._limit], True))
                self._parts, self._size, self._dropping = [], 0, True
        return lines

    def flush(self) -> bytes:
        """What stood without a line end when the stream ended."""
        rest = b"".join(self._parts)
        self._parts, self._size = [], 0
        return rest
