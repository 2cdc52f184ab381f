"""The transitions of tasks, each for one or many, each one atomic script per queue."""

from __future__ import annotations

from collections.abc import Sequence

from runqy.broker.transitions import AttemptEnd, EnqueueResult, Held, Pickup
from runqy.tasks.limits import Limits
from runqy.tasks.message import NewTask


class Broker:
    """Moves tasks between their states in Redis.

    All methods are coroutines, may be called concurrently from one event loop, and raise `UnavailableError`
    when Redis can't be reached (then nothing, or for `finish` and `enqueue` possibly everything, has
    happened: repeating the call is safe) and `OutOfMemoryError` when it refuses writes.
    """

    async def enqueue(self, tasks: Sequence[NewTask], *, max_pending: int = 0) -> list[EnqueueResult]:
        """Accept tasks; one result per task, in order. Concurrent calls are gathered into one script call.

        A task with ``run_at`` in the future becomes scheduled, any other pending. When the call returns,
        every created task is durable in Redis and can be found by its id alone.
        """
        raise NotImplementedError

    async def pick_up(
        self, queues: Sequence[str], limit: int, *, token: str, starting: int, fallback: Limits
    ) -> Pickup:
        """Take up to ``limit`` tasks, from the first queue first; paused queues are skipped.

        A task over its pending_timeout is archived in the same step. ``token`` is unique per call; repeating
        the call with the same token after a lost answer returns the same tasks. The first ``starting`` tasks
        will start at once, the others are marked as held ahead. ``fallback`` stands in for missing stamps.
        """
        raise NotImplementedError

    async def finish(self, ends: Sequence[AttemptEnd], started: Sequence[Held] = ()) -> list[bool]:
        """Write the ends of attempts; one answer per end: whether this caller still owned the task.

        ``started`` takes the held-ahead mark off tasks whose execution has begun. A superseded attempt or a
        replayed call changes nothing.
        """
        raise NotImplementedError

    async def extend(self, held: Sequence[Held]) -> list[Held]:
        """Renew the leases of held tasks; returns those that this worker no longer owns."""
        raise NotImplementedError

    async def forward(self, queue: str, limit: int = 100) -> int:
        """Move scheduled and retrying tasks that are due into pending; returns how many were due."""
        raise NotImplementedError

    async def recover(self, queue: str, limit: int = 100) -> int:
        """Decide again about tasks whose lease ran out; returns how many were found."""
        raise NotImplementedError

    async def purge(self, queue: str, limit: int = 100) -> int:
        """Remove finished tasks whose retention is over; returns how many were looked at."""
        raise NotImplementedError

    async def pause(self, queue: str) -> bool:
        """Pause a queue at once for every path; False when it already was."""
        raise NotImplementedError

    async def resume(self, queue: str) -> bool:
        """Let a queue run again and wake idle workers; False when it was not paused."""
        raise NotImplementedError
