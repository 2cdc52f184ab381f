"""Tasks: one by its id, lists by state, what operators do to them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response

from runqy.broker.inspector import TaskView
from runqy.broker.transitions import Acted, ActionStatus
from runqy.errors import NotFoundError, StateError, UsageError
from runqy.server.answers import task_info, task_row
from runqy.server.auth import permitted
from runqy.server.bulk import PAST
from runqy.server.enqueue_routes import Answer, add, add_batch, read_body
from runqy.server.responding import (
    State,
    caller_of,
    json_answer,
    needs_client,
    needs_operator,
    needs_operator_scoped,
    needs_viewer,
    read_number,
)
from runqy.server.state import ServerState
from runqy.store.roles import Role
from runqy.tasks.limits import LimitError, parse_setting_duration
from runqy.tasks.state import TERMINAL, Action
from runqy.tasks.state import State as TaskState

router = APIRouter()

WAIT_SECONDS = 30.0
LONGEST_WAIT_SECONDS = 300.0
LONGEST_PAGE = 1000


@router.post("/queue/add", tags=["enqueue"], dependencies=[needs_client])
async def add_task(request: Request, state: State) -> Response:
    """Enqueue one task (key: client or admin).

    The body is nested, `{"queue", "data", "timeout"?, "delay"?, "run_at"?, "task"?, "task_id"?}`, or flat, where
    every key but `queue` and `timeout` is payload. `Idempotency-Key` makes a repetition harmless.
    """
    return _respond(await add(state, caller_of(request), request.scope["headers"], await _body(request, state)))


@router.post("/queue/add-batch", tags=["enqueue"], dependencies=[needs_client])
async def add_tasks(request: Request, state: State) -> Response:
    """Enqueue many tasks of one queue: `{"queue", "jobs": […], "timeout"?, "atomic"?}` (key: client or admin)."""
    return _respond(await add_batch(state, caller_of(request), request.scope["headers"], await _body(request, state)))


async def _body(request: Request, state: ServerState) -> bytes:
    return await read_body(request.receive, state.settings.max_body_size)


def _respond(answer: Answer) -> Response:
    response = Response(answer.body, answer.status, media_type="application/json; charset=utf-8")
    for name, value in answer.headers:
        response.headers[name.decode()] = value.decode()
    return response


@router.get("/queue/{task_id}", tags=["enqueue"])
async def get_task(task_id: str, request: Request, state: State, wait: str = "", timeout: str = "") -> Response:
    """One task by its id (key: client or admin, unless results are public).

    `wait=true` answers when the task has ended, within `timeout` (seconds or a duration, up to 300 s); 408 after that.
    """
    view = await find_for(request, state, task_id)
    if wait == "true" and view.state not in TERMINAL:
        if not await state.unless_stopping(state.events.wait_for_end(view.queue, task_id, _wait_seconds(timeout))):
            return json_answer({"errors": ["timeout waiting for task result"]}, 408)
        view = await _find(state, task_id)
    return json_answer({"Info": task_info(view)})


async def find_for(request: Request, state: ServerState, task_id: str) -> TaskView:
    """A task that the caller may see: with a key for its queue, or anybody where results are public."""
    if state.settings.public_results:
        return await _find(state, task_id)
    caller = permitted(await state.access.caller(request.method, request.scope["headers"]), _READERS)
    view = await _find(state, task_id)
    if not caller.sees(view.queue):
        # Its existence is not told either.
        raise NotFoundError("task not found")
    return view


_READERS = (Role.CLIENT, Role.VIEWER)


def _wait_seconds(text: str) -> float:
    if not text:
        return WAIT_SECONDS
    try:
        seconds = float(text) if text.replace(".", "", 1).isdigit() else parse_setting_duration(text, "timeout") / 1e9
    except LimitError as error:
        raise UsageError(str(error)) from None
    if not 0 < seconds <= LONGEST_WAIT_SECONDS:
        raise UsageError(f"timeout must be more than 0 and at most {LONGEST_WAIT_SECONDS:.0f} seconds, got {text!r}")
    return seconds


async def _find(state: ServerState, task_id: str) -> TaskView:
    view = await state.inspector.find(task_id)
    if view is None:
        raise NotFoundError("task not found")
    return view


async def known_queue(state: ServerState, name: str) -> str:
    """The name of a queue that exists: registered in Redis, or configured. Raises `NotFoundError`."""
    found = state.queues.catalog.lookup(name)
    if found is not None:
        return found[1]
    if name not in await state.inspector.queues():
        raise NotFoundError(f'NOT_FOUND: queue "{name}" does not exist')
    return name


@router.get("/api/queues/{queue}/tasks", tags=["tasks"], dependencies=[needs_viewer])
async def list_tasks(
    queue: str,
    state: State,
    task_state: Annotated[str, Query(alias="state")] = "pending",
    limit: str = "10",
    offset: str = "0",
) -> Response:
    """Tasks of a queue in one state (role: viewer): the oldest waiting ones, or the newest ended ones, first."""
    try:
        wanted = TaskState(task_state)
    except ValueError:
        raise UsageError(f"invalid state: {task_state}") from None
    name = await known_queue(state, queue)
    size, skip = read_number(limit, 10, least=0, most=LONGEST_PAGE), read_number(offset, 0, least=0)
    views = await state.inspector.list_tasks(name, wanted, offset=skip, limit=size)
    return json_answer({"tasks": [task_row(view) for view in views]})


@router.get("/api/queues/{queue}/tasks/{task_id}", tags=["tasks"], dependencies=[needs_viewer])
async def get_queue_task(queue: str, task_id: str, state: State) -> Response:
    """One task of a queue (role: viewer)."""
    name = await known_queue(state, queue)
    view = await state.inspector.get(name, task_id)
    if view is None:
        raise NotFoundError("asynq: task not found")
    return json_answer(task_row(view, single=True))


@router.delete("/api/queues/{queue}/tasks/{task_id}", tags=["tasks"], dependencies=[needs_operator])
async def delete_task(queue: str, task_id: str, state: State) -> Response:
    """Delete a task that is not running (role: operator)."""
    name = await known_queue(state, queue)
    (acted,) = await state.operator.act(Action.DELETE, name, [task_id])
    _refuse_illegal(acted, Action.DELETE)
    return json_answer({"message": "task deleted", "task_id": task_id})


@router.post("/api/tasks/{task_id}/{action}", tags=["tasks"], dependencies=[needs_operator_scoped])
async def act_on_task(task_id: str, action: str, request: Request, state: State) -> Response:
    """Cancel, run or archive a task by its id (role: operator). A running task is asked to stop."""
    words = {"cancel": Action.CANCEL, "run": Action.RUN, "archive": Action.ARCHIVE}
    if action not in words:
        raise NotFoundError(f"there is no action {action!r}", hint=f"there are {', '.join(words)}")
    queue = await state.inspector.queue_of(task_id)
    if queue is None or not caller_of(request).sees(queue):
        raise NotFoundError("task not found")
    (acted,) = await state.operator.act(words[action], queue, [task_id])
    _refuse_illegal(acted, words[action])
    done = {"cancel": "cancelled", "run": "put into pending", "archive": "archived"}[action]
    document = {"message": f"task {done}", "task_id": task_id, "queue": queue}
    if acted.status is ActionStatus.ASKED:
        document["state"] = "stopping"
    return json_answer(document)


def _refuse_illegal(acted: Acted, action: Action) -> None:
    if acted.status is ActionStatus.GONE:
        raise NotFoundError("task not found")
    if acted.status is ActionStatus.ILLEGAL:
        raise StateError(f"a task that is {acted.state} can't be {PAST[action]}", why=f"task {acted.id}")


@router.get("/api/queues/{queue}/tasks/{task_id}/log", tags=["tasks"], dependencies=[needs_viewer])
async def get_task_log(queue: str, task_id: str, state: State) -> Response:
    """What a task printed: its last 64 KiB (role: viewer)."""
    name = await known_queue(state, queue)
    text = await state.inspector.task_log(name, task_id)
    if text is None:
        raise NotFoundError("task not found")
    return Response(
        msgspec.json.encode({"task_id": task_id, "text": text}), media_type="application/json; charset=utf-8"
    )
