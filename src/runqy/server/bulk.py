"""One action on everything that a search matches: counted first, done in bounded batches, with progress."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

import structlog

from runqy.broker.operator import BATCH, Operator
from runqy.broker.search import Search
from runqy.broker.transitions import ActionStatus
from runqy.errors import BackPressureError, NotFoundError, RunqyError
from runqy.service import end_tasks
from runqy.tasks.state import Action

log = structlog.get_logger(__name__)

MOST_TASKS = 200_000
"""tasks of one bulk action; for more it is started again"""
LISTED_FAILURES = 200
_KEPT_JOBS, _RUNNING_JOBS = 100, 4
_PAUSE_SECONDS = 0.005
"""between two batches, so that others get their turn at Redis"""


@dataclass(slots=True)
class BulkJob:
    """A bulk action and how far it is. Times in unix seconds."""

    id: str
    action: Action
    q: str
    who: str
    started_at: float
    state: str = "counting"
    """counting, running, done, cancelled or failed"""
    total: int = 0
    done: int = 0
    failed: int = 0
    error: str = ""
    is_cancelled: bool = False
    limit_reached: bool = False
    ended_at: float | None = None
    failures: list[dict[str, str]] = field(default_factory=list)
    """the first `LISTED_FAILURES` tasks that could not be acted on, and why"""

    def document(self) -> dict[str, Any]:
        """As the routes show it; times in unix milliseconds."""
        return {
            "id": self.id,
            "action": self.action.value,
            "q": self.q,
            "who": self.who,
            "state": self.state,
            "total": self.total,
            "done": self.done,
            "failed": self.failed,
            "errors": self.failures,
            "error": self.error,
            "limit_reached": self.limit_reached,
            "started_at": round(self.started_at * 1000),
            "ended_at": None if self.ended_at is None else round(self.ended_at * 1000),
        }


class BulkRunner:
    """Runs bulk actions in this server. One that stops in the middle has done what it counted as done."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._jobs: OrderedDict[str, BulkJob] = OrderedDict()
        self._running: dict[str, asyncio.Task[None]] = {}

    async def stop(self) -> None:
        """Cancel what still runs."""
        await end_tasks(*self._running.values())

    def all(self) -> list[BulkJob]:
        """The last hundred, newest first."""
        return list(reversed(self._jobs.values()))

    def get(self, job_id: str) -> BulkJob:
        """One of them. Raises `NotFoundError`."""
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFoundError(f"there is no bulk action {job_id}", hint="it may run on another server")
        return job

    def start(self, action: Action, q: str, search: Search, who: str) -> BulkJob:
        """Begin. Raises `BackPressureError` when too many run already."""
        if len(self._running) >= _RUNNING_JOBS:
            raise BackPressureError(f"{_RUNNING_JOBS} bulk actions are running", hint="wait for one, or cancel it")
        job = BulkJob(secrets.token_hex(6), action, q, who, time.time())
        self._jobs[job.id] = job
        while len(self._jobs) > _KEPT_JOBS:
            self._jobs.popitem(last=False)
        task = asyncio.create_task(self._run(job, search), name=f"bulk-{job.id}")
        self._running[job.id] = task
        task.add_done_callback(lambda _: self._running.pop(job.id, None))
        return job

    async def cancel(self, job_id: str) -> BulkJob:
        """Stop one after the batch at hand. Raises `NotFoundError`."""
        job = self.get(job_id)
        job.is_cancelled = True
        task = self._running.get(job_id)
        if task is not None:
            # The batch at hand is not torn: what Redis has done is counted.
            await asyncio.wait({task})
        return job

    async def _run(self, job: BulkJob, search: Search) -> None:
        try:
            # All ids first: acting moves tasks, and a search that goes on by position would miss some.
            by_queue: dict[str, list[str]] = defaultdict(list)
            async for queue, task_id in search.ids(MOST_TASKS):
                by_queue[queue].append(task_id)
                job.total += 1
                if job.is_cancelled:
                    break
            job.limit_reached = job.total >= MOST_TASKS
            job.state = "running"
            for queue, ids in by_queue.items():
                await self._act_in_batches(job, queue, ids)
            job.state = "cancelled" if job.is_cancelled else "done"
        except asyncio.CancelledError:
            job.state = "cancelled"
            raise
        except RunqyError as error:
            job.state, job.error = "failed", str(error)
            log.error("a bulk action failed", id=job.id, action=job.action, reason=str(error))
        finally:
            job.ended_at = time.time()

    async def _act_in_batches(self, job: BulkJob, queue: str, ids: list[str]) -> None:
        for batch in _batches(ids):
            if job.is_cancelled:
                return
            await self._act(job, queue, batch)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _act(self, job: BulkJob, queue: str, ids: list[str]) -> None:
        for acted in await self._operator.act(job.action, queue, ids):
            reason = failure(acted.status, acted.state, job.action)
            if not reason:
                job.done += 1
                continue
            job.failed += 1
            if len(job.failures) < LISTED_FAILURES:
                job.failures.append({"id": acted.id, "error": reason})


def _batches(ids: list[str]) -> list[list[str]]:
    return [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]


def failure(status: ActionStatus, state: object, action: Action) -> str:
    """Why an action did nothing to a task; empty when it did."""
    if status is ActionStatus.GONE:
        return "task not found"
    if status is ActionStatus.ILLEGAL:
        return f"a task that is {state} can't be {PAST[action]}"
    return ""


PAST = {Action.CANCEL: "cancelled", Action.RUN: "run", Action.ARCHIVE: "archived", Action.DELETE: "deleted"}
