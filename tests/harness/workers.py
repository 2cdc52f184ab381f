"""A worker under test: real Valkey, a real registration over HTTP, real task processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from harness.registrar import Registrar
from harness.waiting import eventually
from runqy.broker.broker import Broker
from runqy.broker.connection import Connection
from runqy.broker.inspector import Inspector, TaskView
from runqy.broker.workers import WorkerRecord, WorkerRegistry
from runqy.settings.secret import Secret
from runqy.settings.worker import WorkerSettings
from runqy.tasks.limits import Limits, Override, Source
from runqy.tasks.message import NewTask, new_task_id
from runqy.tasks.retry import RetryPolicy
from runqy.tasks.state import State
from runqy.worker.worker import Worker

QUEUE = "a.default"
TASK_CODE = Path(__file__).parent / "task_code"
AT_ONCE = RetryPolicy(delay=0, jitter=0)
ENDED = (State.COMPLETED, State.ARCHIVED)
QUICK: dict[str, Any] = {
    "kill_grace": 0.2,
    "shutdown_timeout": 5.0,
    "recovery_initial_delay": 0.02,
    "recovery_max_delay": 0.1,
}


@dataclass
class Bench:
    """One Valkey, one registrar, one folder; workers are started on it."""

    connection: Connection
    registrar: Registrar
    folder: Path
    deployments: Path
    environment: dict[str, str] = field(default_factory=dict)
    printed: list[tuple[str | None, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.broker = Broker(self.connection)
        self.inspector = Inspector(self.connection)
        self.registry = WorkerRegistry(self.connection)
        self.marks = self.folder / "marks"
        self.order()

    def order(self, parent: str = "a", *, queues: dict[str, int] | None = None, **deployment: Any) -> None:
        """What the registrar says from now on; ``environment`` reaches the task code as vault entries."""
        port = self.connection.client.connection_pool.connection_kwargs["port"]
        chosen = queues or {f"{parent}.default": 1}
        self.registrar.answers[parent] = {
            "redis": {"addr": f"127.0.0.1:{port}", "password": "", "use_tls": False, "db": 0},
            "queue": {"name": parent, "priority": 1},
            "sub_queues": [{"name": name, "priority": priority} for name, priority in chosen.items()],
            "deployment": {
                "path": str(TASK_CODE),
                "branch": "main",
                "startup_cmd": "python main.py",
                "redis_storage": True,
                **deployment,
            },
            "vaults": {"MARKS": str(self.marks), **self.environment},
        }

    def settings(self, *, queues: tuple[str, ...] = ("a",), **options: Any) -> WorkerSettings:
        base = WorkerSettings(
            self.registrar.url, Secret("test-worker-key"), queues, deployment_dir=self.deployments, **QUICK
        )
        return replace(base, **options)

    async def send(
        self, payload: Any = None, *, queue: str = QUEUE, policy: RetryPolicy = AT_ONCE, **levers: int
    ) -> str:
        """Enqueue one task; its id."""
        (task_id,) = await self.send_all([payload], queue=queue, policy=policy, **levers)
        return task_id

    async def send_all(
        self, payloads: Iterable[Any], *, queue: str = QUEUE, policy: RetryPolicy = AT_ONCE, **levers: int
    ) -> list[str]:
        limits = Limits().override(Override(**levers), Source.QUEUE)
        tasks = [
            NewTask(new_task_id(), queue, json.dumps(payload).encode(), limits, retry_policy=policy)
            for payload in payloads
        ]
        await self.inspector.register_queues([queue])
        await self.broker.enqueue(tasks)
        return [task.id for task in tasks]

    async def view(self, task_id: str) -> TaskView:
        view = await self.inspector.find(task_id)
        assert view is not None, f"task {task_id} is lost"
        return view

    async def in_state(self, task_id: str, *states: State, seconds: float = 15) -> TaskView:
        """The task, once it is in one of the states."""

        async def look() -> TaskView | None:
            view = await self.view(task_id)
            return view if view.state in states else None

        found: TaskView = await eventually(look, seconds, f"{task_id} in {states}")
        return found

    async def ended(self, *task_ids: str, seconds: float = 20) -> list[TaskView]:
        """The tasks, once all of them have ended."""
        return [await self.in_state(task_id, *ENDED, seconds=seconds) for task_id in task_ids]

    async def running(self, task_id: str) -> None:
        """Wait until the task's own code has begun."""
        await eventually(lambda: self.starts(task_id), 15, f"start of {task_id}")

    def marked(self) -> list[tuple[str, str, int, int, float]]:
        """What the task code noted: (start or end, task id, retries before, pid, time)."""
        if not self.marks.exists():
            return []
        rows = [line.split() for line in self.marks.read_text().splitlines()]
        return [(word, id_, int(retry), int(pid), float(when)) for word, id_, retry, pid, when in rows]

    def starts(self, task_id: str) -> list[float]:
        """When executions of the task began."""
        return [when for word, id_, _, _, when in self.marked() if word == "start" and id_ == task_id]

    def ends(self, task_id: str) -> list[float]:
        return [when for word, id_, _, _, when in self.marked() if word == "end" and id_ == task_id]

    def loads(self) -> list[int]:
        """Process ids of all starts of the task code."""
        path = Path(f"{self.marks}.loads")
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def starts_as(self, how: str) -> None:
        """What further starts of the task code do."""
        Path(f"{self.marks}.start").write_text(how)

    async def redis_is_back(self) -> None:
        """After a restart of Redis: without the connections of before."""
        await self.connection.client.connection_pool.disconnect()
        await self.connection.command("PING")

    def gate(self, name: str = "gate") -> Path:
        """A path that a task waits for; `touch` it to let the task go on."""
        return self.folder / name

    async def record(self) -> WorkerRecord | None:
        records = await self.registry.all()
        return records[0] if records else None

    async def nothing_is_left_running(self) -> None:
        """No process of the task code, and none of its descendants."""
        await eventually(lambda: not alive(self.loads()), 5, f"end of {self.loads()}")


def alive(pids: Iterable[int]) -> list[int]:
    """Those that still run."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


@dataclass
class Running:
    worker: Worker
    run: asyncio.Task[int]

    @property
    def runtime(self) -> Any:
        return next(iter(self.worker._processor.lanes.values())).runtime

    async def stop(self) -> int:
        self.worker.stop()
        return await asyncio.wait_for(self.run, 20)


@contextlib.asynccontextmanager
async def worker_on(
    bench: Bench, *, until_ready: bool = True, stay_up: bool = False, **options: Any
) -> AsyncIterator[Running]:
    """A worker in this process, stopped at the end; leaves no process behind."""
    up = asyncio.Event()
    worker = Worker(
        bench.settings(**options),
        stay_up=stay_up,
        told=lambda *line: bench.printed.append(line),
        on_status=lambda status, _: up.set() if status == "running" else None,
    )
    run = asyncio.ensure_future(worker.run())
    running = Running(worker, run)
    try:
        if until_ready:
            waiting = asyncio.ensure_future(up.wait())
            done, _ = await asyncio.wait({waiting, run}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if run in done:
                run.result()
            assert up.is_set(), "the worker did not get ready"
        yield running
    finally:
        if not run.done():
            worker.stop()
            worker.stop()
        await asyncio.wait({run}, timeout=20)
        assert run.done(), "the worker did not stop"
        if not run.cancelled():
            run.exception()
    await bench.nothing_is_left_running()


def worker_pids_of(pid: int) -> list[int]:
    """A process and all its descendants."""
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def environ_has(pid: int, text: bytes) -> bool:
    try:
        return text in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def processes_with(text: str) -> list[int]:
    """All processes whose environment holds the text (such as a test's own folder)."""
    return [pid for pid in psutil.pids() if pid != os.getpid() and environ_has(pid, text.encode()) and alive([pid])]
