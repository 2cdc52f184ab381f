"""What operators do: a definite answer in every state, and the task never does what it must not any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness.keyspace import misplaced, read_keyspace
from harness.lives import (
    COMPLETE,
    FAIL,
    GIVE_BACK,
    QUEUE,
    RETRY,
    RETRY_AT_ONCE,
    active,
    archived,
    completed,
    end_of,
    enqueued,
    finish,
    held,
    new_task,
    retrying,
    take,
)

from runqy.broker import keys
from runqy.broker.broker import Broker
from runqy.broker.connection import ClockOffset, Connection
from runqy.broker.inspector import Inspector
from runqy.broker.operator import Operator
from runqy.broker.transitions import ActionStatus
from runqy.tasks.outcome import Archive, Ending
from runqy.tasks.state import ACTIONS, Action, State

Maker = Callable[[Broker], Awaitable[Any]]


async def _scheduled(broker: Broker, **options: Any) -> Any:
    return await enqueued(broker, run_at=time.time() + 9_999_999, **options)


MAKERS: dict[State, Maker] = {
    State.SCHEDULED: _scheduled,
    State.PENDING: enqueued,
    State.ACTIVE: active,
    State.RETRY: retrying,
    State.COMPLETED: completed,
    State.ARCHIVED: archived,
}


@pytest.mark.parametrize("state", list(State))
async def test_cancel_gives_a_definite_answer_in_every_state(
    broker: Broker, operator: Operator, inspector: Inspector, state: State
) -> None:
    """C25, decision 19: a waiting task is archived unexecuted, a running one asked, an ended one stays."""
    task = await MAKERS[state](broker)
    (answer,) = await operator.act(Action.CANCEL, QUEUE, [task.id])
    view = await inspector.find(task.id)
    assert view is not None
    match state:
        case State.COMPLETED | State.ARCHIVED:
            assert (answer.status, view.state) == (ActionStatus.ILLEGAL, state)
        case State.ACTIVE:
            assert (answer.status, view.state) == (ActionStatus.ASKED, State.ACTIVE)
        case _:
            assert (answer.status, view.state, view.error) == (ActionStatus.DONE, State.ARCHIVED, "cancelled")
            assert view.attempts[-1].ending == "cancelled"
            assert await take(broker) == ()
            (again,) = await operator.act(Action.CANCEL, QUEUE, [task.id])
            assert again.status is ActionStatus.ILLEGAL


async def test_an_unknown_task_is_gone(operator: Operator) -> None:
    """C25, decision 33."""
    for action in (Action.RUN, Action.CANCEL, Action.ARCHIVE, Action.DELETE):
        (answer,) = await operator.act(action, QUEUE, ["nobody"])
        assert (answer.status, answer.state) == (ActionStatus.GONE, None)


@pytest.mark.parametrize("decision", [RETRY, RETRY_AT_ONCE, GIVE_BACK], ids=lambda d: type(d).__name__)
async def test_a_cancelled_running_task_never_tries_again(
    broker: Broker, operator: Operator, inspector: Inspector, decision: Any
) -> None:
    """C25: on a draining worker, after a failure, after a restart."""
    task = await active(broker, max_retry=9)
    await operator.act(Action.CANCEL, QUEUE, [task.id])
    assert (await broker.extend([held(task)])).cancelled == (held(task),)
    assert await finish(broker, task, decision)
    view = await inspector.find(task.id)
    assert view is not None
    assert (view.state, view.error) == (State.ARCHIVED, "cancelled")


@pytest.mark.parametrize(
    ("decision", "state", "error"),
    [
        (COMPLETE, State.COMPLETED, ""),
        (FAIL, State.ARCHIVED, FAIL.reason),
        (Archive(Ending.CANCELLED, "cancelled"), State.ARCHIVED, "cancelled"),
    ],
)
async def test_whichever_ends_first_counts(
    broker: Broker, operator: Operator, inspector: Inspector, decision: Any, state: State, error: str
) -> None:
    """Decision 19: a reply that beats the stop finishes the task as usual."""
    task = await active(broker)
    await operator.act(Action.CANCEL, QUEUE, [task.id])
    assert await finish(broker, task, decision)
    view = await inspector.find(task.id)
    assert view is not None
    assert (view.state, view.error) == (state, error)
    await operator.act(Action.RUN, QUEUE, [task.id])
    (again,) = await take(broker)
    assert (await broker.extend([held(again)])).cancelled == ()


async def test_cancel_and_pickup_race_to_one_answer(
    broker: Broker, operator: Operator, inspector: Inspector, connection: Connection
) -> None:
    """C25: raced many times; a cancelled task is archived or asked to stop, and never lost."""
    tasks = [new_task() for _ in range(300)]
    await broker.enqueue(tasks)
    taken: set[str] = set()

    async def work() -> None:
        while batch := await take(broker, limit=3):
            taken.update(task.id for task in batch)

    async def cancel() -> dict[str, ActionStatus]:
        answers = {}
        for task in tasks:
            (answer,) = await operator.act(Action.CANCEL, QUEUE, [task.id])
            answers[task.id] = answer.status
        return answers

    _, _, answers = await asyncio.gather(work(), work(), cancel())
    for task in tasks:
        wanted = ActionStatus.ASKED if task.id in taken else ActionStatus.DONE
        assert answers[task.id] is wanted
    assert misplaced(await read_keyspace(connection), [QUEUE]) == []
    counts = await inspector.counts(QUEUE)
    assert (counts.active, counts.archived) == (len(taken), len(tasks) - len(taken))


@pytest.mark.parametrize("state", [s for s in State if Action.DELETE in ACTIONS[s]])
async def test_delete_leaves_nothing_of_the_task(
    broker: Broker, operator: Operator, connection: Connection, state: State
) -> None:
    """Defect 29 of the original: the pointer goes too, and the log."""
    task = await MAKERS[state](broker)
    await connection.command("SET", keys.log(QUEUE, task.id), "text")
    assert [a.status for a in await operator.act(Action.DELETE, QUEUE, [task.id])] == [ActionStatus.DONE]
    keyspace = await read_keyspace(connection)
    mine = {key for key in keyspace.expiry if task.id in key}
    assert mine == set()
    assert not any(task.id in keyspace.members(QUEUE, s) for s in State)


async def test_the_key_of_a_deleted_task_still_answers_for_a_day(
    broker: Broker, operator: Operator, connection: Connection
) -> None:
    """Decision 22: a task already gone answers with its id."""
    task = await enqueued(broker, once="k", body_hash="b")
    await operator.act(Action.DELETE, QUEUE, [task.id])
    again = new_task(once="k", body_hash="b")
    (answer,) = await broker.enqueue([again])
    assert (answer.status.value, answer.id) == ("repeated", task.id)
    assert 0 < await connection.command("TTL", keys.once(QUEUE, "k")) <= 86400
    assert (
        await connection.command(
            "EXISTS",
            keys.reverse(again.id),
        )
        == 0
    )


@pytest.mark.parametrize("state", [s for s in State if Action.RUN in ACTIONS[s]])
async def test_run_puts_a_task_into_pending_afresh(
    broker: Broker, operator: Operator, inspector: Inspector, connection: Connection, state: State
) -> None:
    """Decision 13, defect 24: no retries used, no expiry, a new wait, its stamps."""
    task = await MAKERS[state](broker)
    assert [a.status for a in await operator.act(Action.RUN, QUEUE, [task.id])] == [ActionStatus.DONE]
    view = await inspector.find(task.id)
    assert view is not None
    assert (view.state, view.retried, view.completed_at) == (State.PENDING, 0, None)
    assert view.pending_since is not None
    assert abs(view.pending_since - time.time()) < 60
    assert misplaced(await read_keyspace(connection), [QUEUE]) == []
    assert [t.id for t in await take(broker)] == [task.id]


async def test_many_tasks_are_acted_on_in_one_call(broker: Broker, operator: Operator, inspector: Inspector) -> None:
    tasks = [await retrying(broker) for _ in range(130)]
    answers = await operator.act(Action.RUN, QUEUE, [*(task.id for task in tasks), "nobody"])
    assert [answer.status for answer in answers] == [ActionStatus.DONE] * 130 + [ActionStatus.GONE]
    assert (await inspector.counts(QUEUE)).pending == 130


async def test_system_actions_are_no_operators_actions(operator: Operator) -> None:
    with pytest.raises(ValueError, match="not an operator"):
        await operator.act(Action.COMPLETE, QUEUE, ["x"])


async def test_archiving_counts_as_processed_and_failed(
    broker: Broker, operator: Operator, inspector: Inspector
) -> None:
    """Decision 40: every archiving without a run."""
    tasks = [await retrying(broker), await enqueued(broker), await _scheduled(broker)]
    await operator.act(Action.ARCHIVE, QUEUE, [task.id for task in tasks])
    counts = await inspector.counts(QUEUE)
    assert (counts.processed, counts.failed, counts.archived) == (4, 4, 3)


async def test_tasks_leave_a_long_pending_list_at_the_same_cost(
    broker: Broker, operator: Operator, inspector: Inspector, connection: Connection, clock_offset: ClockOffset
) -> None:
    """Out of 30,000, from front, middle and back; the order of the others stays, counts agree."""
    tasks = [new_task() for _ in range(30_000)]
    for start in range(0, len(tasks), 200):
        await broker.enqueue(tasks[start : start + 200])
        clock_offset.advance(0.001)
    chosen = [*range(60), *range(14_000, 14_900, 7), *range(29_950, 30_000)]
    removed = [tasks[index].id for index in chosen]
    third = len(removed) // 3
    for action, ids in (
        (Action.DELETE, removed[:third]),
        (Action.CANCEL, removed[third : 2 * third]),
        (Action.ARCHIVE, removed[2 * third :]),
    ):
        answers = await operator.act(action, QUEUE, ids)
        assert {answer.status for answer in answers} == {ActionStatus.DONE}
    left = [task.id for index, task in enumerate(tasks) if index not in set(chosen)]
    counts = await inspector.counts(QUEUE)
    assert (counts.pending, counts.archived) == (len(left), len(removed) - third)
    keyspace = await read_keyspace(connection) if not connection.is_cluster else None
    if keyspace is not None:
        assert keyspace.waiting(QUEUE) == left
    taken: list[str] = []
    while batch := await take(broker, limit=200):
        taken += [task.id for task in batch]
        await broker.finish([end_of(task, COMPLETE) for task in batch])
    assert taken == left
    counts = await inspector.counts(QUEUE)
    assert (counts.pending, counts.completed) == (0, len(left))
    assert await connection.command("EXISTS", keys.holes(QUEUE)) == 0


async def test_blanks_of_a_long_list_do_not_fill_a_bounded_queue(
    broker: Broker, operator: Operator, clock_offset: ClockOffset
) -> None:
    tasks = [new_task() for _ in range(10_200)]
    await broker.enqueue(tasks)
    clock_offset.advance(1)
    (full,) = await broker.enqueue([new_task()], max_pending=10_200)
    await operator.act(Action.DELETE, QUEUE, [tasks[5_000].id])
    (room,) = await broker.enqueue([new_task()], max_pending=10_200)
    assert (full.status.value, room.status.value) == ("full", "created")
