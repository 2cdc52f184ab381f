"""Slows down guessing: a few failed log-ins for an account or from an address, then 429 for a while."""

from __future__ import annotations

from collections import OrderedDict, deque

from runqy.errors import BackPressureError
from runqy.timing import SYSTEM_CLOCK, Clock

WINDOW_SECONDS = 300.0
PER_ACCOUNT, PER_ADDRESS = 5, 20
_MOST_NAMES = 10_000


class LoginLimit:
    """Counts failures per name in a sliding window. Bounded: the longest unseen names are forgotten."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, email: str, address: str) -> None:
        """Raises `BackPressureError` (429) when there were too many failures."""
        for name, most in ((f"account {email}", PER_ACCOUNT), (f"address {address}", PER_ADDRESS)):
            failures = self._recent(name)
            if len(failures) >= most:
                wait = failures[0] + WINDOW_SECONDS - self._clock.monotonic()
                raise BackPressureError(
                    "too many failed log-ins", hint=f"try again in {max(round(wait), 1)} s", retry_after=wait
                )

    def failed(self, email: str, address: str) -> None:
        """Count a failure."""
        for name in (f"account {email}", f"address {address}"):
            self._failures.setdefault(name, deque(maxlen=PER_ADDRESS)).append(self._clock.monotonic())
            self._failures.move_to_end(name)
        while len(self._failures) > _MOST_NAMES:
            self._failures.popitem(last=False)

    def succeeded(self, email: str, address: str) -> None:
        """Forget an account's failures, and what was counted for this try at the address."""
        self._failures.pop(f"account {email}", None)
        if failures := self._failures.get(f"address {address}"):
            failures.pop()

    def _recent(self, name: str) -> deque[float]:
        failures = self._failures.get(name, deque())
        while failures and failures[0] <= self._clock.monotonic() - WINDOW_SECONDS:
            failures.popleft()
        return failures
