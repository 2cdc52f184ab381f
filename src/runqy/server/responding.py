"""How routes read a request and write an answer."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request, Response

from runqy.errors import TooLargeError, UsageError
from runqy.server.auth import Role
from runqy.server.state import ServerState


def json_answer(document: Any, status: int = 200) -> Response:
    """A JSON response."""
    return Response(
        msgspec.json.encode(document),
        status_code=status,
        media_type="application/json; charset=utf-8",
        headers={"x-content-type-options": "nosniff"},
    )


def server_state(request: Request) -> ServerState:
    """The server that the request reached."""
    state: ServerState = request.app.state.server
    return state


State = Annotated[ServerState, Depends(server_state)]


def _guard(*roles: Role) -> Any:
    async def check(request: Request) -> Role:
        return server_state(request).keys.require(request.scope["headers"], *roles)

    return Depends(check)


needs_admin = _guard()
needs_operator = _guard()
needs_viewer = _guard()
needs_worker = _guard(Role.WORKER)
needs_client = _guard(Role.CLIENT)


async def read_json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises `UsageError` (400), `TooLargeError` (413)."""
    limit = server_state(request).settings.max_body_size
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise TooLargeError("http: request body too large", why=f"it has more than {limit} bytes")
        parts.append(part)
    body = b"".join(parts)
    if not body.strip():
        raise UsageError("the body is empty", why="EOF", hint="send a JSON object")
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise UsageError("the body must be a JSON object")
    return document
