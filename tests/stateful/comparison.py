"""Holds what stands in Redis against the model: the invariants after each step."""

from __future__ import annotations

import time
from collections import defaultdict

import msgspec
from harness.keyspace import Keyspace

from runqy.tasks.message import decode
from runqy.tasks.state import State
from stateful.promises import FOREVER, KEPT_ATTEMPTS, Ended, Life, Promises

SLACK = 4.0
"""Seconds that an operation may take on a busy machine. The model's limits lie 5 s beside the clock's jumps, so
this decides nothing; where Redis wrote a second it is taken over."""


class Comparison:
    """One look at Redis. `check` raises AssertionError naming the first promise that does not hold."""

    def __init__(self, promises: Promises, keyspace: Keyspace) -> None:
        self.promises = promises
        self.keys = keyspace
        self.owned: set[str] = set()

    def check(self) -> None:
        for queue in self.promises.queues:
            self._containers(queue)
            self._counters(queue)
        for life in self.promises.lives.values():
            self._task(life)
            self._reverse(life)
        self._once_records()
        self._registers()
        self._strangers()

    def _key(self, queue: str, name: str) -> str:
        key = f"asynq:{{{queue}}}:{name}"
        self.owned.add(key)
        return key

    # Each task in exactly one place that agrees with its state

    def _containers(self, queue: str) -> None:
        assert list(reversed(self.keys.lists.get(self._key(queue, "pending"), []))) == self.promises.pending[queue]
        active = {life.id: life for life in self.promises.of(queue, State.ACTIVE)}
        listed = self.keys.lists.get(self._key(queue, "active"), [])
        assert sorted(listed) == sorted(active), f"active: {listed} instead of {sorted(active)}"
        leases = {id_: life.lease for id_, life in active.items() if life.lease is not None}
        self._scores(queue, "lease", leases)
        for state in (State.SCHEDULED, State.RETRY):
            lives = self.promises.of(queue, state)
            self._scores(queue, state.value, {life.id: life.due for life in lives if life.due is not None})
        for state in (State.COMPLETED, State.ARCHIVED):
            self._history_entries(queue, state)

    def _scores(self, queue: str, name: str, expected: dict[str, float]) -> None:
        found = self.keys.zsets.get(self._key(queue, name), {})
        assert set(found) == set(expected), f"{queue} {name}: {sorted(found)} instead of {sorted(expected)}"
        for id_, score in found.items():
            assert -1 <= score - expected[id_] <= SLACK, f"{queue}/{id_} {name} {score} instead of {expected[id_]}"

    def _history_entries(self, queue: str, state: State) -> None:
        found = self.keys.zsets.get(self._key(queue, state.value), {})
        lives = {life.id: life for life in self.promises.of(queue, state)}
        assert set(lives) <= set(found), f"{queue} {state}: missing {set(lives) - set(found)}"
        for id_, score in found.items():
            life = lives.get(id_)
            if life is None:
                # Left for the janitor, which deletes the reverse key with it.
                assert score <= self.promises.now, f"{queue}/{id_} in {state} until {score} without being there"
            elif life.expires is None:
                assert score >= self.promises.now + FOREVER / 2
            else:
                assert 0 <= score - life.expires <= SLACK, f"{queue}/{id_} in {state} until {score}, {life.expires}"
                life.expires = int(score)

    # One task: state, message, stamps, expiry

    def _task(self, life: Life) -> None:
        key = self._key(life.queue, f"t:{life.id}")
        fields = self.keys.hashes.get(key)
        assert fields is not None, f"{life.queue}/{life.id} is lost; it should be {life.state}"
        name = f"{life.queue}/{life.id}"
        assert fields["state"].decode() == life.state, f"{name} is {fields['state']!r} instead of {life.state}"
        expiry = self.keys.expiry[key]
        assert expiry == (-1 if life.expires is None else life.expires * 1000), (
            f"{name} expires {expiry}, {life.expires}"
        )
        self._message(life, name, fields)
        limits = life.task.limits
        for lever in ("ttl_completed", "ttl_archived", "pending_timeout", "active_timeout"):
            assert fields[lever] == str(getattr(limits, lever)).encode(), f"{name}: the stamp {lever} changed"
        assert int(fields.get("retried", b"0")) == life.retried, f"{name}: retried {fields.get('retried')!r}"
        assert _is_reason(fields.get("error_msg", b"").decode(), life.error)
        assert ("attempt" in fields) == (life.state is State.ACTIVE)
        if life.state is State.ACTIVE:
            assert fields["attempt"].decode().startswith(life.token + " ")
            assert ("cancel" in fields) == life.cancel
        assert ("pending_since" in fields) == (life.state is State.PENDING)
        if life.state is State.PENDING:
            assert life.since is not None
            assert -1 <= int(fields["pending_since"]) / 1e9 - life.since <= SLACK, f"{name}: pending_since"
        assert fields.get("result") == life.result
        endings = [msgspec.json.decode(line)[4] for line in fields.get("attempts", b"").split(b"\n") if line]
        assert endings == life.endings[-KEPT_ATTEMPTS:], f"{name}: attempts {endings} instead of {life.endings}"
        assert life.starts <= limits.max_retry + 1 + life.give_backs, f"{name} was started {life.starts} times"

    def _message(self, life: Life, name: str, fields: dict[str, bytes]) -> None:
        raw = fields["msg"]
        assert raw.startswith(life.task.encode()), f"{name}: a field of its message is lost"
        message = decode(raw)
        assert message.retried == life.retried, f"{name}: message {message}"
        assert _is_reason(message.error_msg, life.error), f"{name}: message {message}"
        assert abs(message.last_failed_at - (life.failed_at or 0)) <= SLACK
        assert abs(message.completed_at - (life.completed_at or 0)) <= SLACK

    def _reverse(self, life: Life) -> None:
        key = f"asynq:t:{life.id}"
        self.owned.add(key)
        fields = self.keys.hashes.get(key)
        if fields is None:
            assert not life.reverse_known, f"{life.id} can't be found by its id alone"
            return
        assert fields == {"queue": life.queue.encode()}
        expiry = self.keys.expiry[key]
        if life.expires is None:
            assert expiry == -1, f"the reverse key of {life.id} ({life.state}) expires"
        elif life.settled:
            assert expiry == life.expires * 1000, f"the reverse key of {life.id}: {expiry}, not {life.expires}"
        else:
            assert expiry in {-1, life.expires * 1000}

    def _once_records(self) -> None:
        for (queue, digest), record in self.promises.once.items():
            key = self._key(queue, f"once:{digest}")
            assert self.keys.strings[key].decode().split(" ")[:2] == [record.id, record.body_hash]
            until, expiry = record.until, self.keys.expiry[key]
            if until is None:
                assert expiry == -1, f"{key} expires {expiry}"
            else:
                assert 0 <= expiry / 1000 - until <= SLACK, f"{key} expires {expiry} instead of {until}"
                record.until = expiry // 1000

    # Counters equal the history of events (decision 40)

    def _counters(self, queue: str) -> None:
        ended = self.promises.ended[queue]
        wrongly = [event for event in ended if event.failed]
        for name, events in (("processed", ended), ("failed", wrongly)):
            assert int(self.keys.strings.get(self._key(queue, name), b"0")) == len(events), f"{queue} {name}"
            days: dict[str, int] = defaultdict(int)
            for event in events:
                days[time.strftime("%Y-%m-%d", time.gmtime(event.at))] += 1
            for day, count in days.items():
                key = self._key(queue, f"{name}:{day}")
                assert int(self.keys.strings[key]) == count, f"{key} is {self.keys.strings[key]!r} instead of {count}"
                assert self.keys.expiry[key] != -1
        self._slots(queue, ended, "m", 60, 60, 86400)
        self._slots(queue, ended, "h", 3600, 24, 2592000)

    def _slots(self, queue: str, ended: list[Ended], letter: str, slot: int, per_key: int, kept: int) -> None:
        """Minutes by hour, hours by day: each slot holds the events of its time, each key ends in its time."""
        expected: dict[tuple[int, int], list[Ended]] = defaultdict(list)
        for event in ended:
            number = int(event.at) // slot
            if (number // per_key + 1) * per_key * slot + kept > self.promises.now:
                expected[number // per_key, number % per_key].append(event)
        found: dict[tuple[int, int], bytes] = {}
        for whole in {number for number, _ in expected}:
            key = self._key(queue, f"history:{letter}:{whole}")
            found |= {(whole, int(field)): packed for field, packed in self.keys.hashes[key].items()}
            assert self.keys.expiry[key] == ((whole + 1) * per_key * slot + kept) * 1000
        assert set(found) == set(expected), f"{queue}: slots {sorted(found)} instead of {sorted(expected)}"
        for at, events in expected.items():
            processed, failed, waits, runs = msgspec.msgpack.decode(found[at])
            counts = (processed, failed, sum(waits[1::2]), sum(runs[1::2]))
            wanted = tuple(
                sum(getattr(event, name) if name else 1 for event in events)
                for name in ("", "failed", "has_wait", "has_run")
            )
            assert counts == wanted, f"{queue} {letter} {at}: {counts} instead of {wanted}"

    def _registers(self) -> None:
        self.owned.add("asynq:queues")
        assert self.keys.sets.get("asynq:queues", set()) >= self.promises.registered
        paused = {q for q in self.promises.queues if self._key(q, "paused") in self.keys.strings}
        assert paused == self.promises.paused

    def _strangers(self) -> None:
        """Every key has an owner; a reverse key without a task waits for the janitor or for its own end."""
        left_for_janitor = {
            id_
            for queue in self.promises.queues
            for state in (State.COMPLETED, State.ARCHIVED)
            for id_ in self.keys.members(queue, state)
        }
        for key, expiry in self.keys.expiry.items():
            if key in self.owned:
                continue
            assert key.startswith("asynq:t:"), f"nobody owns the key {key}"
            assert expiry != -1 or key.removeprefix("asynq:t:") in left_for_janitor, f"{key} stays for ever"


def _is_reason(text: str, expected: str) -> bool:
    """Whether the error is the expected one; how long a task waited is said to the millisecond's chance."""
    return text.startswith(expected) if expected == "pending timeout" else text == expected
