"""Values of classes that JSON does not have, made of the forms that `encoding` writes for them."""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import pathlib
import uuid
from typing import Any, Callable

# What `made_of` returns for a value that does not fit.
UNFIT = object()


def made_of(value: Any, wanted: Any) -> Any:
    """A value of a class that JSON does not have, made of its JSON form; UNFIT if that can't be."""
    try:
        if issubclass(wanted, enum.Enum):
            return wanted(value)
        for kind, accepted, make in _MAKERS:
            if issubclass(wanted, kind):
                return make(value, wanted) if type(value) in accepted else UNFIT
    except (ValueError, ArithmeticError, TypeError):
        return UNFIT
    return value if isinstance(value, wanted) else UNFIT


def _moment(value: Any, wanted: Any) -> Any:
    # Before Python 3.11 the short form of UTC is not understood.
    text = value[:-1] + "+00:00" if value.endswith(("Z", "z")) else value
    return wanted.fromisoformat(text)


_MAKERS: tuple[tuple[Any, tuple[type, ...], Callable[[Any, Any], Any]], ...] = (
    (datetime.datetime, (str,), _moment),
    (datetime.date, (str,), _moment),
    (datetime.time, (str,), _moment),
    (datetime.timedelta, (int, float), lambda value, wanted: wanted(seconds=value)),
    (decimal.Decimal, (str, int, float), lambda value, wanted: wanted(str(value))),
    (uuid.UUID, (str,), lambda value, wanted: wanted(value)),
    (bytes, (str,), lambda value, wanted: base64.b64decode(value, validate=True)),
    (pathlib.PurePath, (str,), lambda value, wanted: wanted(value)),
)

EXPECTED: dict[Any, str] = {
    datetime.datetime: "a date and time as ISO 8601 text",
    datetime.date: "a date as ISO 8601 text",
    datetime.time: "a time as ISO 8601 text",
    datetime.timedelta: "seconds as a number",
    decimal.Decimal: "a decimal number as text",
    uuid.UUID: "a UUID as text",
    bytes: "base64 text",
    type(None): "null",
}
