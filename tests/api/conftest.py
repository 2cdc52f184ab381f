"""The server that the tests of this folder call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.api import Api, running_server
from harness.redis_servers import RedisServer

from runqy.broker.connection import Connection


@pytest.fixture
async def api(tmp_path: Path, valkey: RedisServer, connection: Connection) -> AsyncIterator[Api]:
    """A server on an empty Valkey."""
    async with running_server(tmp_path, valkey.url) as api:
        yield api
