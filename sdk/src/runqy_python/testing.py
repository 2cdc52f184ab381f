"""Call handlers in unit tests as a worker would.

    from runqy_python import testing
    from my_task import embed

    def test_embed():
        outcome = testing.call(embed, {"text": "hello"}, ctx=FakeModel())
        assert outcome.result == [0.1, 0.2]

The payload goes through JSON on its way in and the result on its way out, so what works here works there.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, List, Sequence, TextIO, cast

from .calls import Caller, Outcome, awaited
from .context import TaskContext, running
from .encoding import encode_result, encode_text
from .events import EventSink
from .handlers import DEFAULT_TASK, Handler, registered
from .streams import TaskStream

__all__ = ["CallOutcome", "call", "call_batch", "load"]


@dataclass
class CallOutcome:
    """What one task came to, and what it told on the way.

    `error` is None after a success; `retry` and `delay` (seconds) say what the worker would do after a
    failure. `progress` holds (fraction, message), `logs` (stream, text), `outputs` the pieces of a generator.
    """

    result: Any = None
    error: str | None = None
    retry: bool = False
    delay: float | None = None
    progress: list[tuple[float, str | None]] = field(default_factory=list)
    logs: list[tuple[str, str]] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)

    @property
    def succeeded(self) -> bool:
        return self.error is None


def load() -> Any:
    """Run the `@load` function and return what it returns; None if there is none."""
    loaded = None if registered.loader is None else registered.loader()
    return awaited(loaded) if hasattr(loaded, "__await__") else loaded


def call(
    handler: Callable[..., Any] | str, payload: Any, *, ctx: Any = None, cancelled: bool = False
) -> CallOutcome:
    """Call a handler, given as the function or by its task name, with one payload.

    `ctx` stands for what `@load` returned. With `cancelled`, the task is cancelled from the start. A batch
    handler gets a batch of one. Raises only what ends the process at the worker: SystemExit.
    """
    return call_batch(handler, [payload], ctx=ctx, cancelled=cancelled)[0]


def call_batch(
    handler: Callable[..., Any] | str, payloads: Sequence[Any], *, ctx: Any = None, cancelled: bool = False
) -> list[CallOutcome]:
    """Call a handler with several payloads: in one call if it takes batches, else one after another."""
    found = _handler(handler)
    caller = Caller(found, ctx, registered.loader is not None)
    sink = _Recorder()
    contexts = []
    for number in range(len(payloads)):
        context = TaskContext(encode_text(f"test-{number}"), sink)
        context.cancelled = cancelled
        contexts.append(context)
    received = [json.loads(encode_result(payload, "payload")) for payload in payloads]
    if found.batch is not None:
        outcomes = _run(caller, received, contexts)
    else:
        outcomes = []
        for payload, context in zip(received, contexts):
            outcomes += _run(caller, [payload], [context])
    return [sink.outcome(context.key, outcome) for context, outcome in zip(contexts, outcomes)]


def _handler(wanted: Callable[..., Any] | str) -> Handler:
    if isinstance(wanted, str):
        found = registered.by_name.get(wanted)
        if found is None:
            known = ", ".join(map(repr, registered.by_name)) or "none"
            raise LookupError(f"There is no handler for task {wanted!r}. Known tasks: {known}.")
        return found
    for handler in registered.by_name.values():
        if handler.function is wanted:
            return handler
    return Handler(DEFAULT_TASK, wanted, bare=True)


def _run(caller: Caller, payloads: Sequence[Any], contexts: Sequence[TaskContext]) -> list[Outcome]:
    with _running(contexts):
        if caller.handler.is_async:
            from .async_calls import call_batch as call_batch_async
            from .async_calls import call_one

            if caller.batch is not None:
                outcomes = awaited(call_batch_async(caller, payloads, contexts))
            else:
                outcomes = [awaited(call_one(caller, payloads[0], contexts[0]))]
        elif caller.batch is not None:
            outcomes = caller.many(payloads, contexts)
        else:
            outcomes = [caller.one(payloads[0], contexts[0])]
    return cast(List[Outcome], outcomes)


@contextlib.contextmanager
def _running(contexts: Sequence[TaskContext]) -> Iterator[None]:
    """The tasks are running, and what they print is theirs."""
    out = cast(TextIO, TaskStream("stdout", sys.stdout))
    err = cast(TextIO, TaskStream("stderr", sys.stderr))
    running.update((context.key, context) for context in contexts)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield
    finally:
        for context in contexts:
            context.close()
            running.pop(context.key, None)


class _Recorder(EventSink):
    """Keeps the events of each task."""

    def __init__(self) -> None:
        self._kept: dict[str, CallOutcome] = {}

    def progress(self, key: str, fraction: float, message: str | None) -> None:
        self._of(key).progress.append((fraction, message))

    def log(self, key: str, stream: str, text: str) -> None:
        self._of(key).logs.append((stream, text))

    def output(self, key: str, seq: int, data: str) -> None:
        self._of(key).outputs.append(json.loads(data))

    def outcome(self, key: str, outcome: Outcome) -> CallOutcome:
        kept = self._of(key)
        if isinstance(outcome, str):
            kept.result = json.loads(outcome)
        else:
            kept.error, kept.retry, kept.delay = outcome
        return kept

    def _of(self, key: str) -> CallOutcome:
        return self._kept.setdefault(key, CallOutcome())
