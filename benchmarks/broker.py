"""Full task lives through `Broker`, beside the bare minimum of Redis work, in one run on one server.

    python benchmarks/broker.py [--peers DIR] [--server valkey|redis] [--tasks 40000] [--rounds 3]

The baseline moves ids and messages between asynq's keys with three small scripts and nothing else: no stamps,
no limits, no ownership, no counters by day, no history, no reverse key. With `--peers` the folder's own
`raw/lifecycle.py` is measured as well. Figures are comparable only within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from harness.redis_servers import RedisServer, redis_binary, running, valkey_binary  # noqa: E402

from runqy.broker.broker import Broker  # noqa: E402
from runqy.broker.connection import Connection, connected  # noqa: E402
from runqy.broker.transitions import AttemptEnd  # noqa: E402
from runqy.tasks.limits import Limits  # noqa: E402
from runqy.tasks.message import NewTask, new_task_id  # noqa: E402
from runqy.tasks.outcome import Complete  # noqa: E402

BATCH = 100
IN_FLIGHT = 4
QUEUE = "bench.default"
PAYLOAD = json.dumps({"x": 1, "text": "a" * 80}).encode()
RESULT = json.dumps({"result": {"x": 1, "text": "a" * 80}}).encode()
LIMITS = Limits()

BARE = {
    "enqueue": """
for i = 2, #ARGV, 2 do
  local key = ARGV[1] .. ARGV[i]
  if redis.call('EXISTS', key) == 0 then
    redis.call('HSET', key, 'msg', ARGV[i + 1], 'state', 'pending', 'pending_since', '1700000000000000000')
    redis.call('LPUSH', KEYS[1], ARGV[i])
  end
end""",
    "take": """
local out = {}
for _ = 1, tonumber(ARGV[2]) do
  local id = redis.call('RPOPLPUSH', KEYS[1], KEYS[2])
  if not id then break end
  local key = ARGV[1] .. id
  redis.call('HSET', key, 'state', 'active')
  redis.call('HDEL', key, 'pending_since')
  redis.call('ZADD', KEYS[3], '1700000030', id)
  out[#out + 1] = id
  out[#out + 1] = redis.call('HGET', key, 'msg')
end
return out""",
    "done": """
local n = 0
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  if redis.call('LREM', KEYS[1], 1, id) == 1 then
    local key = ARGV[1] .. id
    redis.call('ZREM', KEYS[2], id)
    redis.call('ZADD', KEYS[3], '1700086400', id)
    redis.call('HSET', key, 'state', 'completed', 'result', ARGV[i + 1], 'completed_at', '1700000001')
    redis.call('EXPIRE', key, '86400')
    n = n + 1
  end
end
redis.call('INCRBY', KEYS[4], n)
redis.call('INCRBY', KEYS[5], n)
return n""",
}


async def abreast(count: int, work: Callable[[], Awaitable[bool]]) -> None:
    """Run `work` until it says that nothing is left, `count` at a time."""

    async def one() -> None:
        while await work():
            pass

    await asyncio.gather(*(one() for _ in range(count)))


async def one_batch(broker: Broker, token: str) -> int:
    """Pick up and finish a batch; how many tasks it was."""
    pickup = await broker.pick_up([QUEUE], BATCH, token=token, starting=BATCH, fallback=LIMITS)
    if not pickup.tasks:
        return 0
    ends = [AttemptEnd(t.queue, t.id, t.token, Complete(RESULT), t.limits, 0.001, t.wait) for t in pickup.tasks]
    return sum(await broker.finish(ends))


async def through_broker(connection: Connection, tasks: int) -> tuple[float, float]:
    """Seconds for enqueuing, and for picking up and finishing, everything that runqy promises included."""
    broker = Broker(connection)
    chunks = [[NewTask(new_task_id(), QUEUE, PAYLOAD, LIMITS) for _ in range(BATCH)] for _ in range(tasks // BATCH)]
    started = time.perf_counter()

    async def enqueue() -> bool:
        if chunks:
            await broker.enqueue(chunks.pop())
        return bool(chunks)

    await abreast(IN_FLIGHT, enqueue)
    enqueued = time.perf_counter()
    calls, finished = iter(range(10**9)), 0

    async def live() -> bool:
        nonlocal finished
        done = await one_batch(broker, f"host:1:abcdef#{next(calls)}")
        finished += done
        return done > 0

    await abreast(IN_FLIGHT, live)
    ended = time.perf_counter()
    assert finished == tasks, (finished, tasks)
    return enqueued - started, ended - enqueued


async def bare(connection: Connection, tasks: int) -> tuple[float, float]:
    """The same number of lives with the bare scripts above."""
    client = connection.client
    sha = {name: await client.script_load(text) for name, text in BARE.items()}
    prefix = "asynq:{bare}:"
    pending, active, lease, completed = (prefix + name for name in ("pending", "active", "lease", "completed"))
    message = json.dumps({"type": "task", "payload": {"x": 1, "text": "a" * 80}, "queue": "bare"})
    ids = [f"{i:032d}" for i in range(tasks)]
    chunks = [ids[i : i + BATCH] for i in range(0, tasks, BATCH)]
    started = time.perf_counter()

    async def enqueue() -> bool:
        if chunks:
            rows = [x for id_ in chunks.pop() for x in (id_, message)]
            await client.evalsha(sha["enqueue"], 1, pending, prefix + "t:", *rows)
        return bool(chunks)

    await abreast(IN_FLIGHT, enqueue)
    enqueued = time.perf_counter()
    finished = 0

    async def live() -> bool:
        nonlocal finished
        got = await client.evalsha(sha["take"], 3, pending, active, lease, prefix + "t:", BATCH)
        if not got:
            return False
        rows = [x for id_ in got[::2] for x in (id_, RESULT)]
        counters = (prefix + "processed", prefix + "processed:today")
        done = await client.evalsha(sha["done"], 5, active, lease, completed, *counters, prefix + "t:", *rows)
        finished += done
        return True

    await abreast(IN_FLIGHT, live)
    ended = time.perf_counter()
    assert finished == tasks, (finished, tasks)
    return enqueued - started, ended - enqueued


def peer_driver(folder: Path, server: RedisServer) -> Callable[[Connection, int], Awaitable[tuple[float, float]]]:
    """`raw/lifecycle.py` of the peers' folder: 100 per call, 4 in flight, through redis-py."""
    sys.path.insert(0, str(folder / "raw"))
    spec = importlib.util.spec_from_file_location("lifecycle", folder / "raw" / "lifecycle.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["lifecycle"] = module
    spec.loader.exec_module(module)

    async def drive(_: Connection, tasks: int) -> tuple[float, float]:
        seconds: tuple[float, float] = await module.d_redis_async(server.port, None, tasks, BATCH, "conc", IN_FLIGHT)
        return seconds

    return drive


async def memory_per_pending_task(connection: Connection, tasks: int = 20_000) -> float:
    """Bytes that one pending task with a 100-byte payload costs: hash, list entry, reverse key, everything."""
    await connection.command("FLUSHALL", "SYNC")
    broker = Broker(connection)
    before = (await connection.client.info("memory"))["used_memory"]
    for _ in range(tasks // BATCH):
        await broker.enqueue([NewTask(new_task_id(), QUEUE, PAYLOAD, LIMITS) for _ in range(BATCH)])
    after = (await connection.client.info("memory"))["used_memory"]
    return float(after - before) / tasks


async def redis_cpu(connection: Connection) -> float:
    info = await connection.client.info("cpu")
    return float(info["used_cpu_sys"]) + float(info["used_cpu_user"])


async def commands_and_cpu(connection: Connection, waiting: int, lives: int = 2_000) -> tuple[float, float]:
    """Redis commands and CPU microseconds of one task life while `waiting` tasks are pending."""
    await connection.command("FLUSHALL")
    broker = Broker(connection)
    for start in range(0, waiting, 1000):
        size = min(1000, waiting - start)
        await broker.enqueue([NewTask(new_task_id(), QUEUE, PAYLOAD, LIMITS) for _ in range(size)])
    calls_before = await _calls(connection)
    cpu_before = await redis_cpu(connection)
    for number in range(lives // BATCH):
        await broker.enqueue([NewTask(new_task_id(), QUEUE, PAYLOAD, LIMITS) for _ in range(BATCH)])
        got = await broker.pick_up([QUEUE], BATCH, token=f"w#{number}", starting=BATCH, fallback=LIMITS)
        await broker.finish(
            [AttemptEnd(t.queue, t.id, t.token, Complete(RESULT), t.limits, 0.001, t.wait) for t in got.tasks]
        )
    cpu = (await redis_cpu(connection) - cpu_before) / lives * 1e6
    return (await _calls(connection) - calls_before) / lives, cpu


async def _calls(connection: Connection) -> int:
    stats = await connection.client.info("commandstats")
    return sum(int(row["calls"]) for row in stats.values())


async def purge_beside_enqueue(connection: Connection, expired: int) -> tuple[float, float]:
    """p99 (ms) of a lone enqueue, idle and while `expired` tasks are purged."""
    await connection.command("FLUSHALL")
    broker = Broker(connection)
    limits = Limits(ttl_completed=1)
    for number in range(expired // BATCH):
        await broker.enqueue([NewTask(new_task_id(), QUEUE, PAYLOAD, limits) for _ in range(BATCH)])
        got = await broker.pick_up([QUEUE], BATCH, token=f"w#{number}", starting=BATCH, fallback=LIMITS)
        await broker.finish(
            [AttemptEnd(t.queue, t.id, t.token, Complete(RESULT), t.limits, 0.001, t.wait) for t in got.tasks]
        )

    async def p99(seconds: float, until: asyncio.Task[None] | None = None) -> float:
        times = []
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline and not (until and until.done()):
            began = time.perf_counter()
            await broker.enqueue([NewTask(new_task_id(), "other.default", PAYLOAD, LIMITS)])
            times.append(time.perf_counter() - began)
            await asyncio.sleep(0.001)
        return statistics.quantiles(times, n=100)[98] * 1000

    idle = await p99(3)
    connection.offset.advance(100)

    async def purge() -> None:
        while await broker.purge(QUEUE):
            pass

    purging = asyncio.create_task(purge())
    busy = await p99(60, purging)
    await purging
    return idle, busy


async def compare(server: RedisServer, options: argparse.Namespace) -> None:
    async with connected(server.target) as connection:
        drivers: dict[str, Any] = {"runqy": through_broker, "bare scripts": bare}
        if options.peers:
            drivers["raw/lifecycle.py"] = peer_driver(options.peers, server)
        rates: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in drivers}
        for _ in range(options.rounds):
            for name, drive in drivers.items():
                await connection.command("FLUSHALL")
                cpu = await redis_cpu(connection)
                enqueue, work = await drive(connection, options.tasks)
                spent = (await redis_cpu(connection) - cpu) / options.tasks * 1e6
                n = options.tasks
                rates[name].append((n / enqueue, n / work, n / (enqueue + work), spent))
        print(
            "| what | enqueue/s | pick up + finish/s | lives/s (min-max) | Redis us per task |\n|---|---|---|---|---|"
        )
        for name, rows in rates.items():
            median = [statistics.median(column) for column in zip(*rows, strict=True)]
            lives = [row[2] for row in rows]
            print(
                f"| {name} | {median[0]:,.0f} | {median[1]:,.0f} | {median[2]:,.0f} "
                f"({min(lives):,.0f}-{max(lives):,.0f}) | {median[3]:.1f} |"
            )
        ours = statistics.median(row[2] for row in rates["runqy"])
        for name in list(drivers)[1:]:
            print(f"ratio runqy / {name}: {ours / statistics.median(row[2] for row in rates[name]):.2f}")
        print(f"bytes per pending task: {await memory_per_pending_task(connection):.0f}")
        if options.full:
            small, large = await commands_and_cpu(connection, 1_000), await commands_and_cpu(connection, 1_000_000)
            print(f"one life with 1,000 pending: {small[0]:.2f} commands, {small[1]:.1f} us of Redis")
            print(f"one life with 1,000,000 pending: {large[0]:.2f} commands, {large[1]:.1f} us of Redis")
            print(f"ratio of CPU: {large[1] / small[1]:.2f}")
            idle, busy = await purge_beside_enqueue(connection, 200_000)
            print(f"p99 of an enqueue: idle {idle:.2f} ms, while 200,000 tasks are purged {busy:.2f} ms")
            print(f"ratio of p99: {busy / idle:.2f}")
        await connection.command("FLUSHALL")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder with raw/lifecycle.py to run beside ours")
    parser.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    parser.add_argument("--aof", action="store_true", help="with an append-only file, fsync every second")
    parser.add_argument("--tasks", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--full", action="store_true", help="also scale to 1,000,000 pending and purge 200,000")
    options = parser.parse_args()
    binary = valkey_binary() if options.server == "valkey" else redis_binary()
    persistence = ("--appendonly", "yes") if options.aof else ("--appendonly", "no")
    with tempfile.TemporaryDirectory() as folder, running(binary, Path(folder), *persistence) as server:
        uvloop.run(compare(server, options))


if __name__ == "__main__":
    main()
