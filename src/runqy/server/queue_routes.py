"""Queues: how full they are, pause and resume, their configuration."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response

from runqy.config.encoding import sub_queue_document
from runqy.config.model import QueueConfig, parse_queue_name
from runqy.config.request import parse_queue_request
from runqy.errors import ConflictError, NotFoundError
from runqy.server.answers import queue_info
from runqy.server.configuration import reload_folder
from runqy.server.queue_removal import disable_queue, remove_queue
from runqy.server.responding import (
    State,
    caller_of,
    json_answer,
    needs_admin,
    needs_operator,
    needs_viewer,
    needs_viewer_scoped,
    read_json_object,
)
from runqy.server.task_routes import known_queue
from runqy.store.queues import Action

router = APIRouter()


@router.get("/api/queues", tags=["queues"], dependencies=[needs_viewer_scoped])
async def list_queues(request: Request, state: State) -> Response:
    """All queues with their sizes (role: viewer)."""
    await state.inspector.register_queues(state.queues.catalog.full_names())
    names = [name for name in await state.inspector.queues() if caller_of(request).sees(name)]
    counts = await state.inspector.counts_of(names)
    document: dict[str, Any] = {"queues": [queue_info(entry) for entry in counts]}
    if state.queues.catalog.warnings:
        document["warnings"] = list(state.queues.catalog.warnings)
    return json_answer(document)


@router.get("/api/queues/{queue}", tags=["queues"], dependencies=[needs_viewer])
async def get_queue(queue: str, state: State) -> Response:
    """One queue with its sizes (role: viewer)."""
    return json_answer(queue_info(await state.inspector.counts(await known_queue(state, queue))))


@router.post("/api/queues/{queue}/pause", tags=["queues"], dependencies=[needs_operator])
async def pause_queue(queue: str, state: State) -> Response:
    """Let no task of the queue start until it is resumed (role: operator)."""
    name = await known_queue(state, queue)
    if not await state.broker.pause(name):
        raise ConflictError(f'queue "{name}" is already paused')
    return json_answer({"message": "queue paused", "queue": name})


@router.post("/api/queues/{queue}/unpause", tags=["queues"], dependencies=[needs_operator])
async def unpause_queue(queue: str, state: State) -> Response:
    """Resume a paused queue (role: operator)."""
    name = await known_queue(state, queue)
    if not await state.broker.resume(name):
        raise ConflictError(f'queue "{name}" is not paused')
    return json_answer({"message": "queue unpaused", "queue": name})


@router.delete("/api/queues/{queue}", tags=["queues"], dependencies=[needs_admin])
async def remove(queue: str, request: Request, state: State, force: str = "") -> Response:
    """Delete a queue, with `force=true` also one that holds tasks; never while tasks of it run (role: admin)."""
    name = await known_queue(state, queue)
    await remove_queue(state, name, caller_of(request).who, force=force == "true")
    return json_answer({"message": "queue deleted", "queue": name})


@router.get("/workers/queues", tags=["configuration"], dependencies=[needs_viewer_scoped])
async def list_configurations(request: Request, state: State) -> Response:
    """Names and priorities of all configured queues (role: viewer)."""
    rows = [
        {"name": config.full_name(sub), "priority": sub.priority}
        for config in state.queues.catalog.queues()
        for sub in config.ordered()
        if caller_of(request).sees(config.full_name(sub))
    ]
    document: dict[str, Any] = {"queues": rows, "count": len(rows)}
    if state.queues.catalog.warnings:
        document["warnings"] = list(state.queues.catalog.warnings)
    return json_answer(document)


@router.get("/workers/config/{name}", tags=["configuration"], dependencies=[needs_viewer])
async def get_configuration(name: str, state: State) -> Response:
    """The configuration of one queue (role: viewer)."""
    wanted = parse_queue_name(name)
    config = state.queues.catalog.parent(wanted.parent)
    sub = None if config is None else config.sub_queue(wanted.sub or "default")
    if config is None or (sub is None and wanted.sub is not None):
        raise NotFoundError("queue not found")
    return json_answer(_configuration(config, name))


def _configuration(config: QueueConfig, name: str) -> dict[str, Any]:
    wanted = parse_queue_name(name)
    sub = config.sub_queue(wanted.sub or "default") or config.ordered()[0]
    return sub_queue_document(config, sub, name)


@router.post("/workers/queues", tags=["configuration"], dependencies=[needs_admin])
async def create_queue(request: Request, state: State, force: str = "") -> Response:
    """Create a queue, or change it with `force=true` (role: admin)."""
    wanted = parse_queue_request(await read_json_object(request))
    saved = await state.queues.apply(wanted, caller_of(request).who, force=force == "true")
    await state.announce_change()
    word = "updated" if saved.action is Action.UPDATED else "created"
    document = {"queue": _configuration(saved.queue, str(wanted.name)), "message": f"Queue {word} successfully"}
    return json_answer(document, 201)


@router.delete("/workers/queues/{name}", tags=["configuration"], dependencies=[needs_admin])
async def delete_queue(name: str, request: Request, state: State) -> Response:
    """Disable a queue: it takes no more tasks; `restore` brings it back (role: admin)."""
    await disable_queue(state, name, caller_of(request).who)
    return json_answer({"message": f"Queue '{name}' deleted successfully"})


@router.post("/workers/queues/{name}/restore", tags=["configuration"], dependencies=[needs_admin])
async def restore_queue(name: str, request: Request, state: State) -> Response:
    """Bring a deleted queue back (role: admin)."""
    await state.queues.restore(name, caller_of(request).who)
    await state.announce_change()
    return json_answer({"message": f"Queue '{name}' restored successfully"})


@router.post("/workers/reload", tags=["configuration"], dependencies=[needs_admin])
async def reload_configuration(request: Request, state: State) -> Response:
    """Read the queue files again (role: admin). With one bad file nothing is applied, and all errors are listed."""
    report = await reload_folder(state, caller_of(request).who)
    return json_answer(
        {
            "reloaded": list(report.reloaded) or None,
            "errors": list(report.errors) or None,
            "warnings": list(report.warnings),
            "timestamp": int(time.time()),
        }
    )
