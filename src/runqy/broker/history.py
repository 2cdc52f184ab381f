"""The history that the scripts keep per queue: counts and histograms by minute (24 h) and by hour (30 days)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from runqy.broker import keys
from runqy.broker.connection import Connection

FIRST_BUCKET_SECONDS = 0.0001
GROWTH = 1.2
_LOG_GROWTH = math.log(GROWTH)


def bucket(seconds: float) -> int:
    """The histogram bucket of a duration: each is 20 % wider than the one before (as in lua/account.lua)."""
    if seconds < FIRST_BUCKET_SECONDS:
        return 0
    return 1 + math.floor(math.log(seconds / FIRST_BUCKET_SECONDS) / _LOG_GROWTH)


def bucket_end(index: int) -> float:
    """The upper end of a bucket in seconds."""
    return float(FIRST_BUCKET_SECONDS * GROWTH**index)


@dataclass(slots=True)
class Slot:
    """One minute or hour of a queue, or several merged: attempts that ended, and how long they waited and ran."""

    start: int
    processed: int = 0
    failed: int = 0
    waits: dict[int, int] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)

    def merge(self, other: Slot) -> None:
        """Add another slot's counts; the histograms stay exact in their buckets."""
        self.processed += other.processed
        self.failed += other.failed
        for mine, theirs in ((self.waits, other.waits), (self.runs, other.runs)):
            for index, count in theirs.items():
                mine[index] = mine.get(index, 0) + count


def quantile(histogram: dict[int, int], q: float) -> float | None:
    """The ``q``-quantile (0..1) in seconds, as the upper end of its bucket; None for an empty histogram."""
    total = sum(histogram.values())
    if not total:
        return None
    rank = q * total
    seen = 0
    for index in sorted(histogram):
        seen += histogram[index]
        if seen >= rank:
            return bucket_end(index)
    return bucket_end(max(histogram))


class History:
    """Reads the history of queues. Errors as in `Connection`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def minutes(self, queue: str, since: float, until: float) -> list[Slot]:
        """Minutes in which something ended, oldest first; ``since`` and ``until`` in unix seconds."""
        return await self._read(queue, "m", 60, 60, since, until)

    async def hours(self, queue: str, since: float, until: float) -> list[Slot]:
        """Hours in which something ended, oldest first."""
        return await self._read(queue, "h", 3600, 24, since, until)

    async def recent(self, queues: Sequence[str], since: float, until: float) -> dict[tuple[str, int], Slot]:
        """The minutes of many queues in one round trip, by queue and start of the minute; unix seconds."""
        wanted = [
            (queue, hour, [m for m in range(60) if since - 60 < hour * 3600 + m * 60 <= until])
            for queue in queues
            for hour in range(int(since // 3600), int(until // 3600) + 1)
        ]
        wanted = [entry for entry in wanted if entry[2]]
        if not wanted:
            return {}
        replies = await self._connection.replies(
            [("HMGET", f"{keys.history(queue)}:m:{hour}", *minutes) for queue, hour, minutes in wanted]
        )
        found: dict[tuple[str, int], Slot] = {}
        for (queue, hour, minutes), reply in zip(wanted, replies, strict=True):
            for minute, packed in zip(minutes, reply, strict=True):
                if packed is not None:
                    start = hour * 3600 + minute * 60
                    found[queue, start] = _slot(start, packed)
        return found

    async def _read(self, queue: str, letter: str, width: int, per_key: int, since: float, until: float) -> list[Slot]:
        span = width * per_key
        numbers = range(int(since // span), int(until // span) + 1)
        replies = await self._connection.replies(
            [("HGETALL", f"{keys.history(queue)}:{letter}:{number}") for number in numbers]
        )
        slots = []
        for number, reply in zip(numbers, replies, strict=True):
            for name, packed in reply.items():
                start = number * span + int(name) * width
                if start + width > since and start <= until:
                    slots.append(_slot(start, packed))
        return sorted(slots, key=lambda slot: slot.start)


def _slot(start: int, packed: bytes) -> Slot:
    processed, failed, waits, runs = msgspec.msgpack.decode(packed)
    return Slot(start, int(processed), int(failed), _histogram(waits), _histogram(runs))


def _histogram(flat: Iterable[Any]) -> dict[int, int]:
    values = [int(value) for value in flat]
    return dict(zip(values[::2], values[1::2], strict=True))
