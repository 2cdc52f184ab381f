"""Everything that this package raises on purpose, as one tree per side: handlers and callers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any


class RetryableError(Exception):
    """Raised by a handler: this attempt failed, a later one may succeed.

    `delay` is the wait before the next attempt in seconds (or a timedelta); without it the queue's own
    retry delay counts. Workers that speak only version 1 of the line protocol ignore the delay.

    Raises ValueError for a negative or non-finite delay.
    """

    # On the class, so that a subclass with an __init__ of its own need not call this one.
    delay: float | None = None

    def __init__(self, *args: object, delay: float | timedelta | None = None) -> None:
        super().__init__(*args)
        if isinstance(delay, timedelta):
            delay = delay.total_seconds()
        if delay is not None:
            delay = float(delay)
            if not 0 <= delay < float("inf"):
                raise ValueError(f"delay is {delay} s; it must be a finite number of seconds, 0 or more")
            self.delay = delay


class InvalidPayloadError(Exception):
    """The payload does not fit the type that the handler asks for; the text names every bad field."""


class ResultEncodingError(Exception):
    """A handler's result has no JSON form; the text names the place inside the result."""


class RunqyError(Exception):
    """Base of everything that the client raises.

    `status` is the HTTP status if the server answered, else None. `errors` are the server's own messages,
    empty if it sent none. When a batch was sent in parts and a later part failed, `accepted` is the
    BatchResult of the parts before it, and `idempotency_key` repeats the whole without doubling those.
    """

    accepted: Any = None
    idempotency_key: str | None = None

    def __init__(self, message: str = "", status: int | None = None, errors: list[str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.errors: list[str] = errors or []


class AuthenticationError(RunqyError):
    """The server does not know the API key (HTTP 401)."""


class PermissionDeniedError(RunqyError):
    """The API key is known but may not do this (HTTP 403)."""


class TaskNotFoundError(RunqyError):
    """The task or queue does not exist, or its retention is over (HTTP 404)."""


class ConflictError(RunqyError):
    """The idempotency key or task id was used before with another body or queue (HTTP 409)."""


class InvalidRequestError(RunqyError):
    """The server refused the request itself: a bad field, or too large a body (HTTP 400, 413, 422)."""


class PayloadEncodingError(InvalidRequestError, TypeError, ValueError):
    """A payload has no JSON form; the text names the place inside it. Nothing was sent."""


class ServerUnavailableError(RunqyError):
    """The server could not be reached, or could not answer now, after all attempts that were safe."""


class WaitTimeoutError(RunqyError, TimeoutError):
    """The task had not ended when the time given to `wait()` or `result()` was over; it goes on."""


class TaskFailedError(RunqyError):
    """The task ended without a result; `error` is its last error text, `task` all that is known of it."""

    def __init__(self, message: str, task: Any = None, error: str | None = None) -> None:
        super().__init__(message)
        self.task = task
        self.error = error


class ResultNotStoredError(RunqyError):
    """The task succeeded, but its queue does not keep results (`redis_storage: false`)."""


def text_of(error: BaseException) -> str:
    """The text of an exception, or its class name if that is empty or can't be had."""
    try:
        text = str(error)
    except BaseException:
        text = ""
    return text if text.strip() else type(error).__name__
