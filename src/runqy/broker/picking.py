"""Reads what the pickup script returns into tasks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runqy.tasks.limits import STAMPS, Limits, read_stamps
from runqy.tasks.message import MessageError, PickedTask, decode
from runqy.tasks.retry import DEFAULT_RETRY_POLICY, RetryPolicy


@dataclass(slots=True)
class Picked:
    """Tasks that can be run, and those whose message nobody can read: queue, id, token, problem, limits."""

    tasks: list[PickedTask] = field(default_factory=list)
    unreadable: list[tuple[str, str, str, str, Limits]] = field(default_factory=list)


def read_pickup(queues: Sequence[str], rows: Sequence[Any], now_us: int, token: str, fallback: Limits) -> Picked:
    """``rows`` are the script's tasks, as its contract lists their values."""
    picked = Picked()
    for row in rows:
        queue = queues[row[8] - 1]
        try:
            picked.tasks.append(_task(queue, row, now_us, token, fallback))
        except MessageError as problem:
            limits = _limits(*row[2:6], None, fallback)
            picked.unreadable.append((queue, row[7].decode(), token, str(problem), limits))
    return picked


def _task(queue: str, row: Sequence[Any], now_us: int, token: str, fallback: Limits) -> PickedTask:
    data, since, retried_text = row[0], row[1], row[6]
    policy, handler = row[10:12] if len(row) > 10 else (None, None)
    retried = int(retried_text) if retried_text and retried_text.isdigit() else 0
    if data is not None:
        message = decode(data)
        type_, payload, max_retry = message.type, message.payload, message.retry
        retried = max(retried, message.retried)
    else:
        # A task that was put into Redis by hand, without a message (the original reads these three fields).
        type_bytes, payload, max_text = row[12:15]
        type_ = (type_bytes or queue.encode()).decode("utf-8", "replace")
        payload = payload or b""
        max_retry = int(max_text) if max_text and max_text.isdigit() else fallback.max_retry
    return PickedTask(
        row[7].decode(),
        queue,
        type_,
        payload,
        _limits(*row[2:6], max_retry, fallback),
        retried,
        retried + 1,
        RetryPolicy.read_stamp(policy.decode()) if policy else DEFAULT_RETRY_POLICY,
        token,
        _wait(since, now_us),
        handler.decode("utf-8", "replace") if handler else "",
        row[9] == 1,
    )


@functools.lru_cache(maxsize=4096)
def _limits(
    pending_timeout: bytes | None,
    active_timeout: bytes | None,
    ttl_completed: bytes | None,
    ttl_archived: bytes | None,
    max_retry: int | None,
    fallback: Limits,
) -> Limits:
    """The stamps of most tasks are the same few: read once, then remembered."""
    values = (ttl_completed, ttl_archived, pending_timeout, active_timeout)
    stamps: dict[str, str | bytes | None] = {lever.name: value for lever, value in zip(STAMPS, values, strict=True)}
    return read_stamps(stamps, max_retry, "", fallback)


def read_since(stamp: bytes | None) -> float | None:
    """Unix seconds of a pending_since: nanoseconds, or seconds where an older worker wrote it."""
    if not stamp or not stamp.isdigit() or stamp == b"0":
        return None
    value = int(stamp)
    return value / 1e9 if value > 1e12 else float(value)


def _wait(stamp: bytes | None, now_us: int) -> float:
    since = read_since(stamp)
    return 0.0 if since is None else max(now_us / 1e6 - since, 0.0)
