"""When a crashed runtime is started again, and when no more: back-off, breaker, cool-down. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runqy.settings.worker import WorkerSettings


class Recovery(StrEnum):
    """How a runtime stands."""

    IDLE = "idle"
    RECOVERING = "recovering"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class RestartRules:
    """The numbers of the recovery. Seconds."""

    enabled: bool = True
    max_restarts: int = 5
    initial_delay: float = 1.0
    max_delay: float = 300.0
    cooldown: float = 600.0
    factor: float = 2.0

    @classmethod
    def of(cls, settings: WorkerSettings) -> RestartRules:
        return cls(
            settings.recovery_enabled,
            settings.recovery_max_restarts,
            settings.recovery_initial_delay,
            settings.recovery_max_delay,
            settings.recovery_cooldown,
            settings.recovery_backoff_factor,
        )


class Breaker:
    """Counts crashes of one runtime; times are monotonic seconds."""

    def __init__(self, rules: RestartRules) -> None:
        self._rules = rules
        self._delay = rules.initial_delay
        self._last_crash: float | None = None
        self.state = Recovery.IDLE
        self.consecutive_fails = 0
        self.total_restarts = 0

    def crashed(self, now: float) -> float | None:
        """Count a crash, or a start that failed: how many seconds to wait before the next start.

        None opens the breaker: no start before `reset`.
        """
        if self._last_crash is not None and now - self._last_crash >= self._rules.cooldown:
            self.reset()
        self._last_crash = now
        self.consecutive_fails += 1
        if not self._rules.enabled or self.consecutive_fails >= self._rules.max_restarts:
            self.state = Recovery.DEGRADED
            return None
        self.state = Recovery.RECOVERING
        delay = self._delay
        self._delay = min(self._delay * self._rules.factor, self._rules.max_delay)
        return delay

    def recovered(self) -> None:
        """The runtime is ready after a crash; its count falls back only after the cool-down."""
        self.state = Recovery.IDLE
        self.total_restarts += 1

    def reset(self) -> None:
        """Begin afresh: an operator's restart, new code, or a cool-down without a crash."""
        self.state = Recovery.IDLE
        self.consecutive_fails = 0
        self._delay = self._rules.initial_delay
        self._last_crash = None

    def describe(self) -> dict[str, str | int]:
        """As the worker's record shows it."""
        return {
            "state": self.state.value,
            "consecutive_fails": self.consecutive_fails,
            "total_restarts": self.total_restarts,
        }
