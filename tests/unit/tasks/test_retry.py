"""When a failed task is tried again."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runqy.tasks.retry import DEFAULT_RETRY_POLICY, Backoff, RetryPolicy

DAY = 86400.0


def test_the_default_delays_are_the_originals() -> None:
    """Decision 17: min(n⁴ x 10 s, 24 h)."""
    policy = RetryPolicy(jitter=0.0)
    assert [policy.delay_before(n, 0.5) for n in (1, 2, 3, 4, 9, 10, 100, 2**31)] == [
        *(10.0, 160.0, 810.0, 2560.0),
        *(65610.0, DAY, DAY, DAY),
    ]


@pytest.mark.parametrize("retry", [1, 2, 3, 4, 5, 20, 60, 100])
def test_what_failed_together_does_not_come_back_together(retry: int) -> None:
    """C16: spread over 20 % of the delay, evenly, at the cap as well, and never over it."""
    rng = random.Random(retry)
    delays = sorted(DEFAULT_RETRY_POLICY.delay_before(retry, rng.random()) for _ in range(500))
    nominal = min(10.0 * retry**4, DAY)
    assert delays[-1] - delays[0] > 0.19 * nominal
    assert delays[-1] <= DAY
    tenth = nominal * 0.02
    fullest = max(sum(start <= d < start + tenth for d in delays) for start in delays)
    assert fullest <= 3 * 500 / 10


def test_delays_grow_until_the_cap() -> None:
    means = [DEFAULT_RETRY_POLICY.delay_before(n, 0.5) for n in range(1, 40)]
    assert means == sorted(means)
    assert means[-1] <= DAY


policies = st.builds(
    RetryPolicy,
    delay=st.floats(0, 1e6),
    backoff=st.sampled_from(Backoff),
    max_delay=st.floats(0, 1e7),
    jitter=st.floats(0, 1),
)


@given(policies)
def test_a_stamp_gives_the_same_policy_back(policy: RetryPolicy) -> None:
    """Decision 17: stamped like the limits, to the last digit."""
    assert RetryPolicy.read_stamp(policy.stamp()) == policy


@given(policies, st.integers(1, 2**31), st.floats(0, 1, exclude_max=True))
def test_a_delay_lies_between_nothing_and_the_cap(policy: RetryPolicy, retry: int, chance: float) -> None:
    assert 0 <= policy.delay_before(retry, chance) <= policy.max_delay
