"""The dashboard's view of queue configuration: every sub-queue with its parent's deployment and schemas."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from runqy.config.encoding import fields_document, sub_queue_document
from runqy.config.model import DEFAULT_SUB_QUEUE, QueueConfig, SubQueue, parse_queue_name
from runqy.config.request import QueueRequest, parse_queue_request
from runqy.errors import ConflictError, NotFoundError, UsageError
from runqy.server.queue_removal import disable_queue
from runqy.server.responding import (
    State,
    caller_of,
    json_answer,
    needs_admin,
    needs_viewer,
    needs_viewer_scoped,
    read_json_object,
)
from runqy.server.state import ServerState

router = APIRouter(prefix="/monitoring/api/queue_configs", tags=["configuration"])


def _row(config: QueueConfig, sub: SubQueue) -> dict[str, Any]:
    document = sub_queue_document(config, sub, config.full_name(sub))
    document["enabled"] = config.enabled and sub.enabled
    if config.description:
        document["description"] = config.description
    if config.input:
        document["input"] = fields_document(config.input)
    if config.output:
        document["output"] = fields_document(config.output)
    return document


async def _found(state: ServerState, name: str) -> tuple[QueueConfig, SubQueue]:
    """One sub-queue, deleted ones too; a bare parent means its default, or else its first. Raises `NotFoundError`."""
    wanted = parse_queue_name(name)
    config = await state.queues.get(name, include_disabled=True)
    if config is None:
        raise NotFoundError(f"queue '{name}' not found")
    named = [sub for sub in config.sub_queues if sub.name == (wanted.sub or DEFAULT_SUB_QUEUE)]
    candidates = named if named or wanted.sub is not None else (config.ordered() or config.sub_queues)
    if not candidates:
        raise NotFoundError(f"queue '{name}' not found")
    return config, candidates[0]


@router.get("", dependencies=[needs_viewer_scoped])
async def list_queue_configs(request: Request, state: State) -> Response:
    """All sub-queues, deleted ones too (role: viewer)."""
    rows = [
        _row(config, sub)
        for config in await state.queues.all(include_disabled=True)
        for sub in sorted(config.sub_queues, key=lambda sub: (-sub.priority, sub.name))
        if caller_of(request).sees(config.full_name(sub))
    ]
    return json_answer({"queues": rows, "count": len(rows)})


@router.get("/{name}", dependencies=[needs_viewer])
async def get_queue_config(name: str, state: State) -> Response:
    """One sub-queue, also a deleted one (role: viewer)."""
    return json_answer(_row(*await _found(state, name)))


@router.post("", dependencies=[needs_admin])
async def create_queue_config(request: Request, state: State, force: str = "") -> Response:
    """Create a queue, or change it with `force=true` (role: admin)."""
    wanted = parse_queue_request(await read_json_object(request))
    try:
        return await _save(request, state, wanted, force=force == "true", status=201)
    except ConflictError:
        raise ConflictError(f"queue '{wanted.name}' already exists. Use force=true to update") from None


@router.put("/{name}", dependencies=[needs_admin])
async def update_queue_config(name: str, request: Request, state: State) -> Response:
    """Change a queue (role: admin). Without a priority, or with one below 1, it keeps its own."""
    body = await read_json_object(request)
    if body.get("name") not in (None, "", name):
        raise UsageError(f"the body names another queue than the address: {body['name']!r}", hint="leave it out")
    if await state.queues.get(name) is None:
        raise NotFoundError(f"queue '{name}' not found")
    _, sub = await _found(state, name)
    priority = body.get("priority")
    is_kept = priority is None or (isinstance(priority, int) and not isinstance(priority, bool) and priority < 1)
    if is_kept and not body.get("sub_queues"):
        body["priority"] = sub.priority
    wanted = parse_queue_request({**body, "name": name if "." in name or body.get("sub_queues") else _full(name, sub)})
    return await _save(request, state, wanted, force=True, status=200)


def _full(name: str, sub: SubQueue) -> str:
    # A bare parent without a default sub-queue would get one by the change.
    return name if sub.name == DEFAULT_SUB_QUEUE else f"{name}.{sub.name}"


async def _save(request: Request, state: ServerState, wanted: QueueRequest, *, force: bool, status: int) -> Response:
    await state.queues.apply(wanted, caller_of(request).who, force=force)
    await state.announce_change()
    word = "created" if status == 201 and not force else "updated"
    row = _row(*await _found(state, str(wanted.name)))
    return json_answer({"message": f"Queue {word} successfully", "queue": row}, status)


@router.delete("/{name}", dependencies=[needs_admin])
async def delete_queue_config(name: str, request: Request, state: State) -> Response:
    """Disable a queue: it takes no more tasks (role: admin)."""
    await disable_queue(state, name, caller_of(request).who)
    return json_answer({"message": f"Queue '{name}' deleted successfully"})


@router.post("/{name}:restore", dependencies=[needs_admin])
async def restore_queue_config(name: str, request: Request, state: State) -> Response:
    """Bring a deleted queue back (role: admin)."""
    await state.queues.restore(name, caller_of(request).who)
    await state.announce_change()
    return json_answer({"message": f"Queue '{name}' restored successfully"})
