"""The lane of `async def` handlers: one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, Awaitable

from .async_calls import call_batch, call_one
from .calls import CANCELLED, Caller, Outcome
from .context import TaskContext
from .failures import failure_of
from .lanes import Desk
from .replies import reply_line
from .requests import Request
from .stdio import end_process


class AsyncLane:
    """Runs each async handler up to `concurrency` times at once.

    Cancelling a task cancels its coroutine, so that it ends at its next `await`.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="runqy-async", daemon=True)
        self._queues: dict[str, asyncio.Queue[Request | None]] = {}
        self._workers: list[tuple[str, asyncio.Task[None]]] = []

    def start(self) -> None:
        self._thread.start()

    def call(self, coroutine: Any) -> Any:
        """Run a coroutine in the loop (an async loader needs the loop that its handlers use)."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def open(self, callers: list[Caller]) -> None:
        """Make the queues and workers of these handlers."""
        self.call(self._open(callers))

    def put(self, request: Request) -> None:
        assert request.caller is not None
        self._loop.call_soon_threadsafe(self._queues[request.caller.handler.name].put_nowait, request)

    def finish(self) -> None:
        """No more requests will come: let the workers end after those that are here."""
        for name, _ in self._workers:
            self._loop.call_soon_threadsafe(self._queues[name].put_nowait, None)

    def join(self) -> None:
        """Wait until the workers have ended."""
        if self._workers:
            self.call(self._all_ended())

    def close(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _serve(self) -> None:
        try:
            asyncio.set_event_loop(self._loop)
            self._loop.run_forever()
        except SystemExit as error:
            end_process(error.code)

    async def _open(self, callers: list[Caller]) -> None:
        for caller in callers:
            name = caller.handler.name
            self._queues[name] = asyncio.Queue()
            for _ in range(caller.handler.concurrency):
                self._workers.append((name, self._loop.create_task(self._work(caller, self._queues[name]))))

    async def _all_ended(self) -> None:
        await asyncio.gather(*(worker for _, worker in self._workers))

    async def _work(self, caller: Caller, inbox: asyncio.Queue[Request | None]) -> None:
        while True:
            request = await inbox.get()
            if request is None or self._desk.stopping:
                return
            claimed = self._desk.claim(request)
            if claimed is None:
                continue
            group = [claimed] if caller.batch is None else await self._gather(claimed, caller, inbox)
            if group:
                await self._run(group, caller)
            # Nothing may keep a payload alive while the worker waits for the next one.
            del request, claimed, group

    async def _gather(
        self, first: Request, caller: Caller, inbox: asyncio.Queue[Request | None]
    ) -> list[Request]:
        assert caller.batch is not None
        group = [first]
        deadline = time.monotonic() + caller.max_wait
        while len(group) < caller.batch:
            try:
                request = inbox.get_nowait()
            except asyncio.QueueEmpty:
                try:
                    request = await asyncio.wait_for(inbox.get(), max(deadline - time.monotonic(), 0))
                except asyncio.TimeoutError:
                    break
            if request is None:
                inbox.put_nowait(None)
                break
            claimed = self._desk.claim(request)
            if claimed is not None:
                group.append(claimed)
        return group if not self._desk.stopping else []

    async def _run(self, group: list[Request], caller: Caller) -> None:
        desk = self._desk
        contexts = [desk.begin(request) for request in group]
        starts = "".join(desk.events.start_line(request.key) for request in group)
        if starts:
            desk.write(starts)
        payloads = [request.payload for request in group]
        for request in group:
            request.payload = None
        if caller.batch is None:
            outcomes = await self._one(caller, payloads.pop(), contexts[0])
        else:
            outcomes = await self._ended(call_batch(caller, payloads, contexts), contexts)
        for context in contexts:
            desk.end(context)
        desk.write(
            "".join(
                reply_line(request.key, outcome, desk.with_delay) for request, outcome in zip(group, outcomes)
            )
        )

    async def _one(self, caller: Caller, payload: Any, context: TaskContext) -> list[Outcome]:
        async def call() -> list[Outcome]:
            return [await call_one(caller, payload, context)]

        return await self._ended(call(), [context])

    async def _ended(self, call: Awaitable[list[Outcome]], contexts: list[TaskContext]) -> list[Outcome]:
        """Await a call as a task of its own, so that a cancel reaches the handler and not the worker."""
        task = asyncio.ensure_future(call)

        def cancel() -> None:
            # A batch goes on for those of its tasks that nobody cancelled.
            if all(context.cancelled for context in contexts):
                self._loop.call_soon_threadsafe(task.cancel)

        for context in contexts:
            context.on_cancel = cancel
        try:
            return await task
        except asyncio.CancelledError as error:
            # It never got as far as its first line.
            outcome = CANCELLED if contexts[0].cancelled else failure_of(error)
            return [outcome for _ in contexts]
