"""What a reply says about a task that did not succeed."""

from __future__ import annotations

import os
import traceback
from types import TracebackType
from typing import NamedTuple

from .errors import InvalidPayloadError, ResultEncodingError, RetryableError, text_of

# An error is for people to read; one that is longer than this keeps its two ends.
LONGEST_ERROR = 256 * 1024

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Failure(NamedTuple):
    """One failed attempt: a text that is never empty, whether to try again, and after how many seconds."""

    error: str
    retry: bool = False
    delay: float | None = None


def failure_of(error: BaseException, retry_on: tuple[type[BaseException], ...] = ()) -> Failure:
    """The failure that an exception means. Never raises, whatever the exception's own methods do."""
    if isinstance(error, RetryableError):
        return Failure(_shortened(text_of(error)), True, _seconds(error.delay))
    if isinstance(error, ResultEncodingError):
        return Failure(_shortened(f"Result not JSON-serializable: {text_of(error)}"))
    if isinstance(error, InvalidPayloadError):
        return Failure(_shortened(text_of(error)))
    return Failure(_shortened(traceback_of(error)), isinstance(error, retry_on))


def traceback_of(error: BaseException) -> str:
    """The traceback as Python prints it, from the first line of task code on."""
    frames = error.__traceback__
    outer: TracebackType | None = frames
    while outer is not None and outer.tb_frame.f_code.co_filename.startswith(_HERE):
        outer = outer.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, outer or frames))
    except BaseException:
        text = ""
    return text if text.strip() else type(error).__name__


def _seconds(delay: object) -> float | None:
    """A delay that a subclass may have set to anything; what is no number of seconds is no delay."""
    try:
        seconds = float(delay)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_ERROR:
        return text
    half = LONGEST_ERROR // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} characters left out) ...\n{text[-half:]}"
