"""What operators do to tasks: run, cancel, archive, delete; each for many tasks of one queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runqy.broker import keys, reverse, scripts
from runqy.broker.connection import Connection
from runqy.broker.transitions import Acted, ActionStatus
from runqy.tasks.limits import TTL_ARCHIVED
from runqy.tasks.outcome import Ending
from runqy.tasks.state import ACTIONS, Action, State

_Call = tuple[scripts.Script, Sequence[str], Sequence[Any]]

BATCH = 50
"""Tasks per script call: a few milliseconds of Redis at most."""


class Operator:
    """Carries out operator actions; what is legal comes from `runqy.tasks.state` alone.

    Each batch of a queue's tasks is one atomic script. Errors as in `Connection`; repeating a call is safe.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def act(self, action: Action, queue: str, ids: Sequence[str]) -> list[Acted]:
        """Do one of `OPERATOR_ACTIONS` to tasks of one queue; one answer per id, in order.

        Cancelling a running task asks its worker to stop it (`ActionStatus.ASKED`); it ends archived with the
        reason `cancelled`, unless it ends by itself first.
        """
        answers: list[Acted] = []
        for start in range(0, len(ids), BATCH):
            batch = ids[start : start + BATCH]
            match action:
                case Action.RUN:
                    answers += await self._run(queue, batch)
                case Action.DELETE:
                    answers += await self._delete(queue, batch)
                case Action.CANCEL:
                    answers += await self._archive(queue, batch, action, Ending.CANCELLED, "cancelled")
                case Action.ARCHIVE:
                    answers += await self._archive(queue, batch, action, Ending.CANCELLED, "archived by an operator")
                case _:
                    raise ValueError(f"{action} is not an operator's action")
        return answers

    async def _archive(
        self, queue: str, ids: Sequence[str], action: Action, ending: Ending, reason: str
    ) -> list[Acted]:
        script_keys = [
            keys.pending(queue),
            keys.scheduled(queue),
            keys.retry(queue),
            keys.archived(queue),
            keys.holes(queue),
            keys.processed(queue),
            keys.failed(queue),
            keys.history(queue),
        ]
        arguments: list[Any] = [
            keys.task_prefix(queue),
            keys.log_prefix(queue),
            keys.once_prefix(queue),
            keys.events_channel(queue),
            keys.CANCEL_CHANNEL,
            _legal(action),
            ending.value,
            reason,
            TTL_ARCHIVED.default,
            *ids,
        ]
        reply = await self._call((scripts.ARCHIVE, script_keys, arguments), queue, ids)
        return _read(action, ids, reply)

    async def _run(self, queue: str, ids: Sequence[str]) -> list[Acted]:
        arguments: list[Any] = [
            queue,
            keys.task_prefix(queue),
            keys.log_prefix(queue),
            keys.once_prefix(queue),
            keys.WAKE_CHANNEL,
            keys.events_channel(queue),
            _legal(Action.RUN),
            *ids,
        ]
        if self._connection.is_cluster:
            # Before and not after: a caller that dies in between may not leave a living task whose pointer expires.
            await reverse.keep(self._connection, ids)
        reply = await self._call((scripts.RUN, _places(queue), arguments), queue, ids)
        return _read(Action.RUN, ids, reply)

    async def _delete(self, queue: str, ids: Sequence[str]) -> list[Acted]:
        arguments: list[Any] = [
            keys.task_prefix(queue),
            keys.log_prefix(queue),
            keys.once_prefix(queue),
            keys.events_channel(queue),
            _legal(Action.DELETE),
            *ids,
        ]
        reply = await self._call((scripts.DELETE, _places(queue), arguments), queue, ids)
        acted = _read(Action.DELETE, ids, reply)
        await reverse.clear(self._connection, queue, [a.id for a in acted if a.status is ActionStatus.DONE])
        return acted

    async def _call(self, call: _Call, queue: str, ids: Sequence[str]) -> Sequence[Any]:
        """Run the script, and bring the reverse keys to agree in the same round trip where one can."""
        places = [(queue, id_) for id_ in ids]
        if not self._connection.is_cluster:
            reply: Sequence[Any] = (await self._connection.call([call, reverse.agree_call(places)]))[0]
            return reply
        (reply,) = await self._connection.call([call])
        await reverse.agree(self._connection, places)
        return reply


def _places(queue: str) -> list[str]:
    return [
        keys.pending(queue),
        keys.scheduled(queue),
        keys.retry(queue),
        keys.completed(queue),
        keys.archived(queue),
        keys.holes(queue),
    ]


def _legal(action: Action) -> str:
    return ",".join(state for state, actions in ACTIONS.items() if action in actions)


def _read(action: Action, ids: Sequence[str], found: Sequence[bytes]) -> list[Acted]:
    answers = []
    for id_, word in zip(ids, found, strict=True):
        state = State(word.decode()) if word else None
        if state is None:
            status = ActionStatus.GONE
        elif action not in ACTIONS[state]:
            status = ActionStatus.ILLEGAL
        elif state is State.ACTIVE:
            status = ActionStatus.ASKED
        else:
            status = ActionStatus.DONE
        answers.append(Acted(id_, status, state))
    return answers
