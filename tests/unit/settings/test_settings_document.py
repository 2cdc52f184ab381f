"""YAML as nodes that keep what was typed."""

from __future__ import annotations

import copy
import pickle

import pytest

from runqy.settings.document import MAX_NODES, parse_yaml
from runqy.settings.node import Entries, Reading, Scalar, node_of, plain
from runqy.settings.secret import Secret


def parsed(text: str) -> object:
    reading = Reading()
    node = parse_yaml(text, "f.yaml", reading)
    assert reading.problems == []
    return None if node is None else plain(node)


def refused(text: str) -> list[str]:
    reading = Reading()
    parse_yaml(text, "f.yaml", reading)
    assert reading.problems
    return [str(problem) for problem in reading.problems]


TEXTS = tuple(
    """
    off no on yes Yes y n 010 0x10 0o10 0b1 007 1:30 01:30:00 1_000 2024-01-01 .5 1. 1e 1e999 1d 24hh + = .inf .nan
    """.split()  # noqa: SIM905 (a table is easier to read)
)


@pytest.mark.parametrize("typed", TEXTS)
def test_a_scalar_that_yaml_1_1_would_reinterpret_stays_a_text(typed: str) -> None:
    """Product decision 7, case C75."""
    assert parsed(f"a: {typed}") == {"a": typed}


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("0", 0),
        ("-3", -3),
        ("+3", 3),
        ("3.5", 3.5),
        ("1e5", 1e5),
        ("1.10", 1.1),
        ('"3"', "3"),
        ("'true'", "true"),
        ("!!str 3", "3"),
    ],
)
def test_typed_scalars(typed: str, value: object) -> None:
    found = parsed(f"a: {typed}")
    assert found == {"a": value}
    assert isinstance(found, dict)
    assert type(found["a"]) is type(value)


@pytest.mark.parametrize("typed", ["1e5", "1.10", "0123", "true", "12345678901234567890"])
def test_the_text_of_a_scalar_is_kept_as_typed(typed: str) -> None:
    node = parse_yaml(f"a: {typed}", "f", Reading())
    assert isinstance(node, Entries)
    member = node.entries["a"]
    assert isinstance(member, Scalar)
    assert member.text == typed


@pytest.mark.parametrize("key", ["on", "null", "1", "12:30", "true", "~x"])
def test_a_key_is_a_text(key: str) -> None:
    assert parsed(f"{key}: 1") == {key: 1}


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n", "---\n...\n", "\ufeff"])
def test_an_empty_document_is_nothing(text: str) -> None:
    assert parsed(text.removeprefix("\ufeff")) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\na: 2\n", "f.yaml:2:1: duplicate key 'a', first on line 1"),
        ("a:\n\tb: 1\n", "f.yaml:2:1: a tab can't indent here, use spaces"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: a second document ('---') begins here, one per file"),
        ("a: !!python/object:os.system {}\n", "f.yaml:1:4: the tag !!python/object:os.system is not allowed"),
        ("a: !secret x\n", "f.yaml:1:4: the tag !secret is not allowed"),
        ("a: *x\n", "f.yaml:1:4: alias *x names no anchor above it"),
        ("a: &x [*x]\n", "f.yaml:1:8: alias *x contains itself"),
        ("? [a]\n: 1\n", "f.yaml:1:3: a key must be a text"),
        ("a: b: c\n", "f.yaml:1:5: not YAML: a ':' that is not expected here"),
        ("a: [1, 2\n", "f.yaml:2:1: not YAML: "),
        ("a: @x\n", "f.yaml:1:4: not YAML: "),
        ("a: \x07\n", "f.yaml:1:1: "),
        ('a: "\\0"\n', "f.yaml:1:4: a text holds a NUL character"),
        ("<<: 3\n", "f.yaml:1:1: '<<' merges maps only"),
        ("[" * 100 + "]" * 100, "f.yaml:1:34: nested deeper than 32 levels"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, problem: str) -> None:
    """Case C74."""
    assert refused(text)[0].startswith(problem)


def test_aliases_that_expand_without_end_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    (problem,) = refused("\n".join(lines))
    assert f"more than {MAX_NODES} values, aliases expanded" in problem


def test_a_huge_file_is_refused() -> None:
    assert "larger than" in refused("a: " + "x" * 2_000_000)[0]


def test_a_merge_key_gives_what_the_map_does_not_say_itself() -> None:
    text = "base: &b {x: 1, y: 2}\nq:\n  <<: *b\n  y: 3\n"
    assert parsed(text) == {"base": {"x": 1, "y": 2}, "q": {"x": 1, "y": 3}}


def test_a_problem_does_not_repeat_the_line_which_may_hold_a_secret() -> None:
    assert "s3cr3t" not in refused('a: "s3cr3t\n')[0]


def test_json_values_become_nodes_and_back() -> None:
    value = {"a": [1, 2.5, "x", True, None, {"b": []}]}
    assert plain(node_of(value)) == value


def test_a_secret_is_not_shown_and_not_pickled() -> None:
    secret = Secret("hunter2")
    assert "hunter2" not in f"{secret} {secret!r} {[secret]}"
    assert copy.deepcopy(secret) == secret
    assert secret != Secret("other")
    with pytest.raises(TypeError):
        pickle.dumps(secret)
