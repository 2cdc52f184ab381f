"""Mode long_running: one warm process per parent queue, watched, restarted, limited."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Callable

import structlog

from runqy.errors import DeploymentError
from runqy.service import end_tasks
from runqy.tasks.outcome import Ending, Failure, Outcome
from runqy.timing import SYSTEM_CLOCK, Clock
from runqy.worker.breaker import Breaker, Recovery, RestartRules
from runqy.worker.deploy import Deployed
from runqy.worker.process import TaskProcess
from runqy.worker.protocol import (
    Noise,
    OutputPiece,
    Progress,
    Ready,
    Recalled,
    Reply,
    Started,
    StartFailed,
    TaskLog,
    cancel_line,
    read_line,
    recall_line,
    request_line,
)
from runqy.worker.runtime import (
    CANCEL_GRACE_SECONDS,
    CANCELLED,
    GIVEN_BACK,
    TAIL_CHARACTERS,
    Listener,
    Run,
    exit_text,
    outcome_of,
    timed_out,
)

log = structlog.get_logger(__name__)

SILENT_START_SECONDS = 5.0
"""A line that the child has had for this long without a start line counts as started: it may be frozen."""
KEPT_LINES = 20


class LongRunning:
    """The supervisor of one process.

    Nothing is handed over unless the process has said that it is ready. A planned restart (a timeout, a
    cancellation, new code) does not count as a crash, unless the new process does not get ready.
    """

    def __init__(
        self,
        deployed: Deployed,
        listener: Listener,
        rules: RestartRules,
        *,
        kill_grace: float = 1.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.deployed = deployed
        self._listener = listener
        self._rules = rules
        self._grace = kill_grace
        self._clock = clock
        self._breaker = Breaker(rules)
        self._process: TaskProcess | None = None
        self._said_ready: Ready | None = None
        self._start_failed = ""
        self._started_or_over = asyncio.Event()
        self._runs: dict[str, Run] = {}
        self._last_answer = 0.0
        self._tail: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self._trouble: tuple[str, ...] = ()
        self._occupied = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._wanted = asyncio.Event()
        self._orders: list[Callable[[], list[tuple[Run, Outcome]]]] = []
        self._supervisor: asyncio.Task[None] | None = None
        self._written: list[bytes] = []
        self._reset_breaker = False
        self._fault = ""
        self._unread: set[str] = set()
        self._ending: asyncio.Future[None] | None = None
        self._decided: list[tuple[Run, Outcome]] = []
        """ends of tasks whose process is being stopped, not told yet"""

    @property
    def ready(self) -> bool:
        return self._said_ready is not None and not self._orders

    @property
    def capacity(self) -> int:
        return self._said_ready.capacity if self._said_ready is not None else 1

    @property
    def can_recall(self) -> bool:
        return self._said_ready is not None and self._said_ready.protocol >= 2

    @property
    def occupied(self) -> int:
        return self._occupied

    @property
    def trouble(self) -> tuple[str, ...]:
        return self._trouble

    def describe(self) -> dict[str, str | int]:
        return self._breaker.describe()

    @property
    def degraded(self) -> bool:
        return self._breaker.state is Recovery.DEGRADED

    async def start(self) -> None:
        """Start the process and wait until it is ready; tried again as the rules say. Raises `DeploymentError`."""
        while True:
            try:
                await self._launch()
                break
            except DeploymentError as error:
                self._trouble = (error.what, *error.tail)
                delay = self._breaker.crashed(self._clock.monotonic())
                self._listener.changed()
                if delay is None:
                    raise
                log.warning("the task process did not get ready", queue=self.deployed.parent, again_in=f"{delay:g}s")
                await asyncio.sleep(delay)
        self._breaker.reset()
        self._trouble = ()
        self._supervisor = asyncio.create_task(self._supervise(), name=f"runtime-{self.deployed.parent}")
        self._listener.changed()

    async def stop(self) -> None:
        supervisor, self._supervisor = self._supervisor, None
        await end_tasks(supervisor)
        self._said_ready = None
        if self._alarm is not None:
            self._alarm.cancel()
        process, self._process = self._process, None
        if process is not None:
            # Idle task code leaves by itself at the end of its input.
            process.close_stdin()
            await process.stop(self._grace)
        self._tell_decided()
        self._settle([(run, GIVEN_BACK) for run in self._runs.values()])

    async def restart(self, *, planned: bool = True) -> None:
        """Restart on request: whatever runs is given back; a degraded runtime gets a fresh start."""
        self._reset_breaker = True
        self._order(lambda: [(run, GIVEN_BACK) for run in self._runs.values()])

    def replace(self, deployed: Deployed) -> None:
        """From the next start on, run this deployment."""
        self.deployed = deployed

    def submit(self, run: Run) -> None:
        assert self._said_ready is not None
        run.written_at = self._clock.monotonic()
        self._runs[run.task.id] = run
        self._send(request_line(run.task, self._said_ready.protocol))
        if self._said_ready.protocol < 2:
            self._mark_first_started(run.written_at)
        elif run.task.limits.active_timeout:
            self._wake_at(run.written_at + SILENT_START_SECONDS)

    def _send(self, line: bytes) -> None:
        if not self._written:
            asyncio.get_running_loop().call_soon(self._flush)
        self._written.append(line)

    def _flush(self) -> None:
        """One write for everything that was handed over in this turn of the loop."""
        written, self._written = self._written, []
        if self._process is not None and written:
            self._process.write(b"".join(written))

    def recall(self, run: Run) -> None:
        if self.can_recall and not run.recalled and run.started_at is None:
            run.recalled = True
            self._send(recall_line(run.task.id))

    def cancel(self, task_id: str) -> None:
        run = self._runs.get(task_id)
        if run is None or run.cancelled_at is not None:
            return
        run.cancelled_at = self._clock.monotonic()
        if not self.can_recall:
            # It runs in, or waits in the pipe of, a child that knows nothing of being asked to stop.
            self._order(lambda: [(other, CANCELLED if other is run else GIVEN_BACK) for other in self._runs.values()])
            return
        if run.started_at is None:
            self._send(recall_line(task_id))
        self._send(cancel_line(task_id))
        self._wake_at(run.cancelled_at + CANCEL_GRACE_SECONDS)

    def _order(self, settle: Callable[[], list[tuple[Run, Outcome]]]) -> None:
        """Ask the supervisor for a planned restart; ``settle`` says what becomes of the tasks in the process."""
        self._orders.append(settle)
        self._wanted.set()
        self._listener.changed()

    async def _supervise(self) -> None:
        while True:
            process = self._process
            assert process is not None
            exited = asyncio.ensure_future(process.exited.wait())
            wanted = asyncio.ensure_future(self._wanted.wait())
            try:
                await asyncio.wait({exited, wanted}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                exited.cancel()
                wanted.cancel()
            self._said_ready = None
            self._listener.changed()
            if self._orders and process.running:
                await self._restart_planned(process)
            else:
                await self._recover(process)

    async def _restart_planned(self, process: TaskProcess) -> None:
        self._occupied = len(self._runs)
        # Taken out before the process is stopped: an answer that comes after the deadline does not count.
        decided = [end for settle in self._orders for end in settle()]
        for run, outcome in decided:
            if _is_final(outcome) and self._runs.pop(run.task.id, None) is not None:
                self._decided.append((run, outcome))
        await process.stop(self._grace)
        # Whoever answered in the meantime has ended; the others end as decided, or are given back.
        self._orders.clear()
        self._wanted.clear()
        self._tell_decided()
        self._settle(decided)
        self._settle([(run, GIVEN_BACK) for run in self._runs.values()])
        if self._reset_breaker:
            self._reset_breaker = False
            self._breaker.reset()
        try:
            await self._launch()
        except DeploymentError as error:
            await self._start_again(error)
        self._occupied = 0
        self._trouble = ()
        self._listener.changed()

    async def _recover(self, process: TaskProcess) -> None:
        """The process ended by itself, whatever its exit code: a crash."""
        await process.kill()
        how = f"the task process {self._fault or exit_text(process.code)}"
        orders, self._orders = self._orders, []
        self._wanted.clear()
        for settle in orders:
            self._settle([(run, outcome) for run, outcome in settle() if _is_final(outcome)])
        self._settle(
            [
                (run, GIVEN_BACK if self._is_untouched(run) else Failure(Ending.CRASHED, how))
                for run in self._runs.values()
            ]
        )
        await self._start_again(DeploymentError(how[0].upper() + how[1:], tail=tuple(self._tail)))

    def _is_untouched(self, run: Run) -> bool:
        return run.task.id in self._unread or (run.started_at is None and not run.sent)

    async def _start_again(self, error: DeploymentError) -> None:
        """Start with back-off until the process is ready; wait for a restart order once the breaker is open."""
        while True:
            self._trouble = (error.what, *error.tail)
            delay = self._breaker.crashed(self._clock.monotonic())
            self._listener.changed()
            if delay is None:
                log.error(
                    "too many crashes in a row, no restart before it is asked for",
                    queue=self.deployed.parent,
                    reason=str(error),
                    last=error.tail[-3:],
                )
                await self._wanted.wait()
            else:
                log.warning("restarting the task process", queue=self.deployed.parent, reason=str(error), in_s=delay)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._wanted.wait()
            if self._wanted.is_set():
                self._orders.clear()
                self._wanted.clear()
                self._breaker.reset()
                self._reset_breaker = False
            try:
                await self._launch()
            except DeploymentError as again:
                error = again
                continue
            self._breaker.recovered()
            self._trouble = ()
            log.info("the task process is ready again", queue=self.deployed.parent)
            self._listener.changed()
            return

    async def _launch(self) -> None:
        """Start the process and wait for its ready line, for as long as a start may take."""
        self._tail.clear()
        self._written = []
        self._start_failed, self._said_ready = "", None
        self._started_or_over.clear()
        deployed = self.deployed
        process = await TaskProcess.start(
            deployed.argv, deployed.work_dir, deployed.env, self._on_line, self._on_error_line
        )
        self._process, self._fault, self._unread = process, "", set()
        process.on_deaf = self._on_deaf
        over = asyncio.create_task(self._note_exit(process))
        limit = deployed.order.startup_seconds
        try:
            async with asyncio.timeout(limit):
                await self._started_or_over.wait()
        except TimeoutError:
            self._said_ready = None
            await process.stop(self._grace)
            raise DeploymentError(
                f"The task process was not ready within {limit:g} s",
                why=f"startup timeout exceeded after {limit:g}s",
                hint="raise deployment.startup_timeout_secs of the queue, or make the start faster",
                tail=tuple(self._tail),
            ) from None
        except BaseException:
            await process.kill()
            raise
        finally:
            over.cancel()
        if not self._is_up():
            await process.kill()
            if self._start_failed:
                raise DeploymentError(
                    "The task code could not be loaded",
                    why=f"process startup failed: {self._start_failed}",
                    hint="mend the task code; it is tried again when the code changes",
                    tail=tuple(self._tail),
                )
            raise DeploymentError(
                f"The task process {exit_text(process.code)} before it was ready",
                hint="it must print its ready line: does it call runqy_python.run()?",
                tail=tuple(self._tail),
            )
        self._last_answer = self._clock.monotonic()

    def _on_deaf(self, since: float) -> None:
        """The process has closed its stdin and can't work any more: a crash. What it can't have read is unstarted."""
        assert self._process is not None
        self._fault = "closed its stdin"
        self._unread = {id_ for id_, run in self._runs.items() if run.written_at >= since}
        self._said_ready = None
        self._listener.changed()
        self._ending = asyncio.ensure_future(self._process.kill())

    def _is_up(self) -> bool:
        return self._said_ready is not None

    async def _note_exit(self, process: TaskProcess) -> None:
        await process.exited.wait()
        self._started_or_over.set()

    def _on_line(self, line: bytes, cut: bool) -> None:
        if cut:
            self._fail_cut_line(line)
            return
        said = read_line(line)
        match said:
            case None:
                return
            case Reply():
                self._on_reply(said)
            case Started(task_id):
                run = self._runs.get(task_id)
                if run is not None and run.started_at is None:
                    self._mark_started(run, self._clock.monotonic())
            case Ready():
                if not self._started_or_over.is_set():
                    self._said_ready = said
                    self._started_or_over.set()
            case StartFailed(error):
                if not self._started_or_over.is_set():
                    self._start_failed = error
                    self._started_or_over.set()
            case Recalled(task_id):
                run = self._runs.pop(task_id, None)
                if run is not None:
                    outcome = CANCELLED if run.cancelled_at is not None else GIVEN_BACK
                    self._listener.ended(run, outcome, self._clock.monotonic())
            case TaskLog(task_id, stream, text):
                self._print(self._runs.get(task_id), stream, text)
            case Progress(task_id, fraction, message):
                if (run := self._runs.get(task_id)) is not None:
                    self._listener.progressed(run, fraction, message)
            case OutputPiece(task_id, seq, data):
                if (run := self._runs.get(task_id)) is not None:
                    self._listener.output(run, seq, data)
            case Noise(text):
                self._print(self._only_started(), "stdout", text)

    def _on_error_line(self, line: bytes, cut: bool) -> None:
        self._print(self._only_started(), "stderr", line.decode("utf-8", "replace") + (" …" if cut else ""))

    def _print(self, run: Run | None, stream: str, text: str) -> None:
        for line in text.splitlines() or [""]:
            self._tail.append(line[:TAIL_CHARACTERS])
        self._listener.printed(run, stream, text)

    def _only_started(self) -> Run | None:
        """Whose output it must be when the child does not say so: the one task that runs."""
        started = [run for run in self._runs.values() if run.started_at is not None]
        return started[0] if len(started) == 1 else None

    def _on_reply(self, reply: Reply) -> None:
        run = self._runs.pop(reply.task_id, None)
        now = self._clock.monotonic()
        self._last_answer = now
        if run is None:
            self._listener.printed(None, "stdout", f"a reply for a task that is not here: {reply.task_id}")
            return
        if run.started_at is None:
            run.started_at = run.written_at
        outcome = outcome_of(reply, self.deployed.order.keeps_results)
        if run.cancelled_at is not None and isinstance(outcome, Failure):
            outcome = CANCELLED
        self._listener.ended(run, outcome, now)
        if self._said_ready is not None and self._said_ready.protocol < 2:
            self._mark_first_started(now)

    def _fail_cut_line(self, line: bytes) -> None:
        """A line over the limit is a reply far too large; whose it is stands at its beginning."""
        head = line[:512]
        for task_id, run in list(self._runs.items()):
            if task_id.encode() in head:
                del self._runs[task_id]
                reason = "permanent failure: the reply is larger than 64 MiB and was not kept"
                self._listener.ended(run, Failure(Ending.FAILED, reason, retriable=False), self._clock.monotonic())
                return
        self._print(None, "stdout", "a line of more than 64 MiB was dropped")

    def _mark_first_started(self, now: float) -> None:
        """Protocol 1: the child works on the earliest unanswered line."""
        first = next(iter(self._runs.values()), None)
        if first is not None and first.started_at is None:
            self._mark_started(first, max(first.written_at, self._last_answer))

    def _mark_started(self, run: Run, when: float) -> None:
        run.started_at = when
        self._listener.started(run)
        if run.deadline is not None:
            self._wake_at(run.deadline)

    def _wake_at(self, when: float) -> None:
        """Have the limits looked at then, at the latest; one timer serves all tasks."""
        if self._alarm is not None:
            if self._alarm_at <= when:
                return
            self._alarm.cancel()
        self._alarm_at = when
        delay = max(when - self._clock.monotonic(), 0)
        self._alarm = asyncio.get_running_loop().call_later(delay, self._look_at_limits)

    def _look_at_limits(self) -> None:
        self._alarm = None
        if self._said_ready is None or self._orders:
            return
        now = self._clock.monotonic()
        first = list(self._runs.values())[: self._said_ready.capacity]
        for run in first:
            if run.started_at is None and now - run.written_at >= SILENT_START_SECONDS:
                self._mark_started(run, run.written_at + SILENT_START_SECONDS)
        expired = {run.task.id for run in self._runs.values() if run.deadline is not None and run.deadline <= now}
        overdue = {
            run.task.id
            for run in self._runs.values()
            if run.cancelled_at is not None and now - run.cancelled_at >= CANCEL_GRACE_SECONDS
        }
        if expired or overdue:
            self._order(lambda: self._settle_restart(expired, overdue))
            return
        self._wake_for_next(now)

    def _wake_for_next(self, now: float) -> None:
        moments = [run.deadline for run in self._runs.values() if run.deadline is not None]
        moments += [
            run.cancelled_at + CANCEL_GRACE_SECONDS for run in self._runs.values() if run.cancelled_at is not None
        ]
        moments += [
            run.written_at + SILENT_START_SECONDS
            for run in list(self._runs.values())[: self.capacity]
            if run.started_at is None and run.task.limits.active_timeout
        ]
        ahead = [moment for moment in moments if moment > now]
        if ahead:
            self._wake_at(min(ahead))

    def _settle_restart(self, expired: set[str], overdue: set[str]) -> list[tuple[Run, Outcome]]:
        """What a planned restart makes of the tasks in the process (R42, product decision 3)."""
        ends: list[tuple[Run, Outcome]] = []
        neighbour = Failure(
            Ending.CRASHED, "the task process was restarted because another task in it exceeded its active_timeout"
        )
        for run in self._runs.values():
            if run.task.id in expired:
                ends.append((run, timed_out(run.task, "the task process was restarted")))
            elif run.task.id in overdue or run.cancelled_at is not None:
                ends.append((run, CANCELLED))
            elif not expired or (run.started_at is None and not run.sent):
                # A restart because of a cancellation costs the neighbours nothing.
                ends.append((run, GIVEN_BACK))
            else:
                ends.append((run, neighbour))
        return ends

    def _tell_decided(self) -> None:
        decided, self._decided = self._decided, []
        for run, outcome in decided:
            self._listener.ended(run, outcome, self._clock.monotonic())

    def _settle(self, ends: list[tuple[Run, Outcome]]) -> None:
        now = self._clock.monotonic()
        for run, outcome in ends:
            if self._runs.pop(run.task.id, None) is not None:
                self._listener.ended(run, outcome, now)


def _is_final(outcome: Outcome) -> bool:
    """Whether the task's own end is decided, whatever it may still answer."""
    return isinstance(outcome, Failure) and outcome.ending in {Ending.TIMEOUT, Ending.CANCELLED}
