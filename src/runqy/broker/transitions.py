"""The values that go into a transition and come out of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runqy.tasks.limits import Limits
from runqy.tasks.message import PickedTask
from runqy.tasks.outcome import Decision
from runqy.tasks.state import State


class EnqueueStatus(StrEnum):
    """What became of one task that was handed in; only `CREATED` changed anything."""

    CREATED = "created"
    REPEATED = "repeated"
    """the same idempotency key with the same body was used before; `Enqueued.id` is the first task"""
    MISMATCH = "mismatch"
    """the same idempotency key was used with another body"""
    EXISTS = "exists"
    """a task of this id exists already"""
    FULL = "full"
    """the queue holds max_pending waiting tasks"""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer for one task: what became of it, and the id under which it is known."""

    status: EnqueueStatus
    id: str


@dataclass(frozen=True, slots=True)
class Pickup:
    """What one pickup brought.

    ``expired`` tasks were over their pending_timeout and are archived; ``dropped`` ids had no task behind
    them. ``more`` says that the call stopped at its bound of work, not because the queues were empty.
    """

    tasks: tuple[PickedTask, ...]
    expired: int = 0
    dropped: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of one attempt of one task, decided and ready to be written.

    ``run_time`` is in seconds, 0 for a task that never started; ``wait`` is how long it stood in pending and
    was held ahead, in seconds, None where nobody knows.
    """

    queue: str
    id: str
    token: str
    decision: Decision
    limits: Limits
    run_time: float = 0.0
    wait: float | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A task that a worker holds, by what proves it."""

    queue: str
    id: str
    token: str


@dataclass(frozen=True, slots=True)
class Renewal:
    """What became of leases: tasks that this worker no longer owns, and tasks that it must cancel."""

    lost: tuple[Held, ...] = ()
    cancelled: tuple[Held, ...] = ()


class ActionStatus(StrEnum):
    """What an operator's action came to for one task."""

    DONE = "done"
    ASKED = "asked"
    """the task is running; its worker was told to stop it"""
    ILLEGAL = "illegal"
    """the task's state does not allow the action"""
    GONE = "gone"
    """there is no such task"""


@dataclass(frozen=True, slots=True)
class Acted:
    """The answer for one task: what the action came to, and the state in which the task was found."""

    id: str
    status: ActionStatus
    state: State | None
