"""Every test of this folder runs against the embedded Valkey, Redis 7 and a Redis Cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from harness.keyspace import wipe
from harness.redis_cluster import ClusterServers, running_cluster
from harness.redis_servers import redis_binary

from runqy.broker.connection import ClockOffset, Connection, RedisTarget, connected


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterServers]:
    """Three masters on loopback."""
    with running_cluster(redis_binary(), tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


@pytest.fixture(params=["valkey", "redis7", "cluster"])
def target(request: pytest.FixtureRequest) -> RedisTarget:
    """Each backend in turn."""
    target: RedisTarget = request.getfixturevalue(request.param).target
    return target


@pytest.fixture
async def connection(target: RedisTarget, clock_offset: ClockOffset) -> AsyncIterator[Connection]:
    """An empty backend."""
    async with connected(target, clock_offset=clock_offset) as connection:
        await wipe(connection)
        yield connection
