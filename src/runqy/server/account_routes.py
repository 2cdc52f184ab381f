"""Who am I, log in and out, accounts and their sessions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from runqy.errors import ConflictError, NotAllowedError, NotAuthenticatedError, NotFoundError, UsageError
from runqy.server.access import cookie_header, is_local, refuse_other_origin
from runqy.server.answers import unix_ms
from runqy.server.passwords import check_password, hash_password, is_old, is_password
from runqy.server.responding import (
    State,
    caller_of,
    guard_of,
    json_answer,
    needs_admin,
    note_audit,
    read_json_object,
)
from runqy.server.state import ServerState
from runqy.store.accounts import Account, Session, check_email
from runqy.store.roles import ACCOUNT_ROLES, Role, parse_role

router = APIRouter(tags=["access"])
needs_anyone = guard_of(*Role, scoped=True)
needs_person = guard_of(*ACCOUNT_ROLES, scoped=True)
_INVALID = "invalid email or password"


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


async def _body(request: Request) -> dict[str, Any]:
    refuse_other_origin(request.scope["headers"])
    try:
        return await read_json_object(request)
    except UsageError:
        raise UsageError("Invalid request body") from None


async def _signed_in(request: Request, state: ServerState, account: Account, message: str) -> Response:
    note_audit(request, who=account.email)
    browser = request.headers.get("user-agent", "")
    secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
    cookie = await state.access.sign_in(account, _address(request), browser, secure=secure)
    answer = json_answer({"message": message, "email": account.email, "role": account.role.value})
    answer.headers["set-cookie"] = cookie
    return answer


@router.get("/monitoring/api/auth/status")
async def auth_status(request: Request, state: State) -> Response:
    """Whether the caller is logged in, and whether the first account is still to be made."""
    session = await state.access.session(request.scope["headers"])
    document: dict[str, Any] = {"authenticated": session is not None, "setup_required": False}
    if session is not None:
        document |= {"email": session.email, "role": session.role.value}
    else:
        document["setup_required"] = await state.access.accounts.count() == 0
    return json_answer(document)


@router.post("/monitoring/api/auth/setup")
async def auth_setup(request: Request, state: State) -> Response:
    """Make the first account, an admin; once. From another machine the admin key is needed as well."""
    body = await _body(request)
    if await state.access.accounts.count():
        raise ConflictError("admin user already exists")
    await _refuse_stranger(request, state)
    email, password = body.get("email"), body.get("password")
    if password != body.get("confirm_password"):
        raise UsageError("passwords do not match")
    hashed_for = check_email(email)
    account = await state.access.accounts.create(
        hashed_for, await hash_password(check_password(password)), Role.ADMIN, first=True
    )
    return await _signed_in(request, state, account, "Admin created successfully")


async def _refuse_stranger(request: Request, state: ServerState) -> None:
    caller = await state.access.caller(request.method, request.scope["headers"])
    proxied = "x-forwarded-for" in request.headers or "forwarded" in request.headers
    if (caller is not None and caller.role is Role.ADMIN) or (is_local(_address(request)) and not proxied):
        return
    raise NotAllowedError(
        "the first account is made on the server's own machine, or with the admin key",
        why=f"this request comes from {_address(request)}",
        hint="run `runqy account create` beside the server, or send the admin key as a Bearer token",
    )


@router.post("/monitoring/api/auth/login")
async def auth_login(request: Request, state: State) -> Response:
    """Log in with e-mail and password. 429 after too many failures."""
    body = await _body(request)
    email, password = body.get("email"), body.get("password")
    if not isinstance(email, str) or not isinstance(password, str):
        raise UsageError("Invalid request body")
    email = email.strip().lower()
    limit = state.access.limit
    # Before the audit line: whoever is turned away here could fill the log.
    limit.check(email, _address(request))
    note_audit(request, who=email[:254])
    # Counted before the slow check, so that many at once don't get more tries.
    limit.failed(email, _address(request))
    account = await state.access.accounts.get(email)
    if not await is_password(password, account.password_hash if account is not None else None) or account is None:
        raise NotAuthenticatedError(_INVALID)
    limit.succeeded(email, _address(request))
    if is_old(account.password_hash):
        await state.access.accounts.set_password(email, await hash_password(password))
    return await _signed_in(request, state, account, "Login successful")


@router.post("/monitoring/api/auth/logout")
async def auth_logout(request: Request, state: State) -> Response:
    """End the caller's session and clear the cookie."""
    refuse_other_origin(request.scope["headers"])
    session = await state.access.session(request.scope["headers"])
    if session is not None:
        note_audit(request, who=session.email)
        await state.access.end_session(session.id)
        await state.announce_access()
    answer = json_answer({"message": "Logged out successfully"})
    answer.headers["set-cookie"] = cookie_header("", 0, secure=request.url.scheme == "https")
    return answer


@router.get("/api/me", dependencies=[needs_anyone])
async def me(request: Request, state: State) -> Response:
    """Who the caller is and may do (any key or session)."""
    caller = caller_of(request)
    return json_answer(
        {
            "who": caller.who,
            "role": caller.role.value,
            "roles": sorted(caller.role.includes),
            "queues": None if caller.queues is None else sorted(caller.queues),
            "read_only": state.settings.read_only,
        }
    )


@router.post("/api/me/password", dependencies=[needs_person])
async def change_password(request: Request, state: State) -> Response:
    """Change one's own password (a session): `{"password", "new_password"}`. Other sessions end."""
    caller = caller_of(request)
    if not caller.session:
        raise UsageError("a key has no password", hint="log in, or use POST /api/accounts/{email}/password")
    body = await read_json_object(request)
    state.access.limit.check(caller.who, _address(request))
    account = await state.access.accounts.get(caller.who)
    if account is None or not await is_password(str(body.get("password", "")), account.password_hash):
        state.access.limit.failed(caller.who, _address(request))
        raise NotAllowedError("the present password is wrong")
    hashed = await hash_password(check_password(body.get("new_password")))
    await state.access.accounts.set_password(caller.who, hashed, keep_session=caller.session)
    await state.announce_access()
    return json_answer({"message": "password changed"})


def _account_row(account: Account) -> dict[str, Any]:
    return {
        "email": account.email,
        "role": account.role.value,
        "created_at": unix_ms(account.created_at),
        "last_login_at": unix_ms(account.last_login_at),
    }


@router.get("/api/accounts", dependencies=[needs_admin])
async def list_accounts(state: State) -> Response:
    """All accounts (role: admin)."""
    rows = [_account_row(account) for account in await state.access.accounts.all()]
    return json_answer({"accounts": rows, "count": len(rows)})


@router.post("/api/accounts", dependencies=[needs_admin])
async def create_account(request: Request, state: State) -> Response:
    """Make an account (role: admin): `{"email", "password", "role"}`."""
    body = await read_json_object(request)
    role = parse_role(body.get("role", Role.VIEWER.value), ACCOUNT_ROLES)
    email = check_email(body.get("email"))
    account = await state.access.accounts.create(email, await hash_password(check_password(body.get("password"))), role)
    return json_answer({"message": "account created", "account": _account_row(account)}, 201)


@router.put("/api/accounts/{email}", dependencies=[needs_admin])
async def change_account(email: str, request: Request, state: State) -> Response:
    """Change a role or set a password (role: admin): `{"role"?, "password"?}`. A new password ends the sessions."""
    body = await read_json_object(request)
    if not body.keys() & {"role", "password"}:
        raise UsageError("give role or password")
    role = parse_role(body["role"], ACCOUNT_ROLES) if "role" in body else None
    hashed = await hash_password(check_password(body["password"])) if "password" in body else None
    if role is not None:
        await state.access.accounts.set_role(email, role)
    if hashed is not None:
        await state.access.accounts.set_password(email, hashed)
    await state.announce_access()
    return json_answer({"message": "account changed", "email": email})


@router.delete("/api/accounts/{email}", dependencies=[needs_admin])
async def delete_account(email: str, state: State) -> Response:
    """Delete an account with its sessions (role: admin). The last admin stays."""
    await state.access.accounts.delete(email)
    await state.announce_access()
    return json_answer({"message": "account deleted", "email": email})


def _session_row(session: Session, own: str) -> dict[str, Any]:
    return {
        # The whole id would be half of what a cookie needs.
        "id": session.id[:12],
        "email": session.email,
        "role": session.role.value,
        "created_at": unix_ms(session.created_at),
        "expires_at": unix_ms(session.expires_at),
        "address": session.address,
        "browser": session.browser,
        "is_own": session.id == own,
    }


@router.get("/api/sessions", dependencies=[needs_person])
async def list_sessions(request: Request, state: State) -> Response:
    """Open sessions: one's own, or everybody's for an admin."""
    rows = await _visible_sessions(request, state)
    return json_answer({"sessions": [_session_row(s, caller_of(request).session) for s in rows], "count": len(rows)})


async def _visible_sessions(request: Request, state: ServerState) -> list[Session]:
    caller = caller_of(request)
    return await state.access.accounts.sessions_of(None if caller.role is Role.ADMIN else caller.who)


@router.delete("/api/sessions/{session_id}", dependencies=[needs_person])
async def revoke_session(session_id: str, request: Request, state: State) -> Response:
    """End a session; it is refused everywhere within a second."""
    for session in await _visible_sessions(request, state):
        if session.id[:12] == session_id:
            await state.access.end_session(session.id)
            await state.announce_access()
            return json_answer({"message": "session ended", "id": session_id})
    raise NotFoundError("there is no such session")
