"""Server, storage and workers together in this process, for `runqy dev` and `runqy demo`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from runqy.config.model import QueueConfig
from runqy.errors import RunqyError
from runqy.server.app import serve
from runqy.server.auth import admin_key
from runqy.server.state import ServerState
from runqy.settings.secret import Secret
from runqy.settings.server import ServerSettings
from runqy.settings.worker import WorkerSettings
from runqy.worker.worker import Worker

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class LocalWorker:
    """A worker for some parent queues, and how it stands."""

    worker: Worker
    queues: tuple[str, ...]
    status: str = "starting"
    detail: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[int] | None = None


class LocalStack:
    """One server with embedded storage and its workers.

    ``stay_up``: task code that can't be run is shown, and tried again by `reload`. Everything is ended by `stop`,
    in order: workers, server, storage.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        stay_up: bool,
        shutdown_timeout: float = 10.0,
        on_trouble: Callable[[tuple[str, ...], str], None] = lambda queues, detail: None,
    ) -> None:
        """``on_trouble`` is told which queues can't be run, and why."""
        self._settings = settings
        self._on_trouble = on_trouble
        self._stay_up = stay_up
        self._shutdown_timeout = shutdown_timeout
        self._stopping = asyncio.Event()
        self._server: asyncio.Task[int] | None = None
        self.workers: list[LocalWorker] = []
        self.url = ""
        self.key = ""
        self.key_file: Path | None = None
        self.state: ServerState | None = None

    async def start_server(self, queues: Sequence[QueueConfig]) -> ServerState:
        """Start storage and server, and store the queues. Raises `RunqyError` when it can't."""
        self.key, self.key_file = admin_key(self._settings)
        up = asyncio.Event()
        held: list[ServerState] = []

        def ready(state: ServerState, url: str) -> None:
            held.append(state)
            self.url = url
            up.set()

        self._server = asyncio.create_task(serve(self._settings, stop=self._stopping, ready=ready), name="server")
        waiting = asyncio.create_task(up.wait())
        await asyncio.wait({self._server, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not held:
            await self._server
            raise RunqyError("The server ended before it was ready")
        self.state = held[0]
        await self.store(queues)
        return self.state

    async def store(self, queues: Sequence[QueueConfig]) -> None:
        """Put queues into force."""
        assert self.state is not None
        saved = await self.state.queues.save_all(queues, "dev")
        await self.state.inspector.register_queues(self.state.queues.catalog.full_names())
        if any(entry.is_change for entry in saved):
            await self.state.announce_change()

    def start_worker(
        self,
        queues: tuple[str, ...],
        *,
        concurrency: int = 1,
        told: Callable[[str | None, str, str], None] | None = None,
        max_restarts: int = 5,
    ) -> LocalWorker:
        """Start a worker for these parent queues; returns at once."""
        settings = WorkerSettings(
            server_url=self.url,
            api_key=Secret(self.key),
            queues=queues,
            concurrency=concurrency,
            shutdown_timeout=self._shutdown_timeout,
            deployment_dir=self._settings.data_dir.absolute() / "deployment",
            recovery_max_restarts=max_restarts,
        )

        def on_status(status: str, detail: str) -> None:
            local.status, local.detail = status, detail
            if status == "failed":
                self._on_trouble(local.queues, detail)
            local.changed.set()

        local = LocalWorker(Worker(settings, stay_up=self._stay_up, told=told, on_status=on_status), queues)
        local.task = asyncio.create_task(local.worker.run(), name=f"worker-{'-'.join(queues)}")
        self.workers.append(local)
        return local

    async def wait_ready(self, local: LocalWorker) -> bool:
        """Wait until the worker is ready for tasks; False when its task code can't be run (with ``stay_up``).

        Raises what ended the worker, or the server.
        """
        assert local.task is not None
        assert self._server is not None
        while local.status not in {"running", "failed"} or (local.status == "failed" and not self._stay_up):
            local.changed.clear()
            change = asyncio.create_task(local.changed.wait())
            await asyncio.wait({change, local.task, self._server}, return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
            for ended in (local.task, self._server):
                if ended.done():
                    await ended
                    raise RunqyError("a part of the stack ended before it was ready")
        return local.status == "running"

    async def failed(self) -> None:
        """Wait until a part ends that should not; raises what ended it."""
        tasks = [local.task for local in self.workers if local.task is not None]
        if self._server is not None:
            tasks.append(self._server)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task

    def hurry(self) -> None:
        """A second request to stop: running tasks are given back at once."""
        for local in self.workers:
            local.worker.stop()
            local.worker.stop()

    async def stop(self) -> None:
        """End everything, workers first; safe to call at any time."""
        for local in self.workers:
            local.worker.stop()
        tasks = [local.task for local in self.workers if local.task is not None]
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, RunqyError | asyncio.CancelledError):
                log.error("a worker ended badly", reason=repr(outcome))
        self._stopping.set()
        if self._server is not None:
            with contextlib.suppress(RunqyError, asyncio.CancelledError):
                await self._server
