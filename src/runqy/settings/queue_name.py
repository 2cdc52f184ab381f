"""Names of queues: ``parent`` or ``parent.sub``, one dot at most."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runqy.errors import UsageError

SEPARATOR = "."
DEFAULT_SUB_QUEUE = "default"
MAX_LENGTH = 128
_PARENT = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]*", re.ASCII)
_SUB = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)
RULE = f"1 to {MAX_LENGTH} of the letters a-z A-Z, digits, '-' and '_', beginning with a letter or a digit"


@dataclass(frozen=True, slots=True)
class QueueName:
    """A parent queue and, where one was named, its sub-queue."""

    parent: str
    sub: str | None = None

    @property
    def full(self) -> str:
        """``parent.sub``; a bare parent means its sub-queue ``default``."""
        return f"{self.parent}{SEPARATOR}{self.sub or DEFAULT_SUB_QUEUE}"

    def __str__(self) -> str:
        return self.parent if self.sub is None else self.full


def name_problem(name: str, *, is_sub: bool = False) -> str | None:
    """Why ``name`` can't be the name of one parent or one sub-queue (without its dot); None when it can."""
    if SEPARATOR in name:
        return f"queue name '{name}' cannot contain '.' (reserved as separator)"
    pattern = _SUB if is_sub else _PARENT
    if len(name) > MAX_LENGTH or pattern.fullmatch(name) is None:
        return f"invalid queue name {name!r}: must be {RULE}"
    return None


def parse_queue_name(text: str) -> QueueName:
    """Read ``parent`` or ``parent.sub``. Raises `UsageError` (400) for any other form."""
    parent, dot, sub = text.partition(SEPARATOR)
    if not text or SEPARATOR in sub or len(text) > MAX_LENGTH:
        raise UsageError(f"invalid queue name {text!r}", why="must be 'parent' or 'parent.sub', one dot at most")
    if name_problem(parent) or (dot and name_problem(sub, is_sub=True)):
        raise UsageError(f"invalid queue name {text!r}", why=f"must be 'parent' or 'parent.sub', each {RULE}")
    return QueueName(parent, sub if dot else None)
