"""What Redis may do to us: lose scripts, refuse writes, load, be a replica, go away. Told in our words, and nothing
is half done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from harness.keyspace import misplaced, read_keyspace
from harness.lives import (
    COMPLETE,
    FAIL,
    QUEUE,
    active,
    archived,
    completed,
    enqueued,
    finish,
    new_task,
    take,
)
from harness.redis_servers import RedisServer, redis_binary, running, valkey_binary
from harness.waiting import eventually

from runqy.broker import keys
from runqy.broker.broker import Broker
from runqy.broker.connection import ClockOffset, Connection, RedisTarget, connect, connected
from runqy.broker.operator import Operator
from runqy.errors import OutOfMemoryError, UnavailableError
from runqy.tasks.state import Action, State

BINARIES = {"valkey": valkey_binary, "redis7": redis_binary}


async def forget_scripts(connection: Connection) -> None:
    if not connection.is_cluster:
        await connection.client.execute_command("SCRIPT FLUSH")
        return
    for node in connection.client.get_primaries():
        await connection.client.execute_command("SCRIPT FLUSH", target_nodes=node)


async def test_scripts_that_redis_lost_are_sent_again(
    broker: Broker, operator: Operator, connection: Connection, clock_offset: ClockOffset
) -> None:
    """NOSCRIPT after a restart, a failover or SCRIPT FLUSH: before each call."""
    await forget_scripts(connection)
    tasks = [await enqueued(broker), await enqueued(broker)]
    await forget_scripts(connection)
    taken = await take(broker, limit=2)
    await forget_scripts(connection)
    assert await finish(broker, taken[0], COMPLETE)
    await forget_scripts(connection)
    clock_offset.advance(1000)
    await broker.recover(QUEUE)
    await forget_scripts(connection)
    await operator.act(Action.DELETE, QUEUE, [tasks[1].id])
    await forget_scripts(connection)
    assert await broker.pause(QUEUE)
    keyspace = await read_keyspace(connection)
    assert misplaced(keyspace, [QUEUE]) == []
    assert set(keyspace.tasks(QUEUE)) == {tasks[0].id}
    pointers = {key for key in keyspace.hashes if key.startswith("asynq:t:")}
    assert pointers == {keys.reverse(tasks[0].id)}
    ends = keyspace.expiry[keys.task(QUEUE, tasks[0].id)]
    assert keyspace.expiry[keys.reverse(tasks[0].id)] == ends


@pytest.fixture(params=list(BINARIES))
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """A server that the test may harm."""
    with running(BINARIES[request.param](), tmp_path / "redis", "--appendonly", "yes") as server:
        yield server


@pytest.fixture
async def own(own_server: RedisServer) -> AsyncIterator[Connection]:
    async with connected(own_server.target) as connection:
        yield connection


async def test_out_of_memory_is_told_and_nothing_is_half_done(own: Connection) -> None:
    """noeviction at maxmemory: what adds is refused whole, what only moves tasks works whole, and purge and delete
    make room."""
    broker, operator = Broker(own), Operator(own)
    done = await completed(broker, ttl_completed=60)
    kept = [await archived(broker, ttl_archived=0) for _ in range(3)]
    waiting = await enqueued(broker)
    running_task = await active(broker)
    assert running_task.id == waiting.id
    await own.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await own.command("CONFIG", "SET", "maxmemory", "1mb")
    before = await read_keyspace(own)
    attempts = {
        "enqueue": lambda: broker.enqueue([new_task()]),
        "finish": lambda: finish(broker, running_task, COMPLETE),
        "fail": lambda: finish(broker, running_task, FAIL),
    }
    for name, attempt in attempts.items():
        with pytest.raises(OutOfMemoryError, match="out of memory") as told:
            await attempt()
        assert "maxmemory" in told.value.hint, name
    after = await read_keyspace(own)
    assert (after.lists, after.zsets, after.hashes) == (before.lists, before.zsets, before.hashes)

    await operator.act(Action.RUN, QUEUE, [kept[0].id])
    assert len(await take(broker)) == 1
    assert misplaced(await read_keyspace(own), [QUEUE]) == []
    (*_, deleted) = await operator.act(Action.DELETE, QUEUE, [task.id for task in kept[1:]])
    assert deleted.state is State.ARCHIVED
    own.offset.advance(100)
    assert await broker.purge(QUEUE) == 1
    keyspace = await read_keyspace(own)
    assert not {done.id, *(task.id for task in kept[1:])} & set(keyspace.tasks(QUEUE))
    assert keys.reverse(done.id) not in keyspace.hashes

    await own.command("CONFIG", "SET", "maxmemory", "0")
    assert await finish(broker, running_task, COMPLETE)


async def test_a_read_only_replica_is_named(own_server: RedisServer, own: Connection, tmp_path: Path) -> None:
    await own.command("SET", "x", 1)
    replication = ("--replicaof", f"127.0.0.1 {own_server.port}")
    with running(own_server.binary, tmp_path / "replica", *replication) as replica:
        async with connected(replica.target) as connection:
            with pytest.raises(UnavailableError, match="read-only replica"):
                await Broker(connection).enqueue([new_task()])
            with pytest.raises(UnavailableError, match="read-only replica"):
                await Broker(connection).pause(QUEUE)


async def test_a_server_that_still_loads_its_data_is_named(own_server: RedisServer, own: Connection) -> None:
    broker = Broker(own)
    await broker.enqueue([new_task(payload=b'"' + b"x" * 2000 + b'"') for _ in range(2000)])
    await own.command("BGREWRITEAOF")
    await eventually(lambda: _rewritten(own), 10)
    own_server.kill()
    own_server.arguments += ("--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024")
    own_server.start(until_ready=False)
    loading = "no answer yet"

    async def said_loading() -> bool:
        nonlocal loading
        try:
            await broker.pause(QUEUE)
        except UnavailableError as error:
            loading = str(error)
        return "loading its data" in loading

    await eventually(said_loading, 15, "the server says that it is loading")


async def _rewritten(connection: Connection) -> bool:
    info = await connection.command("INFO", "persistence")
    return not info["aof_rewrite_in_progress"] and not info["aof_rewrite_scheduled"]


async def test_a_killed_server_loses_nothing_that_was_accepted(own_server: RedisServer, own: Connection) -> None:
    """Decision 26: kill -9 of Redis; the same connection works when it is back."""
    broker = Broker(own)
    tasks = [new_task() for _ in range(500)]
    await broker.enqueue(tasks)
    (taken,) = await take(broker)
    own_server.kill()
    with pytest.raises(UnavailableError, match="can't be reached"):
        await take(broker)
    own_server.start()
    assert await finish(broker, taken, COMPLETE)
    keyspace = await read_keyspace(own)
    assert misplaced(keyspace, [QUEUE]) == []
    assert len(keyspace.tasks(QUEUE)) == 500


async def test_nobody_there_is_told_with_the_address_and_without_the_password() -> None:
    target = RedisTarget("redis://user:s3cr3t-canary@127.0.0.1:1")
    with pytest.raises(UnavailableError) as told:
        await connect(target)
    text = "\n".join(told.value.lines()) + repr(target)
    assert "127.0.0.1:1" in text
    assert "s3cr3t" not in text


async def test_a_wrong_password_is_told_without_it(tmp_path: Path) -> None:
    """C67."""
    with running(redis_binary(), tmp_path / "locked") as server:
        async with connected(server.target) as connection:
            await connection.command("CONFIG", "SET", "requirepass", "right-canary")
        with pytest.raises(UnavailableError, match="refuses the password") as told:
            await connect(RedisTarget(server.url, password="wrong-canary"))
        assert "canary" not in "\n".join(told.value.lines())
        async with connected(RedisTarget(server.url, password="right-canary")) as connection:
            await connection.ping()


async def test_more_callers_than_connections_wait_for_their_turn(broker: Broker) -> None:
    """On a Cluster as elsewhere."""
    await asyncio.gather(*(broker.pause(f"q{number}.a") for number in range(200)))
    assert not await broker.pause("q7.a")
