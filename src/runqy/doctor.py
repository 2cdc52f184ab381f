"""Checks of a running system, one function each: ok, or what is wrong and what mends it.

Each looks and changes nothing. `examine` runs all of them; a check whose dependency is gone says so and the others
go on.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from runqy.broker import keys
from runqy.broker.connection import Connection
from runqy.broker.inspector import Inspector, QueueCounts
from runqy.broker.workers import WorkerRecord, WorkerRegistry
from runqy.errors import RunqyError
from runqy.settings.server import ServerSettings
from runqy.store.catalog import QueueCatalog
from runqy.store.database import Database
from runqy.tasks.limits import PENDING_TIMEOUT, Override, resolve
from runqy.telemetry import redact
from runqy.timing import format_duration

OLDEST_REDIS = (6, 2)
MOST_SKEW_SECONDS = 2.0
RATE_SECONDS = 900
_LISTED = 5


class Status(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; ``fix`` is the command or setting that mends it."""

    name: str
    status: Status
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Patient:
    """What the checks look at."""

    settings: ServerSettings
    connection: Connection
    inspector: Inspector
    workers: WorkerRegistry
    database: Database
    catalog: QueueCatalog
    embedded: bool


@dataclass(frozen=True, slots=True)
class _Look:
    """What several checks need, read once."""

    info: Mapping[str, str]
    queues: tuple[QueueCounts, ...]
    records: tuple[WorkerRecord, ...]
    now: float

    def serving(self, queue: str) -> list[WorkerRecord]:
        """Workers that are there and serve a queue."""
        return [record for record in self.records if queue in record.queues and not record.is_stale(self.now)]


async def examine(patient: Patient) -> list[Finding]:
    """Every check's finding, in a fixed order."""
    findings = [await _guarded("database", lambda: _database(patient)), _keys(patient)]
    try:
        look = await _look(patient)
    except RunqyError as error:
        hint = error.hint or "start it, or check RUNQY_REDIS_URL"
        return [Finding("redis", Status.PROBLEM, redact(str(error)), hint), *findings]
    checks: tuple[tuple[str, Callable[[], Awaitable[Finding]]], ...] = (
        ("redis", lambda: _redis(look)),
        ("redis persistence", lambda: _persistence(patient, look)),
        ("redis memory", lambda: _memory(patient, look)),
        ("clock", lambda: _clock(patient)),
    )
    findings = [*[await _guarded(name, check) for name, check in checks], *findings]
    findings += [_workers(look), _unserved(look), _paused(look), _configuration(patient)]
    findings.append(await _guarded("stuck tasks", lambda: _stuck(patient, look)))
    findings.append(await _guarded("waiting tasks", lambda: _too_slow(patient, look)))
    return findings


async def _guarded(name: str, check: Callable[[], Awaitable[Finding]]) -> Finding:
    try:
        return await check()
    except RunqyError as error:
        return Finding(name, Status.PROBLEM, redact(str(error)), error.hint)


async def _look(patient: Patient) -> _Look:
    text = await patient.connection.command("INFO")
    if isinstance(text, bytes):
        pairs = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines() if ":" in line)
        info = {name: value for name, _, value in pairs}
    else:
        info = {str(name): str(value) for name, value in text.items()}
    counts = await patient.inspector.counts_of(await patient.inspector.queues())
    return _Look(info, tuple(counts), tuple(await patient.workers.all()), time.time())


async def _redis(look: _Look) -> Finding:
    version = look.info.get("valkey_version") or look.info.get("redis_version", "?")
    kind = "Valkey" if "valkey_version" in look.info else "Redis"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST_REDIS:
        oldest = ".".join(map(str, OLDEST_REDIS))
        return Finding("redis", Status.PROBLEM, f"{kind} {version} is too old", f"upgrade it to {oldest} or newer")
    return Finding("redis", Status.OK, f"{kind} {version} answers")


async def _persistence(patient: Patient, look: _Look) -> Finding:
    name = "redis persistence"
    if look.info.get("aof_last_write_status", "ok") != "ok" or look.info.get("rdb_last_bgsave_status", "ok") != "ok":
        return Finding(name, Status.PROBLEM, "Redis could not write to its disk", "make room on the disk of Redis")
    if look.info.get("aof_enabled") == "1":
        return Finding(name, Status.OK, "the append-only file is on")
    return Finding(
        name,
        Status.WARNING,
        "the append-only file is off: a restart of Redis loses the newest tasks",
        "redis-cli CONFIG SET appendonly yes, and appendonly yes in redis.conf",
    )


async def _memory(patient: Patient, look: _Look) -> Finding:
    name = "redis memory"
    policy, most = look.info.get("maxmemory_policy", "noeviction"), int(look.info.get("maxmemory", "0") or 0)
    used = int(look.info.get("used_memory", "0") or 0)
    if policy != "noeviction" and most:
        return Finding(
            name,
            Status.PROBLEM,
            f"Redis deletes tasks when its memory is full (maxmemory-policy is {policy})",
            "redis-cli CONFIG SET maxmemory-policy noeviction",
        )
    if most and used > most * 0.9:
        detail = f"{used * 100 // most} % of {most >> 20} MiB are used"
        return Finding(name, Status.WARNING, detail, "raise maxmemory, or lower ttl_completed and ttl_archived")
    return Finding(name, Status.OK, f"{used >> 20} MiB used" + (f" of {most >> 20} MiB" if most else ", no bound"))


async def _clock(patient: Patient) -> Finding:
    before = time.time()
    seconds, micros = await patient.connection.command("TIME")
    skew = int(seconds) + int(micros) / 1e6 - (before + time.time()) / 2
    if abs(skew) > MOST_SKEW_SECONDS:
        detail = f"the clock of Redis is {skew:+.1f} s off this machine's"
        return Finding("clock", Status.WARNING, detail, "let both machines keep time by NTP (timedatectl set-ntp true)")
    return Finding("clock", Status.OK, f"{abs(skew) * 1000:.0f} ms between this machine and Redis")


async def _database(patient: Patient) -> Finding:
    await patient.database.ping()
    return Finding("database", Status.OK, f"{patient.database.shown} answers")


def _keys(patient: Patient) -> Finding:
    settings = patient.settings
    missing = [
        variable
        for variable, key in (
            ("RUNQY_WORKER_API_KEY", settings.worker_api_key),
            ("RUNQY_CLIENT_API_KEY", settings.client_api_key),
        )
        if key is None
    ]
    if settings.public_results:
        detail = "results can be read without a key by whoever knows an id (RUNQY_PUBLIC_RESULTS)"
        return Finding("keys", Status.WARNING, detail, "unset RUNQY_PUBLIC_RESULTS unless this is meant")
    if missing and not patient.embedded:
        detail = f"workers or callers share the admin key: {' and '.join(missing)} not set"
        return Finding("keys", Status.WARNING, detail, "set them, or make keys with `runqy key create`")
    return Finding("keys", Status.OK, "an admin key is set")


def _workers(look: _Look) -> Finding:
    stale = [record.worker_id for record in look.records if record.is_stale(look.now)]
    degraded = [record for record in look.records if record.status == "degraded" and not record.is_stale(look.now)]
    if degraded:
        first = degraded[0]
        why = f": {first.detail[-1]}" if first.detail else ""
        detail = f"{len(degraded)} degraded, {first.worker_id} among them{why}"
        return Finding("workers", Status.PROBLEM, redact(detail), f"runqy worker restart {first.worker_id}")
    if stale:
        detail = f"{len(stale)} not heard of for 30 s: {_some(stale)}"
        return Finding("workers", Status.WARNING, detail, "look at those machines; their tasks are given to others")
    if not look.records:
        return Finding("workers", Status.WARNING, "no worker is there", "runqy worker start --queues QUEUE")
    return Finding("workers", Status.OK, f"{len(look.records)} there, all heard of")


def _unserved(look: _Look) -> Finding:
    alone = [entry for entry in look.queues if entry.pending and not look.serving(entry.queue)]
    if alone:
        detail = f"tasks wait where no worker serves: {_some([f'{q.queue} ({q.pending})' for q in alone])}"
        parent = alone[0].queue.partition(".")[0]
        return Finding("queues without workers", Status.PROBLEM, detail, f"runqy worker start --queues {parent}")
    return Finding("queues without workers", Status.OK, "every waiting task has a worker")


def _paused(look: _Look) -> Finding:
    paused = [entry for entry in look.queues if entry.paused]
    if not paused:
        return Finding("paused queues", Status.OK, "none")
    detail = _some([f"{entry.queue} ({entry.pending} waiting)" for entry in paused])
    return Finding("paused queues", Status.WARNING, detail, f"runqy queue unpause {paused[0].queue}")


def _configuration(patient: Patient) -> Finding:
    warnings = patient.catalog.warnings
    if warnings:
        return Finding("configuration", Status.PROBLEM, _some(list(warnings)), "runqy config validate")
    if not patient.catalog.full_names():
        return Finding("configuration", Status.WARNING, "no queue is configured", "runqy config create --help")
    return Finding("configuration", Status.OK, f"{len(patient.catalog.full_names())} queues")


async def _stuck(patient: Patient, look: _Look) -> Finding:
    """Active tasks whose lease ran out two recovery periods ago: recovery should have taken them."""
    active = [entry.queue for entry in look.queues if entry.active]
    late = int(look.now) - 120
    replies = await patient.connection.run([("ZCOUNT", keys.lease(queue), "-inf", late) for queue in active])
    stuck = [queue for queue, reply in zip(active, replies, strict=True) if isinstance(reply, int) and reply > 0]
    if stuck:
        detail = f"tasks without a living worker are not recovered in {_some(stuck)}"
        return Finding("stuck tasks", Status.PROBLEM, detail, "restart one server or worker; the log says what fails")
    return Finding("stuck tasks", Status.OK, f"{sum(entry.active for entry in look.queues)} running, all with a lease")


async def _too_slow(patient: Patient, look: _Look) -> Finding:
    """Queues whose oldest task will pass its pending_timeout before its turn, at the present pace."""
    late = []
    for entry in look.queues:
        found = patient.catalog.lookup(entry.queue)
        if found is None or not entry.pending:
            continue
        limit = resolve(patient.settings.defaults, found[0].limits, Override()).value(PENDING_TIMEOUT)
        if limit and entry.latency > limit / 2:
            waits = format_duration(int(entry.latency) * 1_000_000_000)
            allowed = format_duration(limit * 1_000_000_000)
            late.append(f"{entry.queue} (oldest waits {waits} of {allowed})")
    if late:
        return Finding("waiting tasks", Status.PROBLEM, _some(late), "add workers, or raise pending_timeout")
    return Finding("waiting tasks", Status.OK, "none is near its pending_timeout")


def _some(names: list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
