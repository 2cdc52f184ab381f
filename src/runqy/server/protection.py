"""What stands before every route: read-only mode, and the audit line of each request that changes something."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import structlog

from runqy.errors import RunqyError
from runqy.server.state import ServerState
from runqy.store.audit import AuditLine

log = structlog.get_logger(__name__)

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_DATA_PLANE = ("/queue/add", "/queue/add-batch", "/worker/register")
"""calls of programs, not of people: neither audited nor stopped by read-only mode"""
_SIGN_IN = "/monitoring/api/auth/"


class Protection:
    """An ASGI application around the framework's."""

    def __init__(self, state: ServerState, app: Any) -> None:
        self._state = state
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] in _SAFE_METHODS or scope["path"] in _DATA_PLANE:
            await self._app(scope, receive, send)
            return
        if self._state.settings.read_only and not scope["path"].startswith(_SIGN_IN):
            await _refuse(scope["method"], send)
            return

        async def send_audited(message: Any) -> None:
            if message["type"] == "http.response.start":
                await self._note(scope, message["status"])
            await send(message)

        await self._app(scope, receive, send_audited)

    async def _note(self, scope: Any, status: int) -> None:
        told: dict[str, Any] = dict(scope.get("state", {}).get("audit", {}))
        caller = scope.get("state", {}).get("caller")
        if told.pop("silent", False) or (caller is None and "who" not in told):
            # A stranger's request changed nothing; a flood of them would push out what matters.
            return
        route = getattr(scope.get("route"), "path", scope["path"])
        line = AuditLine(
            at=time.time(),
            who=str(told.pop("who", None) or caller.who),
            role=str(caller.role) if caller is not None else "",
            address=scope["client"][0] if scope.get("client") else "",
            action=f"{scope['method']} {route}",
            target=scope["path"],
            status=status,
            detail=told or None,
        )
        try:
            await self._state.access.audit.append([line])
        except RunqyError as error:
            log.error("an audit line could not be kept", who=line.who, action=line.action, reason=str(error))


async def _refuse(method: str, send: Any) -> None:
    text = f"API Server is running in read-only mode: {method} request is not allowed"
    body = msgspec.json.encode({"errors": [text]})
    headers = [(b"content-type", b"application/json; charset=utf-8"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 405, "headers": headers})
    await send({"type": "http.response.body", "body": body})
