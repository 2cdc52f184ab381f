"""The decorators that task code is written with."""

from __future__ import annotations

from typing import Any, Callable, Tuple, Type, TypeVar, Union, overload

from .errors import RetryableError
from .handlers import DEFAULT_MAX_WAIT, DEFAULT_TASK, Handler, function_name, registered

__all__ = ["RetryableError", "get_handler", "get_loader", "load", "task", "unload"]

F = TypeVar("F", bound=Callable[..., Any])
RetryOn = Union[Type[BaseException], Tuple[Type[BaseException], ...]]


@overload
def task(func: F) -> F: ...


@overload
def task(
    func: str | None = None,
    *,
    batch: int | None = None,
    max_wait: float = DEFAULT_MAX_WAIT,
    threads: int | None = None,
    concurrency: int = 1,
    retry_on: RetryOn = (),
) -> Callable[[F], F]: ...


def task(
    func: Any = None,
    *,
    batch: int | None = None,
    max_wait: float = DEFAULT_MAX_WAIT,
    threads: int | None = None,
    concurrency: int = 1,
    retry_on: RetryOn = (),
) -> Any:
    """Register a function as a task handler and return it unchanged.

    Plain `@task` handles every task of the process. `@task("embed")` handles the tasks that were enqueued
    with `task: embed`; a process may have many names beside the plain one, which is called "default".

    The handler is called as `handler(payload)`, or `handler(payload, ctx)` if `@load` returned something.
    What it returns is the task's result. A payload parameter annotated with a dataclass or a pydantic model
    gets an instance; one annotated with a TypedDict is checked, except by plain `@task`.

    - `batch`: the handler takes a list of up to so many payloads and returns a list of as many results; an
      exception in place of a result fails that task alone. `max_wait` is how long, in seconds, a batch
      that is not full waits for more.
    - `threads`: so many calls at once, each in a thread. Otherwise they run one at a time in the main thread.
    - `concurrency`: so many calls at once, for `async def`.
    - `retry_on`: exception classes after which the task is tried again, as if it had raised RetryableError.

    A generator streams: each piece it yields is sent at once, and the result is the list of all pieces.

    Raises RuntimeError if the name is taken, ValueError or TypeError for options that make no sense.
    """
    if callable(func):
        registered.add(Handler(DEFAULT_TASK, func, bare=True))
        return func
    if func is not None and not isinstance(func, str):
        raise TypeError(f"@task takes a function or a task name, not {type(func).__name__}")
    if func == "":
        raise ValueError('@task(""): a task name must not be empty')
    name = DEFAULT_TASK if func is None else func
    classes = retry_on if isinstance(retry_on, tuple) else (retry_on,)

    def register(function: F) -> F:
        registered.add(Handler(name, function, batch, max_wait, threads, concurrency, classes))
        return function

    return register


def load(func: F) -> F:
    """Register the function that prepares this process, run once before it reports ready; returned unchanged.

    What it returns (a model, a dictionary of them) is the second argument of every handler call. If it
    raises, the worker is told and the process exits with 1. Raises RuntimeError for a second loader.
    """
    if registered.loader is not None:
        raise RuntimeError(
            f"@load handler already registered ({function_name(registered.loader)}). "
            "Only one @load handler is allowed per process."
        )
    registered.loader = func
    return func


def unload(func: F) -> F:
    """Register the function that runs once at an orderly stop, after the last reply; returned unchanged.

    It is called with what `@load` returned if it takes an argument. It does not run after a crash or a
    forced exit. Raises RuntimeError for a second one.
    """
    if registered.unloader is not None:
        raise RuntimeError(
            f"@unload handler already registered ({function_name(registered.unloader)}). "
            "Only one @unload handler is allowed per process."
        )
    registered.unloader = func
    return func


def get_handler() -> Callable[..., Any] | None:
    """The function of the plain `@task`, or None."""
    handler = registered.by_name.get(DEFAULT_TASK)
    return None if handler is None else handler.function


def get_loader() -> Callable[..., Any] | None:
    """The function of `@load`, or None."""
    return registered.loader


def _reset() -> None:
    """Forget all registered functions, for tests that define handlers."""
    registered.clear()
