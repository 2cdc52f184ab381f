"""One look at everything per second, shared by all who watch: what the overview and its stream show."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from runqy import __version__
from runqy.broker.connection import Connection
from runqy.broker.inspector import Inspector, QueueCounts
from runqy.broker.workers import WorkerRecord, WorkerRegistry
from runqy.errors import RunqyError
from runqy.service import Service
from runqy.store.database import Database
from runqy.telemetry import redact

INTERVAL_SECONDS = 1.0
RATE_WINDOW_SECONDS = 10.0
DATABASE_EVERY_SECONDS = 5.0
_COUNTED = ("pending", "active", "scheduled", "retry", "archived", "completed", "processed", "failed")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The overview as a JSON value, as text, and the number that grows with each of them."""

    number: int
    document: dict[str, Any]
    text: str


class Sampler:
    """Samples only while somebody watches, once for all of them; a single question is answered from a second ago.

    When Redis is gone the last numbers stay, with their time and with what is wrong, so that nobody takes them
    for fresh ones.
    """

    def __init__(
        self, connection: Connection, inspector: Inspector, workers: WorkerRegistry, database: Database
    ) -> None:
        self._connection = connection
        self._inspector = inspector
        self._workers = workers
        self._database = database
        self._last: Snapshot | None = None
        self._taken_at = 0.0
        self._totals: deque[tuple[float, int, int]] = deque()
        self._database_state: tuple[float, dict[str, Any]] = (float("-inf"), {})
        self._lock = asyncio.Lock()
        self._new = asyncio.Condition()
        self._watchers = 0
        self._service = Service("sampler", self._look, interval=INTERVAL_SECONDS)
        self.samples = 0
        """looks taken since the start"""

    async def start(self) -> None:
        """Be ready for watchers."""
        await self._service.start()

    async def stop(self) -> None:
        """End the sampling."""
        await self._service.stop()

    async def overview(self) -> Snapshot:
        """A snapshot that is at most a second old."""
        async with self._lock:
            if self._last is None or time.monotonic() - self._taken_at > INTERVAL_SECONDS * 0.9:
                await self._sample()
            assert self._last is not None
            return self._last

    async def snapshots(self) -> AsyncGenerator[Snapshot, None]:
        """Each new snapshot, the present one first. A slow reader skips what it has not seen in time."""
        self._watchers += 1
        try:
            snapshot = await self.overview()
            while True:
                yield snapshot
                snapshot = await self._newer_than(snapshot.number)
        finally:
            self._watchers -= 1

    async def _newer_than(self, number: int) -> Snapshot:
        async with self._new:
            while self._last is None or self._last.number <= number:
                await self._new.wait()
            return self._last

    async def _look(self) -> None:
        if self._watchers:
            await self.overview()
            async with self._new:
                self._new.notify_all()

    async def _sample(self) -> None:
        self.samples += 1
        previous = self._last.document if self._last is not None else {}
        document: dict[str, Any] = {"at": round(time.time() * 1000), "version": __version__}
        try:
            queues = await self._inspector.queues()
            counts = await self._inspector.counts_of(queues)
            document |= self._described(counts, await self._workers.all())
            document["redis"] = {"ok": True}
        except RunqyError as error:
            kept: dict[str, Any] = {
                name: previous[name] for name in ("queues", "workers", "totals", "rates") if name in previous
            }
            document |= _EMPTY
            document |= kept
            document["at"] = previous.get("at", document["at"])
            document["redis"] = {"ok": False, "error": redact(str(error)), "since": document["at"]}
        document["database"] = await self._database_health()
        document["asked_at"] = round(time.time() * 1000)
        number = self._last.number + 1 if self._last is not None else 1
        self._last = Snapshot(number, document, msgspec.json.encode(document).decode())
        self._taken_at = time.monotonic()

    def _described(self, counts: list[QueueCounts], workers: list[WorkerRecord]) -> dict[str, Any]:
        now = time.time()
        serving = Counter(queue for worker in workers if not worker.is_stale(now) for queue in worker.queues)
        totals = {name: sum(getattr(entry, name) for entry in counts) for name in _COUNTED}
        return {
            "queues": [_queue_row(entry, serving[entry.queue]) for entry in counts],
            "workers": _worker_totals(workers, now),
            "totals": totals,
            "rates": self._rates(totals["processed"], totals["failed"]),
        }

    def _rates(self, processed: int, failed: int) -> dict[str, float]:
        now = time.monotonic()
        self._totals.append((now, processed, failed))
        while len(self._totals) > 2 and self._totals[1][0] < now - RATE_WINDOW_SECONDS:
            self._totals.popleft()
        then, processed_then, failed_then = self._totals[0]
        span = max(now - then, 1e-9)
        if now - then < INTERVAL_SECONDS / 2:
            return {"processed_per_second": 0.0, "failed_per_second": 0.0}
        return {
            # A flushed Redis counts from zero again.
            "processed_per_second": round(max(processed - processed_then, 0) / span, 2),
            "failed_per_second": round(max(failed - failed_then, 0) / span, 2),
        }

    async def _database_health(self) -> dict[str, Any]:
        asked, known = self._database_state
        if time.monotonic() - asked > DATABASE_EVERY_SECONDS:
            try:
                await self._database.ping()
                known = {"ok": True}
            except RunqyError as error:
                known = {"ok": False, "error": redact(str(error))}
            self._database_state = (time.monotonic(), known)
        return known


_EMPTY: dict[str, Any] = {
    "queues": [],
    "workers": {"total": 0, "ready": 0, "degraded": 0, "stale": 0},
    "totals": dict.fromkeys(_COUNTED, 0),
    "rates": {"processed_per_second": 0.0, "failed_per_second": 0.0},
}


def _queue_row(counts: QueueCounts, workers: int) -> dict[str, Any]:
    row = asdict(counts)
    row["latency_ms"] = round(row.pop("latency") * 1000)
    row["workers"] = workers
    return row


def _worker_totals(workers: list[WorkerRecord], now: float) -> dict[str, int]:
    fresh = [worker for worker in workers if not worker.is_stale(now)]
    return {
        "total": len(workers),
        "ready": sum(1 for worker in fresh if worker.status == "running"),
        "degraded": sum(1 for worker in fresh if worker.status == "degraded"),
        "stale": len(workers) - len(fresh),
    }


def visible(document: dict[str, Any], sees: Any) -> dict[str, Any]:
    """The part of an overview that a caller with a limited key may see: its own queues, no totals of others."""
    queues = [row for row in document["queues"] if sees(row["queue"])]
    totals = {name: sum(row[name] for row in queues) for name in _COUNTED}
    return {**document, "queues": queues, "totals": totals, "rates": _EMPTY["rates"], "workers": _EMPTY["workers"]}
