"""Each promise of the lifecycle has a test that names it.

A test names a promise by its number in its docstring, alone (`R47`) or as a range (`R51..R56`); a file that is
about a few promises may name them in its own docstring, one by one.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
DASHBOARD = TESTS.parent / "dashboard"
# R21 speaks of the dashboard: it needs its test as soon as there is one.
PROMISES = [number for number in range(1, 75) if number != 21 or DASHBOARD.exists()]
RANGE = re.compile(r"\bR\d+\.\.R?\d+\b")
NUMBER = re.compile(r"\bR(\d+)(?:\.\.R?(\d+))?\b")


def numbers(text: str) -> Iterator[int]:
    """The promises that a docstring names."""
    for first, last in NUMBER.findall(text):
        yield from range(int(first), int(last or first) + 1)


def named_by_tests() -> dict[int, list[str]]:
    """For each number the tests that name it, as `file::function`."""
    named: dict[int, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        for number in numbers(RANGE.sub("", ast.get_docstring(module) or "")):
            named[number].append(str(path.relative_to(TESTS)))
        for node in ast.walk(module):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                for number in numbers(ast.get_docstring(node) or ""):
                    named[number].append(f"{path.relative_to(TESTS)}::{node.name}")
    return named


NAMED = named_by_tests()


@pytest.mark.parametrize("number", PROMISES, ids=lambda number: f"R{number}")
def test_every_promise_has_a_test_that_names_it(number: int) -> None:
    assert NAMED[number], f"no test names R{number} in its docstring"


def test_no_test_names_a_promise_that_does_not_exist() -> None:
    assert set(NAMED) <= set(PROMISES), {number: NAMED[number] for number in set(NAMED) - set(PROMISES)}


def test_docstrings_are_read_as_they_are_meant() -> None:
    assert list(numbers("R3, R8..R10 and (R47); RQ12, R2D2 and XR5 are none")) == [3, 8, 9, 10, 47]
