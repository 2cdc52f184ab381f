"""docs/lifecycle.md says what the code does (R46 among it)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runqy.tasks.limits import LEVERS, LimitError, parse_lever
from runqy.tasks.retry import DEFAULT_RETRY_POLICY
from runqy.timing import format_duration

TEXT = (Path(__file__).parents[3] / "docs" / "lifecycle.md").read_text(encoding="utf-8")


def test_the_table_of_levers_is_the_codes() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+? \| `(\w+)` \| (.+?) \|$", TEXT, re.MULTILINE)
    expected = []
    for lever in LEVERS:
        default = str(lever.default)
        if lever.is_duration and lever.default:
            default = format_duration(lever.default * 10**9).removesuffix("0m0s")
        expected.append((lever.name, default, lever.zero_means))
    assert rows == expected


def test_every_variable_is_named() -> None:
    for lever in LEVERS:
        assert f"`{lever.environment}`" in TEXT


def test_the_durations_it_calls_right_are_right_and_the_others_are_refused() -> None:
    durations = next(lever for lever in LEVERS if lever.is_duration)
    right = re.search(r"`90s`, `5m`, `1h30m`, `24h`", TEXT)
    assert right
    for text in re.findall(r"`(.+?)`", right.group()):
        assert parse_lever(durations, text)
    for text in ("30", "1d", "24hh", "5 m", "true"):
        assert f"`{text}`" in TEXT
        with pytest.raises(LimitError):
            parse_lever(durations, text)


def test_the_retry_delays_it_names_are_those_of_the_policy() -> None:
    delays = [round(DEFAULT_RETRY_POLICY.delay_before(n, 0.5)) for n in (1, 2, 3, 4)]
    assert "{} s, {} s, {} s, {} s".format(*delays) in TEXT
    assert 0.8 * 24 * 3600 <= DEFAULT_RETRY_POLICY.delay_before(100, 0.5) <= 24 * 3600


def test_it_advises_to_size_active_timeout_well_above_the_normal_duration_and_says_why() -> None:
    """R46."""
    assert re.search(
        r"\*\*Size it well above the normal duration\.\*\*.*restart and a reload of the model", TEXT, re.DOTALL
    )
