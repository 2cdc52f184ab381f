"""Fixtures for all tests: real servers, started once per worker of the test run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from harness.redis_servers import RedisServer, redis_binary, running, valkey_binary

from runqy.broker.broker import Broker
from runqy.broker.connection import ClockOffset, Connection, connected
from runqy.broker.inspector import Inspector
from runqy.broker.operator import Operator


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="search the lifecycle model ten times as far")


@pytest.fixture(scope="session")
def is_long(request: pytest.FixtureRequest) -> bool:
    """Whether the long run was asked for."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The Valkey of the embedded storage."""
    with running(valkey_binary(), tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def redis7(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The system's Redis."""
    with running(redis_binary(), tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def clock_offset() -> ClockOffset:
    """Moves the time that scripts see."""
    return ClockOffset()


@pytest.fixture
async def connection(valkey: RedisServer, clock_offset: ClockOffset) -> AsyncIterator[Connection]:
    """An empty Valkey."""
    async with connected(valkey.target, clock_offset=clock_offset) as connection:
        await connection.command("FLUSHALL")
        yield connection


@pytest.fixture
def broker(connection: Connection) -> Broker:
    return Broker(connection)


@pytest.fixture
def inspector(connection: Connection) -> Inspector:
    return Inspector(connection)


@pytest.fixture
def operator(connection: Connection) -> Operator:
    return Operator(connection)
