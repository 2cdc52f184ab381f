"""Payloads against a queue's fields."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runqy.config.model import Field, FieldType, PayloadError, validate_payload

DEEP = b'{"n":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
INT, FLOAT, STRING = FieldType.INT, FieldType.FLOAT, FieldType.STRING


def refused(fields: tuple[Field, ...], payload: bytes) -> tuple[str, ...]:
    with pytest.raises(PayloadError) as caught:
        validate_payload(fields, payload)
    assert caught.value.http_status == 400
    return caught.value.problems


def one(*types: FieldType, **more: Any) -> tuple[Field, ...]:
    return (Field("n", types, **more),)


def test_without_fields_everything_passes_untouched() -> None:
    assert validate_payload((), b"null") == b"null"


@pytest.mark.parametrize("value", ['"x"', "true", "1", "1.0", "1.5", "[1]", '{"a":1}'])
@pytest.mark.parametrize("field_type", list(FieldType))
def test_a_value_passes_exactly_where_its_kind_is_accepted(field_type: FieldType, value: str) -> None:
    accepted = {
        '"x"': {"string"},
        "true": {"bool"},
        "1": {"int", "float"},
        "1.0": {"int", "float"},
        "1.5": {"float"},
        "[1]": {"array"},
        '{"a":1}': {"object"},
    }[value]
    payload = f'{{"n":{value}}}'.encode()
    if field_type in accepted:
        assert json.loads(validate_payload(one(field_type), payload)) == json.loads(payload)
    else:
        kind = {'"': "string", "t": "bool", "1": "number", "[": "array", "{": "object"}[value[0]]
        assert refused(one(field_type), payload) == (f"field 'n' has type {kind}, expected one of: {field_type}",)


def test_the_texts_are_the_contracts() -> None:
    assert refused(one(INT), b"{}") == ("n is required",)
    assert refused(one(INT, STRING), b'{"n":null}') == ("field 'n' has type <nil>, expected one of: int, string",)
    assert refused(one(INT), b"[1]") == ("invalid data payload: must be a JSON object",)


def test_every_field_that_is_wrong_is_told() -> None:
    fields = (Field("a", (INT,)), Field("b", (STRING,)))
    assert len(refused(fields, b'{"b":1}')) == 2


def test_a_default_is_inserted_and_an_absent_optional_field_stays_absent() -> None:
    fields = (Field("a", (INT,), False, "3"), Field("b", (STRING,), False))
    assert validate_payload(fields, b'{"c":1}') == b'{"c":1,"a":3}'
    assert validate_payload(fields, b'{"a":4}') == b'{"a":4}'


def test_a_required_field_with_a_default_is_required() -> None:
    assert refused(one(INT, default="3"), b"{}") == ("n is required",)


@pytest.mark.parametrize(
    ("given_value", "value"), [("3.0", "3"), ("1e2", "100"), ("-0.0", "0"), ("0.3e1", "3"), ("3", "3")]
)
def test_an_integral_number_becomes_an_integer(given_value: str, value: str) -> None:
    assert validate_payload(one(INT), f'{{"n":{given_value}}}'.encode()) == f'{{"n":{value}}}'.encode()
    assert validate_payload(one(FLOAT), f'{{"n":{given_value}}}'.encode()) == f'{{"n":{given_value}}}'.encode()


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
def test_a_number_that_no_float_can_hold_is_refused(number: str) -> None:
    assert refused(one(INT), f'{{"n":{number}}}'.encode()) == ("field 'n' holds a number that is out of range",)


def test_a_tiny_exponent_is_a_fraction() -> None:
    assert refused(one(INT), b'{"n":1e-99999999999999999999}')[0].startswith("field 'n' has type number")


@pytest.mark.parametrize(
    "payload",
    [
        b' { "n" : 12345678901234567890123456789 , "x" : 1.10 } ',
        b'{"x":"\\ud800","n":1,"\\u0041":"\\u00e9"}',
        '{"n":1,"ü":"😀"}'.encode(),
        b'{"n":1,"x":[1.0,1e5,{"y":null}]}',
    ],
)
def test_what_needs_no_change_keeps_every_byte(payload: bytes) -> None:
    assert validate_payload(one(INT), payload) == payload


def test_other_members_keep_their_text_when_one_changes() -> None:
    payload = b'{"n":1.0,"big":12345678901234567890123456789,"s":"\\ud800","f":1.10}'
    expected = b'{"n":1,"big":12345678901234567890123456789,"s":"\\ud800","f":1.10}'
    assert validate_payload(one(INT), payload) == expected


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b'{"n":1,}', b'{"n":NaN}', b'{"n":1,"x":Infinity}', b'{"n":1}{', b'{"n":"\xff"}', b"nonsense", DEEP],
)
def test_what_is_not_json_is_refused(payload: bytes) -> None:
    assert refused(one(INT), payload)[0].startswith("invalid data payload: ")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=5), values, max_size=5), st.integers())
def test_inserting_a_default_changes_nothing_else(members: dict[str, Any], default: int) -> None:
    fields = (Field("a default", (INT,), False, str(default)),)
    text = json.dumps(members, ensure_ascii=True).encode()
    assert json.loads(validate_payload(fields, text)) == {"a default": default} | members
