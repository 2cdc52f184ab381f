"""One shape for every refusal: `{"errors": ["…"]}` with the status of the error's class."""

from __future__ import annotations

import math

import msgspec

from runqy.config.model import PayloadError
from runqy.errors import BackPressureError, ConfigurationError, RunqyError, UnavailableError
from runqy.telemetry import redact


def error_texts(error: RunqyError) -> list[str]:
    """What is wrong, one text per problem; with what to do about it where that is known."""
    if (isinstance(error, ConfigurationError) and error.problems) or isinstance(error, PayloadError):
        texts = list(error.problems)
    else:
        texts = [f"{error} ({error.hint})" if error.hint else str(error)]
    return [redact(text) for text in texts]


def error_answer(error: RunqyError) -> tuple[int, bytes, tuple[tuple[bytes, bytes], ...]]:
    """Status, body and further headers."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if isinstance(error, BackPressureError):
        headers = ((b"retry-after", b"%d" % max(math.ceil(error.retry_after), 1)),)
    elif isinstance(error, UnavailableError):
        headers = ((b"retry-after", b"1"),)
    # Nothing that runqy foresees is an internal error (product decision 44).
    status = error.http_status if error.http_status != 500 else 503
    return status, msgspec.json.encode({"errors": error_texts(error)}), headers
