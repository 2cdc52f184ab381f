"""Worker records: ours and the original's, as asynq's tools and every reader find them."""

from __future__ import annotations

import time

from runqy.broker import keys
from runqy.broker.connection import Connection
from runqy.broker.workers import GONE_SECONDS, LOG_LINES, WorkerRecord, WorkerRegistry


def record(worker_id: str = "box:7:abcdef", **options: object) -> WorkerRecord:
    now = int(time.time())
    values: dict[str, object] = {
        "worker_id": worker_id,
        "started_at": now - 60,
        "last_beat": now,
        "concurrency": 4,
        "queues": {"inference.low": 3, "inference.high": 10},
        "status": "running",
        "healthy": False,
        "metrics": {"cpu_percent": 12.5, "gpus": [{"index": 0}]},
        "recovery": {"inference": {"state": "idle", "consecutive_fails": 0, "total_restarts": 2}},
        "version": "0.5.0",
        "commits": {"inference": "abc123"},
        "current": ("id-1", "id-2"),
        "detail": ("last line",),
        "instance_id": "i-1",
        "protected": True,
    }
    return WorkerRecord(**(values | options))  # type: ignore[arg-type]


async def test_a_record_is_read_as_it_was_written(connection: Connection) -> None:
    registry = WorkerRegistry(connection)
    written = record()
    assert await registry.beat(written) == 0
    assert await registry.get(written.worker_id) == written
    assert await registry.all() == [written]
    assert await registry.get("nobody") is None


async def test_a_record_is_the_originals_for_those_who_know_no_other(connection: Connection) -> None:
    """Decision 39, R71: field names, Go's print of a map with sorted keys, `healthy` 1 or 0, asynq's registry."""
    await WorkerRegistry(connection).beat(record())
    fields = await connection.command("HGETALL", keys.worker("box:7:abcdef"))
    assert fields[b"queues"] == b"map[inference.high:10 inference.low:3]"
    assert (fields[b"healthy"], fields[b"status"], fields[b"concurrency"]) == (b"0", b"running", b"4")
    score = float(await connection.command("ZSCORE", keys.WORKERS, "box:7:abcdef"))
    assert abs(score - time.time() - 1800) < 60


async def test_the_originals_record_is_read(connection: Connection) -> None:
    """Decision 39, defect 49: `map[a:1 b:2]` without queues_json."""
    fields = {
        "worker_id": "host-1:6838",
        "started_at": "1796124725",
        "last_beat": "1796124744",
        "concurrency": "1",
        "queues": "map[echo.default:5 one.high:10 plain:-3]",
        "status": "running",
        "healthy": "true",
        "metrics": "{not json",
        "recovery": '{"echo":{"state":"idle"}}',
    }
    await connection.command("HSET", keys.worker("host-1:6838"), *(x for pair in fields.items() for x in pair))
    await connection.command("ZADD", keys.WORKERS, 1796126544, "host-1:6838")
    (read,) = await WorkerRegistry(connection).all()
    assert read.queues == {"echo.default": 5, "one.high": 10, "plain": -3}
    assert (read.healthy, read.started_at, read.metrics) == (True, 1796124725, {})
    assert read.recovery == {"echo": {"state": "idle"}}
    assert WorkerRecord("x", 0, 0, 1, {"a": 1}).queues_text() == "map[a:1]"
    assert WorkerRecord("x", 0, 0, 1).queues_text() == "map[]"


async def test_asynqs_own_worker_keys_are_not_taken_for_ours(connection: Connection) -> None:
    """Defect 50 of the original."""
    await connection.command("HSET", keys.worker("{host:1:uuid}"), "some", "protobuf")
    await connection.command("ZADD", keys.WORKERS, 1, "{host:1:uuid}")
    assert await WorkerRegistry(connection).all() == []


async def test_a_stopped_worker_is_off_the_list_at_once_and_a_dead_one_later(connection: Connection) -> None:
    """C12, decision 39: stale after 30 s, gone after 5 min, deleted by a clean stop."""
    registry = WorkerRegistry(connection)
    stopped, dead = record("a:1:aa"), record("b:2:bb", last_beat=int(time.time()) - 31)
    for worker in (stopped, dead):
        await registry.beat(worker)
        await registry.append_logs(worker.worker_id, ["{}"])
    await registry.remove(stopped.worker_id)
    await registry.remove(stopped.worker_id)
    (left,) = await registry.all()
    assert left.is_stale(time.time())
    assert not record().is_stale(time.time())
    for key in (keys.worker(dead.worker_id), keys.worker_log(dead.worker_id)):
        assert GONE_SECONDS - 60 < await connection.command("TTL", key) <= GONE_SECONDS
    await connection.command("DEL", keys.worker(dead.worker_id))
    assert await registry.all() == []
    assert await connection.command("ZCARD", keys.WORKERS) == 0
    assert await connection.command("EXISTS", keys.worker_log(stopped.worker_id)) == 0


async def test_the_last_five_hundred_log_lines_are_kept(connection: Connection) -> None:
    registry = WorkerRegistry(connection)
    await registry.append_logs("w", [])
    for start in range(0, 600, 100):
        await registry.append_logs("w", [f'{{"seq":{n}}}' for n in range(start, start + 100)])
    assert await registry.logs("w", 3) == ['{"seq":597}', '{"seq":598}', '{"seq":599}']
    assert len(await registry.logs("w", 10_000)) == LOG_LINES
    assert await registry.logs("nobody") == []


async def test_a_beat_tells_the_version_of_the_configuration(connection: Connection) -> None:
    """Decision 41."""
    registry = WorkerRegistry(connection)
    assert (await registry.publish_config_change(), await registry.publish_config_change()) == (1, 2)
    assert await registry.beat(record()) == 2
