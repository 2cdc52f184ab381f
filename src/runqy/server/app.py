"""The composition root of a server: everything is made and joined here, and ended in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from runqy import __version__
from runqy.broker.broker import Broker
from runqy.broker.connection import connect
from runqy.broker.embedded import EmbeddedRedis
from runqy.broker.events import Events
from runqy.broker.inspector import Inspector
from runqy.broker.operator import Operator
from runqy.broker.workers import WorkerRegistry
from runqy.errors import ConfigurationError, RunqyError, UnavailableError
from runqy.maintenance import Maintenance
from runqy.server import (
    account_routes,
    autoscale_routes,
    configuration_routes,
    dashboard_files,
    doctor_routes,
    health_routes,
    key_routes,
    live_routes,
    metrics_routes,
    monitoring_routes,
    queue_config_routes,
    queue_routes,
    search_routes,
    system_routes,
    task_routes,
    vault_routes,
    webhook_routes,
    worker_routes,
)
from runqy.server.access import Access
from runqy.server.aliases import Aliases
from runqy.server.auth import Keys, admin_key
from runqy.server.bulk import BulkRunner
from runqy.server.config_clone import ConfigClone
from runqy.server.configuration import load_at_start, watch_configuration
from runqy.server.enqueue_routes import FastRoutes
from runqy.server.errors import error_answer
from runqy.server.metrics import Metrics
from runqy.server.protection import Protection
from runqy.server.responding import json_answer
from runqy.server.sampler import Sampler
from runqy.server.state import ServerState
from runqy.server.timings import RequestTimes
from runqy.server.webhooks import WebhookSender
from runqy.service import end_tasks
from runqy.settings.server import ServerSettings
from runqy.store.database import Database
from runqy.store.queues import QueueStore
from runqy.store.vaults import VaultStore
from runqy.telemetry import add_secret

log = structlog.get_logger(__name__)

SERVER_FILE = "server.json"
GRACEFUL_SECONDS = 5


ROUTES = (
    task_routes,
    health_routes,
    queue_routes,
    worker_routes,
    account_routes,
    key_routes,
    live_routes,
    search_routes,
    system_routes,
    monitoring_routes,
    metrics_routes,
    doctor_routes,
    vault_routes,
    webhook_routes,
    autoscale_routes,
    configuration_routes,
    queue_config_routes,
)


def _framework_app(state: ServerState) -> FastAPI:
    """Every route, and one shape for every refusal; without what stands in front of it."""
    app = FastAPI(title="runqy", version=__version__, docs_url=None, redoc_url=None)
    app.state.server = state
    for routes in ROUTES:
        app.include_router(routes.router)
    if not state.settings.no_ui:
        app.include_router(dashboard_files.router)

    @app.exception_handler(RunqyError)
    async def refuse(_request: Request, error: RunqyError) -> Response:
        status, body, headers = error_answer(error)
        response = Response(body, status, media_type="application/json; charset=utf-8")
        for name, value in headers:
            response.headers[name.decode()] = value.decode()
        return response

    @app.exception_handler(HTTPException)
    async def refuse_http(_request: Request, error: HTTPException) -> Response:
        if error.status_code in {404, 405}:
            return json_answer({"errors": ["404 page not found"]}, 404)
        return json_answer({"errors": [str(error.detail)]}, error.status_code)

    @app.exception_handler(RequestValidationError)
    async def refuse_input(_request: Request, error: RequestValidationError) -> Response:
        return json_answer({"errors": [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]}, 400)

    @app.exception_handler(Exception)
    async def refuse_surprise(request: Request, error: Exception) -> Response:
        log.exception("a request failed in a way that nobody foresaw", path=request.url.path, exc_info=error)
        return json_answer({"errors": ["the server could not answer; its log says why"]}, 503)

    return app


def create_app(state: ServerState) -> Any:
    """The ASGI application: two fast routes in front, the rest in the framework."""
    app = _framework_app(state)
    served: Any = Aliases(RequestTimes(state.metrics.timings, FastRoutes(state, Protection(state, app))))
    if state.settings.cors_origins:
        served = CORSMiddleware(
            served,
            allow_origins=state.settings.cors_origins,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "X-API-Key"],
        )
    return served


def bind(settings: ServerSettings) -> socket.socket:
    """Take the port before anything else is started. Raises `RunqyError` when that is not possible."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        # Until then another process could bind the same port and take it first.
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise RunqyError(
            f"Port {settings.port} can't be used",
            why=error.strerror or str(error),
            hint="stop what listens there, or choose another with --port or PORT",
        ) from error
    listener.setblocking(False)
    return listener


@contextlib.asynccontextmanager
async def server_state(settings: ServerSettings) -> AsyncIterator[ServerState]:
    """Everything a server works with, started; ended when the block is left."""
    key, key_file = admin_key(settings)
    async with contextlib.AsyncExitStack() as stack:
        embedded = None
        if settings.redis is None:
            embedded = EmbeddedRedis(settings.data_dir, settings.durability)
            target = await embedded.start()
            stack.push_async_callback(embedded.stop)
        else:
            target = settings.redis
        add_secret(target.password)
        connection = await _until_there("Redis", lambda: connect(target))
        stack.push_async_callback(connection.close)
        database = Database(settings.effective_database_url)
        await _until_there("the database", database.open)
        stack.push_async_callback(database.close)
        events = Events(connection, task_ends=True)
        await events.start()
        stack.push_async_callback(events.stop)
        broker, inspector = Broker(connection), Inspector(connection)
        access = Access(settings, Keys.of(settings, key), database)
        await access.start()
        stack.push_async_callback(access.stop)
        workers = WorkerRegistry(connection)
        sampler = Sampler(connection, inspector, workers, database)
        await sampler.start()
        stack.push_async_callback(sampler.stop)
        operator = Operator(connection)
        bulk = BulkRunner(operator)
        stack.push_async_callback(bulk.stop)
        metrics = Metrics(connection, inspector, sampler)
        await metrics.start()
        state = ServerState(
            settings=settings,
            access=access,
            redis=target,
            embedded=embedded is not None,
            connection=connection,
            broker=broker,
            inspector=inspector,
            operator=operator,
            events=events,
            workers=workers,
            database=database,
            queues=QueueStore(database),
            sampler=sampler,
            bulk=bulk,
            metrics=metrics,
            vaults=await _vaults(settings, database),
            key_file=key_file,
        )
        stack.push_async_callback(state.end_announcing)
        await state.queues.refresh()
        if settings.config_repository is not None:
            state.repository = ConfigClone(settings.config_repository, settings.github_pat)
            state.repository.start()
            stack.push_async_callback(state.repository.stop)
        await load_at_start(state)
        await inspector.register_queues(state.queues.catalog.full_names())
        maintenance = Maintenance(broker, inspector.queues, fallback=settings.defaults)
        await maintenance.start()
        stack.push_async_callback(maintenance.stop)
        webhooks = WebhookSender(state)
        await webhooks.start()
        stack.push_async_callback(webhooks.stop)
        events.subscribe_control(_refresher(state, stack))
        if settings.watch:
            watching = asyncio.create_task(watch_configuration(state), name="watch")
            stack.push_async_callback(end_tasks, watching)
        yield state


async def _vaults(settings: ServerSettings, database: Database) -> VaultStore | None:
    """The vaults, where a master key is configured; says loudly what that key does not open."""
    if settings.vault_master_key is None:
        return None
    add_secret(settings.vault_master_key.get_secret_value())
    vaults = VaultStore(database, settings.vault_master_key)
    closed = await vaults.unreadable()
    if closed:
        log.error(
            "stored vault values can't be decrypted with this RUNQY_VAULT_MASTER_KEY",
            values=closed[:10],
            count=len(closed),
            hint="give the key they were stored with, or set them again",
        )
    return vaults


async def _until_there(what: str, work: Callable[[], Awaitable[Any]]) -> Any:
    """Try for ever while a dependency can't be reached, saying so."""
    delay = 0.5
    while True:
        try:
            return await work()
        except UnavailableError as error:
            log.warning(f"waiting for {what}", reason=str(error), hint=error.hint, again_in=f"{delay:g}s")
            await asyncio.sleep(delay)
            delay = min(delay * 2, 10.0)


def _refresher(state: ServerState, stack: contextlib.AsyncExitStack) -> Callable[[str], None]:
    """Reads anew what another server says it has changed."""
    running: set[asyncio.Task[Any]] = set()

    def on_order(text: str) -> None:
        work = next((work for word, work in _REFRESHES.items() if f'"{word}"' in text), None)
        if work is not None:
            task = asyncio.create_task(work(state), name="refresh")
            running.add(task)
            task.add_done_callback(running.discard)

    async def finish() -> None:
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    stack.push_async_callback(finish)
    return on_order


async def _refresh(state: ServerState) -> None:
    try:
        await state.queues.refresh()
    except RunqyError as error:
        log.warning("the configuration could not be read again", reason=str(error))


async def _refresh_access(state: ServerState) -> None:
    try:
        await state.access.refresh()
    except RunqyError as error:
        log.warning("keys and accounts could not be read again", reason=str(error))


_REFRESHES: dict[str, Callable[[ServerState], Coroutine[Any, Any, None]]] = {
    "configuration": _refresh,
    "access": _refresh_access,
}


class _Server(uvicorn.Server):
    """uvicorn, with our own signal handling around it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answers = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.answers.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


async def serve(
    settings: ServerSettings,
    *,
    stop: asyncio.Event | None = None,
    ready: Callable[[ServerState, str], None] = lambda state, url: None,
) -> int:
    """Serve until SIGTERM or SIGINT (or ``stop``, for whoever runs it inside another program).

    ``ready`` is called once requests are answered. Returns the exit code; raises `RunqyError` for what keeps it
    from starting.
    """
    stopping = stop or asyncio.Event()
    if stop is None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
    listener = bind(settings)
    try:
        port = listener.getsockname()[1]
        starting = asyncio.ensure_future(_serve(settings, listener, port, stopping, ready))
        # A signal during the start ends the waiting for Redis or the database as well.
        ended = asyncio.ensure_future(stopping.wait())
        await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not starting.done():
            try:
                async with asyncio.timeout(GRACEFUL_SECONDS + 25):
                    await starting
            except TimeoutError:
                log.error("the stop took too long")
        else:
            await starting
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise
    finally:
        listener.close()
    return 0


async def _serve(
    settings: ServerSettings,
    listener: socket.socket,
    port: int,
    stopping: asyncio.Event,
    ready: Callable[[ServerState, str], None],
) -> None:
    building = server_state(settings)
    entering = asyncio.ensure_future(building.__aenter__())
    ended = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({entering, ended}, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if not entering.done():
        await end_tasks(entering)
        return
    state = entering.result()
    try:
        server = _Server(
            uvicorn.Config(
                create_app(state),
                http="httptools",
                loop="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                timeout_graceful_shutdown=GRACEFUL_SECONDS,
                timeout_keep_alive=120,
                server_header=False,
                date_header=False,
            )
        )
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        ended = asyncio.ensure_future(stopping.wait())
        url = f"http://{_shown_host(settings.host)}:{port}"
        file = _write_server_file(settings, url, state.key_file)
        try:
            answers = asyncio.ensure_future(server.answers.wait())
            await asyncio.wait({serving, answers}, return_when=asyncio.FIRST_COMPLETED)
            answers.cancel()
            ready(state, url)
            await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
            # Whoever waits for a task is answered now, so that the connections can end.
            state.stopping.set()
            server.should_exit = True
            await serving
        finally:
            ended.cancel()
            file.unlink(missing_ok=True)
    finally:
        await building.__aexit__(None, None, None)
    log.info("server shutdown complete")


def _shown_host(host: str) -> str:
    if host in {"0.0.0.0", "::", ""}:  # noqa: S104 (compared, not bound)
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _write_server_file(settings: ServerSettings, url: str, key_file: Path | None) -> Path:
    """Where other shells find this server: address, process, and the file that holds the key."""
    path = settings.data_dir.absolute() / SERVER_FILE
    document = {"url": url, "pid": os.getpid(), "key_file": str(key_file) if key_file is not None else None}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(f".{SERVER_FILE}.{os.getpid()}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(json.dumps(document, indent=2) + "\n")
        fresh.replace(path)
    except OSError as error:
        raise ConfigurationError(
            f"The data folder {settings.data_dir} can't be used",
            why=error.strerror or str(error),
            hint="make it writable, or choose another with --data-dir or RUNQY_DATA_DIR",
        ) from error
    return path
