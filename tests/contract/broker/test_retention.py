"""How long ended tasks are kept: each its own time, hash and history entry alike, and then nothing is left."""

from __future__ import annotations

import contextlib
import time

import pytest
from harness.keyspace import all_keys, misplaced, read_keyspace
from harness.lives import (
    COMPLETE,
    FAIL,
    QUEUE,
    RETRY_AT_ONCE,
    active,
    archived,
    completed,
    end_of,
    enqueued,
    finish,
    held,
    limits,
    new_task,
    take,
)
from harness.waiting import eventually
from stateful.crashing import Crash, CrashingConnection

from runqy.broker import keys
from runqy.broker.broker import Broker
from runqy.broker.connection import ClockOffset, Connection, RedisTarget, open_client
from runqy.broker.inspector import Inspector
from runqy.broker.operator import Operator
from runqy.errors import UnavailableError
from runqy.tasks.limits import FOREVER_SECONDS
from runqy.tasks.message import TaskMessage
from runqy.tasks.outcome import Archive, Ending
from runqy.tasks.state import Action, State


async def lives_of(connection: Connection, queue: str, id_: str, container: str) -> tuple[int, int, float]:
    """Expiry of hash, reverse key (unix ms) and the score of the history entry."""
    return (
        await connection.command("PEXPIRETIME", keys.task(queue, id_)),
        await connection.command("PEXPIRETIME", keys.reverse(id_)),
        float(await connection.command("ZSCORE", f"asynq:{{{queue}}}:{container}", id_)),
    )


async def test_a_success_is_kept_for_its_own_ttl_completed(
    broker: Broker, connection: Connection, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """R4, R51, R53: hash, pointer and history entry end in the same second, which the inspector tells."""
    clock_offset.advance(7000)
    task = await completed(broker, ttl_completed=50, ttl_archived=9)
    hash_ms, reverse_ms, score = await lives_of(connection, QUEUE, task.id, "completed")
    assert hash_ms == reverse_ms == score * 1000
    assert 49 <= score - (time.time() + 7000) <= 50.1
    view = await inspector.find(task.id)
    assert view is not None
    assert view.expires_at == score


@pytest.mark.parametrize(
    "way", ["permanent", "no retries left", "lost lease", "pending timeout", "cancelled", "operator"]
)
async def test_every_way_into_archived_keeps_for_ttl_archived(
    broker: Broker, operator: Operator, connection: Connection, clock_offset: ClockOffset, way: str
) -> None:
    """R5, R10, R52, R53, Q25, defect 23 of the original."""
    levers = {"ttl_archived": 500, "ttl_completed": 9, "max_retry": 0, "pending_timeout": 20}
    task = await enqueued(broker, **levers)
    if way == "permanent" or way == "no retries left":
        (taken,) = await take(broker)
        reason = FAIL if way == "permanent" else Archive(Ending.TIMEOUT, "over active_timeout")
        assert await finish(broker, taken, reason)
    elif way == "lost lease":
        await take(broker)
        clock_offset.advance(broker.lease_seconds + 1)
        await broker.recover(QUEUE)
    elif way == "pending timeout":
        clock_offset.advance(21)
        await take(broker)
    else:
        await operator.act(Action.CANCEL if way == "cancelled" else Action.ARCHIVE, QUEUE, [task.id])
    hash_ms, reverse_ms, score = await lives_of(connection, QUEUE, task.id, "archived")
    assert hash_ms == score * 1000
    assert reverse_ms == hash_ms or way == "lost lease"
    assert 499 <= score - (time.time() + clock_offset.microseconds / 1e6) <= 500.1


async def test_zero_keeps_for_ever(
    broker: Broker, connection: Connection, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """R4, R5, R24, R56, C43: no expiry on any key, the entry a hundred years ahead, the janitor leaves it."""
    done, failed = await completed(broker, ttl_completed=0), await archived(broker, ttl_archived=0)
    clock_offset.advance(10 * 365 * 86400)
    for _ in range(10):
        await broker.purge(QUEUE)
    for task, container in ((done, "completed"), (failed, "archived")):
        hash_ms, reverse_ms, score = await lives_of(connection, QUEUE, task.id, container)
        assert (hash_ms, reverse_ms) == (-1, -1)
        assert abs(score - time.time() - FOREVER_SECONDS) < 60
        view = await inspector.find(task.id)
        assert view is not None
        assert view.expires_at is None


async def test_two_tasks_of_one_queue_keep_their_own_times(
    broker: Broker, connection: Connection, clock_offset: ClockOffset
) -> None:
    """R54, R55: 5 s and 1 h in the same queue."""
    short, long = await completed(broker, ttl_completed=5), await completed(broker, ttl_completed=3600)
    gone, kept = await archived(broker, ttl_archived=5), await archived(broker, ttl_archived=3600)
    clock_offset.advance(6)
    assert await broker.purge(QUEUE) == 2
    keyspace = await read_keyspace(connection)
    assert set(keyspace.tasks(QUEUE)) == {long.id, kept.id}
    assert {keys.reverse(short.id), keys.reverse(gone.id)} & set(keyspace.hashes) == set()
    assert misplaced(keyspace, [QUEUE]) == []
    clock_offset.advance(3600)
    assert await broker.purge(QUEUE) == 2
    assert (await read_keyspace(connection)).tasks(QUEUE) == {}


async def test_retention_ends_by_redis_itself_when_no_janitor_runs(broker: Broker, connection: Connection) -> None:
    """R51, C39: the hash and its pointer carry their own expiry."""
    task = await completed(broker, ttl_completed=1)

    async def gone() -> bool:
        hash_gone = await connection.command("EXISTS", keys.task(QUEUE, task.id)) == 0
        return hash_gone and await connection.command("EXISTS", keys.reverse(task.id)) == 0

    await eventually(gone, 10, "the hash and the reverse key expire")
    assert await broker.purge(QUEUE) == 1
    assert await connection.command("ZCARD", keys.completed(QUEUE)) == 0


async def test_an_entry_whose_hash_vanished_takes_its_pointer_along(
    broker: Broker, connection: Connection, clock_offset: ClockOffset
) -> None:
    """C41, decision 32."""
    task = await completed(broker, ttl_completed=0)
    await connection.command("DEL", keys.task(QUEUE, task.id))
    assert await connection.command("EXISTS", keys.reverse(task.id)) == 1
    clock_offset.advance(FOREVER_SECONDS + 10)
    await broker.purge(QUEUE)
    assert await connection.command("EXISTS", keys.reverse(task.id)) == 0


@pytest.mark.parametrize("state", [State.COMPLETED, State.ARCHIVED])
async def test_a_task_that_is_run_again_loses_its_expiry(
    broker: Broker,
    operator: Operator,
    connection: Connection,
    inspector: Inspector,
    clock_offset: ClockOffset,
    state: State,
) -> None:
    """Decision 13, Q26, C15, C42, defect 24 of the original: everything that belongs to it lives on."""
    await enqueued(broker, ttl_completed=5, ttl_archived=5, max_retry=2, once="k", body_hash="b")
    (taken,) = await take(broker)
    assert await broker.append_log(held(taken), "hello\n")
    assert await finish(broker, taken, COMPLETE if state is State.COMPLETED else FAIL)
    await operator.act(Action.RUN, QUEUE, [taken.id])
    for key in (
        keys.task(QUEUE, taken.id),
        keys.reverse(taken.id),
        keys.log(QUEUE, taken.id),
        keys.once(QUEUE, "k"),
    ):
        assert await connection.command("TTL", key) == -1, key
    clock_offset.advance(1_000_000)
    await broker.purge(QUEUE)
    (again,) = await take(broker)
    assert (again.id, again.retried, again.limits) == (taken.id, 0, taken.limits)
    view = await inspector.find(taken.id)
    assert view is not None
    assert (view.completed_at, view.result, view.max_retry) == (None, None, 2)
    assert misplaced(await read_keyspace(connection), [QUEUE]) == []


async def test_a_retried_task_has_all_its_retries_again_after_a_re_run(broker: Broker, operator: Operator) -> None:
    """R3, decision 13."""
    await enqueued(broker, max_retry=1)
    for decision in (RETRY_AT_ONCE, FAIL):
        (taken,) = await take(broker)
        assert await finish(broker, taken, decision)
    await operator.act(Action.RUN, QUEUE, [taken.id])
    (again,) = await take(broker)
    assert (again.retried, again.attempt) == (0, 1)


async def test_entries_scored_with_the_moment_of_archiving_keep_their_own_ttl(
    broker: Broker, connection: Connection, clock_offset: ClockOffset
) -> None:
    """R55, R68, R72, defect 23: the original's server archives with the score now and no expiry on the hash."""
    now = int(time.time())
    message = TaskMessage(type=QUEUE, id="x", queue=QUEUE).SerializeToString()
    stamps = {
        "stamped": ["ttl_archived", 3600],
        "forever": ["ttl_archived", 0],
        "bare": [],
        "over": ["ttl_archived", 1],
    }
    for id_, more in stamps.items():
        await connection.command("HSET", keys.task(QUEUE, id_), "msg", message, "state", "archived", *more)
        await connection.command("ZADD", keys.archived(QUEUE), now - 100, id_)
    assert await broker.purge(QUEUE, fallback=limits(ttl_archived=7200)) == 4
    keyspace = await read_keyspace(connection)
    assert set(keyspace.tasks(QUEUE)) == {"stamped", "forever", "bare"}
    scores = keyspace.zsets[keys.archived(QUEUE)]
    assert (scores["stamped"], scores["bare"]) == (now - 100 + 3600, now - 100 + 7200)
    assert scores["forever"] > now + FOREVER_SECONDS / 2
    assert keyspace.expiry[keys.task(QUEUE, "stamped")] == (now - 100 + 3600) * 1000
    clock_offset.advance(3600)
    await broker.purge(QUEUE, fallback=limits(ttl_archived=7200))
    assert set((await read_keyspace(connection)).tasks(QUEUE)) == {"forever", "bare"}


async def test_nothing_is_trimmed_by_rank_or_age(
    broker: Broker, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """Decision 1, defect 27 of the original: 10,000 entries, 90 days."""
    await broker.enqueue([new_task(ttl_archived=0) for _ in range(10_400)])
    while taken := await take(broker, limit=200):
        await broker.finish([end_of(task, FAIL) for task in taken])
    clock_offset.advance(100 * 86400)
    await broker.purge(QUEUE)
    assert (await inspector.counts(QUEUE)).archived == 10_400


async def test_after_every_path_nothing_is_left(
    broker: Broker, operator: Operator, connection: Connection, clock_offset: ClockOffset
) -> None:
    """C42: success, failure, retry, timeout, cancel, delete, give back, lost lease; with logs and idempotency keys."""
    kept = {keys.QUEUES}
    await _walk_every_path(broker, operator, clock_offset)
    clock_offset.advance(100_000)
    for service in (broker.forward, broker.recover):
        await service(QUEUE)
    while taken := await take(broker, limit=50):
        await broker.finish([end_of(task, FAIL) for task in taken])
    clock_offset.advance(100_000)
    while await broker.purge(QUEUE):
        pass
    counters = {keys.processed(QUEUE), keys.failed(QUEUE)}
    left = set()
    for key in set(await all_keys(connection)) - kept - counters:
        bounded = key.startswith((*counters, keys.history(QUEUE), keys.once_prefix(QUEUE)))
        if not (bounded and await connection.command("TTL", key) > 0):
            left.add(key)
    assert left == set()


async def _walk_every_path(broker: Broker, operator: Operator, clock_offset: ClockOffset) -> None:
    levers = {"ttl_completed": 10, "ttl_archived": 10}
    for number, decision in enumerate((COMPLETE, FAIL, RETRY_AT_ONCE)):
        task = await active(broker, once=f"k{number}", body_hash="b", **levers)
        await broker.append_log(held(task), "line\n")
        await broker.progress(held(task), b'{"done": 0.5}')
        await finish(broker, task, decision)
        await take(broker, limit=5)
    for action in (Action.CANCEL, Action.ARCHIVE, Action.DELETE):
        waiting = await enqueued(broker, once=f"o-{action}", body_hash="b", **levers)
        later = await enqueued(broker, run_at=time.time() + 9_999_999, **levers)
        await operator.act(action, QUEUE, [waiting.id, later.id])
    running = await active(broker, **levers)
    await operator.act(Action.CANCEL, QUEUE, [running.id])
    await enqueued(broker, pending_timeout=1, **levers)
    clock_offset.advance(2)
    await take(broker)
    await active(broker, ahead=True, **levers)
    ended = await completed(broker, **levers)
    await operator.act(Action.RUN, QUEUE, [ended.id])
    refused = [new_task(once="k0", body_hash="other"), new_task(once="k0", body_hash="b")]
    await broker.enqueue(refused)
    await broker.enqueue([new_task() for _ in range(3)], max_pending=1)


async def test_a_used_key_of_an_earlier_task_does_not_shorten_a_later_ones(
    broker: Broker, operator: Operator, connection: Connection, clock_offset: ClockOffset
) -> None:
    """Decision 22: the record belongs to the task that it names."""
    first = await completed(broker, once="k", body_hash="b", ttl_completed=0)
    await connection.command("DEL", keys.once(QUEUE, "k"))  # a day has passed
    clock_offset.advance(90_000)
    second = await enqueued(broker, once="k", body_hash="b")
    await operator.act(Action.RUN, QUEUE, [first.id])
    await operator.act(Action.DELETE, QUEUE, [first.id])
    assert await connection.command("TTL", keys.once(QUEUE, "k")) == -1
    assert (await connection.command("GET", keys.once(QUEUE, "k"))).startswith(second.id.encode())
    await operator.act(Action.DELETE, QUEUE, [second.id])
    assert await connection.command("TTL", keys.once(QUEUE, "k")) > 80_000


async def test_the_log_of_a_task_lives_as_long_as_its_hash(broker: Broker, connection: Connection) -> None:
    task = await active(broker, ttl_completed=50)
    await broker.append_log(held(task), "a" * 70_000)
    await broker.append_log(held(task), "b" * 70_000)
    log = await connection.command("GET", keys.log(QUEUE, task.id))
    assert log == b"b" * 65_536
    assert await connection.command("TTL", keys.log(QUEUE, task.id)) == -1
    assert await finish(broker, task, COMPLETE)
    ends = await connection.command("EXPIRETIME", keys.task(QUEUE, task.id))
    assert await connection.command("EXPIRETIME", keys.log(QUEUE, task.id)) == ends


@pytest.mark.parametrize("action", [Action.DELETE, Action.RUN, Action.ARCHIVE])
async def test_a_caller_that_dies_between_its_calls_leaves_nothing_for_ever(
    target: RedisTarget, broker: Broker, connection: Connection, clock_offset: ClockOffset, action: Action
) -> None:
    """C42, decision 32: the reverse key shares no slot with its task; what is left in between the janitor mends."""
    dying = CrashingConnection(target, open_client(target), clock_offset)
    await dying.ping()
    doomed = Operator(dying)
    for trip in range(1, 8):
        tasks = [await completed(broker, ttl_completed=50), await enqueued(broker, ttl_archived=50)]
        for task in tasks:
            dying.begin(Crash(trip, after=False, dead=True))
            with contextlib.suppress(UnavailableError):
                await doomed.act(action, QUEUE, [task.id])
    await dying.close()
    keyspace = await read_keyspace(connection)
    assert {keyspace.expiry.get(keys.reverse(id_)) for id_ in keyspace.waiting(QUEUE)} <= {-1}
    while taken := await take(broker, limit=50):
        await broker.finish([end_of(task, COMPLETE) for task in taken])
    clock_offset.advance(100_000)
    while await broker.purge(QUEUE):
        pass
    keyspace = await read_keyspace(connection)
    assert misplaced(keyspace, [QUEUE]) == []
    living = {keys.reverse(id_) for id_ in keyspace.tasks(QUEUE)}
    assert {key for key in keyspace.hashes if key.startswith("asynq:t:") and keyspace.expiry[key] == -1} <= living
