"""What the lifecycle promises, as a plain model: written from R1..R74 and the decisions, not from the code.

Time is a number that only the machine moves, so every limit is either clearly passed or clearly not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from runqy.tasks.message import NewTask
from runqy.tasks.state import State

LEASE = 25.0
"""Seconds; no multiple of the clock's jumps."""
FREE_LOSSES = 3
ONCE_SECONDS = 86400
FOREVER = 3153600000
KEPT_ATTEMPTS = 20


@dataclass
class Ended:
    """One attempt that counted, for counters and history."""

    at: float
    failed: bool
    has_wait: bool
    has_run: bool


@dataclass
class Life:
    """One accepted task. Times are unix seconds; ``since`` is its entry into pending."""

    task: NewTask
    state: State
    since: float | None = None
    due: float | None = None
    retried: int = 0
    losses: int = 0
    token: str = ""
    lease: float | None = None
    ahead: bool = False
    free_losses: int = 0
    cancel: bool = False
    expires: int | None = None
    error: str = ""
    failed_at: int | None = None
    completed_at: int | None = None
    result: bytes | None = None
    endings: list[str] = field(default_factory=list)
    starts: int = 0
    give_backs: int = 0
    started_here: bool = False
    """whether the present holder has begun to execute it (nobody but the holder need know)"""
    reverse_known: bool = True
    """whether the enqueue's reverse key is known to be written"""
    settled: bool = True
    """whether the last change of the reverse key's life is known to be written"""

    @property
    def id(self) -> str:
        return self.task.id

    @property
    def queue(self) -> str:
        return self.task.queue


@dataclass
class OnceRecord:
    """A used idempotency key: whose it is, with which body, since when."""

    id: str
    body_hash: str
    since: int
    until: int | None = None


class Promises:
    """All tasks of all queues as they ought to be. Methods are the transitions; ``now`` is moved by the machine."""

    def __init__(self, queues: Sequence[str], now: float) -> None:
        self.now = now
        self.queues = tuple(queues)
        self.lives: dict[str, Life] = {}
        self.pending: dict[str, list[str]] = {q: [] for q in queues}
        self.paused: set[str] = set()
        self.once: dict[tuple[str, str], OnceRecord] = {}
        self.ended: dict[str, list[Ended]] = defaultdict(list)
        self.registered: set[str] = set()

    # Reading

    def of(self, queue: str, *states: State) -> list[Life]:
        return [life for life in self.lives.values() if life.queue == queue and life.state in states]

    def owner(self, id_: str, token: str) -> Life | None:
        """The task, if this token still owns it."""
        life = self.lives.get(id_)
        return life if life and life.state is State.ACTIVE and life.token == token else None

    # Enqueue (R16, decision 22)

    def enqueue(self, task: NewTask, bound: int) -> tuple[str, str]:
        self.registered.add(task.queue)
        record = self.once.get((task.queue, task.once)) if task.once else None
        if record:
            return ("repeated" if record.body_hash == task.body_hash else "mismatch"), record.id
        known = self.lives.get(task.id)
        if known:
            return ("repeated" if known.task.encode() == task.encode() else "exists"), task.id
        if bound and len(self.pending[task.queue]) >= bound:
            return "full", task.id
        life = Life(task, State.PENDING)
        self.lives[task.id] = life
        if task.run_at is not None and task.run_at > self.now:
            life.state, life.due = State.SCHEDULED, task.run_at
        else:
            self._enter(life)
        if task.once:
            self.once[task.queue, task.once] = OnceRecord(task.id, task.body_hash, int(self.now))
        return "created", task.id

    def _enter(self, life: Life, *, front: bool = False) -> None:
        """Into pending: at the back with a new beginning of the wait, or back to the front with the old one."""
        life.state = State.PENDING
        life.token, life.lease, life.due, life.started_here = "", None, None, False
        if front:
            self.pending[life.queue].insert(0, life.id)
        else:
            life.since = self.now
            self.pending[life.queue].append(life.id)

    # Pickup (R17, R47..R49)

    def pick_up(self, queues: Sequence[str], limit: int, starting: int, token: str) -> tuple[list[Life], list[Life]]:
        """Those that the worker takes, and those that waited too long."""
        taken: list[Life] = []
        expired: list[Life] = []
        for queue in queues:
            while queue not in self.paused and len(taken) < limit and self.pending[queue]:
                life = self.lives[self.pending[queue].pop(0)]
                limit_s = life.task.limits.pending_timeout
                assert life.since is not None
                if limit_s and self.now - life.since > limit_s:
                    self._archive(life, "pending timeout", "expired", has_run=False)
                    expired.append(life)
                    continue
                life.state, life.token, life.lease = State.ACTIVE, token, self.now + LEASE
                life.ahead = len(taken) >= starting
                life.started_here = not life.ahead
                if life.started_here:
                    life.starts += 1
                    life.free_losses = 0
                taken.append(life)
        return taken, expired

    def held_by(self, queues: Sequence[str], token: str) -> list[Life]:
        return [life for life in self.lives.values() if life.queue in queues and self.owner(life.id, token)]

    # The ends of attempts

    def start(self, life: Life) -> None:
        """Its holder begins to execute a task that it held ahead; nobody else knows yet."""
        if not life.started_here:
            life.started_here = True
            life.starts += 1

    def mark_started(self, id_: str, token: str) -> None:
        life = self.owner(id_, token)
        if life:
            life.ahead, life.free_losses = False, 0

    def complete(self, life: Life, result: bytes | None) -> None:
        self._leave(life)
        life.state, life.completed_at, life.result = State.COMPLETED, int(self.now), result or life.result
        self._keep(life, life.task.limits.ttl_completed)
        self._count(life, "completed", failed=False, has_run=True)

    def fail(self, life: Life, reason: str, ending: str, *, has_run: bool = True) -> None:
        self._archive(life, reason, ending, has_run=has_run)

    def retry(self, life: Life, delay: float, reason: str, ending: str, *, has_run: bool = True) -> None:
        if life.cancel:
            self._archive(life, "cancelled", "cancelled", has_run=has_run)
            return
        self._leave(life)
        life.retried += 1
        life.error, life.failed_at = reason, int(self.now)
        self._count(life, ending, failed=True, has_run=has_run)
        if delay > 0:
            life.state, life.due = State.RETRY, self.now + delay
        else:
            self._enter(life)

    def give_back(self, lives: Sequence[Life]) -> None:
        """Back to the front, in their order, at no cost (decision 3)."""
        for life in reversed(lives):
            if life.cancel:
                continue
            self._leave(life, keep_free=False)
            life.give_backs += 1
            self._enter(life, front=True)
        for life in lives:
            if life.cancel and life.state is State.ACTIVE:
                self._archive(life, "cancelled", "cancelled", has_run=False)

    def _leave(self, life: Life, *, keep_free: bool = False) -> None:
        life.token, life.lease, life.ahead, life.started_here = "", None, False, False
        if not keep_free:
            life.free_losses = 0

    def _archive(self, life: Life, reason: str, ending: str, *, has_run: bool) -> None:
        has_wait = life.state is not State.SCHEDULED and life.state is not State.RETRY
        self._leave(life)
        life.state, life.error, life.failed_at, life.cancel = State.ARCHIVED, reason, int(self.now), False
        life.due = None
        self._keep(life, life.task.limits.ttl_archived)
        self._count(life, ending, failed=True, has_run=has_run, has_wait=has_wait)

    def _keep(self, life: Life, ttl: int) -> None:
        life.expires = int(self.now) + ttl if ttl else None
        life.cancel = False
        record = self.once.get((life.queue, life.task.once))
        if record and record.id == life.id:
            record.until = max(record.since + ONCE_SECONDS, int(self.now) + 1)

    def _count(self, life: Life, ending: str, *, failed: bool, has_run: bool, has_wait: bool = True) -> None:
        life.endings.append(ending)
        self.ended[life.queue].append(Ended(self.now, failed, has_wait, has_run))

    # Time passes

    def forward(self, queue: str) -> list[Life]:
        """Tasks that are due become pending (their order among equals is free)."""
        due = [
            life
            for life in self.of(queue, State.SCHEDULED, State.RETRY)
            if life.due is not None and life.due <= self.now
        ]
        for life in due:
            self._enter(life)
        return due

    def lost(self, queue: str) -> list[Life]:
        """Tasks whose lease ran out."""
        return [life for life in self.of(queue, State.ACTIVE) if life.lease is not None and life.lease <= self.now]

    def recover(self, queue: str) -> list[Life]:
        """Lost leases: decision 3 and 16. Returns those that went to the front of pending."""
        front = []
        for life in self.lost(queue):
            if life.cancel:
                self._archive(life, "cancelled", "cancelled", has_run=False)
            elif life.ahead and life.free_losses < FREE_LOSSES:
                losses = life.free_losses
                self._leave(life)
                life.free_losses = losses + 1
                life.give_backs += 1
                self._enter(life, front=True)
                front.append(life)
            elif life.retried >= life.task.limits.max_retry:
                self._archive(life, "lease expired: max retries exceeded", "lost", has_run=False)
            else:
                delay = 0.0 if life.losses == 0 else life.task.retry_policy.delay
                life.losses += 1
                self.retry(life, delay, "lease expired", "lost", has_run=False)
        return front

    def give_leases(self, queue: str) -> None:
        """An active task without a lease gets one, which its owner renews or which runs out."""
        for life in self.of(queue, State.ACTIVE):
            if life.lease is None:
                life.lease = self.now + LEASE

    def extend(self, held: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
        """Renews; returns ids that are no longer owned, and ids that must be cancelled."""
        lost, cancelled = [], []
        for id_, token in held:
            life = self.owner(id_, token)
            if life is None:
                lost.append(id_)
                continue
            life.lease = self.now + LEASE
            if life.cancel:
                cancelled.append(id_)
        return lost, cancelled

    def expire(self) -> list[Life]:
        """Tasks whose retention is over are gone by themselves (R51, R52, R55, R56)."""
        over = [life for life in self.lives.values() if life.expires is not None and life.expires <= self.now]
        for life in over:
            del self.lives[life.id]
        self.once = {key: r for key, r in self.once.items() if r.until is None or r.until > self.now}
        return over

    # Operators

    def operate(self, action: str, queue: str, ids: Iterable[str]) -> list[str]:
        """run, cancel, archive, delete: what it came to, per id."""
        return [self._operate(action, queue, id_) for id_ in ids]

    def _operate(self, action: str, queue: str, id_: str) -> str:
        life = self.lives.get(id_)
        if life is None or life.queue != queue:
            return "gone"
        waiting = life.state in {State.PENDING, State.SCHEDULED, State.RETRY}
        if action == "cancel" and life.state is State.ACTIVE:
            life.cancel = True
            return "asked"
        if action in {"cancel", "archive"} and waiting:
            if life.state is State.PENDING:
                self.pending[queue].remove(id_)
            reason = "cancelled" if action == "cancel" else "archived by an operator"
            self._archive(life, reason, "cancelled", has_run=False)
            return "done"
        if action == "run" and life.state in {State.SCHEDULED, State.RETRY, State.COMPLETED, State.ARCHIVED}:
            self._run(life)
            return "done"
        if action == "delete" and life.state is not State.ACTIVE:
            if life.state is State.PENDING:
                self.pending[queue].remove(id_)
            self._keep(life, 0)
            del self.lives[id_]
            return "done"
        return "illegal"

    def _run(self, life: Life) -> None:
        """Afresh: no expiry, no retries used, its stamps kept (decision 13, Q26)."""
        life.expires = life.completed_at = life.result = None
        life.retried = life.losses = life.starts = life.give_backs = life.free_losses = 0
        record = self.once.get((life.queue, life.task.once))
        if record and record.id == life.id:
            record.until = None
        self._enter(life)
