"""What became of webhooks."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from runqy.broker.outbox import Outbox
from runqy.errors import NotFoundError
from runqy.server.responding import State, caller_of, json_answer, needs_viewer_scoped
from runqy.server.task_routes import known_queue

router = APIRouter(tags=["webhooks"])


@router.get("/api/webhooks", dependencies=[needs_viewer_scoped])
async def tries(request: Request, state: State, queue: str, task: str = "") -> Response:
    """The last 200 tries to send webhooks of a queue, newest first, or those of one task (role: viewer)."""
    name = await known_queue(state, queue)
    if not caller_of(request).sees(name):
        raise NotFoundError(f'NOT_FOUND: queue "{queue}" does not exist')
    lines = [msgspec.json.decode(line) for line in await Outbox(state.connection).history(name)]
    return json_answer({"queue": name, "tries": [line for line in lines if task in {"", line["id"]}]})
