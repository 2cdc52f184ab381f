"""Configuration as something to look at before and after: check, plan, history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from runqy.config.difference import Difference, differences, effective_document
from runqy.config.encoding import queue_document
from runqy.config.request import parse_queue_request
from runqy.config.source import Loaded, load_texts
from runqy.errors import ConfigurationError, RunqyError, UsageError
from runqy.server.configuration import load_configured
from runqy.server.errors import error_texts
from runqy.server.responding import State, json_answer, needs_viewer, note_audit, read_json_object, read_number
from runqy.server.state import ServerState
from runqy.store.queues import Planned

router = APIRouter(tags=["configuration"])

LONGEST_PAGE = 1000


def _rows(found: tuple[Difference, ...]) -> list[dict[str, Any]]:
    return [{"path": row.path, "before": row.before, "after": row.after} for row in found]


@router.get("/api/config/changes", dependencies=[needs_viewer])
async def changes(state: State, queue: str = "", limit: str = "100", before: str = "") -> Response:
    """Who changed which queue, newest first (role: viewer). `before` is the last `id` of the former page."""
    size, earlier = read_number(limit, 100, most=LONGEST_PAGE), read_number(before, 0, least=0) or None
    found = await state.queues.history(queue or None, limit=size, before_id=earlier)
    rows = [
        {
            "id": change.id,
            "at": round(change.at * 1000),
            "queue": change.queue,
            "action": change.action.value,
            "who": change.who,
            "changed": _rows(differences(change.before, change.after)),
            "before": change.before,
            "after": change.after,
        }
        for change in found
    ]
    return json_answer({"changes": rows, "count": len(rows)})


@router.post("/api/queues/validate", dependencies=[needs_viewer])
async def validate(request: Request, state: State) -> Response:
    """Check what `POST /workers/queues` would be sent, or files as `{"files": {name: text}}`; nothing is stored.

    Role: viewer. Always 200: `{"valid", "errors", "warnings", "queues"}`.
    """
    note_audit(request, silent=True)
    body = await read_json_object(request)
    try:
        if "files" in body:
            loaded = load_texts(_files(body["files"]))
            queues, warnings = [queue_document(queue) for queue in loaded.queues], loaded.warnings
        else:
            wanted = parse_queue_request(body)
            stored = await state.queues.get(wanted.name.parent)
            queues, warnings = [queue_document(wanted.applied_to(stored))], wanted.warnings
    except (ConfigurationError, UsageError) as error:
        return json_answer({"valid": False, "errors": error_texts(error), "warnings": [], "queues": []})
    return json_answer({"valid": True, "errors": [], "warnings": list(warnings), "queues": queues})


def _files(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict) or not value or not all(isinstance(text, str) for text in value.values()):
        raise UsageError('invalid files field: {"name.yaml": "its text", …}')
    return value


@router.post("/api/config/plan", dependencies=[needs_viewer])
async def plan(request: Request, state: State) -> Response:
    """What a reload would change now, or what `{"files": {name: text}}` would; nothing is stored (role: viewer).

    `changes` lists each queue with `action` (created, updated, unchanged) and its effective differences, limits
    with the server's defaults included. `unlisted` are stored queues that no file names; a reload leaves them.
    """
    note_audit(request, silent=True)
    is_empty = request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers
    body = {} if is_empty else await read_json_object(request)
    try:
        loaded: Loaded = load_texts(_files(body["files"])) if "files" in body else await load_configured(state)
    except UsageError:
        raise
    except RunqyError as error:
        return json_answer({"changes": [], "errors": error_texts(error), "warnings": [], "unlisted": []})
    planned = await state.queues.plan(loaded.queues)
    named = {entry.after.name for entry in planned}
    return json_answer(
        {
            "changes": [_planned(entry, state) for entry in planned],
            "errors": [],
            "warnings": list(loaded.warnings),
            "unlisted": [queue.name for queue in state.queues.catalog.queues() if queue.name not in named],
        }
    )


def _planned(entry: Planned, state: ServerState) -> dict[str, Any]:
    defaults = state.settings.defaults
    before = effective_document(entry.before, defaults) if entry.before is not None else None
    found = differences(before, effective_document(entry.after, defaults))
    return {"queue": entry.after.name, "action": entry.action.value, "changed": _rows(found)}
