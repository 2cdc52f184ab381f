"""The records of workers: who is there, what they do, what they printed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from runqy.broker import keys
from runqy.broker.connection import Connection

STALE_SECONDS = 30.0
"""Without a beat for this long a worker is shown as stale."""
GONE_SECONDS = 300
"""Without a beat for this long its record is gone."""
LISTED_SECONDS = 1800
"""How far ahead asynq's registry is scored, as the original does."""
LOG_LINES = 500

_GO_MAP_ENTRY = re.compile(r"(\S+):(-?\d+)(?=[ \]])")


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One worker process as it stands in Redis. Times are unix seconds.

    ``status`` is one of bootstrapping, running, recovering, degraded, paused, draining, stopped. ``queues`` maps full
    names to priorities. ``detail`` says what it waits for, or holds the last lines of what failed.
    ``commits`` maps a parent queue to the commit that is deployed.
    """

    worker_id: str
    started_at: int
    last_beat: int
    concurrency: int
    queues: Mapping[str, int] = field(default_factory=dict)
    status: str = "bootstrapping"
    healthy: bool = True
    metrics: Mapping[str, Any] = field(default_factory=dict)
    recovery: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    commits: Mapping[str, str] = field(default_factory=dict)
    current: tuple[str, ...] = ()
    detail: tuple[str, ...] = ()
    instance_id: str = ""
    protected: bool = False

    def is_stale(self, now: float) -> bool:
        """Whether it has not been heard of for too long; ``now`` in unix seconds."""
        return now - self.last_beat > STALE_SECONDS

    def queues_text(self) -> str:
        """The queues as the original's worker writes them, Go's print of a map: ``map[a.high:10 a.low:3]``."""
        return f"map[{' '.join(f'{name}:{priority}' for name, priority in sorted(self.queues.items()))}]"


class Order(StrEnum):
    """What one worker can be told to do."""

    RESTART = "restart"
    """end its task processes and start them afresh"""
    DRAIN = "drain"
    """finish what runs, then stop"""
    PAUSE = "pause"
    """take no more tasks; what runs goes on"""
    RESUME = "resume"
    """take tasks again"""


class WorkerRegistry:
    """Reads and writes worker records. Errors as in `Connection`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def beat(self, record: WorkerRecord) -> int:
        """Write the record and renew its life; returns the version of the configuration."""
        key = keys.worker(record.worker_id)
        fields = [part for name, value in _fields(record).items() for part in (name, value)]
        score = record.last_beat + LISTED_SECONDS
        replies = await self._connection.replies(
            [
                ("HSET", key, *fields),
                ("EXPIRE", key, GONE_SECONDS),
                ("EXPIRE", keys.worker_log(record.worker_id), GONE_SECONDS),
                ("ZADD", keys.WORKERS, score, record.worker_id),
                ("GET", keys.CONFIG_VERSION),
            ]
        )
        return int(replies[-1] or 0)

    async def remove(self, worker_id: str) -> None:
        """Take the record away at once, as a clean stop does."""
        await self._connection.replies(
            [
                ("ZREM", keys.WORKERS, worker_id),
                ("DEL", keys.worker(worker_id)),
                ("DEL", keys.worker_log(worker_id)),
            ]
        )

    async def all(self) -> list[WorkerRecord]:
        """All workers that have a record, by id; entries of asynq's registry without one are removed."""
        ids = [member.decode() for member in await self._connection.command("ZRANGE", keys.WORKERS, 0, -1)]
        if not ids:
            return []
        records = await self._connection.replies([("HGETALL", keys.worker(worker_id)) for worker_id in ids])
        found = [(worker_id, _read(record)) for worker_id, record in zip(ids, records, strict=True)]
        vanished = [worker_id for worker_id, record in found if record is None]
        if vanished:
            await self._connection.replies([("ZREM", keys.WORKERS, *vanished)])
        return sorted((record for _, record in found if record), key=lambda record: record.worker_id)

    async def get(self, worker_id: str) -> WorkerRecord | None:
        """One worker's record, None when there is none."""
        return _read(await self._connection.command("HGETALL", keys.worker(worker_id)))

    async def append_logs(self, worker_id: str, lines: Sequence[str]) -> None:
        """Keep JSON lines (`ts` in unix ms, `src`, `text`, `seq`); the last 500 stay."""
        if not lines:
            return
        key = keys.worker_log(worker_id)
        await self._connection.replies(
            [("RPUSH", key, *lines), ("LTRIM", key, -LOG_LINES, -1), ("EXPIRE", key, GONE_SECONDS)]
        )

    async def logs(self, worker_id: str, n: int = 200) -> list[str]:
        """The last ``n`` log lines, oldest first, as they were appended."""
        lines = await self._connection.command("LRANGE", keys.worker_log(worker_id), -n, -1)
        return [line.decode("utf-8", "replace") for line in lines]

    async def config_version(self) -> int:
        """A number that grows with every change of the configuration."""
        return int(await self._connection.command("GET", keys.CONFIG_VERSION) or 0)

    async def order(self, order: Order, worker_id: str) -> None:
        """Tell one worker what to do. Not kept: a worker that is cut off from Redis at this moment misses it."""
        document = msgspec.json.encode({"order": order, "worker": worker_id})
        await self._connection.command("PUBLISH", keys.CONTROL_CHANNEL, document)

    async def publish_config_change(self) -> int:
        """Tell every worker and server that the configuration changed; returns the new version."""
        replies = await self._connection.replies(
            [("INCR", keys.CONFIG_VERSION), ("PUBLISH", keys.CONTROL_CHANNEL, '{"order":"configuration"}')]
        )
        return int(replies[0])

    async def publish_access_change(self) -> None:
        """Tell every server that keys, accounts or sessions changed."""
        await self._connection.command("PUBLISH", keys.CONTROL_CHANNEL, '{"order":"access"}')


def _fields(record: WorkerRecord) -> dict[str, str | int]:
    encode = msgspec.json.encode
    return {
        "worker_id": record.worker_id,
        "started_at": record.started_at,
        "last_beat": record.last_beat,
        "concurrency": record.concurrency,
        "queues": record.queues_text(),
        "queues_json": encode(dict(record.queues)).decode(),
        "status": record.status,
        "healthy": int(record.healthy),
        "metrics": encode(dict(record.metrics)).decode(),
        "recovery": encode(dict(record.recovery)).decode(),
        "version": record.version,
        "commits": encode(dict(record.commits)).decode(),
        "current": encode(list(record.current)).decode(),
        "detail": encode(list(record.detail)).decode(),
        "instance_id": record.instance_id,
        "protected": int(record.protected),
    }


def _read(fields: Mapping[bytes, bytes]) -> WorkerRecord | None:
    if b"worker_id" not in fields:
        # asynq's own worker keys match the same name; only ours carry an id.
        return None
    text = {key.decode(): value.decode("utf-8", "replace") for key, value in fields.items()}
    return WorkerRecord(
        worker_id=text["worker_id"],
        started_at=_int(text.get("started_at")),
        last_beat=_int(text.get("last_beat")),
        concurrency=_int(text.get("concurrency")),
        queues=_queues(text),
        status=text.get("status", ""),
        healthy=text.get("healthy", "1") in {"1", "true"},
        metrics=_json(text.get("metrics"), {}),
        recovery=_json(text.get("recovery"), {}),
        version=text.get("version", ""),
        commits=_json(text.get("commits"), {}),
        current=tuple(_json(text.get("current"), [])),
        detail=tuple(_json(text.get("detail"), [])),
        instance_id=text.get("instance_id", ""),
        protected=text.get("protected", "0") in {"1", "true"},
    )


def _queues(text: Mapping[str, str]) -> dict[str, int]:
    queues: dict[str, int] = _json(text.get("queues_json"), {})
    if queues:
        return queues
    return {name.removeprefix("map["): int(p) for name, p in _GO_MAP_ENTRY.findall(text.get("queues", ""))}


def _int(text: str | None) -> int:
    return int(text) if text and text.lstrip("-").isdigit() else 0


def _json(text: str | None, default: Any) -> Any:
    if not text:
        return default
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return default
    return value if isinstance(value, type(default)) else default
