"""Says that the worker lives: its record, its leases, its logs, its metrics."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any

import psutil
import structlog

from runqy import __version__
from runqy.broker.broker import Broker
from runqy.broker.workers import WorkerRecord, WorkerRegistry
from runqy.errors import RunqyError, UnavailableError
from runqy.service import Service
from runqy.worker.outputs import Outputs
from runqy.worker.processor import Processor

log = structlog.get_logger(__name__)

BEAT_SECONDS = 5.0


def new_worker_id() -> str:
    """``<hostname>:<pid>:<6 hex>``: unique for each start, also where host and pid repeat."""
    host = "".join(c if c.isalnum() or c in "._-" else "-" for c in socket.gethostname()) or "unknown"
    return f"{host}:{os.getpid()}:{uuid.uuid4().hex[:6]}"


class Heartbeat:
    """Writes the worker's record every few seconds and renews its leases in time.

    ``status`` is set by the worker. ``config_changed`` is called when the server's configuration has a version
    that this worker has not seen.
    """

    def __init__(
        self,
        registry: WorkerRegistry,
        broker: Broker,
        processor: Processor,
        outputs: Outputs,
        *,
        worker_id: str,
        concurrency: int,
        renew_seconds: float,
        config_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._registry = registry
        self._broker = broker
        self._processor = processor
        self._outputs = outputs
        self.worker_id = worker_id
        self._concurrency = concurrency
        self._config_changed = config_changed
        self._started_at = int(time.time())
        self._version: int | None = None
        self._machine = psutil.Process()
        self._machine.cpu_percent()
        self.status = "bootstrapping"
        self.detail: tuple[str, ...] = ()
        self.queues: dict[str, int] = {}
        self.commits: dict[str, str] = {}
        self._beats = Service("heartbeat", self.beat, interval=BEAT_SECONDS)
        self._leases = Service("leases", self.renew, interval=renew_seconds)

    async def start(self) -> None:
        await self._beats.start()
        await self._leases.start()

    async def stop(self, seconds: float = 2.0) -> None:
        """Stop beating and take the record away, as far as Redis can be reached within ``seconds``."""
        await self._beats.stop()
        await self._leases.stop()
        try:
            async with asyncio.timeout(seconds):
                await self._registry.remove(self.worker_id)
        except (RunqyError, TimeoutError) as error:
            log.warning("the worker's record stays until it expires", reason=str(error))

    def say(self, status: str, *detail: str) -> None:
        """Set the status, with what it waits for or what failed; visible at the next beat, which is now."""
        self.status, self.detail = status, detail
        self._beats.nudge()

    def nudge(self) -> None:
        """Write the record now: what the processor says of itself has changed."""
        self._beats.nudge()

    async def beat(self) -> None:
        """Write the record once."""
        version = await self._registry.beat(self._record())
        await self._registry.append_logs(self.worker_id, self._outputs.take_lines())
        if self._version is not None and version != self._version:
            self._config_changed()
        self._version = version

    async def renew(self) -> None:
        """Renew the leases of all held tasks; give up what is lost, stop what is cancelled."""
        renewal = await self._broker.extend(self._processor.held())
        for held in renewal.lost:
            self._processor.lost(held)
        for held in renewal.cancelled:
            self._processor.cancel(held.id)

    def _record(self) -> WorkerRecord:
        lanes = self._processor.lanes.values()
        recovery: dict[str, Any] = {lane.parent: lane.runtime.describe() for lane in lanes}
        trouble = tuple(line for lane in lanes for line in lane.runtime.trouble)
        status = self.status
        if status == "running" and self._processor.paused:
            status = "paused"
        elif status == "running":
            states = {str(entry["state"]) for entry in recovery.values()}
            status = "degraded" if "degraded" in states else "recovering" if "recovering" in states else status
        return WorkerRecord(
            worker_id=self.worker_id,
            started_at=self._started_at,
            last_beat=int(time.time()),
            concurrency=self._concurrency,
            queues=self.queues,
            status=status,
            healthy=all(lane.runtime.ready for lane in lanes),
            metrics=self._metrics(),
            recovery=recovery,
            version=__version__,
            commits=self.commits,
            current=self._processor.current()[:100],
            detail=self.detail or trouble,
            instance_id=os.environ.get("RUNQY_INSTANCE_ID", ""),
        )

    def _metrics(self) -> dict[str, Any]:
        memory = psutil.virtual_memory()
        metrics: dict[str, Any] = {
            "cpu_percent": psutil.cpu_percent(),
            "memory_used_bytes": memory.total - memory.available,
            "memory_total_bytes": memory.total,
            "worker_rss_bytes": self._machine.memory_info().rss,
            "collected_at": int(time.time()),
        }
        gpus = _gpus()
        if gpus:
            metrics["gpus"] = gpus
        return metrics


def _gpus() -> list[dict[str, Any]]:
    """What the NVIDIA library tells, where it is installed (the `gpu` extra) and a driver is there."""
    try:
        import pynvml
    except ImportError:
        return []
    gpus: list[dict[str, Any]] = []
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            name = pynvml.nvmlDeviceGetName(handle)
            gpus.append(
                {
                    "index": index,
                    "name": name.decode() if isinstance(name, bytes) else name,
                    "utilization_percent": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
                    "memory_used_mb": memory.used // 2**20,
                    "memory_total_mb": memory.total // 2**20,
                    "temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
                }
            )
    except pynvml.NVMLError:
        return []
    return gpus


class WaitingForRedis:
    """Connects for ever, with growing delay, telling what it waits for."""

    def __init__(self, connect: Callable[[], Any], waiting: Callable[[str], None]) -> None:
        self._connect = connect
        self._waiting = waiting

    async def __call__(self) -> Any:
        delay = 0.5
        while True:
            try:
                return await self._connect()
            except UnavailableError as error:
                self._waiting(f"waiting for Redis, next try in {delay:.0f} s: {error}")
                await asyncio.sleep(delay)
                delay = min(delay * 2, 10.0)
