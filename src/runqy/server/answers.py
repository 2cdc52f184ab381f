"""The JSON documents of the HTTP contract, with the names and capitals that the original gave them."""

from __future__ import annotations

import base64
import datetime
import time
from typing import Any

import msgspec

from runqy.broker.inspector import QueueCounts, TaskView
from runqy.broker.workers import WorkerRecord
from runqy.tasks.message import NewTask
from runqy.tasks.state import State, operator_actions
from runqy.timing import format_duration

ZERO_TIME = "0001-01-01T00:00:00Z"
_encode = msgspec.json.Encoder().encode

Document = dict[str, Any]


def rfc3339(seconds: float | None) -> str:
    """A time in UTC; Go's zero time for none."""
    if seconds is None:
        return ZERO_TIME
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    text = moment.isoformat(timespec="microseconds" if moment.microsecond else "seconds")
    return text.replace("+00:00", "Z")


def unix_ms(seconds: float | None) -> int | None:
    """A time as our own routes have it: whole unix milliseconds, None for none."""
    return None if seconds is None else round(seconds * 1000)


def local_time(seconds: float | None) -> str:
    """`YYYY-MM-DD HH:MM:SS` in local time, as the original's CLI routes have it; empty for none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds is not None else ""


def added(task: NewTask, echo: bytes, warnings: tuple[str, ...]) -> bytes:
    """The answer to `POST /queue/add` for a new task."""
    state = State.SCHEDULED if task.run_at is not None and task.run_at > time.time() else State.PENDING
    document: Document = {
        "info": {
            "id": task.id,
            "type": task.queue,
            "payload": base64.b64encode(task.payload).decode(),
            "state": state.value,
            "queue": task.queue,
            "max_retry": task.limits.max_retry,
            "retried": 0,
            "LastErr": "",
            "LastFailedAt": ZERO_TIME,
            "Deadline": ZERO_TIME,
            "Group": "",
            "NextProcessAt": rfc3339(task.run_at or time.time()),
            "IsOrphaned": False,
            "CompletedAt": ZERO_TIME,
            "Result": None,
        },
        "data": msgspec.Raw(echo),
    }
    if warnings:
        document["warnings"] = list(warnings)
    return _encode(document)


def task_info(view: TaskView) -> Document:
    """`Info` of `GET /queue/{id}`: payload and result as texts, never guessed to be anything else."""
    document: Document = {
        "id": view.id,
        "type": view.type,
        "payload": _text(view.payload),
        "state": view.state.value,
        "queue": view.queue,
        "max_retry": view.max_retry,
        "retried": view.retried,
        "LastErr": view.error,
        "LastFailedAt": rfc3339(view.last_failed_at),
        "Deadline": ZERO_TIME,
        "Group": "",
        "NextProcessAt": rfc3339(view.next_process_at),
        "IsOrphaned": view.is_orphaned,
        "CompletedAt": rfc3339(view.completed_at),
        "Result": _text(view.result or b""),
    }
    document["limits"] = view.limits.explain()
    document["attempts"] = [
        {
            "number": attempt.number,
            "worker": attempt.worker,
            "started_at": rfc3339(attempt.started_at),
            "ended_at": rfc3339(attempt.ended_at),
            "outcome": attempt.ending,
            "reason": attempt.reason,
        }
        for attempt in view.attempts
    ]
    document["result_stored"] = view.result_stored
    document["actions"] = [action.value for action in operator_actions(view.state)]
    if view.expires_at is not None:
        document["expires_at"] = rfc3339(view.expires_at)
    if view.worker:
        document["worker"], document["started_at"] = view.worker, rfc3339(view.started_at)
    if view.handler:
        document["task"] = view.handler
    if "progress" in view.fields:
        document["progress"] = msgspec.Raw(view.fields["progress"])
    return document


def expired_task(task_id: str, queue: str) -> Document:
    """A task that an idempotency key names, and that is gone."""
    return {"info": {"id": task_id, "queue": queue, "state": "expired"}}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def queue_info(counts: QueueCounts, memory: int = 0) -> Document:
    """One queue as the CLI routes show it."""
    return {
        "queue": counts.queue,
        "pending": counts.pending,
        "active": counts.active,
        "scheduled": counts.scheduled,
        "retry": counts.retry,
        "archived": counts.archived,
        "completed": counts.completed,
        "paused": counts.paused,
        "memory_usage": memory,
        "latency_seconds": round(counts.latency, 3),
        "processed": counts.processed,
        "failed": counts.failed,
    }


def task_row(view: TaskView, *, single: bool = False) -> Document:
    """One task as the CLI routes show it; some members only for some states, as in the original."""
    document: Document = {
        "id": view.id,
        "type": view.type,
        "queue": view.queue,
        "state": view.state.value,
        "payload": _text(view.payload),
        "max_retry": view.max_retry,
        "retried": view.retried,
    }
    if view.error and (single or view.state in {State.RETRY, State.ARCHIVED}):
        document["last_err"] = view.error
    limit = view.limits.active_timeout
    document["timeout"] = format_duration(limit * 1_000_000_000) if single and limit else ""
    if view.state in {State.SCHEDULED, State.RETRY}:
        document["next_process_at"] = local_time(view.next_process_at)
    if view.state is State.COMPLETED:
        document["completed_at"] = local_time(view.completed_at)
        document["result"] = _text(view.result or b"")
    if view.state is State.ARCHIVED:
        document["last_failed_at"] = local_time(view.last_failed_at)
    if view.state is State.ACTIVE and view.started_at is not None:
        document["started_at"] = local_time(view.started_at)
        document["worker"] = view.worker
    if single:
        document |= {
            name: value
            for name, value in task_info(view).items()
            if name in {"limits", "attempts", "result_stored", "actions", "expires_at", "progress", "task"}
        }
    return document


def worker_row(record: WorkerRecord, now: float) -> Document:
    """One worker: the original's members, and what ours know beside them."""
    document: Document = {
        "worker_id": record.worker_id,
        "started_at": record.started_at,
        "last_beat": record.last_beat,
        "concurrency": record.concurrency,
        "queues": record.queues_text(),
        "status": record.status,
        "is_stale": record.is_stale(now),
        "protected": record.protected,
        "healthy": record.healthy,
        "version": record.version,
        "queue_priorities": dict(record.queues),
        "metrics": dict(record.metrics),
        "recovery": dict(record.recovery),
        "commits": dict(record.commits),
        "current": list(record.current),
        "detail": list(record.detail),
    }
    if record.instance_id:
        document["instance_id"] = record.instance_id
    return document
