"""The state machine: its steps are what servers, workers, operators and time do to tasks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

from harness.keyspace import read_keyspace
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runqy.broker import scripts
from runqy.broker.broker import Broker
from runqy.broker.operator import Operator
from runqy.broker.transitions import AttemptEnd, Held
from runqy.errors import UnavailableError
from runqy.tasks.limits import Limits
from runqy.tasks.message import NewTask, PickedTask
from runqy.tasks.outcome import Archive, Complete, Ending, GiveBack, NotStarted, Outcome, Retry, Success, decide
from runqy.tasks.state import OPERATOR_ACTIONS, Action, State, operator_actions
from stateful.choices import CHOICES, CRASHES, JUMPS, PLAIN, QUEUES, STEPS, WORKERS, Choices, outcome_of_one, stamps
from stateful.comparison import SLACK, Comparison
from stateful.crashing import Crash, CrashingConnection
from stateful.promises import LEASE, Life, Promises

RUN_SECONDS = 0.25
UNKNOWN_FIELD = b"\xba\x3e\x05hello"
"""Field 999 of the message, a text: nobody here knows it."""


class StrangeTask(NewTask):
    """A task whose message carries a field of another version."""

    def encode(self) -> bytes:
        return NewTask.encode(self) + UNKNOWN_FIELD


class Worker:
    """What one worker process believes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.holds: list[PickedTask] = []
        self.begun: set[tuple[str, str]] = set()
        """tasks held ahead whose execution has begun, for the finish batch that follows"""
        self.unanswered: tuple[Sequence[str], int, int, str] | None = None
        """the pickup whose answer was lost"""
        self.last_finish: tuple[list[AttemptEnd], list[Held]] | None = None


class StoodStill(BaseException):
    """An operation took so long that the model's time and Redis's are no longer the same."""


class LifecycleMachine(RuleBasedStateMachine):
    """Rules are the operations; `agrees_with_the_model` holds after each."""

    runner: ClassVar[asyncio.Runner]
    connection: ClassVar[CrashingConnection]

    def __init__(self) -> None:
        super().__init__()
        self.clock = self.connection.offset
        self.broker = Broker(self.connection, lease_seconds=LEASE)
        self.operator = Operator(self.connection)
        # Half past a second at noon of a day to come: no real millisecond moves it over a boundary.
        self.promises = Promises(QUEUES, (time.time() // 86400 + 1) * 86400 + 43200.5)
        self.workers = {name: Worker(name) for name in WORKERS}
        self.ids = (f"t{number:03}" for number in itertools.count())
        self.tokens = itertools.count(1)
        self.known: list[NewTask] = []
        self.blind = False

    # Carrying out

    def do(self, operation: Callable[[], Awaitable[Any]], crash: Crash | None = None) -> tuple[bool, Any]:
        """Run one operation at the model's time; whether its answer arrived, and the answer."""
        self.connection.begin(crash)
        begun = time.time()
        self.clock.microseconds = round((self.promises.now - begun) * 1e6)

        async def carried_out() -> Any:
            return await operation()

        try:
            return True, self.runner.run(carried_out())
        except UnavailableError:
            assert crash, "an operation failed without a crash"
            return False, None
        finally:
            self.connection.crash = None
            if time.time() - begun > SLACK / 2:
                self.blind = True
                raise StoodStill

    def unless_blind(self, part: Callable[[], None]) -> None:
        """Once the test machine stood still, the rest of the example says nothing and is passed over."""
        with contextlib.suppress(StoodStill):
            if not self.blind:
                part()

    def queue_ran(self, script: str, queue: str, container: str = "pending") -> bool:
        return self.connection.times(script, f"asynq:{{{queue}}}:{container}") > 0

    @initialize()
    def empty(self) -> None:
        """Every example begins alike: no keys, and all scripts in the cache."""
        self.unless_blind(self.begin_anew)

    def begin_anew(self) -> None:
        self.do(lambda: self.connection.client.flushall())
        for script in scripts.ALL:
            self.do(lambda script=script: self.connection.client.script_load(script.text))

    def some_pending(self, queues: Sequence[str]) -> None:
        """Something to take: most of what can happen to tasks needs one."""
        if not any(self.promises.pending[queue] for queue in queues):
            limits, policy = PLAIN[len(self.known) % len(PLAIN)]
            tasks: list[NewTask] = [StrangeTask(next(self.ids), queues[0], b"1", limits, policy) for _ in range(2)]
            self.known += tasks
            self._enqueue(queues[0], tasks, 0, None)

    def holder(self, choose: Choices) -> Worker:
        """A worker that holds something."""
        if not any(worker.holds for worker in self.workers.values()):
            self.some_pending(QUEUES)
            for queue in QUEUES:
                if self.promises.paused.intersection({queue}):
                    self._resume(queue)
            worker = self.workers[WORKERS[0]]
            self._pick_up(worker, list(QUEUES), 3, 2, f"w1#{next(self.tokens)}", None, answer_lost=False)
        holding = [worker for worker in self.workers.values() if worker.holds]
        return choose.one(holding) if holding else self.workers[WORKERS[0]]

    @rule(what=st.sampled_from(STEPS), crash=CRASHES, choose=CHOICES)
    def step(self, what: str, crash: Crash | None, choose: Choices) -> None:
        """One operation. They are chosen here and not as rules of their own, which would be left out in turn: most
        of what can go wrong needs several of them one after the other."""
        self.unless_blind(lambda: getattr(self, what)(choose, crash))

    # Enqueue

    def enqueue(self, choose: Choices, crash: Crash | None) -> None:
        queue, count, (limits, policy) = choose.one(QUEUES), choose.one((1, 2, 3)), stamps(choose)
        delay = choose.one((None, None, None, -10.0, 15.0, 95.0))
        once, body, bound = (
            choose.one(("", "", "", "k1", "k2")),
            choose.one(("h1", "h1", "h2")),
            choose.one((0, 0, 0, 3)),
        )
        tasks: list[NewTask] = [
            StrangeTask(
                next(self.ids),
                queue,
                b'{"n": 1}',
                limits,
                policy,
                None if delay is None else self.promises.now + delay,
                once=once if number == 0 else "",
                body_hash=body if once and number == 0 else "",
            )
            for number in range(count)
        ]
        self.known += tasks
        self._enqueue(queue, tasks, bound, crash)

    def enqueue_again(self, choose: Choices, crash: Crash | None) -> None:
        """The same id once more: the same call, or another task under its name."""
        self.some_pending(QUEUES)
        task = choose.one(self.known)
        if choose.one((False, True)):
            task = StrangeTask(task.id, task.queue, b'{"n": 2}', task.limits, task.retry_policy)
        self._enqueue(task.queue, [task], 0, crash)

    def _enqueue(self, queue: str, tasks: list[NewTask], bound: int, crash: Crash | None) -> None:
        before = set(self.promises.lives)
        answered, answers = self.do(lambda: self.broker.enqueue(tasks, max_pending=bound), crash)
        if not self.queue_ran("enqueue", queue):
            assert not answered
            return
        expected = [self.promises.enqueue(task, bound) for task in tasks]
        for task in tasks:
            life = self.promises.lives.get(task.id)
            if life is None:
                continue
            if task.id not in before:
                life.reverse_known = answered or self.connection.times("remember") > 0
            elif answered:
                life.reverse_known = True
        if answered:
            for task, answer, (status, known) in zip(tasks, answers, expected, strict=True):
                assert answer.id == known
                if crash and known == task.id and status == "repeated":
                    # The call went out twice: it can't tell whether its first try created the task.
                    assert answer.status in {"created", "repeated"}
                else:
                    assert answer.status == status, f"{task.id}: {answer.status} instead of {status}"

    # Workers

    def pick_up(self, choose: Choices, crash: Crash | None) -> None:
        name, first, both = choose.one(WORKERS), choose.one(QUEUES), choose.one((True, False))
        queues = [first, *(queue for queue in QUEUES if queue != first and both)]
        limit, starting = choose.one((2, 1, 3, 4)), choose.one((1, 2, 0, 3))
        worker = self.workers[name]
        token = f"{name}#{next(self.tokens)}"
        self.some_pending(queues)
        self._pick_up(worker, queues, limit, starting, token, crash, answer_lost=False)

    def pick_up_again(self, choose: Choices, crash: Crash | None) -> None:
        """A worker repeats the pickup whose answer it did not get."""
        waiting = [worker for worker in self.workers.values() if worker.unanswered]
        if not waiting:
            return
        worker = choose.one(waiting)
        assert worker.unanswered
        queues, limit, starting, token = worker.unanswered
        self._pick_up(worker, list(queues), limit, starting, token, crash, answer_lost=True)

    def _pick_up(
        self,
        worker: Worker,
        queues: list[str],
        limit: int,
        starting: int,
        token: str,
        crash: Crash | None,
        *,
        answer_lost: bool,
    ) -> None:
        answered, pickup = self.do(
            lambda: self.broker.pick_up(
                queues, limit, token=token, starting=starting, fallback=Limits(), answer_lost=answer_lost
            ),
            crash,
        )
        if not answered:
            worker.unanswered = (queues, limit, starting, token)
        if not self.connection.times("pickup"):
            return
        taken = self.promises.held_by(queues, token) if answer_lost else []
        expired: list[Life] = []
        repeated = bool(taken)
        if not taken:
            taken, expired = self.promises.pick_up(queues, limit, starting, token)
        for life in expired:
            life.settled = answered
        if not answered:
            return
        worker.unanswered = None
        found = [task.id for task in pickup.tasks]
        if repeated:
            assert sorted(found) == sorted(life.id for life in taken)
        else:
            assert found == [life.id for life in taken], f"took {found} instead of {[life.id for life in taken]}"
            assert pickup.expired == len(expired)
        for task in pickup.tasks:
            life = self.promises.lives[task.id]
            assert (task.limits.max_retry, task.limits.ttl_completed) == (
                life.task.limits.max_retry,
                life.task.limits.ttl_completed,
            )
            assert (task.retried, task.attempt, task.ahead) == (life.retried, life.retried + 1, life.ahead)
            assert task.retry_policy.delay == life.task.retry_policy.delay
        worker.holds += pickup.tasks

    def begin_ahead(self, choose: Choices, crash: Crash | None) -> None:
        """A worker begins to execute a task that it held ahead; Redis learns it with the next finish."""
        worker = self.holder(choose)
        if not worker.holds:
            return
        task = choose.one(worker.holds)
        life = self.promises.owner(task.id, task.token)
        worker.begun.add((task.id, task.token))
        if life:
            self.promises.start(life)

    def finish(self, choose: Choices, crash: Crash | None) -> None:
        worker = self.holder(choose)
        if not worker.holds:
            return
        tasks = choose.some(worker.holds)
        ends = []
        for task in tasks:
            outcome: Outcome = outcome_of_one(choose)
            if task.ahead and (task.id, task.token) not in worker.begun:
                outcome = NotStarted("recalled")
            elif isinstance(outcome, NotStarted) and ((task.id, task.token) in worker.begun or not task.ahead):
                outcome = Success(b"1")
            decision = decide(
                outcome,
                max_retry=task.limits.max_retry,
                retried=task.retried,
                policy=task.retry_policy,
                random=0.5,
            )
            run_time = 0.0 if isinstance(outcome, NotStarted) else RUN_SECONDS
            ends.append(AttemptEnd(task.queue, task.id, task.token, decision, task.limits, run_time, task.wait))
        marks = [
            Held(task.queue, task.id, task.token) for task in worker.holds if (task.id, task.token) in worker.begun
        ]
        self._finish(worker, ends, marks, crash)

    def give_all_back(self, choose: Choices, crash: Crash | None) -> None:
        """A worker shuts down, or stops what it was told to cancel."""
        worker, cancelled = self.holder(choose), choose.one((False, True))
        decision = Archive(Ending.CANCELLED, "cancelled") if cancelled else GiveBack()
        begun = worker.begun
        ends = [
            AttemptEnd(t.queue, t.id, t.token, decision, t.limits)
            for t in worker.holds
            if cancelled or (t.ahead and (t.id, t.token) not in begun)
        ]
        self._finish(worker, ends, [], crash)

    def finish_again(self, choose: Choices, crash: Crash | None) -> None:
        """The same call once more, as after a lost answer: it changes nothing twice."""
        finished = [worker for worker in self.workers.values() if worker.last_finish]
        if not finished:
            return
        worker = choose.one(finished)
        assert worker.last_finish
        self._finish(worker, *worker.last_finish, crash)

    def _finish(self, worker: Worker, ends: list[AttemptEnd], marks: list[Held], crash: Crash | None) -> None:
        owned = [self.promises.owner(end.id, end.token) is not None for end in ends]
        answered, answers = self.do(lambda: self.broker.finish(ends, marks), crash)
        worker.last_finish = (ends, marks)
        for queue in QUEUES:
            theirs = [end for end in ends if end.queue == queue]
            if self.queue_ran("complete", queue, "active"):
                self._end_in_model([e for e in theirs if isinstance(e.decision, Complete)], settled=answered)
            if self.queue_ran("finish", queue):
                for mark in marks:
                    if mark.queue == queue:
                        self.promises.mark_started(mark.id, mark.token)
                self._end_in_model([e for e in theirs if not isinstance(e.decision, Complete)], settled=answered)
        if answered:
            assert answers == owned
            gone = {(end.id, end.token) for end in ends}
            worker.holds = [task for task in worker.holds if (task.id, task.token) not in gone]
            worker.begun -= gone

    def _end_in_model(self, ends: list[AttemptEnd], *, settled: bool) -> None:
        back = []
        for end in ends:
            life = self.promises.owner(end.id, end.token)
            if life is None:
                continue
            match end.decision:
                case Complete(result):
                    self.promises.complete(life, result)
                case Archive(ending, reason):
                    self.promises.fail(life, reason, ending.value, has_run=end.run_time > 0)
                case Retry(delay, ending, reason):
                    self.promises.retry(life, delay, reason, ending.value, has_run=end.run_time > 0)
                    settled = settled and life.state is not State.ARCHIVED
                case GiveBack():
                    back.append(life)
            life.settled = settled
        if back:
            self.promises.give_back(back)
            for life in back:
                life.settled = life.state is State.PENDING

    def renew(self, choose: Choices, crash: Crash | None) -> None:
        worker = self.holder(choose)
        held = [(task.id, task.token) for task in worker.holds]
        answered, renewal = self.do(
            lambda: self.broker.extend([Held(task.queue, task.id, task.token) for task in worker.holds]), crash
        )
        if not self.connection.times("extend"):
            return
        lost, cancelled = self.promises.extend(held)
        if answered:
            assert sorted(task.id for task in renewal.lost) == sorted(lost)
            assert sorted(task.id for task in renewal.cancelled) == sorted(cancelled)
            worker.holds = [task for task in worker.holds if self.promises.owner(task.id, task.token)]

    def disturb(self, choose: Choices, crash: Crash | None) -> None:
        """What happens seldom: a worker is killed and leaves its leases, a lease entry vanishes as under an
        evicting Redis, a queue is paused, Redis loses its scripts."""
        what = choose.one(("die", "lose a lease", "pause", "resume", "flush scripts"))
        queue = choose.one(QUEUES)
        active = [life for life in self.promises.lives.values() if life.state is State.ACTIVE]
        match what:
            case "die":
                name = choose.one(WORKERS)
                self.workers[name] = Worker(name)
            case "lose a lease" if active:
                life = choose.one(active)
                self.do(lambda: self.connection.client.zrem(f"asynq:{{{life.queue}}}:lease", life.id))
                life.lease = None
            case "pause":
                self.do(lambda: self.broker.pause(queue))
                self.promises.paused.add(queue)
            case "resume":
                self._resume(queue)
            case "flush scripts":
                self.do(lambda: self.connection.client.script_flush())

    def _resume(self, queue: str) -> None:
        self.do(lambda: self.broker.resume(queue))
        self.promises.paused.discard(queue)

    # Maintenance

    def time_passes(self, choose: Choices, crash: Crash | None) -> None:
        """A jump of the clock, and some of the maintenance that follows it."""
        self._jump(choose.one(JUMPS))
        for _ in range(choose.one((0, 1, 2))):
            self.chore(choose, crash)

    def lose_workers(self, choose: Choices, crash: Crash | None) -> None:
        """Whoever does not renew now is found to be lost."""
        for queue in QUEUES:
            self._resume(queue)
        name, queue = choose.one(WORKERS), choose.one(QUEUES)
        self.some_pending([queue])
        starting = choose.one((0, 1, 2))
        self._pick_up(self.workers[name], [queue], 2, starting, f"{name}#{next(self.tokens)}", None, answer_lost=False)
        if choose.one((False, True)):
            self.workers[name] = Worker(name)
        self._jump(30)
        self._recover(queue, crash)

    def _jump(self, seconds: int) -> None:
        """Redis lets expire what has an expiry, at once."""
        self.promises.now += seconds
        self.promises.expire()
        now_ms = int(self.promises.now * 1000)

        async def expire() -> None:
            keyspace = await read_keyspace(self.connection)
            over = [key for key, expiry in keyspace.expiry.items() if 0 <= expiry <= now_ms]
            if over:
                await self.connection.client.delete(*over)

        self.do(expire)

    def chore(self, choose: Choices, crash: Crash | None) -> None:
        """One run of one service, most often where there is something to do."""
        queue = choose.one(QUEUES)
        kind = choose.one(("recover", "forward", "purge"))
        if kind == "purge":
            self.do(lambda: self.broker.purge(queue), crash)
        elif kind == "forward":
            self.do(lambda: self.broker.forward(queue), crash)
            if self.queue_ran("forward", queue):
                self._adopt_order(queue, self.promises.forward(queue), at_front=False)
        else:
            self._recover(queue, crash)

    def _recover(self, queue: str, crash: Crash | None) -> None:
        self.do(lambda: self.broker.recover(queue), crash)
        lost = self.promises.lost(queue)
        if self.queue_ran("expired", queue, "active"):
            self.promises.give_leases(queue)
        if self.queue_ran("finish", queue):
            back = self.promises.recover(queue)
            for life in lost:
                life.settled = False
            at_end = [life for life in lost if life.state is State.PENDING and life not in back]
            self._adopt_order(queue, back, at_front=True)
            self._adopt_order(queue, at_end, at_front=False)

    def _adopt_order(self, queue: str, moved: list[Any], *, at_front: bool) -> None:
        """Those that moved together may stand in any order among themselves."""
        if not moved:
            return
        order = self.promises.pending[queue]
        ids = {life.id for life in moved}
        size = len(ids)
        assert set(order[:size] if at_front else order[-size:]) == ids
        _, keyspace = self.do(lambda: read_keyspace(self.connection))
        actual = keyspace.waiting(queue)
        part = actual[:size] if at_front else actual[-size:]
        if set(part) == ids:
            if at_front:
                order[:size] = part
            else:
                order[-size:] = part

    # Operators

    def operate(self, choose: Choices, crash: Crash | None) -> None:
        """On tasks of one queue that exist, most often what the first of them allows, and now and then on others."""
        self.some_pending(QUEUES)
        queue = choose.one(QUEUES)
        there = [life.id for life in self.promises.lives.values() if life.queue == queue]
        ids = choose.some(there if there and choose.one((True, True, False)) else [task.id for task in self.known])
        first = self.promises.lives.get(ids[0])
        action = choose.one(operator_actions(first.state) if first and choose.one((True, False)) else OPERATOR_ACTIONS)
        answered, answers = self.do(lambda: self.operator.act(action, queue, ids), crash)
        script = {Action.RUN: "run", Action.DELETE: "delete"}.get(action, "archive")
        if not self.queue_ran(script, queue):
            return
        expected = self.promises.operate(action.value, queue, ids)
        for id_, came_to in zip(ids, expected, strict=True):
            life = self.promises.lives.get(id_)
            if life and came_to == "done":
                life.settled = answered
        if answered:
            assert [answer.status.value for answer in answers] == expected

    # What must hold

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.unless_blind(self.compare)

    def compare(self) -> None:
        _, keyspace = self.do(lambda: read_keyspace(self.connection))
        Comparison(self.promises, keyspace).check()

    def teardown(self) -> None:
        self.unless_blind(self.comes_to_an_end)

    def comes_to_an_end(self) -> None:
        """In the end nothing is left but what is kept for ever: the janitor leaves no key behind."""
        for queue in QUEUES:
            self.do(lambda queue=queue: self.broker.resume(queue))
            self.promises.paused.discard(queue)
            held = self.promises.of(queue, State.ACTIVE)
            ends = [
                AttemptEnd(queue, life.id, life.token, Archive(Ending.FAILED, "the end"), life.task.limits)
                for life in held
            ]
            self.do(lambda ends=ends: self.broker.finish(ends))
            self._end_in_model(ends, settled=False)
            waiting = [life.id for life in self.promises.of(queue, State.PENDING, State.SCHEDULED, State.RETRY)]
            self.do(lambda queue=queue, waiting=waiting: self.operator.act(Action.DELETE, queue, waiting))
            self.promises.operate("delete", queue, waiting)
        self._jump(100_000)
        for queue in QUEUES:
            while self.do(lambda queue=queue: self.broker.purge(queue))[1]:
                pass
        _, keyspace = self.do(lambda: read_keyspace(self.connection))
        Comparison(self.promises, keyspace).check()
        kept = {f"asynq:t:{life.id}" for life in self.promises.lives.values()}
        assert all(life.expires is None for life in self.promises.lives.values())
        pointers = {key for key in keyspace.hashes if key.startswith("asynq:t:")}
        assert pointers <= kept, f"reverse keys without a task: {pointers - kept}"
