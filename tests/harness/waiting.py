"""Waiting for a condition with a deadline, instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def eventually(condition: Callable[[], Any | Awaitable[Any]], seconds: float = 10.0, what: str = "") -> Any:
    """Return the first truthy value of the condition; fail when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"not in {seconds} s: {what or condition}"
        await asyncio.sleep(0.01)
