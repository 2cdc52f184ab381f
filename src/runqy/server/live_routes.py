"""What changes while one looks: the overview and its stream, the history, the stream of one task."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from runqy.broker.history import History, Slot, quantile
from runqy.errors import NotFoundError, UsageError
from runqy.server.following import follow_task
from runqy.server.responding import State, caller_of, json_answer, needs_viewer_scoped
from runqy.server.sampler import visible
from runqy.server.state import ServerState
from runqy.server.task_routes import find_for, known_queue
from runqy.tasks.state import ACTIONS, OPERATOR_ACTIONS, TERMINAL
from runqy.tasks.state import State as TaskState
from runqy.timing import SYSTEM_CLOCK

router = APIRouter(tags=["live"])

PING_SECONDS = 15
RANGES: dict[str, tuple[int, int, int]] = {
    # name: length, step of one queue, step of all queues together (by hours: fewer keys to read); seconds
    "1h": (3600, 60, 60),
    "24h": (86400, 900, 3600),
    "7d": (7 * 86400, 3600, 3600),
    "30d": (30 * 86400, 4 * 3600, 4 * 3600),
}


@router.get("/api/states", dependencies=[needs_viewer_scoped])
async def list_states() -> Response:
    """The states of a task, what an operator may do in each, and where that leads (role: viewer)."""
    rows = [
        {
            "name": state.value,
            "title": state.value.capitalize(),
            "final": state in TERMINAL,
            "actions": [action.value for action in OPERATOR_ACTIONS if action in ACTIONS[state]],
            "leads_to": {
                action.value: ACTIONS[state][action] for action in OPERATOR_ACTIONS if action in ACTIONS[state]
            },
        }
        for state in TaskState
    ]
    return json_answer({"states": rows})


@router.get("/api/overview", dependencies=[needs_viewer_scoped])
async def overview(request: Request, state: State) -> Response:
    """All queues, workers, totals and rates, at most a second old (role: viewer)."""
    snapshot = await state.sampler.overview()
    caller = caller_of(request)
    return json_answer(snapshot.document if caller.queues is None else visible(snapshot.document, caller.sees))


@router.get("/api/live", dependencies=[needs_viewer_scoped])
async def live(request: Request, state: State) -> Response:
    """Server-sent events: `snapshot` with the overview, about every second (role: viewer)."""
    caller = caller_of(request)

    async def events() -> AsyncGenerator[ServerSentEvent, None]:
        async for snapshot in state.until_stopping(state.sampler.snapshots()):
            text = snapshot.text
            if caller.queues is not None:
                text = msgspec.json.encode(visible(snapshot.document, caller.sees)).decode()
            yield ServerSentEvent(text, event="snapshot", id=str(snapshot.number))

    return _stream(events())


@router.get("/queue/{task_id}/events", tags=["enqueue"])
async def task_events(task_id: str, request: Request, state: State) -> Response:
    """Server-sent events of one task (key: client, or role: viewer): `state`, `progress`, `log`, `output`, `end`.

    The first event is the task as it stands, the second what it has printed so far; `end` closes the stream. A
    line that is printed just then may come twice.
    """
    view = await find_for(request, state, task_id)
    return _stream(state.until_stopping(follow_task(state, view.queue, task_id)))


def _stream(events: AsyncGenerator[ServerSentEvent, None]) -> Response:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return EventSourceResponse(events, ping=PING_SECONDS, headers=headers)


@router.get("/api/history", dependencies=[needs_viewer_scoped])
async def history(
    request: Request, state: State, queue: str = "", span: Annotated[str, Query(alias="range")] = "1h"
) -> Response:
    """Attempts that ended, and how long they waited and ran, over time (role: viewer).

    `range` is 1h, 24h, 7d or 30d; without `queue` all queues together. Steps in which nothing ended have no times.
    """
    if span not in RANGES:
        raise UsageError(f"invalid range {span!r}: it is one of {', '.join(RANGES)}")
    length, fine, coarse = RANGES[span]
    names = await _visible_queues(request, state, queue)
    step = fine if queue else coarse
    now = SYSTEM_CLOCK.now()
    first = int((now - length) // step + 1) * step
    merged: dict[int, Slot] = {}
    reader = History(state.connection)
    for name in names:
        read = reader.hours if step >= 3600 else reader.minutes
        for slot in await read(name, first, now):
            start = slot.start // step * step
            merged.setdefault(start, Slot(start)).merge(slot)
    points = [_point(merged.get(at, Slot(at))) for at in range(first, int(now) + 1, step)]
    return json_answer({"queue": queue, "range": span, "step_seconds": step, "points": points})


async def _visible_queues(request: Request, state: ServerState, queue: str) -> list[str]:
    caller = caller_of(request)
    if not queue:
        return [name for name in await state.inspector.queues() if caller.sees(name)]
    name = await known_queue(state, queue)
    if not caller.sees(name):
        raise NotFoundError(f'NOT_FOUND: queue "{queue}" does not exist')
    return [name]


def _point(slot: Slot) -> dict[str, Any]:
    return {
        "at": slot.start * 1000,
        "processed": slot.processed,
        "failed": slot.failed,
        "wait": _times(slot.waits),
        "run": _times(slot.runs),
    }


def _times(histogram: dict[int, int]) -> dict[str, float] | None:
    if not histogram:
        return None
    return {f"p{q}_ms": round((quantile(histogram, q / 100) or 0.0) * 1000, 3) for q in (50, 95, 99)}
