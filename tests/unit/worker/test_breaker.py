"""Back-off, breaker, cool-down: the numbers of the recovery."""

from __future__ import annotations

import pytest

from runqy.worker.breaker import Breaker, Recovery, RestartRules


def test_five_crashes_give_four_restarts_with_doubled_delays() -> None:
    """1, 2, 4, 8 s, then the breaker is open."""
    breaker = Breaker(RestartRules())
    delays = []
    for second in range(4):
        delays.append(breaker.crashed(float(second)))
        assert breaker.state is Recovery.RECOVERING
        breaker.recovered()
        assert breaker.state is Recovery.IDLE
    assert delays == [1.0, 2.0, 4.0, 8.0]
    assert breaker.crashed(5.0) is None
    assert breaker.state is Recovery.DEGRADED
    assert breaker.describe() == {"state": "degraded", "consecutive_fails": 5, "total_restarts": 4}


def test_starts_that_fail_within_one_recovery_count_like_crashes() -> None:
    breaker = Breaker(RestartRules(max_restarts=3, initial_delay=0.5, factor=3.0))
    assert [breaker.crashed(0.0), breaker.crashed(1.0), breaker.crashed(2.0)] == [0.5, 1.5, None]
    assert breaker.total_restarts == 0


def test_the_delay_has_a_cap() -> None:
    breaker = Breaker(RestartRules(max_restarts=100, max_delay=300))
    assert [breaker.crashed(float(n)) for n in range(11)][-2:] == [300.0, 300.0]


@pytest.mark.parametrize(("quiet", "delay", "fails"), [(599.0, 2.0, 2), (600.0, 1.0, 1)])
def test_ten_minutes_without_a_crash_set_counter_and_delay_back(quiet: float, delay: float, fails: int) -> None:
    """Decision 11."""
    breaker = Breaker(RestartRules())
    breaker.crashed(1000.0)
    breaker.recovered()
    assert breaker.crashed(1000.0 + quiet) == delay
    assert breaker.consecutive_fails == fails
    assert breaker.total_restarts == 1


def test_with_the_recovery_off_the_first_crash_is_the_last() -> None:
    assert Breaker(RestartRules(enabled=False)).crashed(0.0) is None


def test_an_order_to_restart_begins_afresh() -> None:
    breaker = Breaker(RestartRules(max_restarts=1))
    assert breaker.crashed(0.0) is None
    breaker.reset()
    assert breaker.state is Recovery.IDLE
    assert breaker.consecutive_fails == 0
