"""The search bar's language: ``queue:echo state:archived error:timeout payload.user.id:7 older:1h word``.

A qualifier is ``name:value``; values with spaces stand in double quotes. Several of the same kind are
alternatives for ``queue`` and ``state``, and all must hold for the rest. A bare word is looked for in the id, the
error and the payload.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from runqy.errors import UsageError
from runqy.tasks.limits import LimitError, parse_setting_duration
from runqy.tasks.state import State

QUALIFIERS = {
    "queue": "full name, or a parent for all its sub-queues",
    "state": "pending, active, scheduled, retry, archived, completed",
    "id": "the whole id of a task",
    "worker": "id of the worker that runs it or ran it last",
    "error": "a part of the error text",
    "task": "name of the handler",
    "older": "ended, failed or entered its queue longer ago than, such as 1h30m",
    "newer": "the same, but less long ago",
    "payload.": "a value in the payload, as payload.user.id:7",
}
LONGEST_QUERY = 1_000
_WORD = re.compile(r'(?:(?P<name>[A-Za-z][\w.\-\[\]]*):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>\S+))')


@dataclass(frozen=True, slots=True)
class Query:
    """What to look for. ``older`` and ``newer`` in seconds; empty members match everything."""

    queues: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    ids: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    handlers: tuple[str, ...] = ()
    payload: tuple[tuple[tuple[str, ...], str], ...] = ()
    words: tuple[str, ...] = ()
    older: float | None = None
    newer: float | None = None

    @property
    def needs_text(self) -> bool:
        """Whether every task has to be read to know: no index answers it."""
        return bool(self.workers or self.errors or self.handlers or self.payload or self.words or self.has_age)

    @property
    def has_age(self) -> bool:
        return self.older is not None or self.newer is not None

    def wants_queue(self, full: str) -> bool:
        """Whether tasks of this queue can match."""
        return not self.queues or full in self.queues or full.partition(".")[0] in self.queues


def parse_query(text: str) -> Query:
    """Read a search. Raises `UsageError` that says which part is wrong and what is possible."""
    if len(text) > LONGEST_QUERY:
        raise UsageError(f"the search is longer than {LONGEST_QUERY} characters")
    found: dict[str, list[Any]] = {}
    for match in _WORD.finditer(text):
        name = match["name"] or ""
        quoted = match["quoted"]
        value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else match["plain"]
        _take(found, name, value)
    return Query(
        queues=tuple(found.get("queue", ())),
        states=tuple(found.get("state", ())),
        ids=tuple(found.get("id", ())),
        workers=tuple(found.get("worker", ())),
        errors=tuple(value.casefold() for value in found.get("error", ())),
        handlers=tuple(found.get("task", ())),
        payload=tuple(found.get("payload", ())),
        words=tuple(value.casefold() for value in found.get("", ())),
        older=_only(found, "older"),
        newer=_only(found, "newer"),
    )


def _take(found: dict[str, list[Any]], name: str, value: str) -> None:
    if name.startswith("payload."):
        path = tuple(part for part in re.split(r"[.\[\]]", name.removeprefix("payload.")) if part)
        found.setdefault("payload", []).append((path, value))
    elif name == "state":
        found.setdefault(name, []).append(_state(value))
    elif name in {"older", "newer"}:
        try:
            found.setdefault(name, []).append(parse_setting_duration(value, name) / 1e9)
        except LimitError as error:
            raise UsageError(str(error)) from None
    elif not name or name in QUALIFIERS:
        found.setdefault(name, []).append(value)
    else:
        known = ", ".join(QUALIFIERS)
        raise UsageError(
            f"{name}: is no qualifier", why=f"there are {known}", hint=f'to look for the text, write "{name}:…"'
        )


def _state(value: str) -> State:
    try:
        return State(value)
    except ValueError:
        raise UsageError(f"invalid state: {value}", hint=f"it is one of {', '.join(State)}") from None


def _only(found: dict[str, list[Any]], name: str) -> float | None:
    values = found.get(name, [])
    if len(values) > 1:
        raise UsageError(f"{name}: may stand only once")
    return values[0] if values else None
