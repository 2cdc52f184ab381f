"""The handlers of this process: what the decorators registered, and what each handler can do at once."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Callable

DEFAULT_TASK = "default"
DEFAULT_MAX_WAIT = 0.01


@dataclass(frozen=True)
class Handler:
    """One registered task function and how it wants to be called.

    `batch` is the most payloads per call (None: one payload, not a list), `max_wait` the seconds that a
    batch waits for more of them, `threads` and `concurrency` the calls that may run at the same time.
    `bare` is true for a plain `@task`, the only form that release 0.2.2 knew.
    """

    name: str
    function: Callable[..., Any]
    batch: int | None = None
    max_wait: float = DEFAULT_MAX_WAIT
    threads: int | None = None
    concurrency: int = 1
    retry_on: tuple[type[BaseException], ...] = ()
    bare: bool = False

    @property
    def is_async(self) -> bool:
        """Whether the function is `async def`, with or without `yield`."""
        function = self.function
        for candidate in (function, getattr(function, "__call__", None)):  # noqa: B004
            if inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate):
                return True
        return False

    @property
    def runs_in_main_thread(self) -> bool:
        return self.threads is None and not self.is_async

    @property
    def capacity(self) -> int:
        """Tasks that this handler works on at once."""
        return (self.batch or 1) * (self.threads or 1) * self.concurrency

    def check(self) -> None:
        """Raise ValueError or TypeError, naming the option, if the options do not fit each other."""
        for option, value in (
            ("batch", self.batch),
            ("threads", self.threads),
            ("concurrency", self.concurrency),
        ):
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"@task({option}={value!r}): expected a whole number, 1 or more")
        if isinstance(self.max_wait, bool) or not isinstance(self.max_wait, (int, float)):
            raise ValueError(f"@task(max_wait={self.max_wait!r}): expected seconds, such as 0.01")
        if not 0 <= self.max_wait < float("inf"):
            raise ValueError(f"@task(max_wait={self.max_wait!r}): expected seconds, 0 or more")
        for entry in self.retry_on:
            if not (isinstance(entry, type) and issubclass(entry, BaseException)):
                raise TypeError(f"@task(retry_on=...): {entry!r} is not an exception class")
        if self.is_async and self.threads is not None:
            raise ValueError("@task(threads=...) is for plain functions; an async def takes concurrency=")
        if not self.is_async and self.concurrency != 1:
            raise ValueError("@task(concurrency=...) is for async def; a plain function takes threads=")
        streams = inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function)
        if streams and self.batch is not None:
            raise ValueError(
                "@task(batch=...) can't stream: its handler returns a list, so it must not yield"
            )


class Handlers:
    """All that one process registered. Decorators fill it at import, the runner reads it once at start."""

    def __init__(self) -> None:
        self.by_name: dict[str, Handler] = {}
        self.loader: Callable[..., Any] | None = None
        self.unloader: Callable[..., Any] | None = None

    def add(self, handler: Handler) -> None:
        """Register a handler; RuntimeError if its name is taken."""
        handler.check()
        earlier = self.by_name.get(handler.name)
        if earlier is not None:
            if handler.name == DEFAULT_TASK:
                raise RuntimeError(
                    f"@task handler already registered ({function_name(earlier.function)}). "
                    "Only one @task handler is allowed per process."
                )
            raise RuntimeError(
                f"@task({handler.name!r}) is already registered ({function_name(earlier.function)}). "
                "Only one handler is allowed per task name."
            )
        self.by_name[handler.name] = handler

    def capacity(self) -> int:
        """Tasks that the process works on at once: the main thread serves its handlers one call at a time."""
        in_main = [handler.capacity for handler in self.by_name.values() if handler.runs_in_main_thread]
        beside = [handler.capacity for handler in self.by_name.values() if not handler.runs_in_main_thread]
        return max(max(in_main, default=0) + sum(beside), 1)

    def chosen(self, name: Any) -> Handler | None:
        """The handler for a request's `task` (None where it has none); None if there is no such handler."""
        if name is None:
            default = self.by_name.get(DEFAULT_TASK)
            if default is None and len(self.by_name) == 1:
                return next(iter(self.by_name.values()))
            return default
        return self.by_name.get(name) if isinstance(name, str) else None

    def clear(self) -> None:
        self.by_name.clear()
        self.loader = None
        self.unloader = None


def function_name(function: Callable[..., Any]) -> str:
    """What to call a function in a message."""
    return getattr(function, "__name__", type(function).__name__)


registered = Handlers()
