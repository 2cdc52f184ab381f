"""One call of a handler: a payload goes in, a result as JSON text or a failure comes out."""

from __future__ import annotations

import inspect
from types import CoroutineType, GeneratorType
from typing import Any, Callable, Iterator, Sequence, Union

from .context import TaskContext, current
from .encoding import encode_result
from .failures import Failure, failure_of
from .handlers import Handler, function_name
from .typed import payload_converter

CANCELLED = Failure("The task was cancelled while it ran.")

# A result as JSON text, or why there is none.
Outcome = Union[str, Failure]


class Caller:
    """A handler with its loaded context, ready to be called.

    Its methods raise nothing but SystemExit: every other exception is the task's failure, also
    KeyboardInterrupt and GeneratorExit, which here can only come from task code itself. `async def` handlers
    are called by `async_calls`.
    """

    def __init__(self, handler: Handler, loaded: Any, has_loader: bool) -> None:
        self.handler = handler
        self.batch = handler.batch
        self.max_wait = handler.max_wait
        self.function = handler.function
        self.convert = payload_converter(handler)
        wants_context = loaded is not None or (has_loader and _requires_two(handler.function))
        self.extra: tuple[Any, ...] = (loaded,) if wants_context else ()

    def one(self, payload: Any, context: TaskContext) -> Outcome:
        """Call the handler for one task, in this thread."""
        token = current.set((context,))
        try:
            if self.convert is not None:
                payload = self.convert(payload)
            result = self.function(payload, *self.extra)
            kind = type(result)
            if kind is GeneratorType:
                return _streamed(result, context)
            if kind is CoroutineType:
                result = awaited(result)
            return encode_result(result)
        except SystemExit:
            raise
        except BaseException as error:
            return failure_of(error, self.handler.retry_on)
        finally:
            current.reset(token)

    def many(self, payloads: Sequence[Any], contexts: Sequence[TaskContext]) -> list[Outcome]:
        """Call a batch handler, in this thread; one outcome for each payload."""
        token = current.set(tuple(contexts))
        try:
            batch = Batch(self, payloads)
            if batch.good:
                try:
                    result = self.function(batch.good, *self.extra)
                    if type(result) is CoroutineType:
                        result = awaited(result)
                except SystemExit:
                    raise
                except BaseException as error:
                    batch.fail(error)
                else:
                    batch.take(result)
            return batch.outcomes()
        finally:
            current.reset(token)


class Batch:
    """The payloads of one batch call, of which only those that fit the handler's type take part."""

    def __init__(self, caller: Caller, payloads: Sequence[Any]) -> None:
        self.good: list[Any] = []
        self._retry_on = caller.handler.retry_on
        self._name = function_name(caller.handler.function)
        self._outcomes: list[Outcome | None] = []
        for payload in payloads:
            try:
                self.good.append(payload if caller.convert is None else caller.convert(payload))
                self._outcomes.append(None)
            except SystemExit:
                raise
            except BaseException as error:
                self._outcomes.append(failure_of(error))

    def fail(self, error: BaseException) -> None:
        """Give every task that took part the same failure."""
        self._fill(failure_of(error, self._retry_on) for _ in self.good)

    def take(self, results: Any) -> None:
        """Give every task that took part its own result; an exception in the list is that task's failure."""
        try:
            if isinstance(results, (str, bytes, dict, set, frozenset)) or not hasattr(results, "__len__"):
                raise _UnfitBatchError(f"it returned {type(results).__name__}")
            if len(results) != len(self.good):
                raise _UnfitBatchError(f"it returned {len(results)}")
            items = list(results)
        except _UnfitBatchError as error:
            text = (
                f"The batch handler {self._name} was given {len(self.good)} payloads and must return a list "
                f"of {len(self.good)} results in the same order, but {error}."
            )
            self._fill(Failure(text) for _ in self.good)
        except BaseException as error:
            self.fail(error)
        else:
            self._fill(self._outcome(item) for item in items)

    def outcomes(self) -> list[Outcome]:
        return [outcome for outcome in self._outcomes if outcome is not None]

    def _outcome(self, item: Any) -> Outcome:
        if isinstance(item, BaseException):
            return failure_of(item, self._retry_on)
        try:
            return encode_result(item)
        except SystemExit:
            raise
        except BaseException as error:
            return failure_of(error)

    def _fill(self, outcomes: Iterator[Outcome]) -> None:
        for index, outcome in enumerate(self._outcomes):
            if outcome is None:
                self._outcomes[index] = next(outcomes)


class _UnfitBatchError(Exception):
    """A batch handler returned something that can't be matched with its payloads."""


def _streamed(pieces: Iterator[Any], context: TaskContext) -> Outcome:
    """Send each piece of a generator as it comes; the result is the list of all of them."""
    sent: list[str] = []
    try:
        for piece in pieces:
            data = encode_result(piece)
            context.output(data)
            sent.append(data)
            if context.cancelled:
                return CANCELLED
    finally:
        pieces.close()  # type: ignore[attr-defined]
    return "[" + ", ".join(sent) + "]"


def awaited(coroutine: Any) -> Any:
    """What a coroutine comes to that a plain function returned, as one that wraps an async function does."""
    # Imported here, as it takes longer than all the rest and every one_shot task would pay for it.
    import asyncio

    return asyncio.run(coroutine)


def _requires_two(function: Callable[..., Any]) -> bool:
    """Whether a function can't be called with the payload alone."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    return len(required) == 2
