"""The bodies of enqueue requests, as JSON text."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, Iterable, Mapping, Sequence, Union

from .encoding import encode_result
from .errors import PayloadEncodingError, ResultEncodingError

# One POST carries at most so many jobs and so many characters of them; the server's default limit is 50 MiB.
PART_JOBS = 1000
PART_SIZE = 8 * 1024 * 1024

# Seconds, or a text such as "90s".
Duration = Union[int, float, str]


def single_body(queue: str, payload: Any, timeout: Duration | None, options: Mapping[str, Any]) -> str:
    """The body that enqueues one task; options that are None are left out. Raises PayloadEncodingError."""
    fields = _fields(queue, timeout)
    fields.append(("data", _encoded_payload(payload)))
    fields += [(name, json.dumps(_wire_form(value))) for name, value in options.items() if value is not None]
    return _object(fields)


def batch_bodies(
    queue: str, payloads: Iterable[Any], timeout: Duration | None, task: str | None
) -> list[str]:
    """The bodies that enqueue many tasks, of which each goes in a request. Raises PayloadEncodingError."""
    before = [] if timeout is None else [("timeout", json.dumps(timeout))]
    after = [] if task is None else [("task", json.dumps(task))]
    jobs = [_object([*before, ("data", _encoded_payload(payload)), *after]) for payload in payloads]
    return [
        _object([*_fields(queue, timeout), ("jobs", "[" + ", ".join(part) + "]")]) for part in _parts(jobs)
    ]


def _wire_form(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        # A time without a zone is this machine's; the server may stand elsewhere.
        return (value.astimezone() if value.tzinfo is None else value).isoformat()
    return value


def _object(fields: Sequence[tuple[str, str]]) -> str:
    """A JSON object of values that are JSON already, so that a payload is encoded once."""
    return "{" + ", ".join(f'"{name}": {value}' for name, value in fields) + "}"


def _fields(queue: str, timeout: Duration | None) -> list[tuple[str, str]]:
    fields = [("queue", json.dumps(queue))]
    if timeout is not None:
        fields.append(("timeout", json.dumps(timeout)))
    return fields


def _encoded_payload(payload: Any) -> str:
    try:
        return encode_result(payload, "payload")
    except ResultEncodingError as error:
        raise PayloadEncodingError(f"Payload not JSON-serializable: {error}") from None


def _parts(jobs: list[str]) -> list[list[str]]:
    """The jobs in order, cut where a part would become too large. An empty batch is one empty part."""
    parts: list[list[str]] = [[]]
    size = 0
    for job in jobs:
        if parts[-1] and (len(parts[-1]) >= PART_JOBS or size + len(job) > PART_SIZE):
            parts.append([])
            size = 0
        parts[-1].append(job)
        size += len(job)
    return parts
