"""From the body of an enqueue request to a stamped task: shapes, checks, limits."""

from __future__ import annotations

import datetime
import hashlib
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from runqy.broker.outbox import LONGEST_ADDRESS, is_webhook_address, webhook_fields
from runqy.config.model import QueueConfig, validate_payload
from runqy.errors import ConflictError, NotFoundError, UsageError
from runqy.server.state import ServerState
from runqy.settings.spelling import nearest
from runqy.tasks.limits import LimitError, Override, parse_setting_duration, resolve
from runqy.tasks.message import NewTask, new_task_id
from runqy.timing import seconds_up

OPTIONS = frozenset({"task", "delay", "run_at", "task_id", "webhook_url"})
"""Keys of ours that are read only beside `data` (product decision 37)."""
_BESIDE_DATA = OPTIONS | {"queue", "timeout", "data"}
_WRAPPER = OPTIONS | {"timeout", "data"}
_TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}", re.ASCII)
_HANDLER = re.compile(r"[A-Za-z0-9_.:-]{1,128}", re.ASCII)
_LONGEST_TIMEOUT = 100 * 365 * 24 * 3600

Members = Mapping[str, msgspec.Raw]

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_jobs = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Job:
    """One task as a request describes it, before its queue is known."""

    payload: bytes
    timeout: int | None = None
    """seconds, None for "as the queue says\""""
    handler: str = ""
    run_at: float | None = None
    task_id: str = ""
    webhook_url: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """Where a task goes: the parent's configuration and the full name."""

    config: QueueConfig
    full: str


def read_members(body: bytes) -> Members:
    """The members of a JSON object, each as its text. Raises `UsageError`."""
    if not body.strip():
        raise UsageError("the body is empty", why="EOF", hint="send a JSON object")
    try:
        if not body.isascii():
            # Values are kept as they were sent, so the decoder never looks into them.
            body.decode("utf-8")
        return _decode_members(body)
    except msgspec.ValidationError:
        raise UsageError("the body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the body is not valid JSON: {error}") from None


def read_queue(members: Members) -> str:
    """The `queue` of a request. Raises `UsageError`."""
    raw = members.get("queue")
    if raw is None or bytes(raw) == b'""':
        raise UsageError("queue is required")
    queue = _decode_any(bytes(raw))
    if not isinstance(queue, str):
        raise UsageError("invalid queue field: it must be a text")
    return queue


def find_queue(state: ServerState, name: str) -> Target:
    """The queue of that name, from memory. Raises `NotFoundError` (404), `UsageError` for an impossible name."""
    found = state.queues.catalog.lookup(name)
    if found is None:
        full = name if "." in name else f"{name}.default"
        raise NotFoundError(f"queue not found: {full}")
    return Target(*found)


def read_job(members: Members) -> Job:
    """A single request: nested when it has `data`, else flat. Raises `UsageError`."""
    if "data" not in members:
        rest = {name: raw for name, raw in members.items() if name not in {"queue", "timeout"}}
        payload = b"{" + b",".join(_encode(name) + b":" + bytes(raw) for name, raw in rest.items()) + b"}"
        return Job(payload, read_timeout(members.get("timeout")))
    return _read_nested(members, _BESIDE_DATA)


def read_batch_job(raw: msgspec.Raw) -> Job:
    """One job of a batch: a wrapper when it has `data` and nothing but our own keys, else itself the payload."""
    text = bytes(raw)
    if text[:1] == b"{":
        members = _decode_members(text)
        if "data" in members and _WRAPPER.issuperset(members):
            return _read_nested(members, _WRAPPER)
    return Job(text)


def _read_nested(members: Members, known: frozenset[str]) -> Job:
    warnings = []
    for name in members:
        if name not in known:
            meant = nearest(name, known)
            warnings.append(f"{name} is not known and was ignored" + (f"; did you mean {meant}?" if meant else ""))
    return Job(
        bytes(members["data"]),
        read_timeout(members.get("timeout")),
        _read_text(members, "task", _HANDLER),
        _read_run_at(members),
        _read_text(members, "task_id", _TASK_ID),
        _read_webhook_url(members),
        tuple(warnings),
    )


def _read_text(members: Members, name: str, form: re.Pattern[str]) -> str:
    raw = members.get(name)
    value = None if raw is None else _decode_any(bytes(raw))
    if value is None:
        return ""
    if not isinstance(value, str) or not form.fullmatch(value):
        raise UsageError(f"invalid {name} field: 1 to 128 letters, digits, '_', '.', ':' or '-'")
    return value


def _read_webhook_url(members: Members) -> str:
    raw = members.get("webhook_url")
    value = None if raw is None else _decode_any(bytes(raw))
    if value is None:
        return ""
    if not isinstance(value, str) or not is_webhook_address(value):
        raise UsageError(
            "invalid webhook_url field: an http:// or https:// address without user name, password and spaces",
            why=f"and of at most {LONGEST_ADDRESS} characters",
        )
    return value


def read_timeout(raw: msgspec.Raw | None) -> int | None:
    """Seconds (a number) or a Go duration; 0, null or absent is "not given" (product decision 9)."""
    value = None if raw is None else _decode_any(bytes(raw))
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            return seconds_up(parse_setting_duration(value, "timeout")) or None
        except LimitError as error:
            raise UsageError(f"invalid timeout field: {error}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError('invalid timeout field: give seconds such as 30, or a duration such as "5m"')
    if value < 0:
        raise UsageError(f"invalid timeout field: timeout must be >= 0, got {value}")
    if value > _LONGEST_TIMEOUT:
        raise UsageError(f"invalid timeout field: timeout must be at most {_LONGEST_TIMEOUT} seconds, got {value}")
    return math.ceil(value) or None


def _read_run_at(members: Members) -> float | None:
    delay, run_at = members.get("delay"), members.get("run_at")
    if delay is not None and run_at is not None:
        raise UsageError("give delay or run_at, not both")
    if delay is not None:
        try:
            seconds = read_timeout(delay)
        except UsageError as error:
            raise UsageError(str(error).replace("timeout", "delay")) from None
        return None if seconds is None else time.time() + seconds
    if run_at is None:
        return None
    value = _decode_any(bytes(run_at))
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e11:
        return float(value)
    if isinstance(value, str):
        try:
            moment = datetime.datetime.fromisoformat(value)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return moment.timestamp()
    raise UsageError('invalid run_at field: give unix seconds, or a time with its zone such as "2030-01-31T09:00:00Z"')


def make_task(
    state: ServerState,
    target: Target,
    job: Job,
    *,
    batch_timeout: int | None = None,
    once: str = "",
    body_hash: str = "",
) -> NewTask:
    """Check the payload against the queue's fields and stamp the limits. Raises `PayloadError`, `UsageError`."""
    payload = validate_payload(target.config.input, job.payload)
    timeout = job.timeout if job.timeout is not None else batch_timeout
    limits = resolve(state.settings.defaults, target.config.limits, Override(active_timeout=timeout))
    if job.task_id:
        once, body_hash = digest(f"id {job.task_id}"), body_hash or digest(payload)
    wants_webhook = job.webhook_url or target.config.webhook is not None
    return NewTask(
        job.task_id or new_task_id(),
        target.full,
        payload,
        limits,
        target.config.retry,
        job.run_at,
        job.handler,
        once,
        body_hash,
        webhook_fields(target.full, job.webhook_url) if wants_webhook else (),
    )


def digest(value: str | bytes) -> str:
    """A short hash for idempotency records."""
    data = value.encode() if isinstance(value, str) else value
    return hashlib.sha256(data).hexdigest()[:40]


async def refuse_foreign_id(state: ServerState, task: NewTask, job: Job) -> None:
    """A chosen id that another queue uses is a conflict (product decision 22). Raises `ConflictError`."""
    if not job.task_id:
        return
    queue = await state.inspector.queue_of(job.task_id)
    if queue is not None and queue != task.queue:
        raise ConflictError(f"task_id {job.task_id} is used in queue {queue}", hint="choose another task_id")


def read_jobs(members: Members) -> list[msgspec.Raw]:
    """The `jobs` of a batch. Raises `UsageError`."""
    raw = members.get("jobs")
    if raw is None:
        raise UsageError("jobs is required")
    try:
        jobs = _decode_jobs(bytes(raw))
    except msgspec.ValidationError:
        raise UsageError("invalid jobs field: it must be an array") from None
    if not jobs:
        raise UsageError("jobs array cannot be empty")
    return jobs


def read_flag(members: Members, name: str) -> bool:
    """A boolean of a request; absent is false. Raises `UsageError`."""
    raw = members.get(name)
    value: Any = None if raw is None else _decode_any(bytes(raw))
    if value is None:
        return False
    if not isinstance(value, bool):
        raise UsageError(f"invalid {name} field: it must be true or false")
    return value
