"""Writes the ends of attempts to Redis: gathered, kept while Redis is away, delivered when it is back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable

import structlog

from runqy.broker.broker import Broker
from runqy.broker.transitions import AttemptEnd, Held
from runqy.errors import RunqyError, UnavailableError
from runqy.service import end_tasks

log = structlog.get_logger(__name__)

BATCH = 200
FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0


class Finisher:
    """Takes ends without waiting and writes them in batches; a lone one goes at once.

    Nothing is dropped: what Redis did not take is tried again for ever. ``backlog`` counts what is not written.
    """

    def __init__(self, broker: Broker, *, flush: Callable[[Iterable[str]], Awaitable[None]]) -> None:
        """``flush`` sends what tasks printed; it is called with their ids right before their ends are written."""
        self._broker = broker
        self._flush = flush
        self._ends: list[AttemptEnd] = []
        self._started: list[Held] = []
        self._writing = 0
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._task: asyncio.Task[None] | None = None
        self.redis_is_away = False
        self.superseded = 0

    @property
    def backlog(self) -> int:
        return len(self._ends) + self._writing

    def add(self, end: AttemptEnd) -> None:
        """Hand in the end of an attempt."""
        self._ends.append(end)
        self._empty.clear()
        self._news.set()

    def started(self, held: Held) -> None:
        """The execution of a task that was held ahead has begun: its mark goes with the next batch."""
        self._started.append(held)
        self._news.set()

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="finisher")

    async def drain(self) -> None:
        """Wait until everything that was handed in is written."""
        await self._empty.wait()

    async def stop(self) -> None:
        """End at once; call `drain` first."""
        task, self._task = self._task, None
        await end_tasks(task)

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._ends or self._started:
                ends, self._ends = self._ends[:BATCH], self._ends[BATCH:]
                started, self._started = self._started, []
                self._writing = len(ends)
                await self._write(ends, started)
                self._writing = 0
            self._empty.set()

    async def _write(self, ends: list[AttemptEnd], started: list[Held]) -> None:
        delay = FIRST_DELAY
        repeated = False
        while True:
            try:
                await self._flush([end.id for end in ends])
                owned = await self._broker.finish(ends, started)
            except UnavailableError as error:
                if not self.redis_is_away:
                    log.warning("Redis is away, keeping results", reason=str(error), kept=self.backlog)
                self.redis_is_away, repeated = True, True
                await asyncio.sleep(delay * random.uniform(0.8, 1.2))
                delay = min(delay * 2, LONGEST_DELAY)
                continue
            except RunqyError as error:
                log.error("ends of attempts could not be written, trying again", reason=str(error))
                await asyncio.sleep(LONGEST_DELAY)
                continue
            except Exception:
                await self._write_one_by_one(ends, started)
                return
            if self.redis_is_away:
                log.info("Redis is back, kept results are delivered", delivered=len(ends))
                self.redis_is_away = False
            for end, mine in zip(ends, owned, strict=True):
                # After a lost answer the repetition finds its own work done.
                if not mine and not repeated:
                    self.superseded += 1
                    log.warning("this worker no longer owned the task", task=end.id, queue=end.queue)
            return

    async def _write_one_by_one(self, ends: list[AttemptEnd], started: list[Held]) -> None:
        """Something that nobody foresaw (a key of another type, say) must not take the other ends with it."""
        if len(ends) <= 1:
            log.exception(
                "an end can't be written; its task is decided again when its lease has run out",
                task=[end.id for end in ends],
            )
            return
        log.exception("a batch of ends can't be written, trying them one by one")
        for end in ends:
            await self._write([end], [held for held in started if held.id == end.id])
