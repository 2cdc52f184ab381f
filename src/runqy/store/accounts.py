"""Accounts of the dashboard and their sessions."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runqy.errors import ConflictError, NotFoundError, StateError, UsageError
from runqy.store.database import Database
from runqy.store.roles import Role
from runqy.store.tables import admin_user, sessions
from runqy.timing import SYSTEM_CLOCK, Clock

SESSION_SECONDS = 7 * 24 * 3600
LONGEST_EMAIL = 254


@dataclass(frozen=True, slots=True)
class Account:
    """A person who may log in. Times in unix seconds."""

    id: int
    email: str
    role: Role
    password_hash: str
    created_at: float | None
    last_login_at: float | None


@dataclass(frozen=True, slots=True)
class Session:
    """One log-in of one account. Times in unix seconds."""

    id: str
    email: str
    role: Role
    created_at: float
    expires_at: float
    address: str
    browser: str


def check_email(text: object) -> str:
    """A usable address: one ``@``, something on both sides, a dot in the domain. Raises `UsageError`."""
    email = text.strip() if isinstance(text, str) else ""
    local, _, domain = email.partition("@")
    printable = email.isprintable() and " " not in email
    if (
        email.count("@") != 1
        or not local
        or "." not in domain.strip(".")
        or not printable
        or len(email) > LONGEST_EMAIL
    ):
        raise UsageError("invalid email address")
    return email.lower()


class AccountStore:
    """Accounts and sessions of one database. Each method is one transaction."""

    def __init__(self, database: Database, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._database = database
        self._clock = clock

    async def count(self) -> int:
        """How many accounts there are; 0 means that setup is still to be done."""
        async with self._database.read() as connection:
            return int((await connection.execute(select(func.count()).select_from(admin_user))).scalar_one())

    async def all(self) -> list[Account]:
        """All accounts by e-mail."""
        async with self._database.read() as connection:
            return [_account(row) for row in await connection.execute(select(admin_user).order_by(admin_user.c.email))]

    async def get(self, email: str) -> Account | None:
        """The account of that address; upper and lower case are one."""
        async with self._database.read() as connection:
            row = (await connection.execute(select(admin_user).where(_has(email)))).first()
        return None if row is None else _account(row)

    async def create(self, email: str, password_hash: str, role: Role, *, first: bool = False) -> Account:
        """Add an account. With ``first`` only when there is none yet. Raises `ConflictError`, `UsageError`."""
        email, now = check_email(email), self._clock.now()
        async with self._database.write() as connection:
            if first and (await connection.execute(select(admin_user.c.id).limit(1))).first() is not None:
                raise ConflictError("admin user already exists")
            if (await connection.execute(select(admin_user.c.id).where(_has(email)))).first() is not None:
                raise ConflictError(f"an account {email} exists already")
            values = {"password_hash": password_hash, "role": role.value, "created_at": now, "updated_at": now}
            number = (
                await connection.execute(insert(admin_user).values(email=email, **values).returning(admin_user.c.id))
            ).scalar_one()
        return Account(number, email, role, password_hash, now, None)

    async def set_password(self, email: str, password_hash: str, *, keep_session: str = "") -> None:
        """Change a password and end every session of the account but ``keep_session``. Raises `NotFoundError`."""
        async with self._database.write() as connection:
            number = await self._number(connection, email)
            values = {"password_hash": password_hash, "updated_at": self._clock.now()}
            await connection.execute(update(admin_user).where(admin_user.c.id == number).values(**values))
            await connection.execute(
                delete(sessions).where(sessions.c.account_id == number, sessions.c.id != keep_session)
            )

    async def set_role(self, email: str, role: Role) -> None:
        """Change a role. Raises `NotFoundError`, `StateError` when no admin would be left."""
        async with self._database.write() as connection:
            number = await self._number(connection, email)
            if role is not Role.ADMIN:
                await self._refuse_last_admin(connection, number)
            values = {"role": role.value, "updated_at": self._clock.now()}
            await connection.execute(update(admin_user).where(admin_user.c.id == number).values(**values))

    async def delete(self, email: str) -> None:
        """Remove an account with its sessions. Raises `NotFoundError`, `StateError` for the last admin."""
        async with self._database.write() as connection:
            number = await self._number(connection, email)
            await self._refuse_last_admin(connection, number)
            await connection.execute(delete(sessions).where(sessions.c.account_id == number))
            await connection.execute(delete(admin_user).where(admin_user.c.id == number))

    async def _number(self, connection: AsyncConnection, email: str) -> int:
        number = (await connection.execute(select(admin_user.c.id).where(_has(email)))).scalar()
        if number is None:
            raise NotFoundError(f"there is no account {email}")
        return int(number)

    async def _refuse_last_admin(self, connection: AsyncConnection, number: int) -> None:
        others = select(admin_user.c.id).where(admin_user.c.role == Role.ADMIN.value, admin_user.c.id != number)
        if (await connection.execute(others.limit(1))).first() is None:
            raise StateError("this is the last admin", hint="make another account an admin first")

    async def open_session(self, account: Account, address: str, browser: str) -> Session:
        """Log in: a new session, and the account's `last_login_at`. Sessions that are over are cleared."""
        now = self._clock.now()
        session = Session(
            secrets.token_urlsafe(24),
            account.email,
            account.role,
            now,
            now + SESSION_SECONDS,
            address[:64],
            browser[:200],
        )
        async with self._database.write() as connection:
            await connection.execute(delete(sessions).where(sessions.c.expires_at <= now))
            await connection.execute(
                insert(sessions).values(
                    id=session.id,
                    account_id=account.id,
                    created_at=now,
                    expires_at=session.expires_at,
                    address=session.address,
                    browser=session.browser,
                )
            )
            await connection.execute(update(admin_user).where(admin_user.c.id == account.id).values(last_login_at=now))
        return session

    async def session(self, session_id: str) -> Session | None:
        """A session that is still good, with its account's present role."""
        found = await self._sessions(sessions.c.id == session_id)
        return found[0] if found else None

    async def sessions_of(self, email: str | None = None) -> list[Session]:
        """Sessions that are still good, newest first; of one account where ``email`` is given."""
        return await self._sessions(None if email is None else _has(email))

    async def _sessions(self, condition: ColumnElement[bool] | None) -> list[Session]:
        statement = (
            select(sessions, admin_user.c.email, admin_user.c.role)
            .join(admin_user, admin_user.c.id == sessions.c.account_id)
            .where(sessions.c.expires_at > self._clock.now())
            .order_by(sessions.c.created_at.desc())
        )
        if condition is not None:
            statement = statement.where(condition)
        async with self._database.read() as connection:
            rows = (await connection.execute(statement)).all()
        return [Session(r.id, r.email, _role(r.role), r.created_at, r.expires_at, r.address, r.browser) for r in rows]

    async def end_session(self, session_id: str) -> bool:
        """Log out; whether there was such a session."""
        async with self._database.write() as connection:
            return (await connection.execute(delete(sessions).where(sessions.c.id == session_id))).rowcount > 0


def _has(email: str) -> ColumnElement[bool]:
    # The original kept addresses as they were typed.
    return func.lower(admin_user.c.email) == email.strip().lower()


def _role(text: str) -> Role:
    return Role(text) if text in set(Role) else Role.VIEWER


def _account(r: Row[Any]) -> Account:
    return Account(r.id, r.email, _role(r.role), r.password_hash, r.created_at, r.last_login_at)
