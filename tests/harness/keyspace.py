"""Everything that stands in Redis, read at once, and what must hold for it whatever happened before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from runqy.broker.connection import Connection
from runqy.tasks.state import State

_DUMP = """
local out = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local value
  if kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  else value = redis.call('GET', key) end
  out[#out + 1] = { key, kind, value, redis.call('PEXPIRETIME', key) }
end
return out
"""


@dataclass
class Keyspace:
    """All keys, typed; ``expiry`` is unix milliseconds of each key, -1 for never."""

    hashes: dict[str, dict[str, bytes]] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    zsets: dict[str, dict[str, float]] = field(default_factory=dict)
    sets: dict[str, set[str]] = field(default_factory=dict)
    strings: dict[str, bytes] = field(default_factory=dict)
    expiry: dict[str, int] = field(default_factory=dict)

    def add(self, key: str, kind: str, value: Any, expiry: int) -> None:
        self.expiry[key] = expiry
        match kind:
            case "hash":
                pairs = (
                    list(value.items()) if isinstance(value, dict) else list(zip(value[::2], value[1::2], strict=True))
                )
                self.hashes[key] = {name.decode(): text for name, text in pairs}
            case "list":
                self.lists[key] = [item.decode() for item in value]
            case "zset":
                pairs = (
                    value
                    if value and isinstance(value[0], (tuple, list))
                    else list(zip(value[::2], value[1::2], strict=True))
                )
                self.zsets[key] = {member.decode(): float(score) for member, score in pairs}
            case "set":
                self.sets[key] = {item.decode() for item in value}
            case _:
                self.strings[key] = value

    def tasks(self, queue: str) -> dict[str, dict[str, bytes]]:
        """The task hashes of a queue by id."""
        prefix = f"asynq:{{{queue}}}:t:"
        return {key.removeprefix(prefix): h for key, h in self.hashes.items() if key.startswith(prefix)}

    def waiting(self, queue: str) -> list[str]:
        """Ids in pending, the next to leave first, without the blanks of tasks taken out."""
        return [id_ for id_ in reversed(self.lists.get(f"asynq:{{{queue}}}:pending", [])) if id_]

    def members(self, queue: str, state: State) -> list[str]:
        """The ids in the container of one state."""
        if state is State.PENDING:
            return self.waiting(queue)
        key = f"asynq:{{{queue}}}:{state}"
        return self.lists.get(key, []) if state is State.ACTIVE else list(self.zsets.get(key, {}))


_VALUES = {
    "hash": ("HGETALL",),
    "list": ("LRANGE", 0, -1),
    "zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    "set": ("SMEMBERS",),
    "string": ("GET",),
}


async def read_keyspace(connection: Connection) -> Keyspace:
    """Read every key: in one atomic script, or key by key on a Cluster."""
    keyspace = Keyspace()
    if not connection.is_cluster:
        for key, kind, value, expiry in await connection.client.eval(_DUMP, 0):
            keyspace.add(key.decode(), kind.decode(), value, expiry)
        return keyspace
    for key in await all_keys(connection):
        kind = (await connection.command("TYPE", key)).decode()
        if kind == "none":
            continue
        verb, *rest = _VALUES[kind]
        value = await connection.command(verb, key, *rest)
        keyspace.add(key, kind, value, await connection.command("PEXPIRETIME", key))
    return keyspace


async def all_keys(connection: Connection) -> list[str]:
    """The names of all keys, of every master."""
    if not connection.is_cluster:
        return sorted(key.decode() for key in await connection.client.execute_command("KEYS", "*"))
    found: list[str] = []
    for node in connection.client.get_primaries():
        keys = await connection.client.execute_command("KEYS", "*", target_nodes=node)
        found += [key.decode() for key in (keys[node.name] if isinstance(keys, dict) else keys)]
    return sorted(found)


async def wipe(connection: Connection) -> None:
    """Empty every master."""
    if not connection.is_cluster:
        await connection.client.execute_command("FLUSHALL")
        return
    for node in connection.client.get_primaries():
        await connection.client.execute_command("FLUSHALL", target_nodes=node)


def misplaced(keyspace: Keyspace, queues: Iterable[str]) -> list[str]:
    """What is wrong with where tasks are: each must stand once, in the container of its state, and nowhere else."""
    problems: list[str] = []
    for queue in queues:
        tasks = keyspace.tasks(queue)
        places: dict[str, list[State]] = {}
        for state in State:
            for id_ in keyspace.members(queue, state):
                places.setdefault(id_, []).append(state)
        for id_, fields in tasks.items():
            state = State(fields["state"].decode())
            if places.get(id_) != [state]:
                problems.append(f"{queue}/{id_} is {state} and stands in {places.get(id_)}")
        problems += [
            f"{queue}/{id_} stands in {where} and has no hash" for id_, where in places.items() if id_ not in tasks
        ]
        leases, held = (
            set(keyspace.zsets.get(f"asynq:{{{queue}}}:lease", {})),
            set(keyspace.members(queue, State.ACTIVE)),
        )
        if leases - held:
            problems.append(f"{queue}: leases of tasks that are not active: {sorted(leases - held)}")
        problems += [
            f"{queue}/{id_} is unfinished ({fields['state'].decode()}) and expires"
            for id_, fields in tasks.items()
            if fields["state"] not in {b"completed", b"archived"}
            and keyspace.expiry[f"asynq:{{{queue}}}:t:{id_}"] != -1
        ]
    return problems
