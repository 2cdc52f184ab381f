"""What task code prints and reports: into the worker's log, and beside the task in Redis."""

from __future__ import annotations

import asyncio
import collections
import functools
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec
import structlog

from runqy.broker.broker import Broker
from runqy.broker.transitions import Held
from runqy.errors import RunqyError
from runqy.service import end_tasks
from runqy.telemetry import redact
from runqy.worker.runtime import Run

log = structlog.get_logger("task")

FLUSH_SECONDS = 0.2
KEPT_LINES = 500
LINE_CHARACTERS = 8192
TASK_BYTES = 64 * 1024

_Call = Callable[[], Coroutine[Any, Any, bool]]


class Outputs:
    """Keeps the last lines of all task processes, and per task what it printed, within fixed bounds.

    ``told`` gets each line with its task's id (None where nobody knows it). Losing output never disturbs a task:
    what Redis does not take is dropped with a mark.
    """

    def __init__(self, broker: Broker, *, told: Callable[[str | None, str, str], None] | None = None) -> None:
        self._broker = broker
        self._told = told or _log_line
        self._texts: dict[str, tuple[Held, collections.deque[str], int]] = {}
        self._progress: dict[str, tuple[Held, bytes]] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._pieces: asyncio.Queue[tuple[Held, bytes]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._seq = 0
        self.lines: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        """JSON lines for the worker's log in Redis, not yet flushed"""

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._run(), name="outputs"),
            asyncio.create_task(self._publish_pieces(), name="output-pieces"),
        ]

    async def stop(self) -> None:
        tasks, self._tasks = [*self._tasks, *self._sending.values()], []
        await end_tasks(*tasks)

    def take_lines(self) -> list[str]:
        """The lines since the last call."""
        lines = list(self.lines)
        self.lines.clear()
        return lines

    def printed(self, run: Run | None, stream: str, text: str) -> None:
        text = redact(text)
        task_id = run.task.id if run is not None else None
        for line in text.splitlines():
            shown = line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]} … ({len(line)} characters)"
            self._seq += 1
            entry = {"ts": int(time.time() * 1000), "src": stream, "text": shown, "seq": self._seq}
            if task_id is not None:
                entry["task_id"] = task_id
            self.lines.append(msgspec.json.encode(entry).decode())
            self._told(task_id, stream, shown)
        if run is not None:
            self._keep(run, text if text.endswith("\n") else text + "\n")

    def _keep(self, run: Run, text: str) -> None:
        held = Held(run.task.queue, run.task.id, run.task.token)
        _, texts, size = self._texts.get(run.task.id) or (held, collections.deque(), 0)
        texts.append(text)
        size += len(text)
        while size > TASK_BYTES and len(texts) > 1:
            size -= len(texts.popleft())
        self._texts[run.task.id] = (held, texts, size)
        self._news.set()

    def progressed(self, run: Run, fraction: float | None, message: str) -> None:
        document = {"fraction": fraction, "message": redact(message), "at": round(time.time(), 3)}
        held = Held(run.task.queue, run.task.id, run.task.token)
        self._progress[run.task.id] = (held, msgspec.json.encode(document))
        self._news.set()

    def piece(self, run: Run, seq: int, data: bytes) -> None:
        """A piece of a streamed result goes out at once, in order."""
        held = Held(run.task.queue, run.task.id, run.task.token)
        document = b'{"seq":%d,"data":%s}' % (seq, data)
        self._pieces.put_nowait((held, document))

    async def _publish_pieces(self) -> None:
        while True:
            held, document = await self._pieces.get()
            try:
                await self._broker.publish_output(held, document)
            except RunqyError as error:
                log.warning("an output piece was not told", task=held.id, reason=str(error))

    async def flush(self, ids: Iterable[str]) -> None:
        """Send what these tasks printed and reported, now: once their ends are written, nothing is taken any more.

        Returns when also what was under way before has arrived.
        """
        sending = []
        for task_id in ids:
            before = self._sending.get(task_id)
            calls: list[_Call] = []
            if (kept := self._texts.pop(task_id, None)) is not None:
                calls.append(functools.partial(self._broker.append_log, kept[0], "".join(kept[1])))
            if (reported := self._progress.pop(task_id, None)) is not None:
                calls.append(functools.partial(self._broker.progress, *reported))
            if calls:
                before = asyncio.ensure_future(self._send(before, calls, task_id))
                self._sending[task_id] = before
            if before is not None:
                sending.append(before)
        if sending:
            await asyncio.gather(*sending)

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self.flush([*self._texts, *self._progress])
            await asyncio.sleep(FLUSH_SECONDS)

    async def _send(self, before: asyncio.Task[None] | None, calls: list[_Call], task_id: str) -> None:
        """Send in the order in which it was printed; what Redis does not take is dropped."""
        if before is not None:
            await before
        for call in calls:
            try:
                await call()
            except RunqyError as error:
                log.debug("output of a task was dropped", task=task_id, reason=str(error))
        if self._sending.get(task_id) is asyncio.current_task():
            del self._sending[task_id]


def _log_line(task_id: str | None, stream: str, text: str) -> None:
    if task_id is None:
        log.info(text, src=stream)
    else:
        log.info(text, task=task_id, src=stream)
