"""Results as JSON.

What JSON has is written as `json.dumps` writes it. Beyond that, these have a fixed form:

| value | form |
|---|---|
| tuple, set, frozenset, deque | array (sets sorted where their members can be compared) |
| dataclass, pydantic model, any mapping | object |
| datetime, date, time | ISO 8601 string |
| timedelta | seconds as a number |
| Decimal, UUID, path | string |
| Enum member | its value |
| bytes, bytearray, memoryview | base64 string |
| numpy and torch scalars | number or boolean |
| numpy arrays, torch tensors and whatever else has `tolist()` | nested arrays |

NaN and Infinity are refused wherever they stand, since JSON has no such numbers. Everything else raises
ResultEncodingError, whose text says where in the result it is.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import math
import os
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any, Callable, Iterator

from .errors import ResultEncodingError, text_of

# How deep the search for an unfit value follows a result.
SEARCH_DEPTH = 200


def encode_result(value: Any, root: str = "result") -> str:
    """The JSON text of a result, all ASCII. Raises ResultEncodingError, in whose text `root` is the value."""
    try:
        return _encode(value)
    except RecursionError:
        raise ResultEncodingError("it is nested too deeply; flatten it or return it as text") from None
    except Exception as error:
        # Mostly TypeError and ValueError, but properties and methods of the value may raise anything.
        raise ResultEncodingError(_explain(value, error, root)) from None


def encode_text(text: str) -> str:
    """The JSON form of a text for people, in which every half of a surrogate pair is replaced."""
    encoded = _encode_string(text)
    if "\\ud" in encoded:
        # The escape may be a whole pair; strict parsers refuse a lone half.
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return _encode_string(whole)
    return encoded


def _json_form(value: Any) -> Any:
    """One step towards JSON for a value that the encoder does not know; TypeError if there is none."""
    form = _form_of(value)
    if form is None:
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return form(value)


_encode = json.JSONEncoder(allow_nan=False, default=_json_form).encode
_encode_string = json.JSONEncoder().encode


def _form_of(value: Any) -> Callable[[Any], Any] | None:
    for kind, form in _FORMS:
        if isinstance(value, kind):
            return form
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields
    if isinstance(value, type):
        return None
    # The older pydantic names it `dict`, which alone would say too little.
    methods = ("model_dump", "dict", "tolist") if hasattr(value, "__fields__") else ("model_dump", "tolist")
    for method in methods:
        if callable(getattr(value, method, None)):
            return getattr(type(value), method, None)
    return None


def _fields(value: Any) -> Any:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _base64(value: Any) -> str:
    return base64.b64encode(bytes(value)).decode("ascii")


def _in_order(value: Any) -> list[Any]:
    try:
        return sorted(value)
    except TypeError:
        return list(value)


def _enum_value(value: Any) -> Any:
    return value.value


def _seconds(value: datetime.timedelta) -> float:
    return value.total_seconds()


def _isoformat(value: Any) -> Any:
    return value.isoformat()


_FORMS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    ((datetime.datetime, datetime.date, datetime.time), _isoformat),
    (datetime.timedelta, _seconds),
    (enum.Enum, _enum_value),
    ((decimal.Decimal, uuid.UUID), str),
    ((bytes, bytearray, memoryview), _base64),
    ((set, frozenset), _in_order),
    (deque, list),
    (Mapping, dict),
    (os.PathLike, os.fspath),
)


def _explain(value: Any, error: Exception, root: str) -> str:
    """Why a result has no JSON form, with the place of the first unfit value if it can be found."""
    try:
        for path, reason in _unfit(value, root, set(), 0):
            return f"{reason} at {path}"
    except Exception:
        # The search runs task code (properties, iterators); whatever that does, the encoder's word remains.
        pass
    return _text_of(error)


def _unfit(value: Any, path: str, above: set[int], depth: int) -> Iterator[tuple[str, str]]:
    """The places of unfit values, in order. `above` are the identities of the values around this one."""
    if value is None or isinstance(value, (str, bool)):
        return
    if isinstance(value, int):
        try:
            int.__repr__(value)
        except ValueError as error:
            yield path, str(error)
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            yield path, f"{_number_name(value)} is not a JSON number (return None or a text instead)"
        return
    if id(value) in above:
        yield path, "Circular reference detected"
        return
    if depth > SEARCH_DEPTH:
        return
    above.add(id(value))
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, (str, int, float, bool, type(None))):
                yield path, f"keys must be str, int, float, bool or None, not {type(key).__name__},"
            elif isinstance(key, float) and not math.isfinite(key):
                yield path, f"{_number_name(key)} can't be a key,"
            else:
                yield from _unfit(item, f"{path}[{_key_name(key)}]", above, depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _unfit(item, f"{path}[{index}]", above, depth + 1)
    else:
        try:
            form = _json_form(value)
        except Exception as error:
            yield path, _text_of(error)
        else:
            yield from _unfit(form, path, above, depth + 1)
    above.discard(id(value))


def _number_name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _key_name(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 80 else text[:77] + "..."


def _text_of(error: Exception) -> str:
    text = text_of(error)
    return text if isinstance(error, (TypeError, ValueError)) else f"{type(error).__name__}: {text}"
