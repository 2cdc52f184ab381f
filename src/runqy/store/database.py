"""The database: SQLite or PostgreSQL behind one connection pool, migrated at start, its errors in our words."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, func, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from runqy.errors import ConfigurationError, RunqyError, UnavailableError
from runqy.settings.secret import Secret
from runqy.store.migrate import migrate

BUSY_TIMEOUT_MS = 10_000
_IMMEDIATE = "runqy_immediate"
_LOCK = 0x72756E7179
"""number of the advisory lock that serialises writers of the configuration in PostgreSQL"""
_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}


class Database:
    """One pool of connections. `open` before use, `close` at the end.

    ``url`` is ``sqlite:///path`` or ``postgresql://user:password@host:5432/name``; it is never shown.
    """

    def __init__(self, url: str | Secret) -> None:
        self._url = _driver_url(url.get_secret_value() if isinstance(url, Secret) else url)
        self._engine: AsyncEngine | None = None

    @property
    def is_sqlite(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    @property
    def shown(self) -> str:
        """Where the database is, without user and password."""
        if self.is_sqlite:
            return f"SQLite at {self._url.database}"
        return f"PostgreSQL at {self._url.host or 'localhost'}:{self._url.port or 5432}/{self._url.database}"

    async def open(self) -> None:
        """Connect and bring the schema up to date, under a lock that other servers wait for.

        A database of the original is adopted. Raises `UnavailableError` when it can't be reached,
        `ConfigurationError` when it is newer than this program or can't be written. A crash in the middle
        leaves the schema as it was.
        """
        if self.is_sqlite:
            _create_private(Path(str(self._url.database)), self.shown)
        self._engine = self._create_engine()
        try:
            async with self.write() as connection:
                await connection.run_sync(lambda sync: migrate(sync, self.shown))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close every connection."""
        if self._engine is not None:
            await self._engine.dispose()
            self._engine = None

    async def ping(self) -> None:
        """Raises `UnavailableError` when the database does not answer."""
        async with self.read() as connection:
            await connection.execute(select(1))

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A connection for one consistent look; nothing it does is kept."""
        with self._errors():
            async with self._opened().connect() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction: all or nothing. Writers stand in line, so that what was read stays true until commit."""
        with self._errors():
            async with self._opened().connect() as connection:
                # A deferred transaction of SQLite fails at its first write when another writer was faster.
                await connection.execution_options(**{_IMMEDIATE: True})
                async with connection.begin():
                    if not self.is_sqlite:
                        await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
                    yield connection

    def _opened(self) -> AsyncEngine:
        if self._engine is None:
            raise RuntimeError("the database is not open")
        return self._engine

    def _create_engine(self) -> AsyncEngine:
        try:
            if self.is_sqlite:
                engine = create_async_engine(self._url, pool_size=5)
                _configure_sqlite(engine)
                return engine
            return create_async_engine(
                self._url,
                pool_size=5,
                max_overflow=20,
                pool_recycle=300,
                pool_pre_ping=True,
                connect_args={"connect_timeout": 10},
            )
        except (ImportError, NoSuchModuleError):
            raise ConfigurationError(
                f"{self.shown} can't be used",
                why="its driver is not installed",
                hint="pip install 'runqy[postgres]'",
            ) from None

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, OSError, TimeoutError) as error:
            raise _translated(error, self.shown) from error
        except SQLAlchemyError as error:
            raise UnavailableError(f"{self.shown} can't be used", why=_first_line(error)) from error


def _driver_url(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "The database address can't be read (value not shown)",
            hint="write postgresql://user:password@host:5432/name or sqlite:///path",
        ) from None
    driver = _DRIVERS.get(url.get_backend_name())
    if driver is None or (driver.startswith("sqlite") and not url.database):
        raise ConfigurationError(
            f"A database of the kind {url.get_backend_name()!r} can't be used",
            hint="write postgresql://user:password@host:5432/name or sqlite:///path",
        )
    return url.set(drivername=driver)


def _create_private(path: Path, shown: str) -> None:
    """Make the file readable by its owner alone: it holds hashes of passwords and the vaults."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ConfigurationError(
            f"{shown} can't be written", why=error.strerror or str(error), hint="choose another folder with --data-dir"
        ) from None


def _configure_sqlite(engine: AsyncEngine) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def connect(dbapi_connection: Any, _record: Any) -> None:
        # The driver's own idea of transactions would leave DDL outside of them.
        dbapi_connection.isolation_level = None
        cursor = dbapi_connection.cursor()
        for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        _use_wal(cursor)
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        is_immediate = connection.get_execution_options().get(_IMMEDIATE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_immediate else "BEGIN")


def _use_wal(cursor: Any) -> None:
    """SQLite does not wait for others when a new file changes to WAL, so this does."""
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _translated(error: Exception, shown: str) -> RunqyError:
    reason = _first_line(error)
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return UnavailableError(f"{shown} does not answer in time", hint="check that it runs and is not overloaded")
    if "not a database" in reason or "malformed" in reason:
        return ConfigurationError(f"{shown} is damaged or no database", why=reason, hint="restore it from a backup")
    if "readonly database" in reason or "unable to open database" in reason:
        return ConfigurationError(
            f"{shown} can't be written", why=reason, hint="check owner and mode of file and folder"
        )
    if "disk is full" in reason or "No space left" in reason:
        return UnavailableError(f"{shown} can't be written", why="the disk is full", hint="make room on the disk")
    if "password authentication failed" in reason or "no password supplied" in reason:
        return UnavailableError(
            f"{shown} refuses user or password", hint="check RUNQY_DATABASE_URL or DATABASE_PASSWORD"
        )
    if "does not exist" in reason and "database" in reason:
        return ConfigurationError(f"{shown} does not exist", why=reason, hint="create it with createdb")
    return UnavailableError(
        f"{shown} can't be used", why=reason, hint="check that it runs and that the address is right"
    )


def _first_line(error: Exception) -> str:
    """The driver's reason; never SQLAlchemy's text, which repeats the parameters of the statement."""
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return (str(origin).strip().splitlines() or [type(origin).__name__])[0]
