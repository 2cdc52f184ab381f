"""Databases for the store's contract: SQLite in a file, and a real PostgreSQL of this test run."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from runqy.store.database import Database
from runqy.store.queues import QueueStore

PASSWORD = "pg-s3cr3t"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Postgres:
    """A running server; its socket trusts, its port on 127.0.0.1 asks for the password."""

    folder: Path
    port: int

    def url(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql://postgres:{password}@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        name = f"runqy_{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name


def _binaries() -> Path:
    on_path = shutil.which("initdb")
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    folders = [Path(on_path).parent] if on_path else candidates
    if not folders:
        pytest.fail("PostgreSQL is missing: apt-get install postgresql")
    return folders[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for the run. It refuses to run as root, and root's own folders are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="runqy-pg-"))
    user = "postgres" if os.geteuid() == 0 else None
    (folder / "password").write_text(PASSWORD)
    if user is not None:
        shutil.chown(folder, user)
        shutil.chown(folder / "password", user)
    binaries, data, port = _binaries(), folder / "data", _free_port()
    authentication = ["--auth-host=scram-sha-256", f"--pwfile={folder / 'password'}"]
    subprocess.run(
        [binaries / "initdb", "-D", data, "-U", "postgres", "--no-sync", *authentication],
        user=user,
        cwd=folder,
        check=True,
        capture_output=True,
    )
    options = ["-c", "fsync=off", "-c", "listen_addresses=127.0.0.1", "-c", "shared_buffers=16MB"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [binaries / "postgres", "-D", data, "-p", str(port), "-k", folder, *options],
            user=user,
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    server = Postgres(folder, port)
    try:
        _wait_until_ready(server, process)
        yield server
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        shutil.rmtree(folder)


def _wait_until_ready(server: Postgres, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(server.url("postgres"), connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail("PostgreSQL did not start: " + (server.folder / "log").read_text()[-2000:])
            time.sleep(0.05)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runqy.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.url(server.create_database())


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    await database.open()
    yield database
    await database.close()


@dataclass
class TestClock:
    """A clock that tests move."""

    __test__ = False
    unix: float = 1_800_000_000.0

    def now(self) -> float:
        return self.unix

    def monotonic(self) -> float:
        return self.unix


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
def store(database: Database, clock: TestClock) -> QueueStore:
    return QueueStore(database, clock=clock)
