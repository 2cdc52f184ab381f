"""The JSON documents of the original's monitoring routes."""

from __future__ import annotations

import datetime
import time
from typing import Any

from runqy.broker.daily import Day
from runqy.broker.inspector import QueueCounts, TaskView
from runqy.server.answers import rfc3339
from runqy.tasks.state import State
from runqy.timing import format_duration

UNPRINTABLE = "non-printable bytes"


def stats(counts: QueueCounts, today: Day, memory: int) -> dict[str, Any]:
    """A queue's sizes and what it did today (UTC)."""
    latency_ms = round(counts.latency * 1000)
    return {
        "queue": counts.queue,
        "memory_usage_bytes": memory,
        "size": counts.size,
        "groups": 0,
        "latency_msec": latency_ms,
        "display_latency": format_duration(latency_ms // 10 * 10_000_000) if latency_ms else "0s",
        "active": counts.active,
        "pending": counts.pending,
        "aggregating": 0,
        "scheduled": counts.scheduled,
        "retry": counts.retry,
        "archived": counts.archived,
        "completed": counts.completed,
        "processed": today.processed,
        "succeeded": today.processed - today.failed,
        "failed": today.failed,
        "paused": counts.paused,
        "timestamp": rfc3339(time.time()),
    }


def day_row(day: Day) -> dict[str, Any]:
    """One day of a queue."""
    return {
        "queue": day.queue,
        "processed": day.processed,
        "succeeded": day.processed - day.failed,
        "failed": day.failed,
        "date": day.date,
    }


def today() -> datetime.date:
    """The day (UTC) that counters are written under now."""
    return datetime.datetime.now(datetime.UTC).date()


def shown(data: bytes | None) -> str:
    """A payload or result as the original shows it: text, or a word for what is none."""
    text = (data or b"").decode("utf-8", "replace")
    if not data:
        return ""
    return text if text.isprintable() and not text.isspace() and "\ufffd" not in text else UNPRINTABLE


def _stamp(seconds: float | None) -> str:
    return "" if seconds is None else rfc3339(float(int(seconds)))


def _ttl(view: TaskView) -> int:
    return -1 if view.expires_at is None else max(round(view.expires_at - time.time()), 0)


def row(view: TaskView) -> dict[str, Any]:
    """One task in a list; some members only for some states, as in the original."""
    document: dict[str, Any] = {
        "id": view.id,
        "type": view.type,
        "payload": shown(view.payload),
        "queue": view.queue,
        "max_retry": view.max_retry,
        "retried": view.retried,
        "error_message": view.error,
    }
    match view.state:
        case State.ACTIVE:
            document["start_time"] = _stamp(view.started_at) or "-"
            document |= {"deadline": "-", "is_orphaned": view.is_orphaned}
        case State.SCHEDULED | State.RETRY:
            document["next_process_at"] = _stamp(view.next_process_at)
        case State.ARCHIVED:
            document["last_failed_at"] = _stamp(view.last_failed_at)
        case State.COMPLETED:
            document |= {"completed_at": _stamp(view.completed_at), "result": shown(view.result)}
            document["ttl_seconds"] = _ttl(view)
        case State.PENDING:
            pass
    return document


def task(view: TaskView) -> dict[str, Any]:
    """One task alone."""
    is_waiting = view.state in {State.SCHEDULED, State.RETRY}
    return {
        "id": view.id,
        "queue": view.queue,
        "type": view.type,
        "payload": shown(view.payload),
        "state": view.state.value,
        "max_retry": view.max_retry,
        "retried": view.retried,
        "error_message": view.error,
        "last_failed_at": _stamp(view.last_failed_at),
        "timeout_seconds": view.limits.active_timeout,
        "deadline": "",
        "next_process_at": _stamp(view.next_process_at) if is_waiting else "",
        "completed_at": _stamp(view.completed_at),
        "result": shown(view.result),
        "ttl_seconds": _ttl(view) if view.state in {State.COMPLETED, State.ARCHIVED} else 0,
    }
