"""Durations: exactly Go's grammar (R23, R57, R58)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runqy.timing import DurationError, format_duration, parse_duration, seconds_up

ROWS = [
    line.split("\t")
    for line in Path(__file__).with_name("go_durations.tsv").read_text(encoding="utf-8").splitlines()
    if line
]


def test_all_recorded_answers_are_here() -> None:
    assert len(ROWS) == 110


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_duration_is_read_as_go_reads_it(row: list[str]) -> None:
    text = json.loads(row[0])
    if row[1] == "error":
        with pytest.raises(DurationError):
            parse_duration(text)
        return
    assert parse_duration(text) == int(row[1])
    assert format_duration(int(row[1])) == row[2]


@pytest.mark.parametrize(("nanoseconds", "seconds"), [(0, 0), (1, 1), (10**9, 1), (10**9 + 1, 2), (2**62, 4611686019)])
def test_a_fraction_of_a_second_is_rounded_up_and_never_to_zero(nanoseconds: int, seconds: int) -> None:
    assert seconds_up(nanoseconds) == seconds
