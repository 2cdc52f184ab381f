"""One way to Redis: single, Sentinel or Cluster; commands in batches; errors in our own words."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import hiredis
from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.connection import BlockingConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import Connection as TCPConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    DataError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    OutOfMemoryError as RedisOutOfMemoryError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

from runqy.broker.scripts import Script
from runqy.errors import OutOfMemoryError, UnavailableError
from runqy.settings.redis import RedisTarget

__all__ = ["ClockOffset", "Connection", "RedisTarget", "connect", "connected", "open_client", "translate"]

SOCKET_TIMEOUT_SECONDS = 10.0
CONNECT_TIMEOUT_SECONDS = 5.0
MAX_CONNECTIONS = 16

Command = tuple[Any, ...]
"""One Redis command: its name and arguments."""


class ClockOffset:
    """Added to Redis's clock by every script; zero outside tests."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.microseconds = round(seconds * 1e6)

    def advance(self, seconds: float) -> None:
        """Move the time that scripts see; negative moves it back."""
        self.microseconds += round(seconds * 1e6)


class Connection:
    """A client with its pool. Made by `connect`; `close` it."""

    def __init__(
        self,
        target: RedisTarget,
        client: Redis | RedisCluster,
        offset: ClockOffset,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.target = target
        self.client: Any = client
        self.offset = offset
        self.is_cluster = target.mode == "cluster"
        # The pool of a single Redis makes callers wait for a connection; the Cluster client's refuses them.
        self._turns = asyncio.Semaphore(max_connections)
        self.observe: Callable[[float, bool], None] | None = None
        """told the seconds of each round trip, and whether it brought replies"""

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip (per node on a Cluster); one reply each, in order.

        A command's own error stands in its place in the list. Raises `UnavailableError` when Redis can't be
        reached; then any of the commands may or may not have been carried out.
        """
        began, succeeded = time.perf_counter(), False
        try:
            with self.errors():
                if self.is_cluster:
                    async with self._turns:
                        replies = await self._send(commands)
                else:
                    replies = await self._send(commands)
            succeeded = True
            return replies
        finally:
            if self.observe is not None:
                self.observe(time.perf_counter() - began, succeeded)

    async def _send(self, commands: Sequence[Command]) -> list[Any]:
        if len(commands) == 1:
            try:
                return [await self.client.execute_command(*commands[0])]
            except ResponseError as error:
                return [error]
        async with self.client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return list(await pipeline.execute(raise_on_error=False))

    async def call(self, calls: Sequence[tuple[Script, Sequence[str], Sequence[Any]]], *extra: Command) -> list[Any]:
        """Run scripts (each with keys and arguments) and further commands in one round trip.

        A script that Redis does not know (restart, failover, SCRIPT FLUSH) is sent whole within the same
        call, and scripts that follow it once more after it. The first error among the replies is raised, in our words.
        """
        offset = self.offset.microseconds
        commands: list[Command] = [
            ("EVALSHA", script.sha, len(keys), *keys, offset, *arguments) for script, keys, arguments in calls
        ]
        replies = await self.run([*commands, *extra])
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again: list[Command] = []
            unknown += (i for i in range(unknown[0], len(calls)) if calls[i][0].follows and i not in unknown)
            for i in unknown:
                script, keys, arguments = calls[i]
                again.append(("EVAL", script.text, len(keys), *keys, offset, *arguments))
            for i, reply in zip(unknown, await self.run(again), strict=True):
                replies[i] = reply
        return self._good(replies)

    async def replies(self, commands: Sequence[Command]) -> list[Any]:
        """As `run`, but a command's own error is raised in our words; no commands, no round trip."""
        return self._good(await self.run(commands)) if commands else []

    async def command(self, *command: Any) -> Any:
        """One command; its error is raised in our words."""
        (reply,) = await self.replies([command])
        return reply

    def _good(self, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if isinstance(reply, Exception):
                with self.errors():
                    raise reply
        return replies

    async def ping(self) -> None:
        """Raises `UnavailableError` when Redis does not answer."""
        with self.errors():
            await self.client.ping()

    async def close(self) -> None:
        await self.client.aclose()

    @contextlib.contextmanager
    def errors(self) -> Any:
        """Translate the client library's errors into ours."""
        try:
            yield
        except (TimeoutError, RedisError, OSError) as error:
            raise translate(error, self.target) from error


_PASSING_ERRORS = (
    "BUSY",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "MISCONF",
    "NOAUTH",
    "NOPERM",
    "NOREPLICAS",
    "TRYAGAIN",
    "UNKILLABLE",
    "WRONGPASS",
)
"""Beginnings of error replies that say nothing about our command: the same call may work later."""


def translate(error: Exception, target: RedisTarget) -> Exception:
    """Our error for one of the client library, with what to do about it; never with a password."""
    where = f"Redis at {target.address}"
    if isinstance(error, AuthenticationError):
        return UnavailableError(
            f"{where} refuses the password", why=str(error), hint="check RUNQY_REDIS_URL or REDIS_PASSWORD"
        )
    if isinstance(error, BusyLoadingError):
        return UnavailableError(f"{where} is loading its data", hint="it answers when it is done; nothing to do")
    if isinstance(error, RedisOutOfMemoryError) or "OOM command not allowed" in str(error):
        return OutOfMemoryError(
            f"{where} is out of memory and refuses writes",
            hint="raise maxmemory, or shorten ttl_completed and ttl_archived",
        )
    if isinstance(error, ReadOnlyError):
        return UnavailableError(
            f"{where} is a read-only replica", hint="a failover is under way, or the address is a replica's"
        )
    if isinstance(error, (RedisConnectionError, RedisTimeoutError, OSError, asyncio.TimeoutError)):
        return UnavailableError(
            f"{where} can't be reached",
            why=str(error) or type(error).__name__,
            hint="check that it runs and that the address is right",
        )
    if str(error).startswith(_PASSING_ERRORS):
        return UnavailableError(f"{where} can't serve now", why=str(error))
    return error


class _Packing:
    """Packs commands in C: the library does it in Python for its asyncio connections, at 2 us an argument."""

    def pack_command(self, *args: Any) -> list[bytes]:
        name = args[0]
        if (b" " if isinstance(name, bytes) else " ") in name:
            args = (*name.split(), *args[1:])
        try:
            return [hiredis.pack_command(args)]
        except TypeError as error:
            raise DataError(f"a value that Redis can't take among the arguments of {args[0]!r}") from error


class _TCP(_Packing, TCPConnection):
    pass


class _TLS(_Packing, SSLConnection):
    pass


class _Unix(_Packing, UnixDomainSocketConnection):
    pass


def _options(target: RedisTarget) -> dict[str, Any]:
    return {
        "username": target.username,
        "password": target.password or None,
        "socket_timeout": SOCKET_TIMEOUT_SECONDS,
        "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "socket_keepalive": True,
        "health_check_interval": 0,
        # Every call here may be repeated by its caller, who knows what a repetition means; the library does not.
        "retry": Retry(NoBackoff(), 0),
    }


def _single(target: RedisTarget, max_connections: int) -> Redis:
    options = _options(target)
    if target.url.startswith("unix:"):
        options.pop("socket_keepalive")
        options |= {"connection_class": _Unix, "path": urlsplit(target.url).path, "db": target.db}
    else:
        connection_class = _TLS if target.use_tls else _TCP
        options |= {"connection_class": connection_class, "host": target.host, "port": target.port, "db": target.db}
        if target.use_tls:
            import ssl

            options["ssl_min_version"] = ssl.TLSVersion.TLSv1_2
    pool = BlockingConnectionPool(max_connections=max_connections, timeout=SOCKET_TIMEOUT_SECONDS, **options)
    return Redis.from_pool(pool)


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host or text, int(port) if port.isdigit() else 6379


def open_client(target: RedisTarget, max_connections: int = MAX_CONNECTIONS) -> Redis | RedisCluster:
    """A client for the target; it connects with its first command."""
    match target.mode:
        case "single":
            return _single(target, max_connections)
        case "sentinel":
            options = _options(target)
            sentinels = [_host_port(node) for node in target.nodes]
            make_sentinel: Any = Sentinel  # without types in some releases of the client, with them in others
            sentinel = make_sentinel(sentinels, sentinel_kwargs={"socket_timeout": CONNECT_TIMEOUT_SECONDS}, **options)
            master: Redis = sentinel.master_for(target.master, db=target.db)
            return master
        case "cluster":
            names = target.nodes or (f"{target.host}:{target.port}",)
            nodes: Any = [ClusterNode(*_host_port(name)) for name in names]  # type: ignore[no-untyped-call]
            return RedisCluster(
                startup_nodes=nodes,
                username=target.username,
                password=target.password or None,
                socket_timeout=SOCKET_TIMEOUT_SECONDS,
                socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
                max_connections=max_connections,
                ssl=target.use_tls,
                # As for a single Redis: a call that the library repeats in silence would look like another's.
                retry=Retry(NoBackoff(), 0),
            )


def open_subscriber(connection: Connection) -> Redis | RedisCluster:
    """A client with one connection of its own, for a subscription.

    On a Cluster it goes to some master: they pass published messages on to each other.
    """
    target = connection.target
    if not connection.is_cluster:
        return open_client(target, 1)
    node = random.choice(connection.client.get_primaries())
    scheme = "rediss" if target.use_tls else "redis"
    user = f"{target.username}@" if target.username else ""
    return _single(RedisTarget(f"{scheme}://{user}{node.host}:{node.port}", password=target.password), 1)


async def connect(
    target: RedisTarget, *, clock_offset: ClockOffset | None = None, max_connections: int = MAX_CONNECTIONS
) -> Connection:
    """Open a client and see that Redis answers. Raises `UnavailableError`."""
    client = open_client(target, max_connections)
    connection = Connection(target, client, clock_offset or ClockOffset(), max_connections)
    try:
        await connection.ping()
    except BaseException:
        await connection.close()
        raise
    return connection


@contextlib.asynccontextmanager
async def connected(target: RedisTarget, **options: Any) -> AsyncIterator[Connection]:
    """`connect` for a `async with` block."""
    connection = await connect(target, **options)
    try:
        yield connection
    finally:
        await connection.close()
