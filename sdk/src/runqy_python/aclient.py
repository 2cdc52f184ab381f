"""The client for programs that run an event loop."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, TypeVar

from .client import RunqyClient
from .task_info import BatchResult, TaskEvent, TaskInfo

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")


class AsyncRunqyClient:
    """RunqyClient with `await`: the same methods, parameters and errors, each call in a thread of a pool.

    `max_calls` is how many calls may be under way at once; each `wait`, `result` and open `stream` counts as
    one. Use it with `async with`, or await `close`.
    """

    def __init__(
        self,
        server_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 30,
        *,
        max_calls: int = 32,
    ) -> None:
        self._client = RunqyClient(server_url, api_key, timeout)
        # Imported where it is needed, as asyncio below: every one_shot task would pay for them.
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(max_calls, thread_name_prefix="runqy-client")

    async def enqueue(
        self, queue: str, payload: Any, timeout: int | float | str | None = None, **options: Any
    ) -> TaskInfo:
        """As RunqyClient.enqueue."""
        return await self._call(lambda: self._client.enqueue(queue, payload, timeout, **options))

    async def enqueue_batch(
        self, queue: str, payloads: Any, timeout: int | float | str | None = None, **options: Any
    ) -> BatchResult:
        """As RunqyClient.enqueue_batch."""
        return await self._call(lambda: self._client.enqueue_batch(queue, payloads, timeout, **options))

    async def get_task(self, task_id: str) -> TaskInfo:
        """As RunqyClient.get_task."""
        return await self._call(lambda: self._client.get_task(task_id))

    async def wait(self, task: str | TaskInfo, timeout: float | None = None) -> TaskInfo:
        """As RunqyClient.wait."""
        return await self._call(lambda: self._client.wait(task, timeout))

    async def result(self, task: str | TaskInfo, timeout: float | None = None) -> Any:
        """As RunqyClient.result."""
        return await self._call(lambda: self._client.result(task, timeout))

    async def stream(self, task: str | TaskInfo) -> AsyncIterator[TaskEvent]:
        """As RunqyClient.stream."""
        events = self._client.stream(task)
        try:
            while True:
                event = await self._call(lambda: next(events, None))
                if event is None:
                    return
                yield event
        finally:
            # A cancelled step still runs in its thread; it ends with the next event or with the client.
            with contextlib.suppress(ValueError):
                events.close()

    async def close(self) -> None:
        """Close the connections; calls still under way, such as a cancelled `wait`, fail."""
        self._client._transport.abort()
        await self._in_loop(None, self._pool.shutdown)

    async def __aenter__(self) -> AsyncRunqyClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self._client!r}"

    async def _call(self, function: Callable[[], T]) -> T:
        return await self._in_loop(self._pool, function)

    async def _in_loop(self, pool: ThreadPoolExecutor | None, function: Callable[[], T]) -> T:
        from asyncio import get_running_loop

        return await get_running_loop().run_in_executor(pool, function)
