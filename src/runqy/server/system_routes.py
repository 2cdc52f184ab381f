"""The original's monitoring routes about the system: workers, Redis, database, settings, and the playground."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from runqy.broker.workers import LOG_LINES
from runqy.errors import NotFoundError, UnavailableError, UsageError
from runqy.server.answers import worker_row
from runqy.server.auth import permitted
from runqy.server.enqueue_routes import add_batch
from runqy.server.responding import (
    State,
    caller_of,
    json_answer,
    needs_admin,
    needs_operator_scoped,
    needs_viewer,
    read_json_object,
)
from runqy.server.state import ServerState
from runqy.settings import server_variables
from runqy.settings.levers import LEVER_SETTINGS
from runqy.store.roles import Role

router = APIRouter(prefix="/monitoring/api", tags=["monitoring"])

MOST_PLAYGROUND_TASKS = 100
_VARIABLES = {
    setting.name: setting.variables[0]
    for setting in (*server_variables.ALL, *LEVER_SETTINGS.values())
    if setting.variables
}
"""a setting's name → the environment variable that people know it by"""
STREAMED_AT_FIRST, STREAM_SECONDS = 100, 2.0


@router.get("/servers", dependencies=[needs_viewer])
async def list_servers() -> Response:
    """asynq's own servers: runqy has none (role: viewer)."""
    return json_answer({"servers": []})


@router.get("/scheduler_entries", dependencies=[needs_viewer])
async def list_scheduler_entries() -> Response:
    """asynq's own scheduler: runqy has none (role: viewer)."""
    return json_answer({"entries": []})


@router.get("/scheduler_entries/{entry}/enqueue_events", dependencies=[needs_viewer])
async def list_scheduler_events(entry: str) -> Response:
    """asynq's own scheduler: runqy has none (role: viewer)."""
    return json_answer({"events": []})


@router.get("/workers", dependencies=[needs_viewer])
async def list_workers(state: State) -> Response:
    """All workers that were heard of lately (role: viewer)."""
    now = time.time()
    return json_answer({"workers": [worker_row(record, now) for record in await state.workers.all()]})


@router.get("/workers/{worker_id}/logs/stream", dependencies=[needs_viewer])
async def worker_logs_stream(worker_id: str, state: State) -> Response:
    """The last hundred lines, then every new one (role: viewer). `id` is the line's number, which only grows."""
    if await state.workers.get(worker_id) is None:
        raise NotFoundError("Worker not found")
    return EventSourceResponse(
        state.until_stopping(_new_lines(state, worker_id)), ping=15, headers={"cache-control": "no-store"}
    )


async def _new_lines(state: ServerState, worker_id: str) -> AsyncGenerator[ServerSentEvent, None]:
    last, wanted = 0, STREAMED_AT_FIRST
    while True:
        for line in await state.workers.logs(worker_id, wanted):
            number = _sequence(line)
            # Numbers, not positions: the list is cut to its newest lines.
            if number > last:
                last = number
                yield ServerSentEvent(line, id=str(number))
        wanted = LOG_LINES
        await asyncio.sleep(STREAM_SECONDS)


def _sequence(line: str) -> int:
    try:
        document = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return 0
    number = document.get("seq", 0) if isinstance(document, dict) else 0
    return number if isinstance(number, int) else 0


@router.get("/redis_info", dependencies=[needs_viewer])
async def redis_info(state: State) -> Response:
    """What Redis says of itself (role: viewer)."""
    reply = await state.connection.command("INFO")
    if isinstance(reply, bytes):
        raw = reply.decode("utf-8", "replace")
        info = dict(line.split(":", 1) for line in raw.splitlines() if ":" in line)
    else:
        info = {str(name): str(value) for name, value in reply.items()}
        raw = "\r\n".join(f"{name}:{value}" for name, value in info.items())
    return json_answer(
        {
            "address": state.redis.address,
            "info": info,
            "raw_info": raw,
            "cluster": state.connection.is_cluster,
            "raw_cluster_nodes": "",
            "queue_locations": None,
        }
    )


@router.get("/database_info", dependencies=[needs_viewer])
async def database_info(state: State) -> Response:
    """Which database, and whether it answers (role: viewer)."""
    document: dict[str, Any] = {"type": "SQLite" if state.database.is_sqlite else "PostgreSQL", "connected": True}
    try:
        await state.database.ping()
    except UnavailableError:
        document["connected"] = False
    document["shown"] = state.database.shown
    return json_answer(document)


@router.get("/system/env", dependencies=[needs_admin])
async def system_env(state: State) -> Response:
    """Every setting in force, secrets masked (role: admin)."""
    rows = [
        {
            "name": _VARIABLES.get(each.name, each.name),
            "value": "(not set)" if each.value in {"", "-"} else each.value,
            "origin": each.origin,
        }
        for each in state.settings.describe()
    ]
    return json_answer({"vars": rows})


@router.post("/playground/enqueue", dependencies=[needs_operator_scoped])
async def playground(request: Request, state: State) -> Response:
    """Enqueue the same payload up to 100 times (role: operator): `{"queue", "payload", "count"?, "timeout"?}`."""
    body = await read_json_object(request)
    queue, count, timeout = body.get("queue"), body.get("count", 1), body.get("timeout", 0)
    if not queue or not isinstance(queue, str):
        raise UsageError("queue is required")
    if "payload" not in body:
        raise UsageError("payload must be valid JSON")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise UsageError("count must be a number from 1")
    if count > MOST_PLAYGROUND_TASKS:
        raise UsageError(f"count must be at most {MOST_PLAYGROUND_TASKS}")
    if isinstance(timeout, (int, float)) and timeout < 0:
        raise UsageError("timeout must be >= 0")
    # The same way as every other task takes: queue, fields and limits are checked there.
    jobs = [{"data": body["payload"]}] * count
    document = msgspec.json.encode({"queue": queue, "timeout": timeout, "jobs": jobs, "atomic": True})
    answer = msgspec.json.decode(
        (await add_batch(state, permitted(caller_of(request), (Role.CLIENT,)), (), document)).body
    )
    full = state.queues.catalog.lookup(queue)
    name = full[1] if full is not None else queue
    return json_answer({"tasks": [{"id": task_id, "queue": name} for task_id in answer["task_ids"]], "count": count})
