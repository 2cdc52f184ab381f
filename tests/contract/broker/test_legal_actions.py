"""The scripts accept exactly what the state table allows: every state times every action, forced by stray entries."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from harness.keyspace import misplaced, read_keyspace
from harness.lives import COMPLETE, FAIL, FALLBACK, GIVE_BACK, QUEUE, RETRY, active, enqueued, finish, new_token

from runqy.broker import keys
from runqy.broker.broker import Broker
from runqy.broker.connection import ClockOffset, Connection
from runqy.broker.operator import Operator
from runqy.broker.transitions import ActionStatus, AttemptEnd
from runqy.tasks.limits import Limits
from runqy.tasks.outcome import Decision
from runqy.tasks.state import ACTIONS, GONE, Action, State, is_legal, leads_to


async def make_in_state(broker: Broker, state: State, **levers: Any) -> tuple[str, str]:
    """A task in the state, and the token under which it is or was held."""
    if state is State.SCHEDULED:
        return (await enqueued(broker, run_at=time.time() + 9_999_999, **levers)).id, "nobody#1"
    if state is State.PENDING:
        return (await enqueued(broker, **levers)).id, "nobody#1"
    task = await active(broker, **levers)
    end = {State.RETRY: RETRY, State.COMPLETED: COMPLETE, State.ARCHIVED: FAIL}.get(state)
    if end is not None:
        assert await finish(broker, task, end)
    return task.id, task.token


ENDS: dict[Action, Decision] = {
    Action.COMPLETE: COMPLETE,
    Action.RETRY: RETRY,
    Action.FAIL: FAIL,
    Action.GIVE_BACK: GIVE_BACK,
}


class Forced:
    """Brings about one action, whatever the task's state: with an entry where the action's script looks."""

    def __init__(self, broker: Broker, operator: Operator, clock_offset: ClockOffset, id_: str, token: str) -> None:
        self.broker, self.operator, self.clock, self.id, self.token = broker, operator, clock_offset, id_, token
        self.connection = broker.connection

    async def stray(self, container: State) -> None:
        """The id stands in a container in which it need not belong, due long ago."""
        key = keys.container(QUEUE, container)
        if container is State.PENDING:
            await self.connection.command("LREM", key, 0, self.id)
            await self.connection.command("RPUSH", key, self.id)
        else:
            await self.connection.command("ZADD", key, 1, self.id)

    async def act(self, action: Action) -> ActionStatus | bool | None:
        match action:
            case Action.PICK_UP | Action.EXPIRE:
                await self.stray(State.PENDING)
                if action is Action.EXPIRE:
                    await self.connection.command(
                        "HSET", keys.task(QUEUE, self.id), "pending_timeout", 1, "pending_since", 1_700_000_000
                    )
                await self.broker.pick_up([QUEUE], 1, token=new_token(), starting=1, fallback=FALLBACK)
            case Action.FORWARD:
                await self.stray(State.SCHEDULED)
                await self.stray(State.RETRY)
                await self.broker.forward(QUEUE)
            case Action.PURGE:
                await self.stray(State.COMPLETED)
                await self.stray(State.ARCHIVED)
                await self.broker.purge(QUEUE)
            case Action.COMPLETE | Action.RETRY | Action.FAIL | Action.GIVE_BACK:
                end = AttemptEnd(QUEUE, self.id, self.token, ENDS[action], Limits())
                return (await self.broker.finish([end]))[0]
            case _:
                return (await self.operator.act(action, QUEUE, [self.id]))[0].status
        return None


@pytest.mark.parametrize(("state", "action"), list(itertools.product(State, Action)))
async def test_an_action_happens_exactly_where_the_table_allows_it(
    broker: Broker, operator: Operator, connection: Connection, clock_offset: ClockOffset, state: State, action: Action
) -> None:
    """Legal ones lead where the table says, the others change no task."""
    id_, token = await make_in_state(broker, state, ttl_archived=600)
    forced = Forced(broker, operator, clock_offset, id_, token)
    before = await connection.command("HGETALL", keys.task(QUEUE, id_))
    answer = await forced.act(action)
    fields = await connection.command("HGETALL", keys.task(QUEUE, id_))
    after = State(fields[b"state"].decode()) if fields else GONE
    if not is_legal(state, action):
        assert after is state
        assert fields[b"msg"] == before[b"msg"]
        assert answer in {None, False, ActionStatus.ILLEGAL}
        if state is State.ACTIVE and action is not Action.PURGE:
            end = AttemptEnd(QUEUE, id_, token, COMPLETE, Limits())
            assert await broker.finish([end]) == [True]
        return
    if state is State.ACTIVE and action is Action.CANCEL:
        # Two steps: asked, then carried out by the worker, or by recovery.
        assert (answer, after) == (ActionStatus.ASKED, State.ACTIVE)
        clock_offset.advance(broker.lease_seconds + 1)
        await broker.recover(QUEUE)
        after = State((await connection.command("HGET", keys.task(QUEUE, id_), "state")).decode())
    assert after is leads_to(state, action)
    if action is not Action.PURGE or state in {State.COMPLETED, State.ARCHIVED}:
        assert misplaced(await read_keyspace(connection), [QUEUE]) == []


def test_every_state_can_be_left_and_every_action_is_used() -> None:
    """The table itself: terminal means that no attempt follows by itself."""
    assert set(ACTIONS) == set(State)
    assert {action for actions in ACTIONS.values() for action in actions} == set(Action)
    for state in (State.COMPLETED, State.ARCHIVED):
        assert set(ACTIONS[state]) == {Action.PURGE, Action.RUN, Action.DELETE}
