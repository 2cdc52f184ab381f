"""Every error that runqy raises on purpose, as one tree.

::

    RunqyError                       1   500
    ├── UsageError                   2   400  the call itself is wrong: flag, argument, request body
    │   └── PayloadError             2   400  a payload does not fit its queue's fields (config/model.py)
    ├── ConfigurationError           1   400  a setting, queue file or duration is wrong
    ├── NotFoundError                3   404
    ├── ConflictError                1   409  it exists, it differs, it is not empty, it is in use
    ├── StateError                   1   409  the task's state does not allow the action
    ├── NotAllowedError              4   403
    │   └── NotAuthenticatedError    4   401
    ├── TooLargeError                1   413
    ├── BackPressureError            1   429  the queue is full; retry later
    ├── UnavailableError             5   503  a dependency can not be reached
    │   └── OutOfMemoryError         5   503  Redis refuses writes
    ├── NotImplementedYetError       1   501
    ├── TaskFailedError              6   500  the task ended, and not well
    └── DeploymentError              1   500  code, environment or start of a task process

Each class carries the exit code of the command line and the HTTP status; each instance says in up to three
parts what happened, why, and what to do.
"""

from __future__ import annotations


class RunqyError(Exception):
    """Root of the tree. ``what`` happened, ``why``, and ``hint``: what to do about it."""

    exit_code = 1
    http_status = 500

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        return ": ".join(part for part in (self.what, self.why) if part)

    def lines(self) -> list[str]:
        """The message for a person: what, why, what to do; one line each, empty parts left out."""
        lines = [self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.hint:
            lines.append(f"  fix: {self.hint}")
        return lines


class UsageError(RunqyError):
    """The call itself is wrong: an unknown flag, a missing argument, a body that can't be read."""

    exit_code = 2
    http_status = 400


class ConfigurationError(RunqyError):
    """A setting or a queue file is wrong. ``problems`` lists all of them, one text each."""

    http_status = 400

    def __init__(self, what: str, *, why: str = "", hint: str = "", problems: tuple[str, ...] = ()) -> None:
        super().__init__(what, why=why, hint=hint)
        self.problems = problems

    def __str__(self) -> str:
        return ": ".join(part for part in (super().__str__(), "; ".join(self.problems)) if part)

    def lines(self) -> list[str]:
        what, *rest = super().lines()
        return [what, *(f"  - {problem}" for problem in self.problems), *rest]


class NotFoundError(RunqyError):
    """A queue, task, worker or vault of that name does not exist."""

    exit_code = 3
    http_status = 404


class ConflictError(RunqyError):
    """It exists already, differs from what was sent before, is not empty, or is in use."""

    http_status = 409


class StateError(RunqyError):
    """The state of a task or a queue does not allow the action."""

    http_status = 409


class NotAllowedError(RunqyError):
    """The key is known but its role may not do this."""

    exit_code = 4
    http_status = 403


class NotAuthenticatedError(NotAllowedError):
    """No key, or one that nobody knows."""

    http_status = 401


class TooLargeError(RunqyError):
    """A body, payload or result is over the documented limit."""

    http_status = 413


class BackPressureError(RunqyError):
    """The queue holds as many waiting tasks as it may; ``retry_after`` is in seconds."""

    http_status = 429

    def __init__(self, what: str, *, why: str = "", hint: str = "", retry_after: float = 1.0) -> None:
        super().__init__(what, why=why, hint=hint)
        self.retry_after = retry_after


class UnavailableError(RunqyError):
    """A dependency (Redis, the database, the server) can't be reached now; the same call may work later."""

    exit_code = 5
    http_status = 503


class OutOfMemoryError(UnavailableError):
    """Redis has reached ``maxmemory`` and refuses writes."""


class NotImplementedYetError(RunqyError):
    """Part of the contract, but not in this release."""

    http_status = 501
    AUTOSCALE = "autoscaling of rented machines is not in this release"


class TaskFailedError(RunqyError):
    """The task that was waited for ended in ``archived``."""

    exit_code = 6


class DeploymentError(RunqyError):
    """Code could not be fetched, its environment not built, or its process not started.

    ``tail`` holds the last lines of the program that failed (git, pip, the task process).
    """

    def __init__(self, what: str, *, why: str = "", hint: str = "", tail: tuple[str, ...] = ()) -> None:
        super().__init__(what, why=why, hint=hint)
        self.tail = tail

    def lines(self) -> list[str]:
        what, *rest = super().lines()
        return [what, *(f"  | {line}" for line in self.tail), *rest]
