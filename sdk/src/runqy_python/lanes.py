"""Lanes: the places where handlers run, each with a queue of requests in the order of their arrival."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque

from .calls import Caller
from .context import TaskContext, running
from .events import EventSink
from .replies import reply_line
from .requests import Intake, Request
from .stdio import Channel, end_process


class Desk:
    """What all lanes of a process share: where lines go, who owns a request, and whether to stop."""

    def __init__(self, channel: Channel, events: EventSink, version: int) -> None:
        self.write = channel.write
        self.events = events
        self.with_delay = version >= 2
        self.stopping = False
        self.intake: Intake | None = None

    def claim(self, request: Request) -> Request | None:
        return request if self.intake is None else self.intake.claim(request)

    def begin(self, request: Request) -> TaskContext:
        context = TaskContext(request.key, self.events)
        running[request.key] = context
        return context

    def end(self, context: TaskContext) -> None:
        context.close()
        running.pop(context.key, None)


class SerialLane:
    """Runs requests one call after another in the thread that calls `work`.

    The reply of one call and the start line of the next leave in a single write, and always before that next
    call: if a handler takes the process down, the worker knows what had ended and what had begun.

    Lanes that share an inbox and take batches share a `turn`: one at a time fills its batch, or each of them
    would get a few of its requests.
    """

    def __init__(
        self, desk: Desk, inbox: queue.SimpleQueue[Request | None], turn: threading.Lock | None = None
    ) -> None:
        self._desk = desk
        self._inbox = inbox
        self._turn = turn
        self._held: deque[Request] = deque()
        self._pending = ""

    def work(self) -> None:
        """Run requests until None arrives or a stop is asked for."""
        while True:
            if self._turn is None:
                group = self._take()
            else:
                self._flush()
                with self._turn:
                    group = self._take()
            if group is None:
                break
            caller = group[0].caller
            assert caller is not None
            if caller.batch is None:
                self._run(group[0], caller)
            else:
                self._run_batch(group, caller)
        self._flush()

    def _take(self) -> list[Request] | None:
        """The requests of the next call; None at the end."""
        desk = self._desk
        while True:
            request = self._next()
            if request is None or desk.stopping:
                return None
            claimed = desk.claim(request)
            if claimed is None:
                continue
            if claimed.fault is not None:
                self._pending += reply_line(claimed.key, claimed.fault, desk.with_delay)
                continue
            caller = claimed.caller
            assert caller is not None
            return [claimed] if caller.batch is None else self._gather(claimed, caller)

    def _next(self) -> Request | None:
        if self._held:
            return self._held.popleft()
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            self._flush()
            return self._inbox.get()

    def _run(self, request: Request, caller: Caller) -> None:
        desk = self._desk
        context = desk.begin(request)
        self._flush(desk.events.start_line(request.key))
        payload, request.payload = request.payload, None
        outcome = caller.one(payload, context)
        desk.end(context)
        self._pending = reply_line(request.key, outcome, desk.with_delay)

    def _gather(self, first: Request, caller: Caller) -> list[Request] | None:
        """More requests for the same handler, until the batch is full or its wait is over; None at a stop."""
        assert caller.batch is not None
        group = [first]
        others: deque[Request] = deque()
        deadline = time.monotonic() + caller.max_wait
        while len(group) < caller.batch:
            request = self._held.popleft() if self._held else self._next_until(deadline)
            if request is None:
                break
            if request.caller is not caller:
                others.append(request)
                continue
            claimed = self._desk.claim(request)
            if claimed is not None:
                group.append(claimed)
        others.extend(self._held)
        self._held = others
        return None if self._desk.stopping else group

    def _next_until(self, deadline: float) -> Request | None:
        try:
            request = self._inbox.get_nowait()
        except queue.Empty:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._flush()
            try:
                request = self._inbox.get(timeout=left)
            except queue.Empty:
                return None
        if request is None:
            # The end comes after this batch.
            self._inbox.put(None)
        return request

    def _run_batch(self, group: list[Request], caller: Caller) -> None:
        desk = self._desk
        contexts = [desk.begin(request) for request in group]
        self._flush("".join(desk.events.start_line(request.key) for request in group))
        payloads = [request.payload for request in group]
        for request in group:
            request.payload = None
        outcomes = caller.many(payloads, contexts)
        del payloads
        for context in contexts:
            desk.end(context)
        self._pending = "".join(
            reply_line(request.key, outcome, desk.with_delay) for request, outcome in zip(group, outcomes)
        )

    def _flush(self, more: str = "") -> None:
        text = self._pending + more
        if text:
            self._pending = ""
            self._desk.write(text)


class ThreadLane:
    """Several serial lanes over one queue, each in a thread: as many calls at once as it has threads."""

    def __init__(self, desk: Desk, name: str, threads: int, batches: bool) -> None:
        self.inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._desk = desk
        self._turn = threading.Lock() if batches else None
        self._threads = [
            threading.Thread(target=self._work, name=f"runqy-{name}-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def put(self, request: Request) -> None:
        self.inbox.put(request)

    def finish(self) -> None:
        """No more requests will come: let the threads end after those that are here."""
        for _ in self._threads:
            self.inbox.put(None)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        try:
            SerialLane(self._desk, self.inbox, self._turn).work()
        except SystemExit as error:
            # In a thread it would end the thread alone, and the task would hang until its time limit.
            end_process(error.code)
