"""JSON values read as Python types, with every problem named by its place.

The inverse of the forms in `encoding`: ISO 8601 texts become dates, base64 becomes bytes, and so on.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import typing
from typing import Any, Callable, List, Tuple, Union

from .json_scalars import EXPECTED, UNFIT, made_of

# Where, such as `items[2].size` (empty for the whole), and what is wrong there.
Problems = List[Tuple[str, str]]


def read(value: Any, wanted: Any, place: str, problems: Problems) -> Any:
    """The value as the wanted type. What does not fit is added to `problems`; ignore the return then."""
    reader = _reader(wanted)
    return reader(value, wanted, place, problems)


def is_dataclass_type(wanted: Any) -> bool:
    return isinstance(wanted, type) and dataclasses.is_dataclass(wanted)


def is_typed_dict(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, dict) and hasattr(wanted, "__total__")


def is_pydantic_model(wanted: Any) -> bool:
    return isinstance(wanted, type) and any(
        callable(getattr(wanted, method, None)) for method in ("model_validate", "parse_obj")
    )


Reader = Callable[[Any, Any, str, Problems], Any]


def _reader(wanted: Any) -> Reader:
    origin = typing.get_origin(wanted)
    if origin is not None:
        if origin is Union or type(wanted).__name__ == "UnionType":
            return _read_union
        return _READ_GENERIC.get(origin, _read_wrapped)
    if is_pydantic_model(wanted):
        return _read_pydantic
    if is_dataclass_type(wanted):
        return _read_dataclass
    if is_typed_dict(wanted):
        return _read_typed_dict
    if isinstance(wanted, type):
        if wanted in _READ_GENERIC:
            return _READ_GENERIC[wanted]
        return _read_plain
    if hasattr(wanted, "__supertype__"):
        return lambda value, new, place, problems: read(value, new.__supertype__, place, problems)
    return _read_anything


def _read_anything(value: Any, wanted: Any, place: str, problems: Problems) -> Any:
    return value


def _read_wrapped(value: Any, wanted: Any, place: str, problems: Problems) -> Any:
    """Literal, and wrappers such as NotRequired and Annotated, whose first argument is the type."""
    arguments = typing.get_args(wanted)
    if typing.get_origin(wanted) is typing.Literal:
        if not any(value == choice and type(value) is type(choice) for choice in arguments):
            _refuse(problems, place, f"expected one of {', '.join(map(repr, arguments))}", value)
        return value
    if isinstance(typing.get_origin(wanted), type):
        return value
    return read(value, arguments[0], place, problems)


def _read_union(value: Any, wanted: Any, place: str, problems: Problems) -> Any:
    choices = typing.get_args(wanted)
    if value is None and type(None) in choices:
        return None
    others = [choice for choice in choices if choice is not type(None)]
    if len(others) == 1:
        return read(value, others[0], place, problems)
    # A number fits int before float only if it is tried in the order written; an exact type comes first.
    for choice in sorted(others, key=lambda choice: type(value) is not choice):
        tried: Problems = []
        result = read(value, choice, place, tried)
        if not tried:
            return result
    _refuse(problems, place, f"expected {_name(wanted)}", value)
    return value


def _read_array(value: Any, wanted: Any, place: str, problems: Problems) -> Any:
    if not isinstance(value, list):
        _refuse(problems, place, "expected an array", value)
        return value
    arguments = typing.get_args(wanted)
    item = arguments[0] if arguments else Any
    items = [read(entry, item, f"{place}[{index}]", problems) for index, entry in enumerate(value)]
    kind = typing.get_origin(wanted) or wanted
    if kind in (set, frozenset, collections.abc.Set, collections.abc.MutableSet):
        try:
            return frozenset(items) if kind is frozenset else set(items)
        except TypeError as error:
            problems.append((place, str(error)))
    return items


def _read_tuple(value: Any, wanted: Any, place: str, problems: Problems) -> Any:
    arguments = typing.get_args(wanted)
    if not isinstance(value, list):
        _refuse(problems, place, "expected an array", value)
        return value
    if not arguments:
        return tuple(value)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        problems.append((place, f"expected {len(arguments)} entries, got {len(value)}"))
        return value
    return tuple(
        read(entry, item, f"{place}[{index}]", problems)
        for index, (entry, item) in enumerate(zip(value, arguments))
    )


def _read_object(value: Any, wanted: Any, place: str, problems: Problems) -> Any:
    if not isinstance(value, dict):
        _refuse(problems, place, "expected an object", value)
        return value
    arguments = typing.get_args(wanted)
    if len(arguments) != 2:
        return value
    result = {}
    for key, entry in value.items():
        here = f"{place}[{key!r}]"
        if arguments[0] is int:
            try:
                key = int(key)
            except ValueError:
                problems.append((here, "expected a whole number as the key"))
        result[key] = read(entry, arguments[1], here, problems)
    return result


def _read_dataclass(value: Any, wanted: Any, place: str, problems: Problems) -> Any:
    if not isinstance(value, dict):
        _refuse(problems, place, f"expected an object for {wanted.__name__}", value)
        return value
    before = len(problems)
    hints = _hints(wanted)
    given: dict[str, Any] = {}
    for entry in dataclasses.fields(wanted):
        if not entry.init:
            continue
        here = f"{place}.{entry.name}" if place else entry.name
        if entry.name in value:
            given[entry.name] = read(value[entry.name], hints.get(entry.name, Any), here, problems)
        elif entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
            problems.append((here, "missing"))
    if len(problems) > before:
        return value
    try:
        return wanted(**given)
    except Exception as error:
        problems.append((place, _reason(error)))
        return value


def _read_typed_dict(value: Any, wanted: Any, place: str, problems: Problems) -> Any:
    if not isinstance(value, dict):
        _refuse(problems, place, f"expected an object for {wanted.__name__}", value)
        return value
    hints = _hints(wanted)
    required = _required_keys(wanted, hints)
    result = dict(value)
    for name, hint in hints.items():
        here = f"{place}.{name}" if place else name
        if name in value:
            result[name] = read(value[name], hint, here, problems)
        elif name in required:
            problems.append((here, "missing"))
    return result


def _read_pydantic(value: Any, wanted: Any, place: str, problems: Problems) -> Any:
    validate = getattr(wanted, "model_validate", None) or wanted.parse_obj
    try:
        return validate(value)
    except Exception as error:
        try:
            found = [(entry["loc"], entry["msg"]) for entry in error.errors()]  # type: ignore[attr-defined]
        except Exception:
            problems.append((place, _reason(error)))
            return value
        for location, message in found:
            problems.append((_joined(place, location), str(message)))
        return value


def _read_plain(value: Any, wanted: Any, place: str, problems: Problems) -> Any:
    if wanted is object or wanted is Any:
        return value
    if wanted is bool or wanted is str or wanted is type(None):
        fits = type(value) is wanted
    elif wanted is int:
        fits = type(value) is int
    elif wanted is float:
        fits = type(value) in (int, float)
        value = float(value) if fits else value
    else:
        made = made_of(value, wanted)
        fits = made is not UNFIT
        value = made if fits else value
    if not fits:
        _refuse(problems, place, f"expected {EXPECTED.get(wanted) or _name(wanted)}", value)
    return value


_READ_GENERIC: dict[Any, Reader] = {
    list: _read_array,
    set: _read_array,
    frozenset: _read_array,
    collections.abc.Sequence: _read_array,
    collections.abc.MutableSequence: _read_array,
    collections.abc.Iterable: _read_array,
    collections.abc.Collection: _read_array,
    collections.abc.Set: _read_array,
    collections.abc.MutableSet: _read_array,
    tuple: _read_tuple,
    dict: _read_object,
    collections.abc.Mapping: _read_object,
    collections.abc.MutableMapping: _read_object,
}


def _required_keys(wanted: Any, hints: dict[str, Any]) -> set[str]:
    """The keys that a TypedDict can't do without."""
    try:
        marked = typing.get_type_hints(wanted, include_extras=True)
    except Exception:
        # Python 3.8 has no such marks, and keeps no more than whether all are required.
        return set(hints) if wanted.__total__ else set()
    required = set(wanted.__required_keys__)
    # Where annotations are kept as text, the class itself could not see its marks.
    for name, hint in marked.items():
        mark = getattr(typing.get_origin(hint), "_name", None)
        if mark == "NotRequired":
            required.discard(name)
        elif mark == "Required":
            required.add(name)
    return required


def _hints(wanted: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(wanted)
    except Exception:
        # Names that exist for the type checker only: the fields are known, their types are not.
        return dict.fromkeys(inspect.signature(wanted).parameters, Any)


def _refuse(problems: Problems, place: str, expectation: str, value: Any) -> None:
    problems.append((place, f"{expectation}, got {_described(value)}"))


def _described(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _name(wanted: Any) -> str:
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return "one of " + ", ".join(repr(member.value) for member in wanted)
    choices = typing.get_args(wanted)
    if choices:
        return " or ".join(_name(choice) for choice in choices)
    return getattr(wanted, "__name__", None) or str(wanted)


def _joined(place: str, location: tuple[Any, ...]) -> str:
    for part in location:
        place = f"{place}[{part}]" if isinstance(part, int) else f"{place}.{part}" if place else str(part)
    return place


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
