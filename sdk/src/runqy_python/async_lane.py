"""The lane of `async def` handlers: one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import collections
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
        self._arrived: collections.deque[Request] = collections.deque()
        self._is_sorting = False

    def start(self) -> None:
        self._thread.start()

    def call(self, coroutine: Any) -> Any:
        """Run a coroutine in the loop (an async loader needs the loop that its handlers use)."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def open(self, callers: list[Caller]) -> None:
        """Make the queues and workers of these handlers."""
        self.call(self._open(callers))

    def put(self, request: Request) -> None:
        self._arrived.append(request)
        # To wake the loop costs more than all the rest, so it is done once for all that arrive together.
        if not self._is_sorting:
            self._is_sorting = True
            self._loop.call_soon_threadsafe(self._sort)

    def finish(self) -> None:
        """No more requests will come: let the workers end after those that are here."""
        if self._loop.is_closed():
            # A signal that came while the process was ending anyway.
            return
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

    def _sort(self) -> None:
        # Before the first look: what arrives after the last one must wake the loop again.
        self._is_sorting = False
        while self._arrived:
            request = self._arrived.popleft()
            assert request.caller is not None
            self._queues[request.caller.handler.name].put_nowait(request)

    async def _open(self, callers: list[Caller]) -> None:
        for caller in callers:
            name = caller.handler.name
            inbox: asyncio.Queue[Request | None] = asyncio.Queue()
            turn = None if caller.batch is None else asyncio.Lock()
            self._queues[name] = inbox
            for _ in range(caller.handler.concurrency):
                worker = AsyncWorker(self._desk, caller, inbox, turn)
                self._workers.append((name, self._loop.create_task(worker.work())))

    async def _all_ended(self) -> None:
        await asyncio.gather(*(worker for _, worker in self._workers))


class AsyncWorker:
    """Runs the requests of one handler one call after another, beside the other workers of that handler.

    It writes as `SerialLane` does: a reply leaves with the next start line, always before that next call.
    `turn` lets one worker at a time fill its batch, or each of them would get a few of its requests.
    """

    def __init__(
        self, desk: Desk, caller: Caller, inbox: asyncio.Queue[Request | None], turn: asyncio.Lock | None
    ) -> None:
        self._desk = desk
        self._caller = caller
        self._inbox = inbox
        self._turn = turn
        self._pending = ""

    async def work(self) -> None:
        """Run requests until None arrives or a stop is asked for."""
        while True:
            if self._turn is None:
                group = await self._take()
            else:
                self._flush()
                async with self._turn:
                    group = await self._take()
            if group is None:
                break
            await self._run(group)
        self._flush()

    async def _take(self) -> list[Request] | None:
        """The requests of the next call; None at the end."""
        while True:
            try:
                request = self._inbox.get_nowait()
            except asyncio.QueueEmpty:
                self._flush()
                request = await self._inbox.get()
            if request is None or self._desk.stopping:
                return None
            claimed = self._desk.claim(request)
            if claimed is not None:
                break
        if self._caller.batch is None:
            return [claimed]
        return await self._gather(claimed, self._caller.batch)

    async def _gather(self, first: Request, size: int) -> list[Request] | None:
        group = [first]
        deadline = time.monotonic() + self._caller.max_wait
        while len(group) < size:
            try:
                request = self._inbox.get_nowait()
            except asyncio.QueueEmpty:
                self._flush()
                getter = asyncio.ensure_future(self._inbox.get())
                await asyncio.wait({getter}, timeout=max(deadline - time.monotonic(), 0))
                getter.cancel()
                try:
                    # Not wait_for: before Python 3.12 it may lose what arrives in the last moment.
                    request = await getter
                except asyncio.CancelledError:
                    break
            if request is None:
                self._inbox.put_nowait(None)
                break
            claimed = self._desk.claim(request)
            if claimed is not None:
                group.append(claimed)
        return None if self._desk.stopping else group

    async def _run(self, group: list[Request]) -> None:
        desk = self._desk
        contexts = [desk.begin(request) for request in group]
        self._flush("".join(desk.events.start_line(request.key) for request in group))
        payloads = [request.payload for request in group]
        for request in group:
            request.payload = None
        if self._caller.batch is None:
            call = _as_list(call_one(self._caller, payloads.pop(), contexts[0]))
        else:
            call = call_batch(self._caller, payloads, contexts)
        outcomes = await self._ended(call, contexts)
        for context in contexts:
            desk.end(context)
        self._pending = "".join(
            reply_line(request.key, outcome, desk.with_delay) for request, outcome in zip(group, outcomes)
        )

    async def _ended(self, call: Awaitable[list[Outcome]], contexts: list[TaskContext]) -> list[Outcome]:
        """Await a call as a task of its own, so that a cancel reaches the handler and not the worker."""
        task = asyncio.ensure_future(call)
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            # A batch goes on for those of its tasks that nobody cancelled.
            if all(context.cancelled for context in contexts):
                loop.call_soon_threadsafe(task.cancel)

        for context in contexts:
            context.on_cancel = cancel
        try:
            return await task
        except asyncio.CancelledError as error:
            # It never got as far as its first line.
            outcome = CANCELLED if contexts[0].cancelled else failure_of(error)
            return [outcome for _ in contexts]

    def _flush(self, more: str = "") -> None:
        text = self._pending + more
        if text:
            self._pending = ""
            self._desk.write(text)


async def _as_list(call: Awaitable[Outcome]) -> list[Outcome]:
    return [await call]
