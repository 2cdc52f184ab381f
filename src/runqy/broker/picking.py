"""Reads what the pickup script returns into tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runqy.tasks.limits import STAMPS, Limits, read_stamps
from runqy.tasks.message import MessageError, PickedTask, decode
from runqy.tasks.retry import RetryPolicy


@dataclass(slots=True)
class Picked:
    """Tasks that can be run, and those whose message nobody can read: queue, id, token, problem, limits."""

    tasks: list[PickedTask] = field(default_factory=list)
    unreadable: list[tuple[str, str, str, str, Limits]] = field(default_factory=list)


def read_pickup(queues: Sequence[str], rows: Sequence[Any], token: str, fallback: Limits) -> Picked:
    """``rows`` are the script's tasks: queue index from 1, id, ahead, time of the pickup (us), hash fields."""
    picked = Picked()
    for index, id_, ahead, now, fields in rows:
        queue, task_id = queues[index - 1], id_.decode()
        try:
            picked.tasks.append(_task(queue, task_id, bool(ahead), int(now), fields, token, fallback))
        except MessageError as problem:
            limits = _limits(fields, None, fallback)
            picked.unreadable.append((queue, task_id, token, str(problem), limits))
    return picked


def _task(
    queue: str, task_id: str, ahead: bool, now_us: int, fields: Sequence[Any], token: str, fallback: Limits
) -> PickedTask:
    data, since, *_, retried_text, _, policy, handler = fields[:10]
    retried = int(retried_text) if retried_text and retried_text.isdigit() else 0
    if data is not None:
        message = decode(data)
        type_, payload, max_retry = message.type, message.payload, message.retry
        retried = max(retried, message.retried)
    else:
        # A task that was put into Redis by hand, without a message (the original reads these three fields).
        type_bytes, payload, max_text = fields[10]
        type_ = (type_bytes or queue.encode()).decode("utf-8", "replace")
        payload = payload or b""
        max_retry = int(max_text) if max_text and max_text.isdigit() else fallback.max_retry
    return PickedTask(
        id=task_id,
        queue=queue,
        type=type_,
        payload=payload,
        limits=_limits(fields, max_retry, fallback),
        retried=retried,
        attempt=retried + 1,
        retry_policy=RetryPolicy.read_stamp(policy.decode() if policy else None),
        token=token,
        wait=_wait(since, now_us),
        handler=handler.decode("utf-8", "replace") if handler else "",
        ahead=ahead,
    )


def _limits(fields: Sequence[Any], max_retry: int | None, fallback: Limits) -> Limits:
    pending_timeout, ttl_archived, active_timeout, ttl_completed = fields[2:6]
    stamps = dict(
        zip(
            (lever.name for lever in STAMPS),
            (ttl_completed, ttl_archived, pending_timeout, active_timeout),
            strict=True,
        )
    )
    sources = fields[7].decode() if fields[7] else ""
    return read_stamps(stamps, max_retry, sources, fallback)


def read_since(stamp: bytes | None) -> float | None:
    """Unix seconds of a pending_since: nanoseconds, or seconds where an older worker wrote it."""
    if not stamp or not stamp.isdigit() or stamp == b"0":
        return None
    value = int(stamp)
    return value / 1e9 if value > 1e12 else float(value)


def _wait(stamp: bytes | None, now_us: int) -> float:
    since = read_since(stamp)
    return 0.0 if since is None else max(now_us / 1e6 - since, 0.0)
