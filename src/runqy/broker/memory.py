"""About how much memory queues take in Redis, from a few samples each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runqy.broker import keys
from runqy.broker.connection import Connection
from runqy.tasks.state import State

SAMPLED_TASKS = 5
"""hashes that are measured per state; all tasks of a state count as their mean"""
_LISTS = (State.PENDING, State.ACTIVE)


async def memory_of(connection: Connection, queues: Sequence[str]) -> dict[str, int]:
    """Estimated bytes per queue, in two round trips. Errors as in `Connection`."""
    places = [(queue, state) for queue in queues for state in State]
    commands: list[tuple[Any, ...]] = []
    for queue, state in places:
        key = keys.container(queue, state)
        is_list = state in _LISTS
        commands += [
            ("MEMORY USAGE", key),
            ("LLEN" if is_list else "ZCARD", key),
            ("LRANGE" if is_list else "ZRANGE", key, 0, SAMPLED_TASKS - 1),
        ]
    replies = await connection.replies(commands)
    sampled = [
        (place, keys.task(queue, task_id.decode()))
        for place, (queue, _) in enumerate(places)
        for task_id in replies[3 * place + 2]
        if task_id
    ]
    sizes = await connection.replies([("MEMORY USAGE", key) for _, key in sampled])
    measured: dict[int, list[int]] = {}
    for (place, _), size in zip(sampled, sizes, strict=True):
        measured.setdefault(place, []).append(int(size or 0))
    total = dict.fromkeys(queues, 0)
    for place, (queue, _) in enumerate(places):
        container, length = int(replies[3 * place] or 0), int(replies[3 * place + 1])
        samples = measured.get(place, [0])
        total[queue] += container + round(length * sum(samples) / len(samples))
    return total
