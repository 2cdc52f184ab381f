"""Gathers concurrent calls into one: what arrives while a round trip is under way goes together in the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Gatherer(Generic[Item, Answer]):
    """Turns many single calls into few calls of many; a lone call waits for nothing.

    ``send`` takes a list of items and returns one answer per item, in order; its exception goes to every
    caller of that batch. At most ``lanes`` sends are under way at once, each of at most ``limit`` items.
    """

    def __init__(
        self, send: Callable[[list[Item]], Awaitable[Sequence[Answer]]], *, lanes: int = 2, limit: int = 256
    ) -> None:
        self._send = send
        self._lanes = lanes
        self._limit = limit
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, item: Item) -> Answer:
        """Hand in one item and wait for its answer.

        A caller that is cancelled takes nothing back: its item goes with its batch.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if len(self._running) < self._lanes:
            task = asyncio.create_task(self._drain())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await future

    async def _drain(self) -> None:
        while self._waiting:
            batch = self._waiting[: self._limit]
            del self._waiting[: self._limit]
            try:
                answers = await self._send([item for item, _ in batch])
            except BaseException as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                        # Marked as seen: a caller that was cancelled meanwhile never asks for it.
                        future.exception()
                if not isinstance(error, Exception):
                    raise
                continue
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
