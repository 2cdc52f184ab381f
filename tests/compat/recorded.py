"""What the original's server and worker really wrote, and how to put it into a Redis of today.

``data/task-states.json``: one task per case. ``data/redis-pending.json``: every key after twelve enqueues and a
batch. ``data/redis-after.json``: the same after a worker ran them. A ``msg`` is hex of the task message.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runqy.broker import keys
from runqy.broker.connection import Connection
from runqy.tasks.state import State

DATA = Path(__file__).parent / "data"
TIME_FIELDS = ("completed_at", "last_failed_at")


@dataclass
class RecordedTask:
    """One task as it stood: hash (values as bytes), remaining lives in seconds, where its id stood."""

    label: str
    queue: str
    id: str
    fields: dict[str, bytes]
    ttl: int
    reverse_ttl: int
    places: dict[str, float | None] = field(default_factory=dict)
    """container or ``lease`` to score minus now; None in a list"""
    at: float = 0.0
    answer: dict[str, Any] = field(default_factory=dict)
    """``Info`` of the original's GET /queue/{id}"""

    @property
    def state(self) -> State:
        return State(self.fields["state"].decode())

    def __str__(self) -> str:
        return self.label.replace(",", "").replace(" ", "-")


def load(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def _bytes(value: Any) -> bytes:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else str(value).encode()


def cases() -> list[RecordedTask]:
    """The cases of task-states.json."""
    found = []
    for case in load("task-states.json"):
        places = {
            p if isinstance(p, str) else p["key"]: None if isinstance(p, str) else p["score_minus_now"]
            for p in case["in"]
        }
        answer = case["get"][1].get("Info", {})
        found.append(
            RecordedTask(
                case["label"],
                case["queue"],
                case["id"],
                {name: _bytes(value) for name, value in case["hash"].items()},
                case["ttl"],
                case["reverse_ttl"],
                places,
                case["at"],
                answer,
            )
        )
    return found


def snapshot_tasks(name: str, at: float) -> list[RecordedTask]:
    """The tasks of a whole database that was recorded at the unix time ``at``."""
    database = load(name)
    found = []
    for key, entry in database.items():
        if ":t:" not in key or not key.startswith("asynq:{"):
            continue
        queue, id_ = key.removeprefix("asynq:{").split("}:t:")
        places: dict[str, float | None] = {}
        for state in State:
            container = database.get(keys.container(queue, state), {"value": []})["value"]
            for member in container:
                if member == id_:
                    places[state] = None
                elif member[0] == id_:
                    places[state] = member[1] - at
        fields = {field_name: _bytes(value) for field_name, value in entry["value"].items()}
        reverse_ttl = database[keys.reverse(id_)]["ttl"]
        found.append(RecordedTask(f"{name} {id_[:4]}", queue, id_, fields, entry["ttl"], reverse_ttl, places, at))
    return found


PENDING_AT, AFTER_AT = 1796124690.0, 1796124744.0


def all_tasks() -> list[RecordedTask]:
    """Every recorded task that still exists."""
    tasks = cases() + snapshot_tasks("redis-pending.json", PENDING_AT) + snapshot_tasks("redis-after.json", AFTER_AT)
    return [task for task in tasks if task.fields]


def of_today(task: RecordedTask) -> dict[str, bytes]:
    """The hash with its times moved to now."""
    moved = dict(task.fields)
    shift = time.time() - task.at
    for name in TIME_FIELDS:
        if name in moved:
            moved[name] = str(round(int(moved[name]) + shift)).encode()
    since = moved.get("pending_since")
    if since:
        seconds = len(since) < 13
        moved["pending_since"] = str(round(int(since) + shift * (1 if seconds else 1e9))).encode()
    return moved


async def put(connection: Connection, task: RecordedTask, more: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """Write one recorded task as it stood, moved to now; returns its hash."""
    fields = of_today(task) | (more or {})
    key, reverse = keys.task(task.queue, task.id), keys.reverse(task.id)
    await connection.command("HSET", key, *(part for pair in fields.items() for part in pair))
    await connection.command("HSET", reverse, "queue", task.queue)
    for name, ttl in ((key, task.ttl), (reverse, task.reverse_ttl)):
        if ttl > 0:
            await connection.command("EXPIRE", name, ttl)
    for place, score in task.places.items():
        container = keys.prefix(task.queue) + place
        if score is None:
            await connection.command("LPUSH", container, task.id)
        else:
            await connection.command("ZADD", container, time.time() + score, task.id)
    await connection.command("SADD", keys.QUEUES, task.queue)
    return fields


async def put_database(connection: Connection, name: str, at: float) -> None:
    """Write a whole recorded database, its times moved to now."""
    for task in snapshot_tasks(name, at):
        await put(connection, task)
    for key, entry in load(name).items():
        if key.startswith("asynq:t:") or ":t:" in key or any(key.endswith(f":{state}") for state in State):
            if entry["type"] == "list":
                await connection.command("DEL", key)
                await connection.command("RPUSH", key, *entry["value"])
            continue
        match entry["type"]:
            case "set":
                await connection.command("SADD", key, *entry["value"])
            case "string":
                await connection.command("SET", key, entry["value"])
            case "hash":
                await connection.command("HSET", key, *(part for pair in entry["value"].items() for part in pair))
            case "zset":
                for member, score in entry["value"]:
                    await connection.command("ZADD", key, score, member)


Field = tuple[int, bytes]
"""A top-level field of a message: its number, and its bytes with the tag."""


def message_fields(message: bytes) -> list[Field]:
    """The fields in order, read without knowing any of them."""
    found, at = [], 0
    while at < len(message):
        begin = at
        tag, at = _varint(message, at)
        match tag & 7:
            case 0:
                _, at = _varint(message, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint(message, at)
                at += size
            case 5:
                at += 4
            case wire:
                raise AssertionError(f"wire type {wire}")
        found.append((tag >> 3, message[begin:at]))
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
