"""What differs between two states of a queue, place by place: for the history and for `config plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runqy.config.encoding import queue_document
from runqy.config.model import QueueConfig
from runqy.tasks.limits import Limits, resolve

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """One place, dotted (``deployment.branch``, ``sub_queues.high.priority``); None where it has no value."""

    path: str
    before: Any
    after: Any


def effective_document(config: QueueConfig, defaults: Limits) -> dict[str, Any]:
    """The queue with every limit as it will act: ``{"value", "source"}``, the server's defaults included."""
    document = queue_document(config)
    if "deployment" in document:
        document["deployment"]["limits"] = resolve(defaults, config.limits).explain()
    return document


def differences(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> tuple[Difference, ...]:
    """What differs between two documents, sorted by place."""
    old, new = _flat(before or {}), _flat(after or {})
    return tuple(
        Difference(path, old.get(path), new.get(path))
        for path in sorted(old.keys() | new.keys())
        if old.get(path, _MISSING) != new.get(path, _MISSING)
    )


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves by their dotted path. A list of things with names counts as a map of them; other lists are leaves."""
    if isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
        value = {str(item["name"]): {key: part for key, part in item.items() if key != "name"} for item in value}
    if not isinstance(value, Mapping) or (not value and prefix):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, part in value.items():
        found |= _flat(part, f"{prefix}.{key}" if prefix else str(key))
    return found
