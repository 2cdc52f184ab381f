"""Fields of a queue's payload: what they accept, and the check of one payload against them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

import msgspec

from runqy.errors import UsageError


class FieldType(StrEnum):
    """What a field may hold."""

    STRING = "string"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    ARRAY = "array"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Field:
    """One named value of a payload (``input``) or result (``output``).

    ``default`` is JSON text, inserted for an optional field that is absent; None is "no default".
    """

    name: str
    types: tuple[FieldType, ...]
    required: bool = True
    default: str | None = None
    description: str = ""


class PayloadError(UsageError):
    """A payload that a queue's fields refuse (400). ``problems`` has one text for each field."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


# What the first character of a JSON value says about it: the types that take it, and its name in a message.
_STRING = (frozenset({FieldType.STRING}), "string")
_BOOL = (frozenset({FieldType.BOOL}), "bool")
_ARRAY = (frozenset({FieldType.ARRAY}), "array")
_OBJECT = (frozenset({FieldType.OBJECT}), "object")
_NULL: tuple[frozenset[FieldType], str] = (frozenset(), "<nil>")
_INTEGRAL = (frozenset({FieldType.INT, FieldType.FLOAT}), "number")
_FRACTIONAL = (frozenset({FieldType.FLOAT}), "number")
_KINDS = {'"': _STRING, "t": _BOOL, "f": _BOOL, "[": _ARRAY, "{": _OBJECT, "n": _NULL}

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def validate_payload(fields: Sequence[Field], payload: bytes) -> bytes:
    """Check a JSON payload against a queue's fields and fill in defaults.

    Without fields any payload passes untouched. With fields it must be an object; members that no field names
    pass through, and every value that needs no change keeps its bytes. Where nothing has to be changed the
    given bytes are returned as they are. Raises `PayloadError` with one text per field that is wrong.
    """
    if not fields:
        return payload
    members = _members(payload)
    problems: list[str] = []
    changed: dict[str, str] = {}
    for field in fields:
        text = members.get(field.name)
        if text is not None:
            replacement = _check(field, text, problems)
        elif field.required:
            problems.append(f"{field.name} is required")
            continue
        else:
            replacement = field.default
        if replacement is not None:
            changed[field.name] = replacement
    if problems:
        raise PayloadError(problems)
    return _rewritten(members, changed) if changed else payload


def _check(field: Field, text: str, problems: list[str]) -> str | None:
    """The text that must replace the value (an integer written as 3.0), or None when it stays."""
    try:
        accepted, name = kind_of(text)
    except OverflowError:
        problems.append(f"field '{field.name}' holds a number that is out of range")
        return None
    if accepted.isdisjoint(field.types):
        expected = ", ".join(field.types)
        problems.append(f"field '{field.name}' has type {name}, expected one of: {expected}")
        return None
    return as_integer(text) if accepted is _INTEGRAL[0] and FieldType.INT in field.types else None


def kind_of(text: str) -> tuple[frozenset[FieldType], str]:
    """The types that take a JSON value, and what a message calls it. Raises `OverflowError` (1e999)."""
    text = text.lstrip()
    kind = _KINDS.get(text[0])
    if kind is not None:
        return kind
    if as_integer(text) is not None or _is_written_as_integer(text):
        return _INTEGRAL
    return _FRACTIONAL


def as_integer(text: str) -> str | None:
    """``3`` for 3.0 or 0.3e1; None for a number that is written as an integer or is none."""
    if _is_written_as_integer(text):
        return None
    if abs(float(text)) == float("inf"):
        raise OverflowError(text)
    try:
        number = Decimal(text)
    except ArithmeticError:  # an exponent beyond what even decimals know: next to zero
        return None
    # A float's range bounds the digits that int() may produce here.
    return str(int(number)) if number == number.to_integral_value() else None


def _is_written_as_integer(text: str) -> bool:
    return not any(character in text for character in ".eE")


def _rewritten(members: dict[str, str], changed: dict[str, str]) -> bytes:
    return ("{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in (members | changed).items()) + "}").encode()


def _members(payload: bytes) -> dict[str, str]:
    """The members of a JSON object, each value as its text."""
    try:
        text = payload.decode()
        return {name: bytes(raw).decode() for name, raw in _decoder.decode(payload).items()}
    except UnicodeDecodeError:
        raise PayloadError(["invalid data payload: not UTF-8 text"]) from None
    except RecursionError:
        raise PayloadError(["invalid data payload: nested too deeply"]) from None
    except msgspec.ValidationError:
        raise PayloadError(["invalid data payload: must be a JSON object"]) from None
    except msgspec.DecodeError:
        # A lone surrogate (\ud800) is valid JSON, and only the standard library takes it.
        return _members_by_standard_library(text)


def _members_by_standard_library(text: str) -> dict[str, str]:
    try:
        if not isinstance(_strict_json.decode(text), dict):
            raise PayloadError(["invalid data payload: must be a JSON object"])
    except RecursionError:
        raise PayloadError(["invalid data payload: nested too deeply"]) from None
    except ValueError as error:
        raise PayloadError([f"invalid data payload: {error}"]) from None
    members: dict[str, str] = {}
    at = _skip(text, text.index("{") + 1, _SPACE)
    while text[at] != "}":
        name, at = _strict_json.raw_decode(text, at)
        begin = _skip(text, at, _SPACE + ":")
        at = _strict_json.raw_decode(text, begin)[1]
        members[name] = text[begin:at]
        at = _skip(text, at, _SPACE + ",")
    return members


def _skip(text: str, at: int, characters: str) -> int:
    while text[at] in characters:
        at += 1
    return at


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_SPACE = " \t\n\r"
_strict_json = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=len, parse_float=len)
"""numbers are only measured: their text is what counts, and a huge one would cost time to convert"""
