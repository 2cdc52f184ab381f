"""Payloads as the types that handlers ask for by annotation.

A payload parameter that mentions a dataclass, a TypedDict or a pydantic model is converted and checked. Every
other annotation is left alone, so that `payload: dict` means what it always meant: whatever was sent.
"""

from __future__ import annotations

import inspect
import typing
from typing import Any, Callable

from .errors import InvalidPayloadError
from .handlers import Handler
from .json_types import Problems, is_dataclass_type, is_pydantic_model, is_typed_dict, read

MOST_PROBLEMS = 20

Converter = Callable[[Any], Any]


def payload_converter(handler: Handler) -> Converter | None:
    """What makes the handler's payloads of JSON values; None if it takes them as they are."""
    wanted = _payload_type(handler.function)
    if handler.batch is not None:
        arguments = typing.get_args(wanted)
        wanted = arguments[0] if len(arguments) == 1 else None
    # Release 0.2.2 did not look at annotations. There, a TypedDict described payloads that were plain
    # dictionaries, complete or not; that code must go on working.
    if wanted is None or not _mentions_model(wanted, typed_dicts=not handler.bare):
        return None

    def convert(payload: Any) -> Any:
        problems: Problems = []
        value = read(payload, wanted, "", problems)
        if problems:
            raise InvalidPayloadError(_text(problems))
        return value

    return convert


def _payload_type(function: Callable[..., Any]) -> Any:
    """The annotation of the first parameter, or None if there is none that can be resolved."""
    try:
        parameters = list(inspect.signature(function).parameters)
        annotated = function if inspect.isroutine(function) else type(function).__call__
        return typing.get_type_hints(annotated).get(parameters[0])
    except Exception:
        # Names that exist for the type checker only, or an object without a signature.
        return None


def _mentions_model(wanted: Any, typed_dicts: bool) -> bool:
    if is_dataclass_type(wanted) or is_pydantic_model(wanted):
        return True
    if is_typed_dict(wanted):
        return typed_dicts
    return any(_mentions_model(argument, typed_dicts) for argument in typing.get_args(wanted))


def _text(problems: Problems) -> str:
    told = [f"{place}: {reason}" if place else reason for place, reason in problems[:MOST_PROBLEMS]]
    if len(problems) > MOST_PROBLEMS:
        told.append(f"and {len(problems) - MOST_PROBLEMS} more")
    return "Invalid payload: " + "; ".join(told)
