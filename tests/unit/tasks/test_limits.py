"""The five levers: read, resolved, stamped (R1..R31, R57, R58, R64, R65)."""

from __future__ import annotations

import itertools

import pytest

from runqy.tasks.limits import (
    ACTIVE_TIMEOUT,
    LEVERS,
    MAX_RETRY,
    PENDING_TIMEOUT,
    STAMPS,
    TTL_ARCHIVED,
    TTL_COMPLETED,
    Lever,
    LimitError,
    Limits,
    Override,
    Source,
    from_environment,
    is_fractional,
    parse_lever,
    read_stamps,
    resolve,
)

DURATIONS = [lever for lever in LEVERS if lever.is_duration]


def test_r1_there_are_five_levers_with_their_defaults() -> None:
    """R1, R3..R7, R27..R31."""
    assert {lever.name: lever.default for lever in LEVERS} == {
        "max_retry": 3,
        "ttl_completed": 86400,
        "ttl_archived": 259200,
        "pending_timeout": 0,
        "active_timeout": 0,
    }
    assert [lever.environment for lever in LEVERS] == [
        "RUNQY_DEFAULT_MAX_RETRY",
        "RUNQY_DEFAULT_TTL_COMPLETED",
        "RUNQY_DEFAULT_TTL_ARCHIVED",
        "RUNQY_DEFAULT_PENDING_TIMEOUT",
        "RUNQY_DEFAULT_ACTIVE_TIMEOUT",
    ]


@pytest.mark.parametrize("lever", DURATIONS, ids=lambda lever: lever.name)
@pytest.mark.parametrize(
    ("value", "seconds"),
    [("90s", 90), ("5m", 300), ("24h", 86400), ("1h30m", 5400), ("0", 0), ("0s", 0), (0, 0), ("500ms", 1), ("1.5s", 2)],
)
def test_a_duration_is_a_go_duration(lever: Lever, value: object, seconds: int) -> None:
    """R23."""
    assert parse_lever(lever, value) == seconds


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)
@pytest.mark.parametrize("value", [None, ""])
def test_empty_means_not_set(lever: Lever, value: object) -> None:
    assert parse_lever(lever, value) is None


@pytest.mark.parametrize("lever", DURATIONS, ids=lambda lever: lever.name)
@pytest.mark.parametrize(
    "value",
    [
        "24hh",
        "1d",
        "30",
        30,
        30.0,
        "30 s",
        "30S",
        "half an hour",
        True,
        False,
        [],
        {},
        "1e3",
        " 30s ",
        1e3,
        "off",
        "1:30",
    ],
    ids=repr,
)
def test_r57_what_is_no_duration_is_refused_by_name_and_value_with_an_example(lever: Lever, value: object) -> None:
    with pytest.raises(LimitError) as refusal:
        parse_lever(lever, value, f"limits.{lever.name}")
    message = str(refusal.value)
    assert f"limits.{lever.name}" in message
    assert '"24h"' in message
    if isinstance(value, str):
        assert f'"{value}"' in message


@pytest.mark.parametrize("lever", DURATIONS, ids=lambda lever: lever.name)
def test_r58_a_negative_duration_is_refused(lever: Lever) -> None:
    with pytest.raises(LimitError, match=f'{lever.name} must be >= 0, got "-5s"'):
        parse_lever(lever, "-5s")


@pytest.mark.parametrize(("value", "count"), [(0, 0), ("0", 0), (1, 1), ("3", 3), (25, 25), ("+7", 7)])
def test_r25_max_retry_is_an_int(value: object, count: int) -> None:
    assert parse_lever(MAX_RETRY, value) == count


@pytest.mark.parametrize(
    "value",
    [True, False, 3.0, 3.9, "3.0", "x", "0x10", "010", "1_000", "1e2", "٣", " 3", "3 ", [], {}, 2**31, "off"],
    ids=repr,
)
def test_what_is_no_count_is_refused(value: object) -> None:
    with pytest.raises(LimitError, match="max_retry"):
        parse_lever(MAX_RETRY, value)


@pytest.mark.parametrize("value", [-1, "-1"])
def test_r58_a_negative_max_retry_is_refused(value: object) -> None:
    with pytest.raises(LimitError, match="max_retry must be >= 0, got -1"):
        parse_lever(MAX_RETRY, value)


def test_r14_one_field_set_leaves_the_other_four() -> None:
    environment = Limits(7, 70, 71, 72, 73, "eeeee")
    for lever in LEVERS:
        resolved = resolve(environment, Override(**{lever.name: 5}))
        for other in LEVERS:
            expected = (5, Source.QUEUE) if other is lever else (environment.value(other), Source.ENVIRONMENT)
            assert (resolved.value(other), resolved.source(other)) == expected


def test_r15_an_explicit_zero_counts_as_set() -> None:
    environment = Limits(7, 70, 71, 72, 73, "eeeee")
    resolved = resolve(environment, Override.parse({lever.name: "0" for lever in LEVERS}))
    assert [resolved.value(lever) for lever in LEVERS] == [0] * 5
    assert resolved.sources == "qqqqq"


@pytest.mark.parametrize("given", list(itertools.product([None, 5], repeat=3)), ids=repr)
@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)
def test_the_nearest_setting_wins(lever: Lever, given: tuple[int | None, ...]) -> None:
    """C22: request over queue over environment over default, whichever is largest."""
    environment, queue, request = (None if value is None else value * n for n, value in enumerate(given, 3))
    text = (
        {} if environment is None else {lever.environment: f"{environment}s" if lever.is_duration else str(environment)}
    )
    resolved = resolve(from_environment(text), Override(**{lever.name: queue}), Override(**{lever.name: request}))
    chain = [(request, "request"), (queue, "queue"), (environment, "environment"), (lever.default, "default")]
    value, source = next((value, source) for value, source in chain if value is not None)
    assert resolved.explain()[lever.name] == {"value": value, "source": source}


def test_r62_every_bad_variable_is_named() -> None:
    with pytest.raises(LimitError) as refusal:
        from_environment({"RUNQY_DEFAULT_MAX_RETRY": "x", "RUNQY_DEFAULT_TTL_COMPLETED": "24hh"})
    assert "RUNQY_DEFAULT_MAX_RETRY must be an integer >= 0" in str(refusal.value)
    assert 'RUNQY_DEFAULT_TTL_COMPLETED: invalid duration "24hh"' in str(refusal.value)


def test_an_unknown_limit_is_refused_with_the_known_names() -> None:
    with pytest.raises(LimitError, match="max_retries: unknown limit, known are max_retry"):
        Override.parse({"max_retries": 3})


def test_r64_a_fallback_fills_only_what_has_no_stamp() -> None:
    fallback = Limits(25, 10, 20, 30, 40)
    limits = read_stamps({"ttl_completed": b"0", "active_timeout": b"abc"}, 1, "qqqqq", fallback)
    assert (limits.max_retry, limits.ttl_completed) == (1, 0)
    assert (limits.ttl_archived, limits.pending_timeout, limits.active_timeout) == (20, 30, 40)
    assert limits.source(TTL_COMPLETED) is Source.QUEUE
    assert limits.source(TTL_ARCHIVED) is Source.WORKER
    assert limits.source(ACTIVE_TIMEOUT) is Source.WORKER


def test_r65_a_stamp_of_zero_wins_over_the_fallback() -> None:
    limits = read_stamps({lever.name: b"0" for lever in STAMPS}, 0, "rrrrr", Limits(9, 9, 9, 9, 9))
    assert [limits.value(lever) for lever in LEVERS] == [0] * 5


def test_a_rounded_duration_is_told() -> None:
    assert is_fractional(PENDING_TIMEOUT, "1500ms")
    assert not is_fractional(PENDING_TIMEOUT, "2s")
    assert not is_fractional(MAX_RETRY, "2")
