"""How routes read a request and write an answer."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request, Response

from runqy.errors import NotAllowedError, NotAuthenticatedError, TooLargeError, UsageError
from runqy.server.auth import Caller, permitted
from runqy.server.state import ServerState
from runqy.store.roles import Role


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


class Guard:
    """Lets a request through whose caller has one of the roles, and keeps who it is in ``request.state.caller``.

    A key that is limited to some queues passes only where the path names one of them, or where ``scoped`` says
    that the route itself shows nothing else. Raises `NotAuthenticatedError` (401), `NotAllowedError` (403).
    """

    def __init__(self, *roles: Role, scoped: bool = False) -> None:
        self.roles = frozenset(roles)
        self.scoped = scoped

    async def __call__(self, request: Request) -> Caller:
        caller = await server_state(request).access.caller(request.method, request.scope["headers"])
        request.state.caller = caller
        is_admins = request.url.path.startswith(_ADMIN_PATHS)
        if caller is not None and is_admins and caller.who in _UNKNOWN_THERE and not caller.may(self.roles):
            # As the original: its admin routes know no other key.
            raise NotAuthenticatedError("access unauthorized")
        permitted(caller, self.roles)
        assert caller is not None
        if caller.queues is not None and not self.scoped:
            name = request.path_params.get("queue") or request.path_params.get("name")
            if name is None or not caller.sees(str(name)):
                raise NotAllowedError(
                    "this key may not reach that",
                    why=f"it is limited to {', '.join(sorted(caller.queues))}",
                    hint="use a key without such a limit",
                )
        return caller


_ADMIN_PATHS = "/api/"
_UNKNOWN_THERE = frozenset({"worker key", "client key"})


def guard_of(*roles: Role, scoped: bool = False) -> Any:
    """A dependency that lets only these roles through; see `Guard`."""
    return Depends(Guard(*roles, scoped=scoped))


needs_admin = guard_of(Role.ADMIN)
needs_operator = guard_of(Role.OPERATOR)
needs_viewer = guard_of(Role.VIEWER)
needs_worker = guard_of(Role.WORKER, scoped=True)
needs_client = guard_of(Role.CLIENT, scoped=True)
needs_operator_scoped = guard_of(Role.OPERATOR, scoped=True)
needs_viewer_scoped = guard_of(Role.VIEWER, scoped=True)


def caller_of(request: Request) -> Caller:
    """Who passed the guard of this route."""
    caller: Caller = request.state.caller
    return caller


def note_audit(request: Request, **detail: Any) -> None:
    """Say more in the audit line of this request; ``who`` names a caller that no guard knows."""
    request.scope.setdefault("state", {}).setdefault("audit", {}).update(detail)


LARGEST_NUMBER = 2**31 - 1
"""what a row's number can be in PostgreSQL"""


def read_number(text: str, default: int, *, least: int = 1, most: int = LARGEST_NUMBER) -> int:
    """A whole number of a query, kept within its bounds; what is no number counts as not given, as in the original."""
    if not (text.isascii() and text.isdigit()):
        return default
    return max(least, min(int(text[:12]), most))


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
