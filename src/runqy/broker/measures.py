"""What a queue did by day and how much memory it takes: numbers that only people look at."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runqy.broker import keys
from runqy.broker.connection import Command, Connection
from runqy.broker.inspector import Inspector
from runqy.tasks.state import State

SAMPLED_TASKS = 10
"""task hashes per state whose size is measured; the rest is taken to be like them"""


@dataclass(frozen=True, slots=True)
class Day:
    """Attempts of one queue that ended on one day (UTC, ``YYYY-MM-DD``)."""

    queue: str
    date: str
    processed: int
    failed: int


class Measures:
    """Reads them. Errors as in `Connection`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._inspector = Inspector(connection)

    async def days(self, queues: Sequence[str], count: int, today: datetime.date) -> dict[str, list[Day]]:
        """The last ``count`` days of each queue, today first; days without anything too."""
        dates = [(today - datetime.timedelta(days=back)).isoformat() for back in range(count)]
        commands: list[Command] = [
            ("MGET", *(f"{key(queue)}:{date}" for date in dates))
            for queue in queues
            for key in (keys.processed, keys.failed)
        ]
        replies = await self._run(commands)
        found: dict[str, list[Day]] = {}
        for index, queue in enumerate(queues):
            processed, failed = replies[2 * index], replies[2 * index + 1]
            found[queue] = [
                Day(queue, date, int(p or 0), int(f or 0)) for date, p, f in zip(dates, processed, failed, strict=True)
            ]
        return found

    async def memory(self, queue: str) -> int:
        """Bytes that a queue takes in Redis, by a sample of its tasks in each state."""
        commands: list[Command] = [("MEMORY", "USAGE", keys.container(queue, state)) for state in State]
        total = sum(size or 0 for size in await self._run(commands))
        counts = await self._inspector.counts(queue)
        for state in State:
            size = getattr(counts, state.value)
            ids = await self._inspector.task_ids(queue, state, limit=SAMPLED_TASKS) if size else []
            if ids:
                sizes = await self._run([("MEMORY", "USAGE", keys.task(queue, task_id)) for task_id in ids])
                total += sum(each or 0 for each in sizes) * size // len(ids)
        return int(total)

    async def _run(self, commands: Sequence[Command]) -> list[Any]:
        replies = await self._connection.run(commands) if commands else []
        for reply in replies:
            if isinstance(reply, Exception):
                with self._connection.errors():
                    raise reply
        return replies
