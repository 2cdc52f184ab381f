"""Tasks that the original left in Redis live on with us, and what we write is what it would have written.

Where it is not, the difference stands in ``data/differences.json`` with the decision that asks for it.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from harness.keyspace import misplaced, read_keyspace
from harness.lives import FALLBACK, end_of, new_token, take

from compat.recorded import (
    AFTER_AT,
    PENDING_AT,
    RecordedTask,
    all_tasks,
    cases,
    load,
    message_fields,
    put,
    put_database,
    snapshot_tasks,
)
from runqy.broker import keys
from runqy.broker.broker import Broker
from runqy.broker.connection import ClockOffset, Connection
from runqy.broker.inspector import Inspector
from runqy.broker.operator import Operator
from runqy.broker.transitions import ActionStatus, AttemptEnd, EnqueueStatus
from runqy.broker.workers import WorkerRegistry
from runqy.tasks.limits import Limits
from runqy.tasks.message import LIBRARY_TIMEOUT_SECONDS, NewTask, TaskMessage, decode
from runqy.tasks.outcome import Archive, Complete, Decision, Ending, GiveBack, Retry
from runqy.tasks.state import ACTIONS, Action, State

TASKS = all_tasks()
CASES = {case.label: case for case in cases()}
CHANGING_FIELDS = {6, 7, 11, 13}
"""retried, error_msg, last_failed_at, completed_at: what attempts write into a message"""
UNKNOWN_TAIL = b"\xba\x3e\x05hello" + b"\xc0\x3e\x96\x01"
"""Fields 999 and 1000: a text and a number that nobody here knows."""
UNKNOWN_HASH_FIELDS = {"unique_key": b"asynq:{q}:unique:x", "group": b"g", "from_the_future": b"\x00\xff"}


def test_every_state_was_recorded() -> None:
    assert {task.state for task in TASKS} >= set(State) - {State.SCHEDULED}
    assert len(TASKS) > 30


@pytest.mark.parametrize("task", TASKS, ids=str)
async def test_a_recorded_task_is_read_as_the_original_showed_it(
    connection: Connection, inspector: Inspector, task: RecordedTask
) -> None:
    """R71, R73: state, payload, counts, result and times; the failure text too, which it lost (decision 14)."""
    fields = await put(connection, task)
    view = await inspector.find(task.id)
    assert view is not None
    message = decode(task.fields["msg"])
    assert (view.id, view.queue, view.type, view.state) == (task.id, task.queue, message.type, task.state)
    assert (view.payload, view.max_retry) == (message.payload, message.retry)
    assert view.retried == max(message.retried, int(fields.get("retried", b"0")))
    assert view.result == fields.get("result")
    assert view.error == fields.get("error_msg", b"").decode()
    for lever in ("ttl_completed", "ttl_archived", "pending_timeout", "active_timeout"):
        stamp = fields.get(lever)
        assert getattr(view.limits, lever) == (int(stamp) if stamp else getattr(Limits(), lever))
    score = task.places.get(task.state)
    if task.state in {State.COMPLETED, State.ARCHIVED} and score is not None and score < 1e9:
        assert view.expires_at == pytest.approx(time.time() + score, abs=5)
    if task.state is State.RETRY and score is not None:
        assert view.next_process_at == pytest.approx(time.time() + score, abs=5)
    if task.answer:
        info = task.answer
        assert (info["id"], info["state"], info["queue"]) == (view.id, view.state, view.queue)
        assert (info["payload"].encode(), info["max_retry"], info["retried"]) == (
            view.payload,
            view.max_retry,
            view.retried,
        )
        assert info["Result"].encode() == (view.result or b"")
    assert [v.id for v in await inspector.list_tasks(task.queue, task.state)] == [task.id]


def transitions() -> list[Any]:
    """Every recorded task with every legal action of its state."""
    return [
        pytest.param(task, action, id=f"{task}-{action}")
        for task in TASKS
        for action in ACTIONS[task.state]
        # Only the original's own worker holds the token-less task, and completes or returns it by itself.
        if not (task.state is State.ACTIVE and action in {Action.COMPLETE, Action.GIVE_BACK})
    ]


@pytest.mark.parametrize(("task", "action"), transitions())
async def test_a_recorded_task_is_carried_on_without_losing_a_field(
    broker: Broker,
    operator: Operator,
    connection: Connection,
    clock_offset: ClockOffset,
    task: RecordedTask,
    action: Action,
) -> None:
    """R64, R65, R71..R74, decision 14: unknown fields of message and hash included."""
    strange = {"msg": task.fields["msg"] + UNKNOWN_TAIL, **UNKNOWN_HASH_FIELDS}
    before = await put(connection, task, strange)
    after_state = await carry_on(broker, operator, connection, clock_offset, task, action)
    keyspace = await read_keyspace(connection)
    assert misplaced(keyspace, [task.queue]) == []
    fields = keyspace.tasks(task.queue).get(task.id)
    if after_state is None:
        assert fields is None
        assert keys.reverse(task.id) not in keyspace.hashes
        return
    assert fields is not None
    assert fields["state"].decode() == after_state
    kept = [f for f in message_fields(before["msg"]) if f[0] not in CHANGING_FIELDS]
    assert [f for f in message_fields(fields["msg"]) if f[0] not in CHANGING_FIELDS] == kept
    for name in (*UNKNOWN_HASH_FIELDS, "ttl_completed", "ttl_archived", "pending_timeout", "active_timeout"):
        if name in before and not (action is Action.EXPIRE and name == "pending_timeout"):
            assert fields[name] == before[name], name
    assert decode(fields["msg"]).retried == int(fields.get("retried", b"0"))
    expiry = keyspace.expiry[keys.task(task.queue, task.id)]
    ttl = int(before.get("ttl_archived", b"259200"))
    if after_state is State.ARCHIVED and ttl:
        now = time.time() + clock_offset.microseconds / 1e6
        assert expiry / 1000 == pytest.approx(now + ttl, abs=10)
    else:
        assert expiry == -1


async def carry_on(
    broker: Broker,
    operator: Operator,
    connection: Connection,
    clock_offset: ClockOffset,
    task: RecordedTask,
    action: Action,
) -> State | None:
    """Do the action; the state that the task ought to reach."""
    key = keys.task(task.queue, task.id)
    match action:
        case Action.PICK_UP | Action.EXPIRE:
            if action is Action.EXPIRE:
                await connection.command("HSET", key, "pending_timeout", 5)
                clock_offset.advance(100)
            await broker.pick_up([task.queue], 1, token=new_token(), starting=1, fallback=FALLBACK)
        case Action.FORWARD:
            clock_offset.advance(400)
            assert await broker.forward(task.queue) == 1
        case Action.PURGE:
            # Hash and entry end together; the hash by itself.
            clock_offset.advance(4_000_000_000)
            await connection.command("PERSIST", key)
            assert await broker.purge(task.queue) == 1
        case Action.RETRY | Action.FAIL | Action.CANCEL if task.state is State.ACTIVE:
            if action is Action.FAIL:
                await connection.command("HSET", key, "retried", decode(task.fields["msg"]).retry)
            if action is Action.CANCEL:
                await operator.act(action, task.queue, [task.id])
            clock_offset.advance(200)
            await broker.recover(task.queue)
            # The first lost lease goes straight back (decision 16).
            return State.PENDING if action is Action.RETRY else State.ARCHIVED
        case _:
            (answer,) = await operator.act(action, task.queue, [task.id])
            assert answer.status is ActionStatus.DONE
    return ACTIONS[task.state][action]


@pytest.mark.parametrize("task", [task for task in TASKS if task.state is State.PENDING], ids=str)
@pytest.mark.parametrize("ending", ["complete", "retry", "fail", "give back"])
async def test_a_recorded_pending_task_lives_a_whole_life_with_us(
    broker: Broker, connection: Connection, inspector: Inspector, task: RecordedTask, ending: str
) -> None:
    """R64, R73: enqueued by the older server, run by our worker with its fallbacks."""
    before = await put(connection, task, {"msg": task.fields["msg"] + UNKNOWN_TAIL})
    (taken,) = await take(broker, task.queue, fallback=Limits(ttl_completed=71, ttl_archived=72, active_timeout=73))
    assert (taken.limits.ttl_completed, taken.limits.ttl_archived, taken.limits.active_timeout) == (71, 72, 73)
    decisions: dict[str, Decision] = {
        "complete": Complete(b"1"),
        "retry": Retry(10, Ending.ERROR, "again"),
        "fail": Archive(Ending.FAILED, "no"),
        "give back": GiveBack(),
    }
    assert await broker.finish([end_of(taken, decisions[ending])]) == [True]
    fields = (await read_keyspace(connection)).tasks(task.queue)[task.id]
    kept = [f for f in message_fields(before["msg"]) if f[0] not in CHANGING_FIELDS]
    assert [f for f in message_fields(fields["msg"]) if f[0] not in CHANGING_FIELDS] == kept
    ttl = await connection.command("TTL", keys.task(task.queue, task.id))
    assert ttl == pytest.approx({"complete": 71, "fail": 72}.get(ending, -1), abs=2)
    assert await inspector.find(task.id) is not None


# The same cases, written by us


def described(task: RecordedTask) -> dict[str, Any]:
    """A task as flat facts that can be compared: times as the word, scores and lives in seconds."""
    facts: dict[str, Any] = {}
    for name, value in task.fields.items():
        if name == "msg":
            continue
        facts[f"hash.{name}"] = (
            "a time" if name in {"completed_at", "last_failed_at", "pending_since"} else value.decode()
        )
    for number, raw in message_fields(task.fields.get("msg", b"")):
        facts[f"msg.{number}"] = "a time" if number in {11, 13} else raw.hex()
    if task.fields or task.ttl != -2:
        facts["ttl"], facts["reverse_ttl"] = task.ttl, task.reverse_ttl
    for place, score in task.places.items():
        facts[f"in.{place}"] = "listed" if score is None else score
    return facts


def same(one: Any, other: Any) -> bool:
    """Equal, or the same number of seconds but for the moment between writing and looking."""
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) < 2.5
    return bool(one == other)


async def written(connection: Connection, label: str, queue: str, id_: str) -> RecordedTask:
    """What stands in Redis for a task of ours, in the form of a recording."""
    keyspace = await read_keyspace(connection)
    places: dict[str, float | None] = {}
    now = time.time() + connection.offset.microseconds / 1e6
    for name in (*State, "lease"):
        key = keys.prefix(queue) + name
        if id_ in keyspace.lists.get(key, []):
            places[name] = None
        elif id_ in keyspace.zsets.get(key, {}):
            places[name] = keyspace.zsets[key][id_] - now
    lives = []
    for key in (keys.task(queue, id_), keys.reverse(id_)):
        expiry = keyspace.expiry.get(key, -2)
        lives.append(expiry if expiry < 0 else round(expiry / 1000 - now))
    fields = keyspace.tasks(queue).get(id_, {})
    return RecordedTask(label, queue, id_, fields, lives[0], lives[1], places)


def as_it_waited(case: RecordedTask) -> RecordedTask:
    """The recorded task before anybody took it: what attempts wrote is taken off, what they lost is put back."""
    kept = [raw for number, raw in message_fields(case.fields.get("msg", b"")) if number not in CHANGING_FIELDS]
    numbers = {number for number, _ in message_fields(case.fields.get("msg", b""))}
    lost = [raw for number, raw in ((8, b"\x40\x88\x0e"), (12, b"\x60\x80\xa3\x05")) if number not in numbers]
    message = b"".join(kept + lost) if "msg" in case.fields else TaskMessage(id=case.id).SerializeToString()
    since = int(time.time()) - (10 if case.label.startswith("pending 10 s old") else 0)
    text = f"{since}" if "in s" in case.label else f"{since * 10**9}"
    stamps = {name: value for name, value in case.fields.items() if name.startswith("ttl_") or "timeout" in name}
    fields = {"msg": message, "state": b"pending", "pending_since": text.encode()} | stamps
    return RecordedTask(case.label, case.queue, case.id, fields, -1, -1, {"pending": None}, time.time())


async def enact(broker: Broker, operator: Operator, connection: Connection, case: RecordedTask) -> None:
    """Lead one of our tasks through what the recorded one went through."""
    reason = case.fields.get("error_msg", b"it failed").decode()
    result = case.fields.get("result")
    await put(connection, as_it_waited(case))
    taken = await take(broker, case.queue)
    if not taken or case.label == "active":
        return
    decision: Decision = Complete(result)
    if case.label == "permanent failure, retries left" or case.label.startswith(("failure", "archived")):
        decision = Archive(Ending.FAILED, reason)
    elif case.fields.get("state") == b"retry":
        decision = Retry(10.0, Ending.ERROR, reason)
    elif case.label == "redis_storage false, done":
        decision = Complete(None)
    elif case.label == "cancelled while active":
        await operator.act(Action.CANCEL, case.queue, [case.id])
        decision = Archive(Ending.CANCELLED, "cancelled")
    await broker.finish([AttemptEnd(case.queue, case.id, taken[0].token, decision, taken[0].limits, 0.01)])


@pytest.mark.parametrize("label", list(CASES))
async def test_we_write_the_same_except_where_a_decision_asks_for_more(
    broker: Broker, operator: Operator, connection: Connection, label: str
) -> None:
    """Decision 36: field by field; every difference is listed with its decision."""
    case = CASES[label]
    await enact(broker, operator, connection, case)
    theirs, ours = described(case), described(await written(connection, label, case.queue, case.id))
    found = {name for name in theirs.keys() | ours.keys() if not same(theirs.get(name), ours.get(name))}
    listed = {entry["what"]: entry for entry in load("differences.json") if label in entry["cases"]}
    shown = {name: [theirs.get(name), ours.get(name)] for name in found}
    assert found == set(listed), shown
    for name, entry in listed.items():
        assert entry["because"], name
        assert same(entry["theirs"], theirs.get(name)), shown
        assert entry["ours"] == "present" if name in OF_THE_MOMENT else same(entry["ours"], ours.get(name)), shown


OF_THE_MOMENT = {"hash.attempt", "hash.attempts"}
"""Fields of ours whose value differs from run to run: listed as being present."""


async def test_enqueues_are_written_as_recorded(broker: Broker, connection: Connection) -> None:
    """R16, R71, R72: message byte for byte, list order, pointer, queues; stamps beside them."""
    recorded = load("redis-pending.json")
    tasks = snapshot_tasks("redis-pending.json", PENDING_AT)
    order = {queue: recorded[keys.pending(queue)]["value"][::-1] for queue in ("echo.default", "one.high", "one.low")}
    for task in sorted(tasks, key=lambda task: order[task.queue].index(task.id)):
        message = decode(task.fields["msg"])
        if message.timeout < 0:
            # A negative timeout of the request, which decision 9 refuses with 400: nothing of the kind is written.
            continue
        active_timeout = 0 if message.timeout == LIBRARY_TIMEOUT_SECONDS else message.timeout
        ours = NewTask(task.id, task.queue, message.payload, Limits(active_timeout=active_timeout))
        (answer,) = await broker.enqueue([ours])
        assert answer.status is EnqueueStatus.CREATED
        fields = await connection.command("HGETALL", keys.task(task.queue, task.id))
        assert fields[b"msg"] == task.fields["msg"]
        assert fields[b"state"] == task.fields["state"]
        assert len(fields[b"pending_since"]) == len(task.fields["pending_since"])
        more = {name.decode() for name in fields} - set(task.fields)
        assert more == {"ttl_completed", "ttl_archived", "pending_timeout", "active_timeout", "src"}
    keyspace = await read_keyspace(connection)
    skipped = {task.id for task in tasks if decode(task.fields["msg"]).timeout < 0}
    assert len(skipped) == 1
    for queue, ids in order.items():
        assert keyspace.waiting(queue) == [id_ for id_ in ids if id_ not in skipped]
    pointers = {name: entry for name, entry in recorded.items() if name.startswith("asynq:t:")}
    for name, entry in pointers.items():
        if name.removeprefix("asynq:t:") not in skipped:
            assert {k: v.decode() for k, v in keyspace.hashes[name].items()} == entry["value"]
            assert keyspace.expiry[name] == -1
    assert keyspace.sets[keys.QUEUES] == {"echo.default", "one.high", "one.low"}
    assert set(keyspace.expiry) == {name for name in recorded if not any(id_ in name for id_ in skipped)}


async def test_a_whole_database_of_the_original_is_read(connection: Connection, inspector: Inspector) -> None:
    """R71: queues, sizes, totals and worker records after its worker ran."""
    await put_database(connection, "redis-after.json", AFTER_AT)
    assert await inspector.queues() == ["echo.default", "one.high", "one.low", "plain.default"]
    counts = {c.queue: c for c in await inspector.counts_of(await inspector.queues())}
    echo = counts["echo.default"]
    assert (echo.completed, echo.retry, echo.pending, echo.processed, echo.failed) == (9, 2, 0, 9, 0)
    assert (counts["one.high"].completed, counts["plain.default"].size) == (1, 0)
    (worker,) = await WorkerRegistry(connection).all()
    assert worker.worker_id == "host-1:6838"
    assert worker.queues == {"echo.default": 5, "one.high": 10, "one.low": 2, "plain.default": 3}
    assert (worker.status, worker.healthy, worker.concurrency) == ("running", True, 1)
    assert worker.recovery["echo"]["state"] == "idle"
    assert worker.metrics["memory_total_bytes"] == 25275990016


async def test_a_whole_database_of_the_original_is_carried_to_its_end(
    broker: Broker, connection: Connection, inspector: Inspector, clock_offset: ClockOffset
) -> None:
    """R71: its retries become due, run, and everything expires in its own time; nothing is left behind."""
    await put_database(connection, "redis-after.json", AFTER_AT)
    clock_offset.advance(3600)
    assert await broker.forward("echo.default") == 2
    taken = await take(broker, "echo.default", 5)
    assert [task.retried for task in taken] == [2, 2]
    assert await broker.finish([end_of(task, Complete(b"1")) for task in taken]) == [True, True]
    clock_offset.advance(100 * 86400)
    for queue in await inspector.queues():
        while await broker.purge(queue):
            pass
    keyspace = await read_keyspace(connection)
    assert [key for key in keyspace.hashes if ":t:" in key] == []
    assert (await inspector.counts("echo.default")).processed == 11


@pytest.mark.parametrize(
    ("stamp", "archived"), list(itertools.product(["ns", "s"], [True, False])), ids=lambda value: str(value)
)
async def test_both_units_of_pending_since_are_read(
    broker: Broker, connection: Connection, inspector: Inspector, stamp: str, archived: bool
) -> None:
    """R47, decision 5, defect 2: nanoseconds from the original's server, seconds from its worker."""
    case = CASES["pending 10 s old in ns, pending_timeout 1"]
    fields = {name: value for name, value in case.fields.items() if name not in {"completed_at", "result"}}
    since = time.time() - (10 if archived else 0)
    fields |= {
        "state": b"pending",
        "pending_timeout": b"5",
        "pending_since": (f"{since * 1e9:.0f}" if stamp == "ns" else f"{since:.0f}").encode(),
    }
    waiting = RecordedTask("waiting", case.queue, case.id, fields, -1, -1, {"pending": None}, time.time())
    await put(connection, waiting)
    await take(broker, case.queue)
    view = await inspector.find(case.id)
    assert view is not None
    assert view.state is (State.ARCHIVED if archived else State.ACTIVE)
