"""Ends that can't be written do not take the others with them."""

from __future__ import annotations

from collections.abc import Iterable

from runqy.broker import keys
from runqy.broker.broker import Broker
from runqy.broker.connection import Connection
from runqy.broker.inspector import Inspector
from runqy.broker.transitions import AttemptEnd
from runqy.tasks.limits import Limits
from runqy.tasks.message import NewTask, new_task_id
from runqy.tasks.outcome import Complete
from runqy.tasks.state import State
from runqy.worker.finisher import Finisher


async def no_output(_ids: Iterable[str]) -> None:
    """Nothing was printed."""


async def test_a_queue_whose_keys_are_damaged_does_not_stop_the_ends_of_others(
    broker: Broker, connection: Connection, inspector: Inspector
) -> None:
    tasks = [NewTask(new_task_id(), queue, b"1", Limits()) for queue in ("bad.default", "good.default")]
    await broker.enqueue(tasks)
    queues = ["bad.default", "good.default"]
    taken = (await broker.pick_up(queues, 2, token="w#1", starting=2, fallback=Limits())).tasks
    await connection.command("SET", keys.completed("bad.default"), "not a sorted set")
    finisher = Finisher(broker, flush=no_output)
    await finisher.start()
    try:
        for task in taken:
            finisher.add(AttemptEnd(task.queue, task.id, task.token, Complete(b"1"), task.limits, 0.1))
        await finisher.drain()
    finally:
        await finisher.stop()
    good = await inspector.get("good.default", tasks[1].id)
    assert good is not None
    assert good.state is State.COMPLETED
