"""Access: from a request to its caller, by key or by the session of a browser."""

from __future__ import annotations

import ipaddress
import secrets
import time
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

import jwt
import structlog

from runqy.errors import NotAllowedError, RunqyError
from runqy.server.auth import Caller, Keys, presented_key
from runqy.server.login_limit import LoginLimit
from runqy.service import Service
from runqy.settings.server import ServerSettings
from runqy.store.accounts import SESSION_SECONDS, Account, AccountStore, Session
from runqy.store.api_keys import ApiKeyStore
from runqy.store.audit import AuditStore
from runqy.store.database import Database
from runqy.store.values import value_of
from runqy.telemetry import add_secret

log = structlog.get_logger(__name__)

COOKIE = "runqy_auth"
REFRESH_SECONDS = 5.0
SESSION_CACHE_SECONDS = 1.0
_MOST_CACHED = 1_000
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

Headers = Iterable[tuple[bytes, bytes]]


class Access:
    """Keys, accounts, sessions and the audit log of one server. `start` before use, `stop` at the end."""

    def __init__(self, settings: ServerSettings, keys: Keys, database: Database) -> None:
        self.keys = keys
        self.accounts = AccountStore(database)
        self.named = ApiKeyStore(database)
        self.audit = AuditStore(database)
        self.limit = LoginLimit()
        self._settings = settings
        self._database = database
        self._secret = ""
        self._sessions: dict[str, tuple[float, Session | None]] = {}
        self._keeping_fresh = Service("access", self._look_again, interval=REFRESH_SECONDS)

    async def start(self) -> None:
        """Read the keys and the secret that signs sessions; then read the keys anew every few seconds."""
        configured = self._settings.jwt_secret
        self._secret = (
            configured.get_secret_value()
            if configured is not None
            else await value_of(self._database, "jwt_secret", lambda: secrets.token_urlsafe(48))
        )
        add_secret(self._secret)
        await self.refresh()
        await self._keeping_fresh.start()

    async def stop(self) -> None:
        """End the refreshing, and keep when keys were used last."""
        await self._keeping_fresh.stop()
        try:
            await self._note_used()
        except RunqyError as error:
            log.warning("when keys were used last could not be kept", reason=str(error))

    async def refresh(self) -> None:
        """Read the named keys, and forget cached sessions. Raises `UnavailableError`; then the old ones stay."""
        self._sessions.clear()
        self.keys.replace_named(await self.named.all())

    async def _look_again(self) -> None:
        await self._note_used()
        await self.refresh()

    async def _note_used(self) -> None:
        used, self.keys.used = self.keys.used, {}
        if used and not self._settings.read_only:
            await self.named.note_used(used)

    async def caller(self, method: str, headers: Headers) -> Caller | None:
        """Who calls: by key when one is presented, else by the session cookie; None for nobody.

        Raises `NotAllowedError` for a cookie that another site's page sends with a change.
        """
        key = presented_key(headers)
        if key is not None:
            return self.keys.caller_of(key)
        session = await self.session(headers)
        if session is None:
            return None
        if method not in _SAFE_METHODS:
            refuse_other_origin(headers)
        return Caller(session.email, session.role, session=session.id)

    async def session(self, headers: Headers) -> Session | None:
        """The session of the cookie, if it is still good. A revoked one ends within a second, on every server."""
        token = _cookie(headers)
        if not token:
            return None
        try:
            claims = jwt.decode(
                token,
                self._secret,
                algorithms=["HS256"],
                issuer="runqy",
                options={"require": ["exp", "iat", "iss", "jti"]},
            )
        except jwt.PyJWTError:
            return None
        session_id = str(claims["jti"])
        cached = self._sessions.get(session_id)
        if cached is not None and cached[0] > time.monotonic():
            return cached[1]
        session = await self.accounts.session(session_id)
        if len(self._sessions) >= _MOST_CACHED:
            self._sessions.clear()
        self._sessions[session_id] = (time.monotonic() + SESSION_CACHE_SECONDS, session)
        return session

    async def sign_in(self, account: Account, address: str, browser: str, *, secure: bool) -> str:
        """Open a session; returns the `Set-Cookie` header."""
        session = await self.accounts.open_session(account, address, browser)
        claims = {
            "email": account.email,
            "iat": int(session.created_at),
            "exp": int(session.expires_at),
            "iss": "runqy",
            "jti": session.id,
        }
        return cookie_header(jwt.encode(claims, self._secret, algorithm="HS256"), SESSION_SECONDS, secure=secure)

    async def end_session(self, session_id: str) -> bool:
        """Log out; whether there was such a session."""
        self._sessions.pop(session_id, None)
        return await self.accounts.end_session(session_id)


def cookie_header(token: str, seconds: int, *, secure: bool) -> str:
    """The session cookie; an empty token with 0 seconds clears it."""
    return f"{COOKIE}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax" + ("; Secure" if secure else "")


def _cookie(headers: Headers) -> str:
    for name, value in headers:
        if name == b"cookie" and COOKIE.encode() in value:
            jar: SimpleCookie = SimpleCookie()
            try:
                jar.load(value.decode("latin-1"))
            except CookieError:
                return ""
            return jar[COOKIE].value if COOKIE in jar else ""
    return ""


def refuse_other_origin(headers: Headers) -> None:
    """Raises `NotAllowedError` when a browser says that the page which sends this is not ours."""
    given = {name: value.decode("latin-1") for name, value in headers}
    origin, site = given.get(b"origin"), given.get(b"sec-fetch-site")
    ours = given.get(b"x-forwarded-host") or given.get(b"host", "")
    is_other = origin is not None and urlsplit(origin).netloc not in {ours, given.get(b"host", "")}
    if is_other or site in {"cross-site", "same-site"}:
        raise NotAllowedError("a page of another site may not do this", why=f"it comes from {origin or site}")


def is_local(address: str) -> bool:
    """Whether a caller is on the server's own machine."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address in {"", "localhost"}
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)
