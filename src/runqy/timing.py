"""Time: a clock that is passed in, and durations written as Go writes them."""

from __future__ import annotations

import time
from typing import Protocol

from goduration import Duration, DurationParseError

NANOSECONDS_PER_SECOND = 1_000_000_000
EXAMPLES = '"24h", "90s", "0"'


class Clock(Protocol):
    """Where the time comes from; tests hand in one that they can move."""

    def now(self) -> float:
        """Unix time in seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never jump, for measuring how long something took."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


SYSTEM_CLOCK: Clock = SystemClock()


class DurationError(ValueError):
    """A text that Go's duration parser refuses; the message says why, without the value's field."""


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a Go duration such as ``90s`` or ``1h30m``.

    The grammar is exactly that of Go's ``time.ParseDuration``: an optional sign, decimal numbers each with
    a unit of ns, us, µs, ms, s, m or h; a bare ``0`` is fine, any other bare number is not.
    Raises `DurationError`.
    """
    # The parsing library reads digits of every script ("१s"); Go knows only ASCII ones.
    if not text.isascii() and any(c.isdigit() and not c.isascii() for c in text):
        raise DurationError("only the digits 0 to 9 are allowed")
    try:
        return Duration.parse(text).nanoseconds
    except DurationParseError as error:
        raise DurationError(str(error).removeprefix("time: ")) from error


def format_duration(nanoseconds: int) -> str:
    """Return the normal form that Go prints, such as ``1h30m0s``."""
    return str(Duration(nanoseconds))


def seconds_up(nanoseconds: int) -> int:
    """Whole seconds, a fraction rounded up, so that a short limit never becomes 0 (which means "off")."""
    return -(-nanoseconds // NANOSECONDS_PER_SECOND)
