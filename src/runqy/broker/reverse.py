"""The reverse keys, which find a task by its id alone.

They are in no queue's slot, so no script may touch them together with the queue (on a Cluster it could not).
They are brought to agree with the tasks right after each transition; what a crash in between leaves behind, the
janitor mends with the task's history entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from runqy.broker import keys, scripts
from runqy.broker.connection import Command, Connection

Place = tuple[str, str]
"""A task by queue and id."""

_Call = tuple[scripts.Script, Sequence[str], Sequence[Any]]


def _pairs(places: Iterable[Place]) -> list[str]:
    return [key for queue, id_ in places for key in (keys.reverse(id_), keys.task(queue, id_))]


def remember_call(places: Sequence[Place]) -> _Call:
    """A call that writes the keys of tasks that exist; its reply: positions of those that do not."""
    return scripts.REMEMBER, _pairs(places), [queue for queue, _ in places]


def remember_commands(places: Iterable[Place]) -> list[Command]:
    """The same on a Cluster, for tasks that are being created: it can't look whether they exist."""
    return [
        command
        for queue, id_ in places
        for command in (("HSET", keys.reverse(id_), "queue", queue), ("PERSIST", keys.reverse(id_)))
    ]


def agree_call(places: Iterable[Place]) -> _Call:
    """A call that gives the keys the life of their tasks: none, the same expiry, or deleted. Not on a Cluster."""
    return scripts.AGREE, _pairs(places), []


async def agree(connection: Connection, places: Sequence[Place]) -> None:
    """`agree_call`, on a Cluster in two steps. Errors as in `Connection`; may be repeated."""
    if not places:
        return
    if not connection.is_cluster:
        await connection.call([agree_call(places)])
        return
    lives = await connection.replies([("PEXPIRETIME", keys.task(queue, id_)) for queue, id_ in places])
    await connection.replies([_as_its_task(id_, life) for (_, id_), life in zip(places, lives, strict=True)])


async def keep(connection: Connection, ids: Sequence[str]) -> None:
    """Take the expiry off the keys; one whose task expires nevertheless goes with the history entry."""
    await connection.replies([("PERSIST", keys.reverse(id_)) for id_ in ids])


async def clear(connection: Connection, queue: str, ids: Sequence[str]) -> None:
    """Delete the keys of tasks that are gone, then the history entries that kept their memory."""
    if not ids:
        return
    places = [(queue, id_) for id_ in ids]
    sweep: _Call = (
        scripts.SWEEP,
        [keys.completed(queue), keys.archived(queue)],
        [keys.task_prefix(queue), *ids],
    )
    if connection.is_cluster:
        await agree(connection, places)
        await connection.call([sweep])
    else:
        await connection.call([agree_call(places), sweep])


async def restore(connection: Connection, places: Sequence[Place]) -> None:
    """Where it is doubtful, make the keys agree with what exists: written, or deleted."""
    if not connection.is_cluster:
        await connection.call([remember_call(places), agree_call(places)])
        return
    lives = await connection.replies([("PEXPIRETIME", keys.task(queue, id_)) for queue, id_ in places])
    existing = [place for place, life in zip(places, lives, strict=True) if life != -2]
    await connection.replies([("HSETNX", keys.reverse(id_), "queue", queue) for queue, id_ in existing])
    await agree(connection, places)


def _as_its_task(id_: str, life: int) -> Command:
    if life > 0:
        return ("PEXPIREAT", keys.reverse(id_), life)
    return ("PERSIST" if life == -1 else "DEL", keys.reverse(id_))
