"""Named API keys, and the audit log."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response

from runqy.config.model import parse_queue_name
from runqy.errors import UsageError
from runqy.server.answers import unix_ms
from runqy.server.responding import (
    State,
    caller_of,
    json_answer,
    needs_admin,
    needs_viewer,
    note_audit,
    read_json_object,
    read_number,
)
from runqy.store.api_keys import ApiKey
from runqy.store.roles import parse_role
from runqy.tasks.limits import LimitError, parse_setting_duration

router = APIRouter(tags=["access"])
LONGEST_PAGE = 1000


def _row(key: ApiKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "role": key.role.value,
        "queues": None if key.queues is None else list(key.queues),
        "start": key.start,
        "created_at": unix_ms(key.created_at),
        "created_by": key.created_by,
        "last_used_at": unix_ms(key.last_used_at),
        "expires_at": unix_ms(key.expires_at),
        "is_expired": key.expires_at is not None and key.expires_at <= time.time(),
    }


@router.get("/api/keys", dependencies=[needs_admin])
async def list_keys(state: State) -> Response:
    """All named keys, never the keys themselves (role: admin)."""
    rows = [_row(key) for key in await state.access.named.all()]
    return json_answer({"keys": rows, "count": len(rows)})


@router.post("/api/keys", dependencies=[needs_admin])
async def create_key(request: Request, state: State) -> Response:
    """Make a key (role: admin): `{"name", "role", "queues"?, "expires_in"?}`. The answer shows it this once."""
    body = await read_json_object(request)
    role = parse_role(body.get("role"))
    key, text = await state.access.named.create(
        str(body.get("name", "")),
        role,
        caller_of(request).who,
        queues=_queues(body.get("queues")),
        expires_at=_expiry(body.get("expires_in")),
    )
    note_audit(request, name=key.name, role=role.value)
    await state.announce_access()
    return json_answer({"message": "key created", "key": text, **_row(key)}, 201)


def _queues(value: object) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise UsageError("invalid queues field: a list of queue names, or none of it for all queues")
    return [str(parse_queue_name(name)) for name in value]


def _expiry(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise UsageError('invalid expires_in field: a duration such as "720h"')
    try:
        seconds = parse_setting_duration(value, "expires_in") / 1e9
    except LimitError as error:
        raise UsageError(str(error)) from None
    if not 0 < seconds < 100 * 365 * 86400:
        raise UsageError('invalid expires_in field: more than 0, such as "720h"')
    return time.time() + seconds


@router.delete("/api/keys/{key}", dependencies=[needs_admin])
async def revoke_key(key: str, state: State) -> Response:
    """Revoke a key; it is refused everywhere within seconds (role: admin)."""
    await state.access.named.revoke(key)
    await state.announce_access()
    return json_answer({"message": "key revoked", "name": key})


@router.get("/api/audit", dependencies=[needs_viewer])
async def audit_log(state: State, target: str = "", who: str = "", limit: str = "100", before: str = "") -> Response:
    """Who changed what, newest first (role: viewer). `before` is the last `id` of the former page."""
    size, earlier = read_number(limit, 100, most=LONGEST_PAGE), read_number(before, 0, least=0) or None
    lines = await state.access.audit.lines(target=target, who=who, limit=size, before_id=earlier)
    rows = [
        {
            "id": line.id,
            "at": unix_ms(line.at),
            "who": line.who,
            "role": line.role,
            "address": line.address,
            "action": line.action,
            "target": line.target,
            "status": line.status,
            "detail": line.detail,
        }
        for line in lines
    ]
    return json_answer({"lines": rows, "count": len(rows)})
