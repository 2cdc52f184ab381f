"""Calls of `async def` handlers, to be awaited in the loop of their lane."""

from __future__ import annotations

import asyncio
from types import AsyncGeneratorType
from typing import Any, AsyncIterator, Sequence

from .calls import CANCELLED, Batch, Caller, Outcome
from .context import TaskContext, current
from .encoding import encode_result
from .failures import failure_of


async def call_one(caller: Caller, payload: Any, context: TaskContext) -> Outcome:
    """Call the handler for one task. Raises nothing but SystemExit."""
    current.set((context,))
    try:
        if caller.convert is not None:
            payload = caller.convert(payload)
        result = caller.function(payload, *caller.extra)
        if isinstance(result, AsyncGeneratorType):
            return await _streamed(result, context)
        return encode_result(await result)
    except SystemExit:
        raise
    except asyncio.CancelledError as error:
        return CANCELLED if context.cancelled else failure_of(error)
    except BaseException as error:
        return failure_of(error, caller.handler.retry_on)


async def call_batch(
    caller: Caller, payloads: Sequence[Any], contexts: Sequence[TaskContext]
) -> list[Outcome]:
    """Call a batch handler; one outcome for each payload. Raises nothing but SystemExit."""
    current.set(tuple(contexts))
    batch = Batch(caller, payloads)
    if batch.good:
        try:
            results = await caller.function(batch.good, *caller.extra)
        except SystemExit:
            raise
        except BaseException as error:
            batch.fail(error)
        else:
            batch.take(results)
    return batch.outcomes()


async def _streamed(pieces: AsyncIterator[Any], context: TaskContext) -> Outcome:
    """Send each piece of an async generator as it comes; the result is the list of all of them."""
    sent: list[str] = []
    try:
        async for piece in pieces:
            data = encode_result(piece)
            context.output(data)
            sent.append(data)
            if context.cancelled:
                return CANCELLED
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]
    return "[" + ", ".join(sent) + "]"
