"""What Prometheus reads: the original's names, waiting and run times, requests and Redis calls."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from runqy.broker.connection import Connection
from runqy.broker.history import GROWTH, History, Slot, bucket_end
from runqy.broker.inspector import Inspector
from runqy.broker.memory import memory_of
from runqy.errors import RunqyError
from runqy.server.sampler import Sampler
from runqy.server.timings import BOUNDS_SECONDS, Durations, Timings
from runqy.tasks.state import State

FRESH_SECONDS = 1.0
OVERLAP_SECONDS = 120.0
"""how far back minutes are read again: one may still grow, and clocks differ"""
LONGEST_GAP_SECONDS = 23 * 3600.0
"""minutes older than a day are gone; what ended before is not counted"""
_ENDS = range(13, 104, 6)
"""buckets of the history at which ours end: from 1 ms to 4 hours, each three times as wide as the one before"""
_MIDDLE = math.sqrt(1 / GROWTH)


class Totals:
    """The histograms of each queue since this process started, which only grow.

    The history's minutes go after a day, so their growth is added up here. Every server counts all attempts,
    whichever process ended them.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._seen: dict[tuple[str, int], Slot] = {}
        self._read_at = time.time()
        self.queues: dict[str, Slot] = {}

    async def begin(self, queues: Sequence[str]) -> None:
        """Take what is there already as the beginning. Raises `UnavailableError`."""
        self._read_at = time.time()
        self._seen = await self._history.recent(queues, self._read_at - OVERLAP_SECONDS, self._read_at + 60)

    async def read(self, queues: Sequence[str]) -> None:
        """Add what has ended since the last time. Raises `UnavailableError`, and then adds nothing."""
        now = time.time()
        since = max(self._read_at - OVERLAP_SECONDS, now - LONGEST_GAP_SECONDS)
        found = await self._history.recent(queues, since, now + 60)
        for (queue, start), slot in found.items():
            _add_growth(self.queues.setdefault(queue, Slot(0)), slot, self._seen.get((queue, start)))
        kept = {key: slot for key, slot in self._seen.items() if key[1] > now - 2 * OVERLAP_SECONDS}
        self._seen = kept | found
        self._read_at = now
        self.queues = {queue: self.queues.get(queue, Slot(0)) for queue in queues}


def _add_growth(total: Slot, slot: Slot, before: Slot | None) -> None:
    known = before or Slot(slot.start)
    for mine, now, then in ((total.waits, slot.waits, known.waits), (total.runs, slot.runs, known.runs)):
        for index, count in now.items():
            # A flushed Redis counts from zero again, which must not take anything away here.
            mine[index] = mine.get(index, 0) + max(count - then.get(index, 0), 0)


class Metrics:
    """The text of `/metrics`, made at most once a second however many ask."""

    def __init__(self, connection: Connection, inspector: Inspector, sampler: Sampler) -> None:
        self.timings = Timings()
        connection.observe = self.timings.redis_call
        self._connection = connection
        self._inspector = inspector
        self._sampler = sampler
        self._totals = Totals(History(connection))
        self._memory: dict[str, int] = {}
        self._memory_at = -math.inf
        self._families: list[Metric] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(self))
        ProcessCollector(registry=self._registry)
        self._lock = asyncio.Lock()
        self._text = b""
        self._made_at = -math.inf

    async def start(self) -> None:
        """Note where the histograms begin. Raises `UnavailableError`."""
        await self._totals.begin(await self._inspector.queues())

    def collect(self) -> Iterable[Metric]:
        """The families of the last look."""
        return self._families

    async def text(self) -> bytes:
        """All series in Prometheus's text format, at most a second old; without those of the queues while Redis
        can't be asked, since old numbers would look like present ones."""
        async with self._lock:
            if time.monotonic() - self._made_at > FRESH_SECONDS:
                self._families = [*await self._queue_families(), *_timing_families(self.timings)]
                self._text = generate_latest(self._registry)
                self._made_at = time.monotonic()
            return self._text

    async def _queue_families(self) -> list[Metric]:
        snapshot = (await self._sampler.overview()).document
        up = GaugeMetricFamily("runqy_redis_up", "Whether Redis answers.")
        try:
            if not snapshot["redis"]["ok"]:
                up.add_metric([], 0)
                return [up]
            names = [row["queue"] for row in snapshot["queues"]]
            await self._totals.read(names)
            if time.monotonic() - self._memory_at > MEMORY_EVERY_SECONDS:
                self._memory = await memory_of(self._connection, names)
                self._memory_at = time.monotonic()
        except RunqyError:
            up.add_metric([], 0)
            return [up]
        up.add_metric([], 1)
        families = [up, *_count_families(snapshot["queues"], self._memory)]
        return families + list(_time_families(self._totals.queues))


MEMORY_EVERY_SECONDS = 60.0


class _Collector:
    """What the client library asks; it does not wait, so the answer is made before."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics.collect()


def _count_families(rows: list[dict[str, Any]], memory: dict[str, int]) -> list[Metric]:
    tasks = GaugeMetricFamily(
        "asynq_tasks_enqueued_total", "Number of tasks in the queue, by state.", labels=("queue", "state")
    )
    families: dict[str, Metric] = {}
    for row in rows:
        queue = row["queue"]
        for state in State:
            tasks.add_metric([queue, state.value], row[state.value])
        values = {
            "asynq_queue_size": sum(row[state.value] for state in State),
            "asynq_queue_latency_seconds": row["latency_ms"] / 1000,
            "asynq_queue_memory_usage_approx_bytes": memory.get(queue),
            "asynq_tasks_processed_total": row["processed"],
            "asynq_tasks_failed_total": row["failed"],
            "asynq_queue_paused_total": int(row["paused"]),
            "runqy_queue_oldest_waiting_seconds": row["latency_ms"] / 1000,
            "runqy_queue_workers": row["workers"],
        }
        for name, value in values.items():
            if value is not None:
                _family(families, name).add_metric([queue], value)
    return [tasks, *families.values()]


_HELP = {
    "asynq_queue_size": "Number of tasks in the queue.",
    "asynq_queue_latency_seconds": "Seconds since the oldest pending task became pending.",
    "asynq_queue_memory_usage_approx_bytes": "Memory of the queue in Redis, estimated from samples once a minute.",
    "asynq_tasks_processed_total": "Attempts that ended, successes and failures.",
    "asynq_tasks_failed_total": "Attempts that ended without success.",
    "asynq_queue_paused_total": "1 while the queue is paused, else 0.",
    "runqy_queue_oldest_waiting_seconds": "Age of the oldest waiting task, whether or not a worker serves the queue.",
    "runqy_queue_workers": "Workers that serve the queue now.",
}
_COUNTERS = frozenset({"asynq_tasks_processed_total", "asynq_tasks_failed_total"})


def _family(families: dict[str, Metric], name: str) -> Any:
    if name not in families:
        kind = CounterMetricFamily if name in _COUNTERS else GaugeMetricFamily
        families[name] = kind(name, _HELP[name], labels=("queue",))
    return families[name]


def _time_families(queues: dict[str, Slot]) -> Iterator[Metric]:
    for name, meaning, of in (
        ("runqy_task_wait_seconds", "waited in pending", attrgetter("waits")),
        ("runqy_task_run_seconds", "ran", attrgetter("runs")),
    ):
        family = HistogramMetricFamily(
            name,
            f"How long ended attempts {meaning}, since the server started; the sum is estimated.",
            labels=["queue"],
        )
        for queue, slot in queues.items():
            buckets, total = _bounded(of(slot))
            family.add_metric([queue], buckets, total)
        yield family


def _bounded(histogram: dict[int, int]) -> tuple[list[tuple[str, float]], float]:
    """Cumulative counts at our bounds, and the sum in seconds as if all stood in the middle of their bucket."""
    buckets = [
        (f"{bucket_end(end):.6g}", float(sum(count for index, count in histogram.items() if index <= end)))
        for end in _ENDS
    ]
    total = sum(bucket_end(index) * _MIDDLE * count for index, count in histogram.items())
    return [*buckets, ("+Inf", float(sum(histogram.values())))], total


def _timing_families(timings: Timings) -> list[Metric]:
    requests = HistogramMetricFamily(
        "runqy_http_request_seconds", "From a request to the head of its answer.", labels=["route", "status"]
    )
    for (route, status), durations in sorted(timings.requests.items()):
        requests.add_metric([route, status], _cumulative(durations), durations.total)
    redis = HistogramMetricFamily("runqy_redis_call_seconds", "Round trips to Redis.", labels=["status"])
    for status, durations in timings.redis.items():
        redis.add_metric([status], _cumulative(durations), durations.total)
    return [requests, redis]


def _cumulative(durations: Durations) -> list[tuple[str, float]]:
    seen, buckets = 0, []
    for bound, count in zip((*map(str, BOUNDS_SECONDS), "+Inf"), durations.counts, strict=True):
        seen += count
        buckets.append((bound, float(seen)))
    return buckets
