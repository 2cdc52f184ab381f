"""Payloads as the types that handlers ask for by annotation."""

from __future__ import annotations

from typing import Any, Callable

from .handlers import Handler

Converter = Callable[[Any], Any]


def payload_converter(handler: Handler) -> Converter | None:
    return None
