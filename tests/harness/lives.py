"""Short ways to make tasks and to lead them through their lives, for tests of the broker."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from runqy.broker.broker import Broker
from runqy.broker.transitions import AttemptEnd, Enqueued, Held
from runqy.tasks.limits import Limits, Override, Source
from runqy.tasks.message import NewTask, PickedTask, new_task_id
from runqy.tasks.outcome import Archive, Complete, Decision, Ending, GiveBack, Retry

QUEUE = "echo.default"
FALLBACK = Limits()

_tokens = itertools.count(1)


def limits(**values: int) -> Limits:
    """The defaults with some levers set, as a queue's configuration sets them."""
    return Limits().override(Override(**values), Source.QUEUE)


def new_task(queue: str = QUEUE, *, payload: bytes = b'{"n": 1}', id: str = "", **options: Any) -> NewTask:
    """A task that has not been enqueued; levers by name among the options."""
    levers = {name: options.pop(name) for name in list(options) if name in Override.__dataclass_fields__}
    return NewTask(id or new_task_id(), queue, payload, limits(**levers), **options)


async def enqueued(broker: Broker, queue: str = QUEUE, **options: Any) -> NewTask:
    """A task that waits in its queue (or is scheduled)."""
    task = new_task(queue, **options)
    (answer,) = await broker.enqueue([task])
    assert answer == Enqueued(type(answer.status)("created"), task.id)
    return task


def new_token(worker: str = "host:1:abcdef") -> str:
    return f"{worker}#{next(_tokens)}"


async def take(
    broker: Broker,
    queue: str | Sequence[str] = QUEUE,
    limit: int = 1,
    *,
    token: str = "",
    starting: int | None = None,
    fallback: Limits = FALLBACK,
    **options: Any,
) -> tuple[PickedTask, ...]:
    """What a pickup brings; all of it starts at once unless ``starting`` says otherwise."""
    queues = [queue] if isinstance(queue, str) else list(queue)
    picked = await broker.pick_up(
        queues,
        limit,
        token=token or new_token(),
        starting=limit if starting is None else starting,
        fallback=fallback,
        **options,
    )
    return picked.tasks


async def active(broker: Broker, queue: str = QUEUE, *, ahead: bool = False, **options: Any) -> PickedTask:
    """A task that a worker holds."""
    await enqueued(broker, queue, **options)
    (task,) = await take(broker, queue, starting=0 if ahead else 1)
    return task


def end_of(task: PickedTask, decision: Decision, run_time: float = 0.01) -> AttemptEnd:
    return AttemptEnd(task.queue, task.id, task.token, decision, task.limits, run_time)


def held(task: PickedTask) -> Held:
    return Held(task.queue, task.id, task.token)


COMPLETE = Complete(b'{"ok": true}')
RETRY = Retry(10.0, Ending.ERROR, "try again")
RETRY_AT_ONCE = Retry(0.0, Ending.ERROR, "try again")
FAIL = Archive(Ending.FAILED, "ValueError: bad input")
GIVE_BACK = GiveBack()


async def finish(broker: Broker, task: PickedTask, decision: Decision, run_time: float = 0.01) -> bool:
    """Write one end; whether the caller still owned the task."""
    (owned,) = await broker.finish([end_of(task, decision, run_time)])
    return owned


async def completed(broker: Broker, queue: str = QUEUE, **options: Any) -> PickedTask:
    task = await active(broker, queue, **options)
    assert await finish(broker, task, COMPLETE)
    return task


async def archived(broker: Broker, queue: str = QUEUE, **options: Any) -> PickedTask:
    task = await active(broker, queue, **options)
    assert await finish(broker, task, FAIL)
    return task


async def retrying(broker: Broker, queue: str = QUEUE, **options: Any) -> PickedTask:
    task = await active(broker, queue, **options)
    assert await finish(broker, task, RETRY)
    return task


async def scheduled(broker: Broker, queue: str = QUEUE, *, at: float, **options: Any) -> NewTask:
    return await enqueued(broker, queue, run_at=at, **options)
