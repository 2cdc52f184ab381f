"""Mode one_shot: a process for each task, with the next ones started ahead where the queue asks for it."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from runqy.errors import DeploymentError
from runqy.service import end_tasks
from runqy.tasks.outcome import Ending, Failure, Outcome
from runqy.timing import SYSTEM_CLOCK, Clock
from runqy.worker.breaker import Breaker, Recovery, RestartRules
from runqy.worker.deploy import Deployed
from runqy.worker.process import TaskProcess
from runqy.worker.protocol import (
    OutputPiece,
    Progress,
    Ready,
    Reply,
    Started,
    StartFailed,
    TaskLog,
    read_line,
    request_line,
)
from runqy.worker.runtime import CANCELLED, GIVEN_BACK, TAIL_CHARACTERS, Listener, Run, exit_text, outcome_of, timed_out

log = structlog.get_logger(__name__)

EXIT_SECONDS = 10.0
"""How long a process may take to leave after its reply."""
KEPT_LINES = 20


@dataclass(slots=True)
class _Shot:
    """One process, and the task that it was given, if any."""

    process: TaskProcess | None = None
    ready: Ready | None = None
    run: Run | None = None
    reply: Reply | None = None
    start_failed: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    tail: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=KEPT_LINES))
    cancelled: bool = False
    starter: asyncio.Task[None] | None = None


class OneShot:
    """Starts a process per task, at most ``concurrency`` at once, waiting ones included.

    A process that ends before it is ready is no fault of the task: the task is given back, and starts are
    held off as after a crash.
    """

    def __init__(
        self,
        deployed: Deployed,
        listener: Listener,
        rules: RestartRules,
        *,
        concurrency: int,
        kill_grace: float = 1.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.deployed = deployed
        self._listener = listener
        self._grace = kill_grace
        self._clock = clock
        self._concurrency = concurrency
        self._breaker = Breaker(rules)
        self._shots: dict[str, _Shot] = {}
        self._waiting: list[_Shot] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._dropping: set[asyncio.Task[None]] = set()
        self._trouble: tuple[str, ...] = ()
        self._open = False
        self._held_until: asyncio.TimerHandle | None = None

    @property
    def ready(self) -> bool:
        return self._open and self._breaker.state is not Recovery.DEGRADED and self._held_until is None

    @property
    def capacity(self) -> int:
        return 1

    @property
    def can_recall(self) -> bool:
        return False

    @property
    def occupied(self) -> int:
        return 0

    @property
    def trouble(self) -> tuple[str, ...]:
        return self._trouble

    @property
    def degraded(self) -> bool:
        return self._breaker.state is Recovery.DEGRADED

    def describe(self) -> dict[str, str | int]:
        return self._breaker.describe()

    async def start(self) -> None:
        self._open = True
        self._listener.changed()
        self._start_ahead()

    async def stop(self) -> None:
        self._open = False
        self._drop_waiting()
        if self._held_until is not None:
            self._held_until.cancel()
        await end_tasks(*self._tasks)
        await asyncio.gather(*self._dropping, return_exceptions=True)

    async def restart(self, *, planned: bool = True) -> None:
        """New code, limits or secrets: waiting processes go; running ones finish with what they have."""
        self._breaker.reset()
        self._trouble = ()
        if self._held_until is not None:
            self._held_until.cancel()
            self._held_until = None
        self._drop_waiting()
        self._start_ahead()
        self._listener.changed()

    def replace(self, deployed: Deployed) -> None:
        """From the next start on, run this deployment."""
        self.deployed = deployed

    def recall(self, run: Run) -> None:
        """A task has its own process at once: there is nothing to ask back."""

    def submit(self, run: Run) -> None:
        run.written_at = self._clock.monotonic()
        shot = _Shot()
        while self._waiting:
            waiting = self._waiting.pop(0)
            # One that is still starting is as good as a new one, and further.
            if waiting.process is None or waiting.process.running:
                shot = waiting
                break
            self._drop_later(waiting)
        shot.run = run
        self._shots[run.task.id] = shot
        task = asyncio.create_task(self._live(shot, run), name=f"one-shot-{run.task.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._start_ahead()

    def cancel(self, task_id: str) -> None:
        shot = self._shots.get(task_id)
        if shot is not None:
            shot.cancelled = True
            shot.changed.set()

    async def _live(self, shot: _Shot, run: Run) -> None:
        outcome: Outcome = GIVEN_BACK
        try:
            outcome = await self._run(shot, run)
        except asyncio.CancelledError:
            # The worker stops: what has not answered is given back.
            if shot.reply is not None:
                outcome = outcome_of(shot.reply, self.deployed.order.keeps_results)
        finally:
            await self._end_process(shot)
            self._shots.pop(run.task.id, None)
            self._listener.ended(run, outcome, self._clock.monotonic())
            self._start_ahead()

    async def _end_process(self, shot: _Shot) -> None:
        """End the process for certain, also when this task is cancelled meanwhile."""
        if shot.process is None:
            return
        stopping = asyncio.ensure_future(shot.process.stop(self._grace if not shot.reply else 0))
        while not stopping.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(stopping)

    async def _run(self, shot: _Shot, run: Run) -> Outcome:
        try:
            if shot.starter is not None:
                await shot.starter
            if shot.process is None:
                await self._launch(shot)
            # The clock starts at the later of the pickup and the start of the process.
            run.started_at = run.written_at
            self._listener.started(run)
            limit = run.task.limits.active_timeout
            async with asyncio.timeout(limit or None):
                reply = await self._exchange(shot, run)
        except DeploymentError as error:
            self._hold_off(error)
            return GIVEN_BACK
        except TimeoutError:
            return timed_out(run.task, "its process was killed")
        if reply is None:
            if shot.cancelled:
                return CANCELLED
            code = shot.process.code if shot.process is not None else None
            return Failure(Ending.CRASHED, f"the task process {exit_text(code)} before its reply")
        if self._breaker.state is Recovery.RECOVERING:
            self._breaker.recovered()
        with contextlib.suppress(TimeoutError):
            assert shot.process is not None
            async with asyncio.timeout(EXIT_SECONDS):
                await shot.process.exited.wait()
        return outcome_of(reply, self.deployed.order.keeps_results)

    async def _exchange(self, shot: _Shot, run: Run) -> Reply | None:
        """Ready line, request, reply; None when there is no reply: cancelled, or the process ended."""
        await self._wait_ready(shot)
        if shot.cancelled or shot.ready is None or shot.process is None:
            return None
        shot.process.write(request_line(run.task, shot.ready.protocol))
        shot.process.close_stdin()
        await self._wait(shot, lambda: shot.reply is not None or shot.cancelled)
        return shot.reply

    async def _launch(self, shot: _Shot) -> None:
        deployed = self.deployed
        shot.process = await TaskProcess.start(
            deployed.argv,
            deployed.work_dir,
            deployed.env,
            lambda line, cut: self._on_line(shot, line, cut),
            lambda line, cut: self._print(shot, "stderr", line.decode("utf-8", "replace")),
        )

    async def _wait_ready(self, shot: _Shot) -> None:
        limit = self.deployed.order.startup_seconds
        startup = asyncio.timeout(limit)
        try:
            async with startup:
                await self._wait(shot, lambda: shot.ready is not None or bool(shot.start_failed) or shot.cancelled)
        except TimeoutError:
            if not startup.expired():
                raise
            raise DeploymentError(
                f"The task process was not ready within {limit:g} s",
                why=f"startup timeout exceeded after {limit:g}s",
                hint="raise deployment.startup_timeout_secs of the queue, or make the start faster",
                tail=tuple(shot.tail),
            ) from None
        if shot.ready is None and not shot.cancelled:
            if shot.start_failed:
                raise DeploymentError(
                    "The task code could not be loaded",
                    why=f"process startup failed: {shot.start_failed}",
                    tail=tuple(shot.tail),
                )
            code = shot.process.code if shot.process is not None else None
            raise DeploymentError(
                f"The task process {exit_text(code)} before it was ready",
                hint="it must print its ready line: does it call runqy_python.run_once()?",
                tail=tuple(shot.tail),
            )

    async def _wait(self, shot: _Shot, done: Callable[[], bool]) -> None:
        """Until the condition holds or the process has ended."""
        assert shot.process is not None
        over = asyncio.ensure_future(shot.process.exited.wait())
        try:
            while not done() and not over.done():
                shot.changed.clear()
                change = asyncio.ensure_future(shot.changed.wait())
                try:
                    await asyncio.wait({change, over}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    change.cancel()
        finally:
            over.cancel()

    def _on_line(self, shot: _Shot, line: bytes, cut: bool) -> None:
        said = read_line(line) if not cut else None
        run = shot.run
        match said:
            case Ready() if shot.ready is None:
                shot.ready = said
            case StartFailed(error) if shot.ready is None:
                shot.start_failed = error
            case Reply(task_id) if run is not None and task_id == run.task.id:
                if shot.reply is None:
                    shot.reply = said
            case TaskLog(_, stream, text):
                self._print(shot, stream, text)
            case Progress(_, fraction, message) if run is not None:
                self._listener.progressed(run, fraction, message)
            case OutputPiece(_, seq, data) if run is not None:
                self._listener.output(run, seq, data)
            case Started():
                pass
            case None if not cut:
                return
            case _:
                self._print(shot, "stdout", line[-65536:].decode("utf-8", "replace"))
        shot.changed.set()

    def _print(self, shot: _Shot, stream: str, text: str) -> None:
        shot.tail.extend(line[:TAIL_CHARACTERS] for line in text.splitlines())
        self._listener.printed(shot.run, stream, text)

    def _hold_off(self, error: DeploymentError) -> None:
        """Processes don't get ready: no start for a while, and none at all once the breaker is open."""
        self._trouble = (error.what, error.why, *error.tail)
        if self._held_until is not None:
            return
        delay = self._breaker.crashed(self._clock.monotonic())
        log.warning("task processes do not get ready", queue=self.deployed.parent, reason=str(error), again_in=delay)
        if delay is not None:
            self._held_until = asyncio.get_running_loop().call_later(delay, self._end_hold_off)
        self._drop_waiting()
        self._listener.changed()

    def _end_hold_off(self) -> None:
        self._held_until = None
        self._start_ahead()
        self._listener.changed()

    def _start_ahead(self) -> None:
        """Keep the next process started and waiting (`prestart`), within the concurrency."""
        if not self.deployed.order.prestart or not self.ready:
            return
        if self._waiting or len(self._shots) >= self._concurrency:
            return
        shot = _Shot()
        shot.starter = asyncio.create_task(self._prepare(shot), name="one-shot-ahead")
        self._waiting.append(shot)

    async def _prepare(self, shot: _Shot) -> None:
        try:
            await self._launch(shot)
        except DeploymentError as error:
            if shot in self._waiting:
                self._waiting.remove(shot)
            self._hold_off(error)

    def _drop_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for shot in waiting:
            self._drop_later(shot)

    def _drop_later(self, shot: _Shot) -> None:
        task = asyncio.create_task(self._drop(shot), name="one-shot-drop")
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    async def _drop(self, shot: _Shot) -> None:
        if shot.starter is not None:
            await shot.starter
        if shot.process is not None:
            await asyncio.shield(shot.process.stop(0))
