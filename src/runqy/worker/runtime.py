"""What the processor and the runtimes say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from runqy.tasks.message import PickedTask
from runqy.tasks.outcome import Ending, Failure, NotStarted, Outcome, Success
from runqy.timing import format_duration
from runqy.worker.protocol import Reply

TAIL_CHARACTERS = 1000
"""As much of a printed line is kept for the reason of a failure."""

CANCEL_GRACE_SECONDS = 5.0
"""How long task code that was told to stop may take before its process is restarted."""


@dataclass(slots=True)
class Run:
    """A task in the hands of a runtime. Times are monotonic seconds.

    ``sent`` says that it was handed over within what the process may work on at once (not held ahead).
    """

    task: PickedTask
    taken_at: float
    sent: bool
    written_at: float = 0.0
    started_at: float | None = None
    cancelled_at: float | None = None
    recalled: bool = False

    @property
    def deadline(self) -> float | None:
        """When its active_timeout is over; None for none, or while it has not started."""
        limit = self.task.limits.active_timeout
        return self.started_at + limit if limit and self.started_at is not None else None


class Listener(Protocol):
    """What a runtime tells the processor. Called in the event loop; must not block."""

    def ended(self, run: Run, outcome: Outcome, now: float) -> None:
        """The run is over; the runtime has let go of it."""

    def started(self, run: Run) -> None:
        """The execution of the task has begun."""

    def printed(self, run: Run | None, stream: str, text: str) -> None:
        """The process printed a line; ``run`` is the task it belongs to, where that is known."""

    def progressed(self, run: Run, fraction: float | None, message: str) -> None:
        """The task reports how far it is."""

    def output(self, run: Run, seq: int, data: bytes) -> None:
        """A piece of a streamed result: JSON text."""

    def changed(self) -> None:
        """Readiness, capacity or recovery changed: look again at what can be taken."""


class Runtime(Protocol):
    """Runs the task code of one parent queue."""

    @property
    def ready(self) -> bool:
        """Whether tasks may be handed over now."""

    @property
    def capacity(self) -> int:
        """How many tasks the code works on at once, as far as it says so; 1 otherwise."""

    @property
    def can_recall(self) -> bool:
        """Whether a task that was handed over can be asked back (so it may be held ahead)."""

    @property
    def occupied(self) -> int:
        """Slots that stay taken although their task has ended: until a restart is ready."""

    def submit(self, run: Run) -> None:
        """Hand over a task. Only while `ready`."""

    def cancel(self, task_id: str) -> None:
        """Stop a task that the runtime holds."""

    def recall(self, run: Run) -> None:
        """Ask back a task that has not started."""

    def describe(self) -> dict[str, str | int]:
        """State, crashes and restarts, for the worker's record."""

    @property
    def trouble(self) -> tuple[str, ...]:
        """The last lines of what failed; empty while all is well."""

    async def start(self) -> None:
        """Start, and wait until it is ready. Raises `DeploymentError`."""

    async def stop(self) -> None:
        """End every process; what was still running is given back."""

    async def restart(self, *, planned: bool = True) -> None:
        """Restart on request (new code, an operator): closes the breaker, neighbours are given back."""


def outcome_of(reply: Reply, keeps_results: bool) -> Outcome:
    """What the child's reply came to."""
    if not reply.error:
        return Success(reply.result if keeps_results else None)
    if reply.retry:
        return Failure(Ending.ERROR, reply.error, retriable=True, delay=reply.delay)
    return Failure(Ending.FAILED, f"permanent failure: {reply.error}", retriable=False)


def timed_out(task: PickedTask, consequence: str) -> Failure:
    """The task ran longer than its active_timeout."""
    limit = format_duration(task.limits.active_timeout * 1_000_000_000)
    return Failure(Ending.TIMEOUT, f"active timeout exceeded ({limit}): {consequence}")


def exit_text(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "ended"
    if code < 0:
        import signal

        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with code {code}"


CANCELLED = Failure(Ending.CANCELLED, "cancelled", retriable=False)
GIVEN_BACK = NotStarted("given back")
