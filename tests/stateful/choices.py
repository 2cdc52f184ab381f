"""What a step of the machine chooses from, and how."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

from runqy.tasks.limits import Limits
from runqy.tasks.outcome import Ending, Failure, NotStarted, Outcome, Success
from runqy.tasks.retry import Backoff, RetryPolicy
from stateful.crashing import Crash

T = TypeVar("T")

QUEUES = ("alpha.high", "beta")
WORKERS = ("w1", "w2", "w3")
STEPS = [
    *["enqueue"] * 4,
    "enqueue_again",
    *["pick_up"] * 5,
    "pick_up_again",
    *["finish"] * 7,
    *["finish_again", "give_all_back", "begin_ahead", "disturb", "renew", "chore"],
    *["time_passes"] * 5,
    *["lose_workers"] * 2,
    *["operate"] * 4,
]
"""What happens, as often as it is named."""
JUMPS = (10, 20, 30, 30, 50, 100, 1000, 86400)
CRASHES = st.one_of(st.none(), st.none(), st.builds(Crash, st.integers(1, 3), after=st.booleans(), dead=st.booleans()))
PLAIN = (
    (Limits(max_retry=3, ttl_completed=105, ttl_archived=105), RetryPolicy(15.0, Backoff.FIXED, jitter=0.0)),
    (
        Limits(max_retry=2, ttl_completed=15, ttl_archived=0, pending_timeout=35),
        RetryPolicy(0.0, Backoff.FIXED, jitter=0.0),
    ),
    (Limits(max_retry=1, ttl_completed=0, ttl_archived=15), RetryPolicy(55.0, Backoff.FIXED, jitter=0.0)),
)
"""Tasks that are made where an operation finds none."""


class Choices:
    """A step's choices: the same numbers whatever stands in Redis, so that a step can always be repeated.

    The first ones are drawn one by one and shrink; a step that needs more goes on by chance that they decide.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self.drawn = tuple(numbers)
        self._left = list(numbers)
        self._more = random.Random(repr(self.drawn))

    def __repr__(self) -> str:
        return f"Choices({self.drawn})"

    def one(self, options: Sequence[T]) -> T:
        number = self._left.pop(0) if self._left else self._more.randrange(60)
        return options[number % len(options)]

    def some(self, options: Sequence[T]) -> list[T]:
        """One to three of them, each once."""
        chosen: list[T] = []
        for _ in range(self.one((1, 2, 3))):
            option = self.one(options)
            if option not in chosen:
                chosen.append(option)
        return chosen


CHOICES = st.builds(Choices, st.tuples(*[st.integers(0, 59)] * 8))


def stamps(choose: Choices) -> tuple[Limits, RetryPolicy]:
    """Limits whose ends lie 5 s beside the clock's jumps, and a delay that is the same every time."""
    limits = Limits(
        max_retry=choose.one((2, 1, 0, 3)),
        ttl_completed=choose.one((105, 15, 0, 4005)),
        ttl_archived=choose.one((105, 15, 0, 4005)),
        pending_timeout=choose.one((0, 0, 15, 35, 1005)),
        active_timeout=choose.one((0, 60)),
    )
    return limits, RetryPolicy(choose.one((15.0, 0.0, 55.0)), Backoff.FIXED, jitter=0.0)


def outcome_of_one(choose: Choices) -> Outcome:
    """How one attempt ended."""
    kind = choose.one(("failure", "failure", "success", "no result", "not started"))
    if kind == "failure":
        ending = choose.one((Ending.ERROR, Ending.TIMEOUT, Ending.CRASHED))
        return Failure(ending, "it failed", choose.one((True, True, True, False)), choose.one((None, None, 25.0, 0.0)))
    if kind == "not started":
        return NotStarted("the worker stops")
    return Success(b'{"ok": 1}' if kind == "success" else None)
