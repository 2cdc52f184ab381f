"""What the server says about tasks, as values."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

ENDED = frozenset(("completed", "archived", "expired"))


@dataclass
class TaskInfo:
    """A task as the server last told of it.

    `result` and `payload` are decoded from JSON where they are JSON. `error` is the last error text, None if
    there is none. `result_stored` is False for a completed task whose queue keeps no results.
    """

    task_id: str
    queue: str
    state: str
    result: Any | None = None
    error: str | None = None
    payload: Any | None = None
    result_stored: bool = True

    @property
    def ended(self) -> bool:
        """Whether the task is over, one way or the other."""
        return self.state in ENDED


@dataclass
class BatchResult:
    """What became of a batch: how many tasks were accepted and refused, their ids, and why not."""

    enqueued: int
    failed: int
    task_ids: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(self, part: BatchResult) -> None:
        """Count another part of the same batch in."""
        self.enqueued += part.enqueued
        self.failed += part.failed
        self.task_ids.extend(part.task_ids)
        self.errors.extend(part.errors)


@dataclass(frozen=True)
class TaskEvent:
    """One event of `stream()`: `kind` is "state", "progress", "log" or "output"; `data` is its JSON."""

    kind: str
    data: Any


def added_task(answer: dict[str, Any], queue: str, payload: Any) -> TaskInfo:
    """The task of an answer to an enqueue."""
    info = _first(answer, "info", "Info") or {}
    return TaskInfo(
        task_id=_first(info, "id", "ID") or "",
        queue=_first(info, "queue", "Queue") or queue,
        state=_first(info, "state", "State") or "pending",
        payload=payload,
    )


def fetched_task(answer: dict[str, Any], task_id: str) -> TaskInfo:
    """The task of an answer to a question about it."""
    info = _first(answer, "Info", "info") or {}
    stored = info.get("result_stored", answer.get("result_stored", True))
    return TaskInfo(
        task_id=_first(info, "ID", "id") or task_id,
        queue=_first(info, "Queue", "queue") or "",
        state=_first(info, "State", "state") or "",
        result=_decoded(_first(info, "Result", "result")),
        error=_first(info, "LastErr", "last_err") or None,
        payload=_decoded(_first(info, "Payload", "payload")),
        result_stored=stored is not False,
    )


def added_batch(answer: dict[str, Any]) -> BatchResult:
    """The counts of an answer to a batch."""
    return BatchResult(
        enqueued=answer.get("enqueued") or 0,
        failed=answer.get("failed") or 0,
        task_ids=list(answer.get("task_ids") or []),
        errors=list(answer.get("errors") or []),
    )


def _first(info: dict[str, Any], *names: str) -> Any:
    for name in names:
        if name in info:
            return info[name]
    return None


def _decoded(value: Any) -> Any:
    if not isinstance(value, str) or not value:
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
