"""Maintenance: the same services in servers and workers, at any number, without locks, in bounded batches."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from harness.keyspace import misplaced, read_keyspace
from harness.lives import (
    COMPLETE,
    FAIL,
    QUEUE,
    RETRY,
    active,
    completed,
    end_of,
    enqueued,
    finish,
    held,
    limits,
    new_task,
    take,
)
from harness.redis_servers import RedisServer, redis_binary, running
from harness.waiting import eventually

from runqy.broker.broker import Broker
from runqy.broker.connection import ClockOffset, Connection, connected
from runqy.broker.inspector import Inspector
from runqy.errors import UnavailableError
from runqy.maintenance import HoldOff, Maintenance
from runqy.tasks.state import State


class ClockInHand:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


def maintenance(broker: Broker, *queues: str, **options: object) -> Maintenance:
    async def names() -> list[str]:
        return list(queues or (QUEUE,))

    quick = {"forward_seconds": 0.02, "recover_seconds": 0.02, "purge_seconds": 0.02}
    return Maintenance(broker, names, **(quick | options))  # type: ignore[arg-type]


async def past_hold_off(services: Maintenance, clock: ClockInHand, lease: float) -> None:
    """Until the recoverer has waited its lease period: in steps, since a long gap would be an outage."""
    for _ in range(4):
        await services.recoverer.wait_round(services.recoverer.rounds + 2)
        clock.seconds += lease * 0.9
    await services.recoverer.wait_round(services.recoverer.rounds + 2)


async def test_the_services_do_what_time_brings(
    broker: Broker, inspector: Inspector, connection: Connection, clock_offset: ClockOffset
) -> None:
    """R54, C39, C50, defects 21 and 22: due tasks, lost leases and old results, with no worker about."""
    scheduled = await enqueued(broker, run_at=time.time() + 50)
    retried = await active(broker)
    await finish(broker, retried, RETRY)
    lost = await active(broker, "other.q")
    old = await completed(broker, "other.q", ttl_completed=20)
    clock_offset.advance(60)
    clock = ClockInHand()
    services = maintenance(broker, QUEUE, "other.q", clock=clock)
    await services.start()
    await past_hold_off(services, clock, broker.lease_seconds)
    await services.forwarder.wait_round()
    await services.janitor.wait_round()
    await services.stop()
    await services.stop()
    states = {task.id: await inspector.find(task.id) for task in (scheduled, retried, lost)}
    assert {view.state for view in states.values() if view} == {State.PENDING}
    assert await inspector.find(old.id) is None
    assert misplaced(await read_keyspace(connection), [QUEUE, "other.q"]) == []


async def test_a_due_task_is_forwarded_within_two_seconds_by_the_defaults(broker: Broker, inspector: Inspector) -> None:
    """C50: the services' own pace."""

    async def names() -> list[str]:
        return [QUEUE]

    services = Maintenance(broker, names)
    await services.start()
    task = await enqueued(broker, run_at=time.time() + 0.5)
    begin = time.time()

    async def is_pending() -> bool:
        view = await inspector.find(task.id)
        return view is not None and view.state is State.PENDING

    await eventually(is_pending, 10)
    assert 0.4 < time.time() - begin < 3
    await services.stop()


async def test_many_janitors_at_once_do_no_harm(
    broker: Broker, connection: Connection, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """C03: no lock that a dead process could leave behind; whoever comes second finds nothing."""
    for start in range(0, 2000, 200):
        await broker.enqueue([new_task(run_at=time.time() + 10, ttl_completed=60) for _ in range(start, start + 200)])
    clock_offset.advance(20)
    crowd = [maintenance(broker) for _ in range(6)]
    for services in crowd:
        await services.start()

    async def all_forwarded() -> bool:
        return (await inspector.counts(QUEUE)).pending == 2000

    await eventually(all_forwarded, 20)
    while taken := await take(broker, limit=100):
        await broker.finish([end_of(task, COMPLETE) for task in taken])
    clock_offset.advance(100)

    async def all_gone() -> bool:
        return (await inspector.counts(QUEUE)).size == 0

    await eventually(all_gone, 20)
    for services in crowd:
        await services.stop()
    counts = await inspector.counts(QUEUE)
    assert (counts.processed, counts.failed) == (2000, 0)
    keyspace = await read_keyspace(connection)
    assert [key for key in keyspace.hashes if key.startswith("asynq:t:")] == []
    assert not [key for key in keyspace.expiry if "lock" in key]


async def answers(connection: Connection) -> bool:
    try:
        await connection.ping()
    except UnavailableError:
        return False
    return True


async def test_the_recoverer_waits_a_lease_period_after_a_restart_of_redis(tmp_path: Path) -> None:
    """Decision 16: workers renew first, so an outage makes nothing run twice."""
    with running(redis_binary(), tmp_path / "redis", "--appendonly", "yes") as server:
        async with connected(server.target) as connection:
            broker, clock = Broker(connection, lease_seconds=30), ClockInHand()
            task = await active(broker)
            hold = HoldOff(broker, clock)
            assert await hold.holds()
            clock.seconds += 29
            assert await hold.holds()
            clock.seconds += 5
            assert not await hold.holds()
            server.kill()
            server.start()
            await eventually(lambda: answers(connection), 10)
            connection.offset.advance(60)
            assert await hold.holds()
            clock.seconds += 20
            assert (await broker.extend([held(task)])).lost == ()
            assert await hold.holds()
            clock.seconds += 11
            assert not await hold.holds()
            assert await broker.recover(QUEUE) == (0, 1)
            assert await finish(broker, task, COMPLETE)


async def test_the_recoverer_waits_after_its_own_outage(valkey: RedisServer) -> None:
    """Decision 16: cut off, or frozen for longer than a lease, it can't know what the others did meanwhile."""
    async with connected(valkey.target) as connection:
        broker, clock = Broker(connection, lease_seconds=0.5), ClockInHand()

        async def long_up() -> bool:
            return (await broker.server_start())[1] > 1

        await eventually(long_up, 10)
        hold = HoldOff(broker, clock)
        assert not await hold.holds()
        clock.seconds += 0.6
        assert await hold.holds(), "a gap in its own looking"
        clock.seconds += 0.4
        assert await hold.holds()
        clock.seconds += 0.2
        assert not await hold.holds()
        hold.outage()
        assert await hold.holds()
        clock.seconds += 0.3
        assert await hold.holds()
        clock.seconds += 0.3
        assert not await hold.holds()


async def test_maintenance_survives_an_outage_of_redis(tmp_path: Path) -> None:
    with running(redis_binary(), tmp_path / "redis", "--appendonly", "yes") as server:
        async with connected(server.target) as connection:
            broker, inspector = Broker(connection), Inspector(connection)
            services = maintenance(broker)
            await services.start()
            await services.forwarder.wait_round()
            task = await enqueued(broker, run_at=time.time() + 1)
            server.kill()
            await services.forwarder.wait_round(services.forwarder.rounds + 2)
            server.start()

            async def is_pending() -> bool:
                # A connection that broke with the server may be the one that answers first.
                with contextlib.suppress(UnavailableError):
                    view = await inspector.find(task.id)
                    return view is not None and view.state is State.PENDING
                return False

            await eventually(is_pending, 20)
            await services.stop()


async def test_no_service_holds_redis_for_long(
    broker: Broker, connection: Connection, clock_offset: ClockOffset, inspector: Inspector
) -> None:
    """C39: with 10,000 due entries of each kind no script call takes 5 ms of Redis on average, and
    hardly one of them alone."""
    total = 10_000
    for start in range(0, total, 200):
        await broker.enqueue([new_task("due.q", run_at=time.time() + 10) for _ in range(200)])
        await broker.enqueue([new_task("old.q", ttl_completed=10, ttl_archived=10) for _ in range(200)])
        await broker.enqueue([new_task("lost.q", max_retry=start % 400) for _ in range(200)])
        await broker.enqueue([new_task("stale.q", pending_timeout=10) for _ in range(200)])
    while taken := await take(broker, "old.q", 200):
        half = len(taken) // 2
        ends = [end_of(task, COMPLETE) for task in taken[:half]] + [end_of(task, FAIL) for task in taken[half:]]
        await broker.finish(ends)
    while await take(broker, "lost.q", 200):
        pass
    clock_offset.advance(100)
    await reset_statistics(connection)

    while await broker.forward("due.q"):
        pass
    while (await broker.recover("lost.q"))[0]:
        pass
    while await broker.purge("old.q", fallback=limits()):
        pass
    while (await broker.pick_up(["stale.q"], 100, token="w#x", starting=1, fallback=limits())).expired:
        pass

    calls, seconds, slow = await script_statistics(connection)
    assert seconds / calls < 0.005, f"{seconds / calls * 1000:.2f} ms per call"
    assert slow <= calls * 0.05, f"{slow} of {calls} calls took over 5 ms"
    counts = {c.queue: c for c in await inspector.counts_of(["due.q", "old.q", "lost.q", "stale.q"])}
    assert counts["due.q"].pending == total
    assert counts["old.q"].size == 0
    assert counts["lost.q"].active == 0
    assert counts["stale.q"].archived == total


async def nodes_of(connection: Connection) -> list[dict[str, object]]:
    """How to address each master."""
    if not connection.is_cluster:
        return [{}]
    return [{"target_nodes": node} for node in connection.client.get_primaries()]


async def reset_statistics(connection: Connection) -> None:
    for where in await nodes_of(connection):
        run = connection.client.execute_command
        await run("CONFIG SET", "slowlog-log-slower-than", 5000, **where)
        await run("CONFIG SET", "slowlog-max-len", 100_000, **where)
        await run("SLOWLOG RESET", **where)
        await run("CONFIG RESETSTAT", **where)


async def script_statistics(connection: Connection) -> tuple[int, float, int]:
    """Script calls, their seconds in all, and how many took over 5 ms."""
    calls, usec, slow = 0, 0, 0
    for where in await nodes_of(connection):
        info = await connection.client.execute_command("INFO", "commandstats", **where)
        for name in ("cmdstat_evalsha", "cmdstat_eval"):
            if name in info:
                calls += info[name]["calls"]
                usec += info[name]["usec"]
        slow += await connection.client.execute_command("SLOWLOG LEN", **where)
    return calls, usec / 1e6, slow


async def test_services_stop_in_the_middle_of_a_run_and_start_again(broker: Broker) -> None:
    services = maintenance(broker)
    for _ in range(3):
        await services.start()
        await asyncio.sleep(0)
        await services.stop()
    before = services.janitor.rounds
    await services.start()
    await services.janitor.wait_round()
    await services.stop()
    assert services.janitor.rounds > before
