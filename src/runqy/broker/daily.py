"""What queues did day by day."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from runqy.broker import keys
from runqy.broker.connection import Command, Connection


@dataclass(frozen=True, slots=True)
class Day:
    """Attempts of one queue that ended on one day (UTC, ``YYYY-MM-DD``)."""

    queue: str
    date: str
    processed: int
    failed: int


async def daily_counts(
    connection: Connection, queues: Sequence[str], count: int, today: datetime.date
) -> dict[str, list[Day]]:
    """The last ``count`` days of each queue, today first; days without anything too. Errors as in `Connection`."""
    dates = [(today - datetime.timedelta(days=back)).isoformat() for back in range(count)]
    commands: list[Command] = [
        ("MGET", *(f"{key(queue)}:{date}" for date in dates))
        for queue in queues
        for key in (keys.processed, keys.failed)
    ]
    replies = await connection.replies(commands)
    found: dict[str, list[Day]] = {}
    for index, queue in enumerate(queues):
        processed, failed = replies[2 * index], replies[2 * index + 1]
        found[queue] = [
            Day(queue, date, int(p or 0), int(f or 0)) for date, p, f in zip(dates, processed, failed, strict=True)
        ]
    return found
