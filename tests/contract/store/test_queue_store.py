"""The store's contract, the same on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from runqy.config.encoding import queue_document
from runqy.config.model import Deployment, Field, FieldType, Mode, QueueConfig, Scheduling, SubQueue, Webhook
from runqy.config.request import parse_queue_request
from runqy.errors import ConfigurationError, ConflictError, NotFoundError, RunqyError, UsageError
from runqy.store.database import Database
from runqy.store.queues import Action, QueueStore
from runqy.tasks.limits import Override
from runqy.tasks.retry import Backoff, RetryPolicy

CODE = Deployment(git_url="https://example.com/r.git", startup_cmd="python main.py")
ECHO = QueueConfig("echo", (SubQueue("default", 5),), CODE)
EVERYTHING = QueueConfig(
    "everything",
    (SubQueue("high", 10), SubQueue("low", 2)),
    Deployment(
        git_url="git@example.com:r.git",
        branch="1e5",
        code_path="src/worker",
        startup_cmd="python 'my main.py'",
        mode=Mode.ONE_SHOT,
        startup_timeout_secs=300,
        redis_storage=False,
        vaults=("keys", "more"),
        git_token="vault://keys/TOKEN",
        limits=Override(max_retry=0, ttl_completed=0, pending_timeout=90),
        retry=RetryPolicy(1.5, Backoff.LINEAR, 60.0, 0.0),
        prestart=True,
    ),
    input=(Field("n", (FieldType.INT, FieldType.FLOAT), False, "3", "how many"), Field("ü", (FieldType.OBJECT,))),
    output=(Field("label", (FieldType.STRING,)),),
    description="Everything at once",
    scheduling=Scheduling.WEIGHTED,
    max_pending=1000,
    webhook=Webhook("https://example.com/hook", "vault://keys/HOOK"),
    redact=("password",),
)


def body(name: str, **more: Any) -> dict[str, Any]:
    deployment = {"git_url": "https://example.com/r.git", "startup_cmd": "python main.py"}
    return {"name": name, "priority": 3, "deployment": deployment} | more


async def test_what_is_saved_is_read_back_equal(store: QueueStore) -> None:
    await store.save(EVERYTHING, "test")
    assert await store.get("everything") == EVERYTHING
    assert await store.all() == [EVERYTHING]


async def test_a_saved_queue_is_in_the_catalogue_at_once(store: QueueStore) -> None:
    await store.save_all([EVERYTHING, ECHO], "test")
    assert store.catalog.full_names() == ("echo.default", "everything.high", "everything.low")
    assert store.catalog.lookup("echo") == (ECHO, "echo.default")
    assert store.catalog.lookup("everything.low") == (EVERYTHING, "everything.low")
    assert store.catalog.parent("everything") == EVERYTHING


async def test_a_bare_parent_without_a_default_sub_queue_is_unknown(store: QueueStore) -> None:
    await store.save(EVERYTHING, "test")
    assert store.catalog.lookup("everything") is None
    assert store.catalog.lookup("nope") is None


async def test_a_name_with_two_dots_is_refused(store: QueueStore) -> None:
    with pytest.raises(UsageError, match="one dot at most"):
        store.catalog.lookup("a.b.c")


async def test_times_are_of_the_first_and_the_last_save(store: QueueStore, clock: Any) -> None:
    await store.save(ECHO, "test")
    clock.unix += 60
    await store.save(replace(ECHO, description="new"), "test")
    queue = await store.get("echo")
    assert queue is not None
    assert (queue.created_at, queue.updated_at) == (1_800_000_000.0, 1_800_000_060.0)


async def test_saving_what_is_stored_changes_nothing(store: QueueStore, clock: Any) -> None:
    assert (await store.save(EVERYTHING, "one")).action is Action.CREATED
    clock.unix += 60
    assert (await store.save(EVERYTHING, "two")).action is Action.UNCHANGED
    assert [change.who for change in await store.history()] == ["one"]


async def test_a_sub_queue_that_is_no_longer_listed_is_disabled(store: QueueStore) -> None:
    await store.save(EVERYTHING, "test")
    await store.save(replace(EVERYTHING, sub_queues=(SubQueue("high", 10),)), "test")
    assert store.catalog.full_names() == ("everything.high",)
    assert (await store.all(include_disabled=True))[0].sub_queues == (SubQueue("high", 10), SubQueue("low", 2, False))


async def test_a_queue_that_is_not_given_stays(store: QueueStore) -> None:
    await store.save(ECHO, "test")
    await store.save_all([EVERYTHING], "test")
    assert [queue.name for queue in await store.all()] == ["echo", "everything"]


async def test_queues_stand_in_the_same_order_whatever_the_database(store: QueueStore) -> None:
    names = ["a-b", "B", "a_b", "a", "ab", "A1"]
    await store.save_all([replace(ECHO, name=name) for name in names], "test")
    assert [queue.name for queue in await store.all()] == sorted(names)
    assert [queue.name for queue in store.catalog.queues()] == sorted(names)


async def test_history_tells_who_changed_what_and_when(store: QueueStore, clock: Any) -> None:
    await store.save(ECHO, "config:start")
    clock.unix += 1
    changed = replace(ECHO, deployment=replace(CODE, limits=Override(max_retry=0)))
    await store.save(changed, "admin@example.com")
    clock.unix += 1
    await store.delete("echo", "key:ops")
    newest, middle, oldest = await store.history("echo")
    assert (oldest.action, oldest.who, oldest.at, oldest.before) == (
        Action.CREATED,
        "config:start",
        1_800_000_000.0,
        None,
    )
    assert (middle.before, middle.after) == (queue_document(ECHO), queue_document(changed))
    assert (newest.action, newest.who) == (Action.DELETED, "key:ops")
    assert newest.after is not None
    assert newest.after["enabled"] is False
    assert [change.id for change in await store.history(limit=1, before_id=newest.id)] == [middle.id]


async def test_a_deleted_queue_is_gone_and_comes_back_whole(store: QueueStore) -> None:
    await store.save(EVERYTHING, "test")
    await store.delete("everything", "test")
    assert await store.get("everything") is None
    assert await store.all() == []
    assert store.catalog.lookup("everything.high") is None
    await store.restore("everything", "test")
    assert await store.get("everything") == EVERYTHING
    assert store.catalog.lookup("everything.high") == (EVERYTHING, "everything.high")


async def test_one_sub_queue_is_deleted_and_restored_alone(store: QueueStore) -> None:
    await store.save(EVERYTHING, "test")
    await store.delete("everything.low", "test")
    assert store.catalog.full_names() == ("everything.high",)
    assert await store.get("everything.low") is None
    assert await store.get("everything.high") is not None
    await store.restore("everything.low", "test")
    assert store.catalog.full_names() == ("everything.high", "everything.low")


@pytest.mark.parametrize("name", ["nope", "everything.nope"])
async def test_unknown_names_are_not_found(store: QueueStore, name: str) -> None:
    await store.save(EVERYTHING, "test")
    with pytest.raises(NotFoundError, match=f"queue '{name}' not found"):
        await store.delete(name, "test")
    with pytest.raises(NotFoundError, match=f"queue '{name}' not found"):
        await store.restore(name, "test")


async def test_deleting_twice_is_not_found_and_restoring_a_live_queue_is_refused(store: QueueStore) -> None:
    await store.save(ECHO, "test")
    with pytest.raises(UsageError, match="not deleted"):
        await store.restore("echo", "test")
    await store.delete("echo", "test")
    with pytest.raises(NotFoundError):
        await store.delete("echo", "test")


async def test_a_request_creates_a_queue_with_its_default_sub_queue(store: QueueStore) -> None:
    saved = await store.apply(parse_queue_request(body("made")), "test")
    assert saved.action is Action.CREATED
    assert store.catalog.full_names() == ("made.default",)


async def test_an_existing_queue_is_changed_only_with_force(store: QueueStore) -> None:
    await store.apply(parse_queue_request(body("made")), "test")
    again = parse_queue_request(body("made", priority=7))
    with pytest.raises(ConflictError, match=r"queue 'made' already exists. Use --force to update existing queue"):
        await store.apply(again, "test")
    saved = await store.apply(again, "test", force=True)
    assert saved.action is Action.UPDATED
    assert saved.queue.sub_queues == (SubQueue("default", 7),)


async def test_a_deleted_queue_does_not_exist_and_is_made_anew(store: QueueStore) -> None:
    await store.save(EVERYTHING, "test")
    await store.delete("everything", "test")
    saved = await store.apply(parse_queue_request(body("everything")), "test")
    assert saved.action is Action.CREATED
    assert saved.queue.sub_queues == (SubQueue("default", 3),)
    assert saved.queue.redact == ()


async def test_a_request_replaces_the_deployment_and_keeps_the_rest(store: QueueStore) -> None:
    await store.save(EVERYTHING, "test")
    saved = await store.apply(parse_queue_request(body("everything.new")), "test")
    assert saved.queue.input == EVERYTHING.input
    assert saved.queue.description == "Everything at once"
    assert saved.queue.scheduling is Scheduling.WEIGHTED
    assert saved.queue.deployment == replace(CODE, limits=EVERYTHING.limits)
    assert {sub.name for sub in saved.queue.sub_queues} == {"high", "low", "new"}


async def test_limits_under_a_sub_queues_name_are_refused_unless_they_are_the_parents(store: QueueStore) -> None:
    """R22, product decision 42."""
    await store.save(EVERYTHING, "test")
    deployment = {"git_url": "x", "startup_cmd": "y", "limits": {"max_retry": 9}}
    with pytest.raises(ConfigurationError, match="limits belong to the parent queue 'everything'"):
        await store.apply(parse_queue_request(body("everything.new", deployment=deployment)), "test")
    assert await store.get("everything") == EVERYTHING
    deployment["limits"] = {"max_retry": 0, "ttl_completed": "0s", "pending_timeout": "1m30s"}
    saved = await store.apply(parse_queue_request(body("everything.new", deployment=deployment)), "test")
    assert saved.queue.limits == EVERYTHING.limits


async def test_one_failing_save_keeps_all_others_out(store: QueueStore) -> None:
    broken = replace(ECHO, name="broken", sub_queues=(SubQueue(None, 1),))  # type: ignore[arg-type]
    with pytest.raises(RunqyError):
        await store.save_all([EVERYTHING, broken], "test")
    assert await store.all(include_disabled=True) == []
    assert await store.history() == []


async def test_concurrent_requests_all_arrive(database_url: str, database: Database) -> None:
    """Two servers on one database: each adds sub-queues of the same parent; none is lost."""
    other = Database(database_url)
    await other.open()
    try:
        stores = [QueueStore(database), QueueStore(other)]
        requests = [parse_queue_request(body(f"made.s{i}")) for i in range(12)]
        await asyncio.gather(*(stores[i % 2].apply(request, f"server {i}") for i, request in enumerate(requests)))
        await stores[0].refresh()
        assert set(stores[0].catalog.full_names()) == {f"made.s{i}" for i in range(12)}
        assert len(await stores[1].history()) == 12
    finally:
        await other.close()


async def test_another_servers_change_is_seen_after_a_refresh(database_url: str, store: QueueStore) -> None:
    other_database = Database(database_url)
    await other_database.open()
    try:
        await QueueStore(other_database).save(ECHO, "other")
        assert store.catalog.lookup("echo") is None
        await store.refresh()
        assert store.catalog.lookup("echo") == (ECHO, "echo.default")
    finally:
        await other_database.close()
