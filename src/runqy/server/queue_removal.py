"""Takes queues out of service: their configuration, and where it is wanted their tasks."""

from __future__ import annotations

from runqy.broker.transitions import ActionStatus
from runqy.errors import ConflictError
from runqy.server.state import ServerState
from runqy.tasks.state import Action, State

BATCH = 500


async def disable_queue(state: ServerState, name: str, who: str) -> None:
    """Let a queue take no more tasks; those it holds stay, and `restore` brings it back. Raises `NotFoundError`."""
    before = set(state.queues.catalog.full_names())
    await state.queues.delete(name, who)
    await state.announce_change()
    gone = sorted(before - set(state.queues.catalog.full_names()))
    empty = [counts.queue for counts in await state.inspector.counts_of(gone) if counts.size == 0]
    await state.inspector.unregister_queues(empty)


async def remove_queue(state: ServerState, queue: str, who: str, *, force: bool) -> None:
    """Delete a queue (full name) with its tasks; `restore` brings back its configuration alone.

    Raises `ConflictError` when it holds tasks and ``force`` is not given, and when tasks of it are running.
    A crash in between leaves it disabled with the rest of its tasks; the same call goes on.
    """
    counts = await state.inspector.counts(queue)
    if counts.size and not force:
        raise ConflictError(
            "queue is not empty - use force=true to delete anyway", why=f"{queue} holds {counts.size} task(s)"
        )
    _refuse_running(queue, counts.active)
    if state.queues.catalog.lookup(queue) is not None:
        await state.queues.delete(queue, who)
        await state.announce_change()
    for status in State:
        if status is not State.ACTIVE:
            await _delete_tasks(state, queue, status)
    _refuse_running(queue, (await state.inspector.counts(queue)).active)
    await state.inspector.unregister_queues([queue])


def _refuse_running(queue: str, active: int) -> None:
    if active:
        raise ConflictError(
            f"queue {queue} has {active} running task(s)", hint="cancel them, or wait until they have ended"
        )


async def _delete_tasks(state: ServerState, queue: str, status: State) -> None:
    while ids := await state.inspector.task_ids(queue, status, limit=BATCH):
        acted = await state.operator.act(Action.DELETE, queue, ids)
        if not any(one.status is ActionStatus.DONE for one in acted):
            # Entries whose tasks are gone already; the janitor's work.
            return
