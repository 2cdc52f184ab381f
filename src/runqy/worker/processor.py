"""Takes tasks from the queues, hands them to the runtimes, and passes their ends on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from runqy.broker.broker import Broker
from runqy.broker.transitions import AttemptEnd, Held
from runqy.errors import RunqyError
from runqy.tasks.limits import Limits
from runqy.tasks.message import PickedTask
from runqy.tasks.outcome import NotStarted, Outcome, Success, decide
from runqy.timing import SYSTEM_CLOCK, Clock
from runqy.worker.finisher import Finisher
from runqy.worker.long_running import LongRunning
from runqy.worker.one_shot import OneShot
from runqy.worker.outputs import Outputs
from runqy.worker.runtime import Run

log = structlog.get_logger(__name__)

POLL_SECONDS = 1.0
"""How often an idle worker looks for tasks of producers that tell nobody about them."""
AHEAD_SECONDS = 0.1
"""How much work may be held ahead, judged by the recent run times."""
MOST_AHEAD = 1000
RECALL_SECONDS = 1.0
"""A task that was held ahead for this long without starting goes back to its queue."""
BATCH = 200
TWICE_SECONDS = 0.25
"""A pause before the next pickup when this one brought a task that is still being given up."""
OUTAGE_DELAYS = (0.2, 5.0)


@dataclass(slots=True)
class Lane:
    """One parent queue in this worker: its queues by priority, its runtime, what it holds."""

    parent: str
    queues: Mapping[str, int]
    runtime: LongRunning | OneShot
    scheduling: str = "strict"
    held: dict[str, Run] = field(default_factory=dict)
    within: int = 0
    """how many of the held were handed over within what may run at once"""
    run_time: float | None = None
    """moving average of the run time, in seconds"""
    draining: bool = False
    emptied: asyncio.Event = field(default_factory=asyncio.Event)

    def order(self) -> list[str]:
        """The queues in the order in which this pickup looks at them (product decision 18)."""
        names = list(self.queues)
        random.shuffle(names)
        if self.scheduling == "weighted":
            return sorted(names, key=lambda name: random.random() ** (1 / max(self.queues[name], 1)), reverse=True)
        return sorted(names, key=lambda name: -self.queues[name])

    def limit(self, concurrency: int) -> int:
        """How many tasks may run at once: what the code itself declares, or the worker's setting."""
        return max(concurrency, self.runtime.capacity)

    def ahead(self) -> int:
        """How many tasks may be held beyond those."""
        if not self.runtime.can_recall or self.run_time is None:
            return 0
        allowed = min(int(AHEAD_SECONDS / max(self.run_time, 1e-6)) * self.runtime.capacity, MOST_AHEAD)
        return max(allowed - (len(self.held) - self.within), 0)


class Processor:
    """One fetcher for the whole worker; nothing is taken for a runtime that is not ready."""

    def __init__(
        self,
        broker: Broker,
        finisher: Finisher,
        outputs: Outputs,
        *,
        worker_id: str,
        concurrency: int,
        fallback: Limits,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._broker = broker
        self._finisher = finisher
        self._outputs = outputs
        self._worker_id = worker_id
        self._concurrency = concurrency
        self._fallback = fallback
        self._clock = clock
        self._numbers = itertools.count(1)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._recaller: asyncio.Task[None] | None = None
        self._lost_answer: dict[str, str] = {}
        self._failures = 0
        self._idle = asyncio.Event()
        self._stopping = asyncio.Event()
        self.lanes: dict[str, Lane] = {}
        self.taking = False
        self.paused = False
        self.ended_count = 0

    # What runs, for the heartbeat and the leases.

    def held(self) -> list[Held]:
        """Every task that this worker holds now."""
        return [
            Held(run.task.queue, run.task.id, run.task.token)
            for lane in self.lanes.values()
            for run in lane.held.values()
        ]

    def current(self) -> tuple[str, ...]:
        """Ids of the tasks that are running."""
        return tuple(
            run.task.id for lane in self.lanes.values() for run in lane.held.values() if run.started_at is not None
        )

    def wake(self, _queue: str = "") -> None:
        """There may be something to take."""
        self._wake.set()

    def add(self, lane: Lane) -> None:
        self.lanes[lane.parent] = lane
        self.wake()

    async def start(self) -> None:
        self.taking = True
        self._task = asyncio.create_task(self._fetch(), name="processor")
        self._recaller = asyncio.create_task(self._recall_late(), name="recaller")

    async def stop_taking(self, seconds: float) -> None:
        """Take nothing more at once. A pickup that is under way is waited for, up to ``seconds``: what it brings
        belongs to this worker and is given back; abandoned, it would count as lost."""
        self.taking = False
        fetching, recaller = self._task, self._recaller
        self._task = self._recaller = None
        if recaller is not None:
            recaller.cancel()
        if fetching is not None:
            self.wake()
            self._stopping.set()
            await asyncio.wait({fetching}, timeout=seconds)
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)

    def pause(self) -> None:
        """Take nothing more until `resume`: what runs goes on, what was held ahead goes back to its queue."""
        self.paused = True
        self._recall_waiting()
        # A pickup whose answer got lost is asked for now: nothing else would renew the leases of what it took.
        self.wake()

    def resume(self) -> None:
        """Take tasks again, after `pause`."""
        self.paused = False
        self.wake()

    def _recall_waiting(self) -> None:
        for lane in self.lanes.values():
            for run in list(lane.held.values()):
                if run.started_at is None:
                    lane.runtime.recall(run)

    async def drain(self, seconds: float) -> None:
        """Wait up to ``seconds`` for what runs; `stop_taking` comes first."""
        self._recall_waiting()
        if not any(lane.held for lane in self.lanes.values()):
            return
        self._idle.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            log.warning("giving running tasks back", tasks=sum(len(lane.held) for lane in self.lanes.values()))

    async def until_empty(self, lane: Lane) -> None:
        """Wait until the lane holds nothing."""
        while lane.held:
            lane.emptied.clear()
            await lane.emptied.wait()

    def lost(self, held: Held) -> None:
        """Another worker owns the task now: stop it, and say nothing more about it."""
        for lane in self.lanes.values():
            run = lane.held.get(held.id)
            if run is not None and run.task.token == held.token:
                log.warning("the lease of a task was lost, giving it up", task=held.id, queue=held.queue)
                lane.runtime.cancel(held.id)

    def cancel(self, task_id: str) -> None:
        """Stop a task, if this worker holds it."""
        for lane in self.lanes.values():
            if task_id in lane.held:
                log.info("cancelling a task", task=task_id)
                lane.runtime.cancel(task_id)

    # The fetcher.

    async def _fetch(self) -> None:
        while self.taking:
            self._wake.clear()
            took = False
            for lane in random.sample(list(self.lanes.values()), len(self.lanes)):
                try:
                    took = await self._take(lane) or took
                except Exception:
                    # One queue in a state that nobody foresaw must not stop the others.
                    log.exception("taking tasks failed", queue=lane.parent)
                    await asyncio.sleep(POLL_SECONDS)
            if took:
                continue
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
        for lane in self.lanes.values():
            if lane.parent in self._lost_answer:
                await self._ask_again(lane)

    def _room(self, lane: Lane) -> tuple[int, int]:
        """How many tasks may be taken to start at once, and how many to be held ahead."""
        if not self.taking or self.paused or lane.draining or not lane.runtime.ready or self._finisher.redis_is_away:
            return 0, 0
        everywhere = max((other.limit(self._concurrency) for other in self.lanes.values()), default=0)
        busy = sum(other.within + other.runtime.occupied for other in self.lanes.values())
        starting = min(lane.limit(self._concurrency) - lane.within - lane.runtime.occupied, everywhere - busy)
        return max(starting, 0), lane.ahead()

    async def _take(self, lane: Lane) -> bool:
        """One pickup for one lane; True when it is worth to look again at once."""
        if self.paused and lane.parent in self._lost_answer and not self._finisher.redis_is_away:
            await self._ask_again(lane)
        starting, ahead = self._room(lane)
        wanted = min(starting + ahead, BATCH)
        if wanted <= 0:
            return False
        token = self._lost_answer.get(lane.parent) or f"{self._worker_id}#{next(self._numbers)}"
        try:
            pickup = await self._broker.pick_up(
                lane.order(),
                wanted,
                token=token,
                starting=starting,
                fallback=self._fallback,
                answer_lost=lane.parent in self._lost_answer,
            )
        except RunqyError as error:
            self._lost_answer[lane.parent] = token
            await self._wait_out(error)
            return False
        self._lost_answer.pop(lane.parent, None)
        if self._failures:
            log.info("taking tasks again")
            self._failures = 0
        again = [task for task in pickup.tasks if not self._hand_over(lane, task)]
        if again:
            await asyncio.sleep(TWICE_SECONDS)
        return pickup.more or len(pickup.tasks) == wanted

    def _hand_over(self, lane: Lane, task: PickedTask) -> bool:
        """Give a task to the runtime; False when an attempt of it that this worker lost is still there."""
        now = self._clock.monotonic()
        run = Run(task, now, sent=not task.ahead)
        former = lane.held.get(task.id)
        if former is not None:
            # Lost while this worker was frozen, and taken again. Two runs of one id can't be told apart.
            self.lost(Held(task.queue, task.id, former.task.token))
            self.ended(run, NotStarted("its former attempt is being stopped"), now)
            return False
        lane.held[task.id] = run
        lane.within += run.sent
        if self.taking and not self.paused and lane.runtime.ready:
            lane.runtime.submit(run)
        else:
            # The worker was paused, or its runtime stopped being ready, while the pickup was under way.
            self.ended(run, NotStarted("the worker takes no tasks now"), now)
        return True

    async def _ask_again(self, lane: Lane) -> None:
        """At a stop or a pause: what a pickup took whose answer got lost is asked for once more, to give it back."""
        token = self._lost_answer.pop(lane.parent)
        try:
            pickup = await self._broker.pick_up(
                lane.order(), 0, token=token, starting=0, fallback=self._fallback, answer_lost=True
            )
        except RunqyError as error:
            log.warning("tasks may have been taken whose answer was lost; they are recovered", reason=str(error))
            return
        for task in pickup.tasks:
            self._hand_over(lane, task)

    async def _wait_out(self, error: RunqyError) -> None:
        first, longest = OUTAGE_DELAYS
        if self._failures == 0:
            log.warning("taking no tasks while Redis is away", reason=str(error))
        wait = min(first * 2**self._failures, longest) * random.uniform(0.8, 1.2)
        self._failures = min(self._failures + 1, 10)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._stopping.wait()

    async def _recall_late(self) -> None:
        """Ask back what was held ahead for too long, so that short tasks flow and long ones are not hoarded."""
        while True:
            await asyncio.sleep(RECALL_SECONDS / 4)
            now = self._clock.monotonic()
            for lane in self.lanes.values():
                if len(lane.held) > lane.within:
                    for run in list(lane.held.values()):
                        if not run.sent and run.started_at is None and now - run.taken_at >= RECALL_SECONDS:
                            lane.runtime.recall(run)
                            # The recent run times mislead: nothing is held ahead before the next end.
                            lane.run_time = None

    # What the runtimes tell (runtime.Listener).

    def ended(self, run: Run, outcome: Outcome, now: float) -> None:
        task = run.task
        lane = next((lane for lane in self.lanes.values() if lane.held.get(task.id) is run), None)
        if lane is not None:
            del lane.held[task.id]
            lane.within -= run.sent
            if not lane.held:
                lane.emptied.set()
        started = run.started_at
        run_time = max(now - started, 0.0) if started is not None else 0.0
        if lane is not None and started is not None and isinstance(outcome, Success):
            lane.run_time = run_time if lane.run_time is None else 0.9 * lane.run_time + 0.1 * run_time
        decision = decide(
            outcome,
            max_retry=task.limits.max_retry,
            retried=task.retried,
            policy=task.retry_policy,
            random=random.random(),
        )
        wait = task.wait + max((started if started is not None else now) - run.taken_at, 0.0)
        self._finisher.add(AttemptEnd(task.queue, task.id, task.token, decision, task.limits, run_time, wait))
        self.ended_count += 1
        if not any(lane.held for lane in self.lanes.values()):
            self._idle.set()
        self._wake.set()

    def started(self, run: Run) -> None:
        if not run.sent:
            self._finisher.started(Held(run.task.queue, run.task.id, run.task.token))

    def printed(self, run: Run | None, stream: str, text: str) -> None:
        self._outputs.printed(run, stream, text)

    def progressed(self, run: Run, fraction: float | None, message: str) -> None:
        self._outputs.progressed(run, fraction, message)

    def output(self, run: Run, seq: int, data: bytes) -> None:
        self._outputs.piece(run, seq, data)

    def changed(self) -> None:
        self._wake.set()
