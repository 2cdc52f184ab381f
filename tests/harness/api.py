"""A real server in this process, on Valkey and SQLite, and a client for each role."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import httpx2

from harness.redis_servers import free_port
from runqy.broker.broker import Broker
from runqy.broker.transitions import AttemptEnd, PickedTask
from runqy.server.app import serve
from runqy.server.state import ServerState
from runqy.settings.server import load_server_settings
from runqy.tasks.limits import Limits
from runqy.tasks.outcome import Complete

ADMIN, WORKER, CLIENT = "admin-key-0123456789abcdef", "worker-key-0123456789abcdef", "client-key-0123456789abcdef"

YAML = """
queues:
  echo:
    priority: 5
    deployment: {git_url: "https://example.com/echo.git", startup_cmd: python main.py}
  small:
    priority: 1
    max_pending: 2
    deployment: {git_url: "https://example.com/small.git", startup_cmd: python main.py}
  one:
    sub_queues: [{name: high, priority: 10}, {name: low, priority: 2}]
    deployment:
      git_url: https://example.com/one.git
      startup_cmd: python main.py
      mode: one_shot
      limits: {max_retry: 1, ttl_completed: 1h, ttl_archived: 24h, pending_timeout: 5m, active_timeout: 30s}
    input:
      - {name: n, type: [int], required: true}
"""


@dataclass
class Api:
    """The running server, and how to call it."""

    url: str
    state: ServerState

    def client(self, key: str | None = ADMIN) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=30)

    @property
    def broker(self) -> Broker:
        return self.state.broker


@asynccontextmanager
async def running_server(
    folder: Path, redis_url: str, more_flags: Mapping[str, object] = MappingProxyType({}), **environ: str
) -> AsyncIterator[Api]:
    """A server with the three queues above."""
    queues = folder / "queues"
    queues.mkdir(exist_ok=True)
    if not (queues / "all.yaml").exists():
        (queues / "all.yaml").write_text(YAML)
    environment = {
        "RUNQY_REDIS_URL": redis_url,
        "RUNQY_API_KEY": ADMIN,
        "RUNQY_WORKER_API_KEY": WORKER,
        "RUNQY_CLIENT_API_KEY": CLIENT,
        **environ,
    }
    flags = {"host": "127.0.0.1", "port": str(free_port()), "data_dir": str(folder / "data"), "config": str(queues)}
    settings = load_server_settings({**flags, **more_flags}, environment, folder)
    stop, up = asyncio.Event(), asyncio.Event()
    held: list[Api] = []

    def ready(state: ServerState, url: str) -> None:
        held.append(Api(url, state))
        up.set()

    server = asyncio.create_task(serve(settings, stop=stop, ready=ready))
    waiting = asyncio.create_task(up.wait())
    await asyncio.wait({server, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not held:
        await server
    try:
        yield held[0]
    finally:
        stop.set()
        assert await server == 0


async def take(api: Api, queue: str) -> PickedTask:
    """Pick one task up, as a worker would."""
    (task,) = (await api.broker.pick_up([queue], 1, token="w#1", starting=1, fallback=Limits())).tasks
    return task


async def complete(api: Api, task: PickedTask, result: bytes = b'"done"') -> None:
    """End it well."""
    assert await api.broker.finish([AttemptEnd(task.queue, task.id, task.token, Complete(result), task.limits, 0.01)])
