"""The original's monitoring routes for queues and tasks, one handler for all states instead of one for each."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from runqy.broker.daily import daily_counts
from runqy.broker.inspector import QueueCounts
from runqy.broker.memory import memory_of
from runqy.errors import NotFoundError, StateError, UsageError
from runqy.server import monitoring_answers as answers
from runqy.server.bulk import failure
from runqy.server.queue_removal import remove_queue
from runqy.server.responding import (
    State,
    caller_of,
    json_answer,
    needs_operator,
    needs_viewer,
    needs_viewer_scoped,
    read_json_object,
    read_number,
)
from runqy.server.state import ServerState
from runqy.server.task_routes import known_queue
from runqy.tasks.state import ACTIONS, Action
from runqy.tasks.state import State as TaskState

router = APIRouter(prefix="/monitoring/api", tags=["monitoring"])

AGGREGATING = "aggregating"
"""a state that asynq knows and runqy never uses: its lists are empty"""
LONGEST_BATCH_BYTES = 1_000_000
_PAGE = 1000
_HISTORY_DAYS, _STATS_DAYS = 10, 90
_ALL_ANSWER = {Action.RUN: "scheduled", Action.ARCHIVE: "archived", Action.DELETE: "deleted"}
_BATCH_ANSWER = {
    Action.RUN: ("pending_ids", "error_ids"),
    Action.ARCHIVE: ("archived_ids", "error_ids"),
    Action.CANCEL: ("canceled_ids", "error_ids"),
    Action.DELETE: ("deleted_ids", "failed_ids"),
}


async def _stats(state: ServerState, counts: list[QueueCounts]) -> list[dict[str, Any]]:
    names = [entry.queue for entry in counts]
    days = await daily_counts(state.connection, names, 1, answers.today())
    memory = await memory_of(state.connection, names)
    return [answers.stats(entry, days[entry.queue][0], memory[entry.queue]) for entry in counts]


async def _stats_of(state: ServerState, queue: str) -> dict[str, Any]:
    return (await _stats(state, [await state.inspector.counts(queue)]))[0]


@router.get("/queues", dependencies=[needs_viewer_scoped])
async def list_queues(request: Request, state: State) -> Response:
    """All queues with sizes, memory and what they did today (role: viewer)."""
    names = [name for name in await state.inspector.queues() if caller_of(request).sees(name)]
    return json_answer({"queues": await _stats(state, await state.inspector.counts_of(names))})


@router.get("/queue_stats", dependencies=[needs_viewer_scoped])
async def queue_stats(request: Request, state: State) -> Response:
    """What each queue did on each of the last 90 days (role: viewer)."""
    names = [name for name in await state.inspector.queues() if caller_of(request).sees(name)]
    days = await daily_counts(state.connection, names, _STATS_DAYS, answers.today())
    return json_answer({"stats": {queue: [answers.day_row(day) for day in found] for queue, found in days.items()}})


@router.post("/queues/{queue}:pause", dependencies=[needs_operator])
async def pause_queue(queue: str, state: State) -> Response:
    """Let no task of the queue start until it is resumed (role: operator)."""
    await state.broker.pause(await known_queue(state, queue))
    return Response(status_code=204)


@router.post("/queues/{queue}:resume", dependencies=[needs_operator])
async def resume_queue(queue: str, state: State) -> Response:
    """Resume a paused queue (role: operator)."""
    await state.broker.resume(await known_queue(state, queue))
    return Response(status_code=204)


@router.get("/queues/{queue}", dependencies=[needs_viewer])
async def get_queue(queue: str, state: State) -> Response:
    """One queue, and what it did on each of the last ten days (role: viewer)."""
    name = await known_queue(state, queue)
    days = await daily_counts(state.connection, [name], _HISTORY_DAYS, answers.today())
    history = [answers.day_row(day) for day in days[name]]
    return json_answer({"current": await _stats_of(state, name), "history": history})


@router.delete("/queues/{queue}", dependencies=[needs_operator])
async def delete_queue(queue: str, request: Request, state: State, force: str = "") -> Response:
    """Delete a queue with its tasks (role: operator); 409 when it is not empty and `force=true` is not given."""
    name = await known_queue(state, queue)
    await remove_queue(state, name, caller_of(request).who, force=force == "true")
    return Response(status_code=204)


@router.get("/queues/{queue}/groups", dependencies=[needs_viewer])
async def list_groups(queue: str, state: State) -> Response:
    """Groups of aggregating tasks: always none (role: viewer)."""
    return json_answer({"stats": await _stats_of(state, await known_queue(state, queue)), "groups": []})


@router.get("/queues/{queue}/tasks/{task_id}", dependencies=[needs_viewer])
async def get_task(queue: str, task_id: str, state: State) -> Response:
    """One task of a queue (role: viewer)."""
    view = await state.inspector.get(await known_queue(state, queue), task_id)
    if view is None:
        raise NotFoundError("task not found")
    return json_answer(answers.task(view))


@router.get("/queues/{queue}/{bucket}_tasks", dependencies=[needs_viewer])
async def list_tasks(queue: str, bucket: str, state: State, page: str = "1", size: str = "20") -> Response:
    """Tasks in one state, a page of them, and the queue's sizes (role: viewer)."""
    wanted = _bucket(bucket)
    name = await known_queue(state, queue)
    number, length = read_number(page, 1), read_number(size, 20, most=_PAGE)
    views = []
    if wanted is not None:
        views = await state.inspector.list_tasks(name, wanted, offset=(number - 1) * length, limit=length)
    return json_answer({"tasks": [answers.row(view) for view in views], "stats": await _stats_of(state, name)})


def _bucket(word: str) -> TaskState | None:
    """The state that a list is named for, None for the one that is always empty. Raises `NotFoundError`."""
    if word == AGGREGATING:
        return None
    try:
        return TaskState(word)
    except ValueError:
        raise NotFoundError(f"there are no {word} tasks", hint=f"the states are {', '.join(TaskState)}") from None


def _legal(bucket: str, verb: str) -> tuple[TaskState | None, Action]:
    wanted = _bucket(bucket)
    if verb not in {action.value for action in _BATCH_ANSWER}:
        raise NotFoundError(f"there is no action {verb!r}", hint="there are run, archive, cancel and delete")
    action = Action(verb)
    if wanted is not None and action not in ACTIONS[wanted]:
        raise StateError(f"{wanted} tasks know no {verb}", hint="the dashboard offers what is possible")
    return wanted, action


@router.post("/queues/{queue}/{bucket}_tasks:{order}", dependencies=[needs_operator])
async def act_on_many(queue: str, bucket: str, order: str, request: Request, state: State) -> Response:
    """`run_all`, `archive_all`, `cancel_all`, or `batch_…` with `{"task_ids"}`, for one state (role: operator)."""
    return await _many(queue, bucket, order, request, state)


@router.delete("/queues/{queue}/{bucket}_tasks:{order}", dependencies=[needs_operator])
async def delete_many(queue: str, bucket: str, order: str, request: Request, state: State) -> Response:
    """`delete_all`, or `batch_delete` with `{"task_ids"}`, for one state (role: operator)."""
    if order not in {"delete_all", "batch_delete"}:
        raise NotFoundError(f"there is no action {order!r}", hint="there are delete_all and batch_delete")
    return await _many(queue, bucket, order, request, state)


async def _many(queue: str, bucket: str, order: str, request: Request, state: ServerState) -> Response:
    is_batch, verb = order.startswith("batch_"), order.removeprefix("batch_").removesuffix("_all")
    wanted, action = _legal(bucket, verb)
    name = await known_queue(state, queue)
    if is_batch:
        return json_answer(await _batch(state, name, wanted, action, await _ids(request)))
    if not order.endswith("_all"):
        raise NotFoundError(f"there is no action {order!r}")
    done = 0 if wanted is None else await _all(state, name, wanted, action)
    if action is Action.CANCEL:
        return Response(status_code=204)
    return json_answer({_ALL_ANSWER[action]: done})


async def _ids(request: Request) -> list[str]:
    body = await read_json_object(request)
    if len(msgspec.json.encode(body)) > LONGEST_BATCH_BYTES:
        raise UsageError(f"the body is longer than {LONGEST_BATCH_BYTES} bytes")
    ids = body.get("task_ids")
    if set(body) - {"task_ids"} or not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        raise UsageError('the body must be {"task_ids": ["…"]} and nothing else')
    return list(dict.fromkeys(ids))


async def _batch(
    state: ServerState, queue: str, wanted: TaskState | None, action: Action, ids: list[str]
) -> dict[str, list[str]]:
    good, bad = _BATCH_ANSWER[action]
    document: dict[str, list[str]] = {good: [], bad: []}
    if wanted is None:
        return {good: [], bad: ids}
    for acted in await state.operator.act(action, queue, ids):
        document[bad if failure(acted.status, acted.state, action) else good].append(acted.id)
    return document


async def _all(state: ServerState, queue: str, wanted: TaskState, action: Action) -> int:
    """Act on every task that is in that state now; tasks that come meanwhile may be left."""
    left = getattr(await state.inspector.counts(queue), wanted.value)
    done = skipped = 0
    while left > 0:
        ids = await state.inspector.task_ids(queue, wanted, offset=skipped, limit=min(_PAGE, left))
        if not ids:
            break
        left -= len(ids)
        acted = await state.operator.act(action, queue, ids)
        moved = sum(1 for each in acted if not failure(each.status, each.state, action))
        done += moved
        # Running tasks stay where they are until they have stopped.
        skipped += len(ids) if action is Action.CANCEL and wanted is TaskState.ACTIVE else len(ids) - moved
    return done


@router.post("/queues/{queue}/{bucket}_tasks/{task_id}:{verb}", dependencies=[needs_operator])
async def act_on_one(queue: str, bucket: str, task_id: str, verb: str, state: State) -> Response:
    """Run, archive or cancel one task (role: operator)."""
    return await _one(state, queue, bucket, task_id, verb)


@router.delete("/queues/{queue}/{bucket}_tasks/{task_id}", dependencies=[needs_operator])
async def delete_one(queue: str, bucket: str, task_id: str, state: State) -> Response:
    """Delete one task (role: operator)."""
    return await _one(state, queue, bucket, task_id, Action.DELETE.value)


async def _one(state: ServerState, queue: str, bucket: str, task_id: str, verb: str) -> Response:
    _, action = _legal(bucket, verb)
    name = await known_queue(state, queue)
    (acted,) = await state.operator.act(action, name, [task_id])
    reason = failure(acted.status, acted.state, action)
    if reason and acted.state is None:
        raise NotFoundError(reason)
    if reason:
        raise StateError(reason)
    return Response(status_code=204)
