"""When a failed task is tried again: the delay, its growth, its cap, its spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from runqy.tasks.limits import LimitError, parse_setting_duration

_DAY = 24 * 3600.0


class Backoff(StrEnum):
    """How the delay grows with the number of the retry."""

    EXPONENTIAL = "exponential"
    """delay x n⁴: 10 s, 160 s, 810 s, 2560 s with the default delay (asynq's own curve in the original)"""
    LINEAR = "linear"
    """delay x n"""
    FIXED = "fixed"
    """the delay, every time"""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a task waits in ``retry``. Seconds; ``jitter`` is the share by which a delay is spread."""

    delay: float = 10.0
    backoff: Backoff = Backoff.EXPONENTIAL
    max_delay: float = _DAY
    jitter: float = 0.1

    def delay_before(self, retry: int, random: float) -> float:
        """Seconds before the ``retry``-th retry (1 is the first); ``random`` in [0, 1) places it in the spread.

        Spread so that what failed together does not come back together. Never over ``max_delay``: there the
        whole spread lies below it.
        """
        growth = {Backoff.EXPONENTIAL: float(retry) ** 4, Backoff.LINEAR: float(retry), Backoff.FIXED: 1.0}
        delay = min(self.delay * growth[self.backoff], self.max_delay)
        highest = min(delay * (1 + self.jitter), self.max_delay)
        lowest = max(highest - 2 * delay * self.jitter, 0.0)
        return lowest + (highest - lowest) * random

    def stamp(self) -> str:
        """The policy as it stands in the task's hash; empty for the default, which needs no stamp."""
        if self == DEFAULT_RETRY_POLICY:
            return ""
        return f"{self.backoff.value[0]},{self.delay!r},{self.max_delay!r},{self.jitter!r}"

    @classmethod
    def read_stamp(cls, text: str | None) -> RetryPolicy:
        """The policy that a task carries; the default where there is no readable stamp."""
        if not text:
            return DEFAULT_RETRY_POLICY
        try:
            letter, delay, max_delay, jitter = text.split(",")
            backoff = next(b for b in Backoff if b.value[0] == letter)
            return cls(float(delay), backoff, float(max_delay), float(jitter))
        except (ValueError, StopIteration):
            return DEFAULT_RETRY_POLICY

    @classmethod
    def parse(cls, values: Mapping[str, object], prefix: str = "retry.") -> RetryPolicy:
        """Read ``deployment.retry`` of a queue. Raises `LimitError` with all problems."""
        problems: list[str] = []
        read: dict[str, float | Backoff] = {}
        for key, value in values.items():
            try:
                if key in {"delay", "max_delay"}:
                    read[key] = parse_setting_duration(value, prefix + key) / 1e9
                elif key == "backoff":
                    read[key] = _parse_backoff(value, prefix + key)
                elif key == "jitter":
                    read[key] = _parse_share(value, prefix + key)
                else:
                    problems.append(f"{prefix}{key}: unknown key, known are delay, backoff, max_delay, jitter")
            except LimitError as error:
                problems.append(str(error))
        if problems:
            raise LimitError("; ".join(problems))
        return cls(**read)  # type: ignore[arg-type]


DEFAULT_RETRY_POLICY = RetryPolicy()


def _parse_backoff(value: object, name: str) -> Backoff:
    try:
        return Backoff(value)  # type: ignore[arg-type]
    except ValueError:
        words = ", ".join(Backoff)
        raise LimitError(f"{name} must be one of {words}, got {value!r}") from None


def _parse_share(value: object, name: str) -> float:
    refused = LimitError(f"{name} must be a number from 0 to 1 such as 0.1, got {value!r}")
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise refused
    try:
        share = float(value)
    except ValueError:
        raise refused from None
    if not 0 <= share <= 1:
        raise refused
    return share
