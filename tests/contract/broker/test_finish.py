"""The ends of attempts: decided by the worker, written once, by the owner only."""

from __future__ import annotations

import time

import pytest
from harness.keyspace import misplaced, read_keyspace
from harness.lives import (
    COMPLETE,
    FAIL,
    GIVE_BACK,
    QUEUE,
    RETRY,
    RETRY_AT_ONCE,
    active,
    end_of,
    enqueued,
    finish,
    held,
    new_task,
    take,
)

from runqy.broker import keys
from runqy.broker.broker import Broker
from runqy.broker.connection import ClockOffset, Connection
from runqy.broker.inspector import Inspector, TaskView
from runqy.broker.transitions import AttemptEnd
from runqy.tasks.message import NewTask, PickedTask, TaskMessage, decode
from runqy.tasks.outcome import (
    Archive,
    Complete,
    Decision,
    Ending,
    Failure,
    GiveBack,
    NotStarted,
    Retry,
    Success,
    decide,
)
from runqy.tasks.retry import Backoff, RetryPolicy
from runqy.tasks.state import State

FAILURE = Failure(Ending.ERROR, "it failed")


async def seen(inspector: Inspector, id_: str, queue: str = QUEUE) -> TaskView:
    view = await inspector.get(queue, id_)
    assert view is not None
    return view


async def test_a_success_is_kept_with_its_result(broker: Broker, inspector: Inspector, connection: Connection) -> None:
    """R4, R51, decision 14: state, time and result on the hash, the time in the message too."""
    task = await active(broker)
    assert await finish(broker, task, Complete(b'{"x": [1.5, "\\u0000"]}'))
    view = await seen(inspector, task.id)
    assert (view.state, view.result, view.result_stored) == (State.COMPLETED, b'{"x": [1.5, "\\u0000"]}', True)
    assert view.completed_at is not None
    assert abs(view.completed_at - time.time()) < 60
    message = decode(await connection.command("HGET", keys.task(QUEUE, task.id), "msg"))
    assert message.completed_at == view.completed_at


async def test_a_success_without_a_kept_result_says_so(broker: Broker, inspector: Inspector) -> None:
    """Decision 1."""
    task = await active(broker)
    assert await finish(broker, task, Complete(None))
    view = await seen(inspector, task.id)
    assert (view.state, view.result, view.result_stored) == (State.COMPLETED, None, False)


async def test_a_permanent_failure_is_archived_at_once_with_retries_left(
    broker: Broker, inspector: Inspector, connection: Connection
) -> None:
    """R8, R11, decision 2, decision 14."""
    task = await active(broker, max_retry=5)
    decision = decide(
        Failure(Ending.FAILED, "ValueError: bad", retriable=False),
        max_retry=5,
        retried=0,
        policy=task.retry_policy,
        random=0.5,
    )
    assert await finish(broker, task, decision)
    view = await seen(inspector, task.id)
    assert (view.state, view.error, view.retried) == (State.ARCHIVED, "ValueError: bad", 0)
    message = decode(await connection.command("HGET", keys.task(QUEUE, task.id), "msg"))
    assert (message.error_msg, message.retried) == ("ValueError: bad", 0)
    assert message.last_failed_at == view.last_failed_at


@pytest.mark.parametrize("max_retry", [0, 1, 3])
@pytest.mark.parametrize("delay", [0.0, 30.0])
async def test_a_task_that_always_fails_starts_max_retry_plus_one_times(
    broker: Broker, inspector: Inspector, clock_offset: ClockOffset, max_retry: int, delay: float
) -> None:
    """R3, R9, R12, C13: then it is archived; between the attempts it is in retry."""
    policy = RetryPolicy(delay, Backoff.FIXED, jitter=0.0)
    task = await enqueued(broker, max_retry=max_retry, retry_policy=policy)
    starts = 0
    while taken := await take(broker):
        starts += 1
        decision = decide(
            FAILURE, max_retry=taken[0].limits.max_retry, retried=taken[0].retried, policy=policy, random=0.5
        )
        assert await finish(broker, taken[0], decision)
        view = await seen(inspector, task.id)
        if delay and view.state is not State.ARCHIVED:
            assert view.state is State.RETRY
            assert view.next_process_at is not None
            assert await broker.forward(QUEUE) == 0
            clock_offset.advance(delay + 1)
            assert await broker.forward(QUEUE) == 1
    view = await seen(inspector, task.id)
    assert starts == max_retry + 1
    assert (view.state, view.retried, len(view.attempts)) == (State.ARCHIVED, max_retry, max_retry + 1)
    counts = await inspector.counts(QUEUE)
    assert counts.processed == counts.failed == max_retry + 1


async def test_a_retry_carries_its_reason_while_it_waits(
    broker: Broker, inspector: Inspector, connection: Connection
) -> None:
    """Defects 14 and 15 of the original: the error was neither in the hash nor in the message."""
    task = await active(broker, active_timeout=60, ttl_completed=77)
    assert await finish(broker, task, RETRY)
    view = await seen(inspector, task.id)
    assert (view.state, view.error, view.retried) == (State.RETRY, "try again", 1)
    message = decode(await connection.command("HGET", keys.task(QUEUE, task.id), "msg"))
    assert (message.retried, message.error_msg, message.timeout, message.retention) == (1, "try again", 60, 77)


async def test_a_retry_without_delay_goes_straight_to_pending(broker: Broker, inspector: Inspector) -> None:
    """Decision 16: to the back, with a fresh pending_since, one retry used."""
    task = await active(broker)
    other = await enqueued(broker)
    assert await finish(broker, task, RETRY_AT_ONCE)
    view = await seen(inspector, task.id)
    assert (view.state, view.retried) == (State.PENDING, 1)
    assert view.pending_since is not None
    assert [t.id for t in await take(broker, limit=2)] == [other.id, task.id]


async def test_a_task_given_back_returns_to_the_front_with_its_former_wait(
    broker: Broker, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """Decision 3, C63: at no cost, in the old order, and pending_timeout sees the whole wait."""
    tasks = [await enqueued(broker, pending_timeout=100) for _ in range(3)]
    since = (await seen(inspector, tasks[0].id)).pending_since
    clock_offset.advance(60)
    taken = await take(broker, limit=2)
    clock_offset.advance(10)
    decision = decide(NotStarted("shutdown"), max_retry=0, retried=0, policy=taken[0].retry_policy, random=0.5)
    assert decision == GiveBack()
    assert await broker.finish([end_of(task, decision, 0.0) for task in taken]) == [True, True]
    view = await seen(inspector, tasks[0].id)
    assert (view.state, view.retried, view.attempts, view.pending_since) == (State.PENDING, 0, (), since)
    counts = await inspector.counts(QUEUE)
    assert (counts.processed, counts.failed) == (0, 0)
    assert [t.id for t in await take(broker, limit=3)] == [task.id for task in tasks]
    await broker.finish([end_of(task, GIVE_BACK, 0.0) for task in taken])


async def test_a_task_given_back_expires_after_its_whole_wait(broker: Broker, clock_offset: ClockOffset) -> None:
    """R47, decision 3."""
    await enqueued(broker, pending_timeout=100)
    clock_offset.advance(60)
    (taken,) = await take(broker)
    assert await finish(broker, taken, GIVE_BACK)
    clock_offset.advance(50)
    assert await take(broker) == ()


@pytest.mark.parametrize("decision", [COMPLETE, FAIL, RETRY, RETRY_AT_ONCE, GIVE_BACK], ids=lambda d: type(d).__name__)
async def test_a_replayed_end_changes_nothing(
    broker: Broker, connection: Connection, clock_offset: ClockOffset, decision: Decision
) -> None:
    """Defect 16 of the original, decision 15."""
    task = await active(broker)
    assert await finish(broker, task, decision)
    before = await read_keyspace(connection)
    clock_offset.advance(5)
    assert not await finish(broker, task, decision)
    assert not await finish(broker, task, COMPLETE)
    assert await read_keyspace(connection) == before


@pytest.mark.parametrize("decision", [COMPLETE, FAIL, RETRY, GIVE_BACK], ids=lambda d: type(d).__name__)
async def test_a_superseded_worker_changes_nothing(
    broker: Broker, connection: Connection, clock_offset: ClockOffset, decision: Decision
) -> None:
    """Defect 4 of the original, decision 15: the attempt token decides, not the worker's name."""
    old = await active(broker)
    clock_offset.advance(broker.lease_seconds + 1)
    await broker.recover(QUEUE)
    (new,) = await take(broker)
    assert new.id == old.id
    before = await read_keyspace(connection)
    assert not await finish(broker, old, decision)
    assert (await broker.extend([held(old)])).lost == (held(old),)
    assert not await broker.append_log(held(old), "late\n")
    assert not await broker.progress(held(old), b'{"done": 1}')
    assert await read_keyspace(connection) == before
    assert await finish(broker, new, COMPLETE)


async def test_the_attempt_token_leaves_with_the_state_active(broker: Broker, connection: Connection) -> None:
    """Decision 40."""
    for decision in (COMPLETE, FAIL, RETRY, GIVE_BACK):
        task = await active(broker, "q.one")
        assert await finish(broker, task, decision)
        assert await connection.command("HEXISTS", keys.task("q.one", task.id), "attempt") == 0
        await connection.command("DEL", keys.pending("q.one"))


async def test_a_task_whose_lease_ran_out_unnoticed_still_finishes(broker: Broker, clock_offset: ClockOffset) -> None:
    """Decision 16: what nobody took away is still its owner's."""
    task = await active(broker)
    clock_offset.advance(10_000)
    assert await finish(broker, task, COMPLETE)


async def test_ends_of_several_queues_and_kinds_go_in_one_call(
    broker: Broker, connection: Connection, inspector: Inspector
) -> None:
    ids = {}
    ends: list[AttemptEnd] = []
    for queue in ("p.a", "p.b"):
        for decision in (COMPLETE, Complete(None), FAIL, RETRY, RETRY_AT_ONCE, GIVE_BACK):
            await enqueued(broker, queue, ttl_completed=len(ends) * 100)
            (taken,) = await take(broker, queue)
            ids[taken.id] = decision
            ends.append(end_of(taken, decision))
    assert await broker.finish(ends) == [True] * len(ends)
    assert misplaced(await read_keyspace(connection), ["p.a", "p.b"]) == []
    for queue in ("p.a", "p.b"):
        counts = await inspector.counts(queue)
        states = (counts.completed, counts.archived, counts.retry, counts.pending, counts.active)
        assert states == (2, 1, 1, 2, 0)
        assert (counts.processed, counts.failed) == (5, 3)


async def test_the_last_twenty_attempts_are_kept(
    broker: Broker, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """Issue: number, worker, start, end, outcome, reason, on the task's own hash."""
    task = await enqueued(broker, max_retry=1000)
    for number in range(23):
        (taken,) = await take(broker, token=f"box:{number}:aa#{number}")
        clock_offset.advance(1)
        decision = Retry(0.0, Ending.CRASHED, f'exit code {number} "quoted"\nü')
        assert await finish(broker, taken, decision, run_time=0.5)
    attempts = (await seen(inspector, task.id)).attempts
    assert [attempt.number for attempt in attempts] == list(range(4, 24))
    last = attempts[-1]
    assert (last.worker, last.ending, last.reason) == ("box:22:aa", "crashed", 'exit code 22 "quoted"\nü')
    assert last.ended_at - last.started_at == pytest.approx(0.5, abs=0.002)


class NewerTask(NewTask):
    """A task of a version to come, with message fields that nobody here knows."""

    TAIL = b"\xba\x3e\x05hello" + b"\xc0\x3e\x96\x01" + b"\xcd\x3e\x00\x00\x80\x3f" + b"\xd1\x3e" + bytes(range(8))

    def encode(self) -> bytes:
        return NewTask.encode(self) + self.TAIL


@pytest.mark.parametrize("decision", [COMPLETE, FAIL, RETRY, RETRY_AT_ONCE, GIVE_BACK], ids=lambda d: type(d).__name__)
async def test_unknown_fields_of_message_and_hash_survive_every_end(
    broker: Broker, connection: Connection, decision: Decision
) -> None:
    """Decision 14, defect 14 of the original."""
    plain = new_task(max_retry=3)
    task = NewerTask(plain.id, plain.queue, plain.payload, plain.limits)
    await broker.enqueue([task])
    await connection.command("HSET", keys.task(QUEUE, task.id), "from_the_future", "kept", "group", "g")
    for _ in range(2):
        (taken,) = await take(broker)
        assert await finish(broker, taken, RETRY_AT_ONCE)
    (taken,) = await take(broker)
    assert await finish(broker, taken, decision)
    fields = await connection.command("HGETALL", keys.task(QUEUE, task.id))
    assert fields[b"msg"].startswith(task.encode())
    assert (fields[b"from_the_future"], fields[b"group"]) == (b"kept", b"g")
    known = decode(fields[b"msg"])
    assert (known.id, known.payload, known.retry) == (task.id, task.payload, 3)


async def test_a_message_field_is_replaced_and_not_repeated(broker: Broker, connection: Connection) -> None:
    task = await enqueued(broker, max_retry=50)
    for _ in range(10):
        (taken,) = await take(broker)
        assert await finish(broker, taken, RETRY_AT_ONCE)
    raw = await connection.command("HGET", keys.task(QUEUE, task.id), "msg")
    message = decode(raw)
    assert message.retried == 10
    assert len(raw) == len(message.SerializeToString())


async def test_retries_that_only_the_message_counts_are_counted(
    broker: Broker, inspector: Inspector, connection: Connection
) -> None:
    """R3: asynq counts in the message, the original's recovery in the hash."""
    message = TaskMessage(type=QUEUE, id="t", queue=QUEUE, retry=5, retried=4).SerializeToString()
    await connection.command("HSET", keys.task(QUEUE, "t"), "msg", message, "state", "pending")
    await connection.command("LPUSH", keys.pending(QUEUE), "t")
    (taken,) = await take(broker)
    assert await finish(broker, taken, RETRY)
    view = await seen(inspector, "t")
    assert (view.retried, view.attempts[0].number) == (5, 5)
    assert decode(await connection.command("HGET", keys.task(QUEUE, "t"), "msg")).retried == 5


async def test_a_large_active_list_is_left_in_order(broker: Broker, connection: Connection) -> None:
    await broker.enqueue([new_task() for _ in range(100)])
    taken = await take(broker, limit=100)
    await broker.finish([end_of(task, COMPLETE) for task in taken[1::2]])
    keyspace = await read_keyspace(connection)
    assert keyspace.members(QUEUE, State.ACTIVE) == [task.id for task in reversed(taken[0::2])]
    assert misplaced(keyspace, [QUEUE]) == []


async def test_results_and_reasons_may_be_any_bytes(broker: Broker, inspector: Inspector) -> None:
    big = b'"' + b"x" * 3_000_000 + b'"'
    task = await active(broker)
    assert await finish(broker, task, Complete(big))
    assert (await seen(inspector, task.id)).result == big
    odd = await active(broker)
    assert await finish(broker, odd, Archive(Ending.FAILED, "é\n" * 5000))
    view = await seen(inspector, odd.id)
    assert view.error.endswith("é\n")
    assert len(view.attempts[0].reason) <= 500


async def test_a_task_without_a_message_lives_a_whole_life(
    broker: Broker, inspector: Inspector, connection: Connection
) -> None:
    """R64, decision 6."""
    fields = ["type", "resize", "payload", "[1]", "max_retry", 1]
    await connection.command("HSET", keys.task(QUEUE, "plain"), *fields)
    await connection.command("LPUSH", keys.pending(QUEUE), "plain")
    (taken,) = await take(broker)
    assert await finish(broker, taken, RETRY_AT_ONCE)
    (again,) = await take(broker)
    assert (again.type, again.payload, again.retried) == ("resize", b"[1]", 1)
    assert await finish(broker, again, COMPLETE)
    view = await seen(inspector, "plain")
    assert (view.state, view.payload, view.max_retry) == (State.COMPLETED, b"[1]", 1)
    assert b"msg" not in await connection.command("HGETALL", keys.task(QUEUE, "plain"))


async def test_decisions_are_pure_values() -> None:
    """R9, R11, R33, R48, decision 2."""
    policy = RetryPolicy(10.0, jitter=0.0)
    results: list[tuple[object, Decision]] = [
        (Success(b"1"), Complete(b"1")),
        (NotStarted("drain"), GiveBack()),
        (Failure(Ending.TIMEOUT, "over active_timeout"), Retry(160.0, Ending.TIMEOUT, "over active_timeout")),
        (Failure(Ending.FAILED, "no", retriable=False), Archive(Ending.FAILED, "no")),
        (Failure(Ending.ERROR, "later", delay=3.5), Retry(3.5, Ending.ERROR, "later")),
    ]
    for outcome, decision in results:
        assert decide(outcome, max_retry=3, retried=1, policy=policy, random=0.9) == decision  # type: ignore[arg-type]
    spent = decide(FAILURE, max_retry=1, retried=1, policy=policy, random=0.9)
    assert spent == Archive(Ending.ERROR, "it failed")


async def test_started_marks_come_off_only_for_their_owner(broker: Broker, connection: Connection) -> None:
    """Decision 3: the mark goes with the finish batch that follows the start."""
    task: PickedTask = await active(broker, ahead=True)
    stranger = held(task).__class__(task.queue, task.id, "other#1")
    await broker.finish([], [stranger])
    assert await connection.command("HEXISTS", keys.task(QUEUE, task.id), "ahead") == 1
    await broker.finish([], [held(task)])
    assert await connection.command("HEXISTS", keys.task(QUEUE, task.id), "ahead") == 0
