"""What the routes share: everything that one server process is made of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import structlog

from runqy.broker.broker import Broker
from runqy.broker.connection import Connection
from runqy.broker.events import Events
from runqy.broker.inspector import Inspector
from runqy.broker.operator import Operator
from runqy.broker.workers import WorkerRegistry
from runqy.errors import UnavailableError
from runqy.server.access import Access
from runqy.server.bulk import BulkRunner
from runqy.server.config_clone import ConfigClone
from runqy.server.metrics import Metrics
from runqy.server.sampler import Sampler
from runqy.service import end_tasks
from runqy.settings.redis import RedisTarget
from runqy.settings.server import ServerSettings
from runqy.store.database import Database
from runqy.store.queues import QueueStore
from runqy.store.vaults import VaultStore

log = structlog.get_logger(__name__)

ANNOUNCE_AGAIN_SECONDS = 1.0
_T = TypeVar("_T")


@dataclass(slots=True)
class ServerState:
    """Made once by `runqy.server.app.serve`; read by every route."""

    settings: ServerSettings
    access: Access
    redis: RedisTarget
    embedded: bool
    """the Redis is our own private one, on loopback"""
    connection: Connection
    broker: Broker
    inspector: Inspector
    operator: Operator
    events: Events
    workers: WorkerRegistry
    database: Database
    queues: QueueStore
    sampler: Sampler
    bulk: BulkRunner
    metrics: Metrics
    vaults: VaultStore | None = None
    """None: no master key is configured"""
    repository: ConfigClone | None = None
    """the git repository with the queue files, where one is configured"""
    key_file: Path | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """set when the server begins to stop: who waits is answered"""
    _telling_later: asyncio.Task[None] | None = field(default=None, repr=False)

    async def unless_stopping(self, work: Awaitable[_T]) -> _T:
        """Wait for something, but not beyond the server's life. Raises `UnavailableError` when it stops."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise UnavailableError("the server is stopping", hint="ask again in a moment")
            return task.result()
        finally:
            task.cancel()
            stop.cancel()

    async def until_stopping(self, items: AsyncGenerator[_T, None]) -> AsyncGenerator[_T]:
        """The same items, ended when the server stops or what they come from can't be reached."""
        stop = asyncio.ensure_future(self.stopping.wait())
        try:
            while not stop.done():
                item = asyncio.ensure_future(anext(items))
                try:
                    await asyncio.wait({item, stop}, return_when=asyncio.FIRST_COMPLETED)
                    if item.done():
                        yield item.result()
                finally:
                    # The source must stand still before it can be closed.
                    await end_tasks(item)
        except (StopAsyncIteration, UnavailableError):
            return
        finally:
            await end_tasks(stop)
            await items.aclose()

    async def announce_change(self) -> None:
        """Tell workers and other servers that the configuration changed, and register the queues.

        The change is stored already; so when Redis does not answer, it is told as soon as Redis does.
        """
        try:
            await self._announce_change()
        except UnavailableError as error:
            log.warning("a change of the configuration will be told once Redis answers", reason=str(error))
            if self._telling_later is None or self._telling_later.done():
                self._telling_later = asyncio.create_task(self._announce_later(), name="announce")

    async def end_announcing(self) -> None:
        """Give up what is still to be told."""
        await end_tasks(self._telling_later)

    async def _announce_change(self) -> None:
        await self.inspector.register_queues(self.queues.catalog.full_names())
        await self.workers.publish_config_change()

    async def _announce_later(self) -> None:
        while True:
            await asyncio.sleep(ANNOUNCE_AGAIN_SECONDS)
            try:
                await self._announce_change()
            except UnavailableError:
                continue
            log.info("the change of the configuration was told")
            return

    async def announce_access(self) -> None:
        """Take over changed keys, accounts and sessions here, and tell the other servers.

        Without Redis they find the change by themselves, within `runqy.server.access.REFRESH_SECONDS`.
        """
        await self.access.refresh()
        try:
            await self.workers.publish_access_change()
        except UnavailableError as error:
            log.warning("other servers learn of a change of access by themselves", reason=str(error))
