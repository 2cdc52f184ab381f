"""The one shape of every background loop: start, run once, again after a while, stop."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from runqy.errors import RunqyError, UnavailableError

log = structlog.get_logger(__name__)

MAX_BACKOFF_SECONDS = 30.0


async def end_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks and wait until they have ended.

    A cancellation that arrives while a client library cleans up can get lost there; so it is repeated.
    """
    left = {task for task in tasks if task is not None and not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.5)
    for ended in tasks:
        if ended is not None and not ended.cancelled() and (error := ended.exception()) is not None:
            log.debug("a task had failed before it was ended", reason=repr(error))


class Service:
    """Runs ``run_once`` every ``interval`` seconds until it is stopped.

    ``run_once`` returns True when there is more to do at once. A dependency that is gone makes the service
    wait longer each time, up to 30 s; any other error is logged and the service goes on. ``rounds`` counts the
    runs that ended, and `wait_round` lets a test wait for one instead of sleeping.
    """

    def __init__(self, name: str, run_once: Callable[[], Awaitable[bool | None]], *, interval: float) -> None:
        self.name = name
        self.interval = interval
        self.rounds = 0
        self._run_once = run_once
        self._task: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()
        self._round = asyncio.Condition()

    async def start(self) -> None:
        """Begin; a service that runs already goes on."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._loop(), name=self.name)

    async def stop(self) -> None:
        """End, also in the middle of a run; returns when it has ended. May be called twice."""
        task, self._task = self._task, None
        await end_tasks(task)

    def nudge(self) -> None:
        """Run now instead of at the end of the interval."""
        self._nudge.set()

    async def wait_round(self, number: int | None = None) -> None:
        """Wait until ``number`` runs have ended (by default: one more than now)."""
        wanted = self.rounds + 1 if number is None else number
        async with self._round:
            await self._round.wait_for(lambda: self.rounds >= wanted)

    async def _loop(self) -> None:
        failures = 0
        while True:
            more: bool | None = False
            try:
                more = await self._run_once()
                failures = 0
            except UnavailableError as error:
                failures += 1
                log.warning("service waits for a dependency", service=self.name, reason=str(error))
            except RunqyError as error:
                failures += 1
                log.error("service failed", service=self.name, reason=str(error))
            except Exception:
                failures += 1
                log.exception("service failed", service=self.name)
            async with self._round:
                self.rounds += 1
                self._round.notify_all()
            if more and not failures:
                await asyncio.sleep(0)
                continue
            await self._pause(failures)

    async def _pause(self, failures: int) -> None:
        wait = self.interval
        if failures:
            wait = min(self.interval * 2 ** min(failures, 10), max(MAX_BACKOFF_SECONDS, self.interval))
        self._nudge.clear()
        with contextlib.suppress(TimeoutError):
            # Spread, so that the services of many processes don't run in step.
            async with asyncio.timeout(wait * random.uniform(0.9, 1.1)):
                await self._nudge.wait()
