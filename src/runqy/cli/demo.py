"""`runqy demo`: the main job, end to end, on real images, with every number measured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from runqy.cli.app import Session
from runqy.cli.options import pass_session
from runqy.errors import RunqyError, UnavailableError

if TYPE_CHECKING:
    from runqy.broker.inspector import TaskView
    from runqy.cli.local import LocalStack, LocalWorker
    from runqy.config.model import QueueConfig

IMAGES = 500
LEAST_ACCURACY = 0.9
LEVERS_ACTIVE_TIMEOUT = 1
STALE_PENDING_TIMEOUT = 1
BATCH_SECONDS = 300.0
LEVER_SECONDS = 60.0
STORAGE_SECONDS = 30.0

_T = TypeVar("_T")


@click.command()
@click.option("--keep", is_flag=True, help="Leave everything running, and say where it is.")
@click.option("--port", default=0, help="Port of the server.  [default: a free one]")
@pass_session
def demo(session: Session, keep: bool, port: int) -> int:
    """See it work: a classifier on 500 real images, and what the five levers do to five tasks that go wrong.

    Starts embedded storage, a server and a worker in a temporary folder, deploys examples/digits from a git
    repository that it makes of that folder (clone, virtual environment, requirements), sends the images in one
    batch, and shows what it measured. Exits 0 when all is as promised.
    """
    import uvloop

    from runqy import telemetry

    telemetry.configure(verbose=session.output.verbose, json=session.output.as_json or None)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Demo(session, keep, port).run())


@dataclass(slots=True)
class Report:
    """Everything that was measured. Seconds, unless the name says otherwise."""

    images: int = 0
    completed: int = 0
    right: int = 0
    span: float = 0.0
    waits: list[float] = field(default_factory=list)
    runs: list[float] = field(default_factory=list)
    deploy: float = 0.0
    levers: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        return self.right / self.completed if self.completed else 0.0

    @property
    def throughput(self) -> float:
        return self.completed / self.span if self.span else 0.0

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "images": self.images,
            "completed": self.completed,
            "accuracy": round(self.accuracy, 4),
            "tasks_per_second": round(self.throughput, 1),
            "wait_ms": {"p50": _ms(self.waits, 0.5), "p95": _ms(self.waits, 0.95)},
            "run_ms": {"p50": _ms(self.runs, 0.5), "p95": _ms(self.runs, 0.95)},
            "deploy_seconds": round(self.deploy, 1),
            "levers": self.levers,
            "problems": self.problems,
        }


def _ms(values: Sequence[float], q: float) -> float:
    """The q-quantile in milliseconds (nearest rank)."""
    ordered = sorted(values)
    return round(ordered[min(int(q * len(ordered)), len(ordered) - 1)] * 1000, 1) if ordered else 0.0


def examples_folder() -> Path:
    """The examples: in the wheel, or in a source checkout."""
    package = Path(__file__).parents[1]
    wheel = package / "examples"
    return wheel if wheel.is_dir() else package.parents[1] / "examples"


class _Demo:
    def __init__(self, session: Session, keep: bool, port: int) -> None:
        self._output = session.output
        self._keep = keep
        self._port = port
        self._stop = asyncio.Event()
        self._said: float = 0.0
        self._report = Report()

    async def run(self) -> int:
        from runqy.service import end_tasks

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        folder = _temporary_folder()
        stack: LocalStack | None = None
        try:
            stack = self._make_stack(folder)
            work = asyncio.create_task(self._work(stack, folder), name="demo")
            await self._until_done(work, stack)
            if self._stop.is_set() and not work.done():
                await end_tasks(work)
                self._output.note("interrupted")
                return 130
            await work
            self._show()
            if self._keep:
                await self._stay(stack, folder)
        finally:
            if stack is not None:
                self._step("stopping")
                await stack.stop()
            shutil.rmtree(folder, ignore_errors=True)
        if self._report.problems:
            raise RunqyError("The demo did not go as promised", why="; ".join(self._report.problems))
        return 0

    async def _until_done(self, work: asyncio.Task[None], stack: LocalStack) -> None:
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()

    def _make_stack(self, folder: Path) -> LocalStack:
        from runqy.cli.local import LocalStack
        from runqy.settings.server import load_server_settings

        flags = {"data_dir": str(folder / "data"), "host": "127.0.0.1", "port": str(self._port or _free_port())}
        settings = replace(load_server_settings(flags), config_dir=None, config_repository=None, watch=False)
        for warning in settings.warnings:
            self._output.warn(warning)
        return LocalStack(settings, stay_up=False)

    def _step(self, text: str) -> None:
        """What happens now, on stderr."""
        self._output.note(f"-- {text}")

    async def _work(self, stack: LocalStack, folder: Path) -> None:
        self._step("starting storage and server")
        repository = await make_repository(examples_folder() / "digits", folder / "digits.git")
        await stack.start_server(_queues(repository))
        self._step(f"server at {stack.url}; deploying {repository}")
        began = time.monotonic()
        digits = stack.start_worker(("digits",), told=_silent, max_restarts=1)
        levers = stack.start_worker(("levers", "stale"), told=_silent, max_restarts=3)
        await self._while_waiting(
            stack.wait_ready(digits), "cloning, installing scikit-learn, training the classifier (@load)"
        )
        await stack.wait_ready(levers)
        self._report.deploy = time.monotonic() - began
        self._step(f"ready after {self._report.deploy:.1f} s")
        images = await self._read_images(digits)
        await self._send_images(stack, images)
        self._step("five tasks that go wrong, one for each thing that the levers decide")
        await self._show_levers(stack)

    async def _while_waiting(self, work: Awaitable[Any], text: str) -> Any:
        """Tell every few seconds that it still goes on."""
        task = asyncio.ensure_future(work)
        began = time.monotonic()
        self._step(text)
        while True:
            done, _ = await asyncio.wait({task}, timeout=10)
            if done:
                return await task
            self._step(f"{text} … {time.monotonic() - began:.0f} s")

    async def _read_images(self, digits: LocalWorker) -> list[dict[str, Any]]:
        """The images come from the deployed environment: it has scikit-learn, this process does not."""
        deployed = digits.worker.deployed("digits")
        process = await asyncio.create_subprocess_exec(
            deployed.argv[0],
            "images.py",
            str(IMAGES),
            cwd=deployed.work_dir,
            env=dict(deployed.env),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        if process.returncode:
            raise RunqyError("The images could not be read", why=err.decode(errors="replace").strip()[-300:])
        return [json.loads(line) for line in out.decode().splitlines()]

    async def _send_images(self, stack: LocalStack, images: list[dict[str, Any]]) -> None:
        """One batch over HTTP; then every result is read and compared with its label."""
        assert stack.state is not None
        report, state = self._report, stack.state
        report.images = len(images)
        self._step(f"sending {len(images)} images in one batch")
        sent_at = time.time()
        answer = await _post(
            stack, "/queue/add-batch", {"queue": "digits", "jobs": [{"data": {"image": i["image"]}} for i in images]}
        )
        ids = answer["task_ids"]
        deadline = time.monotonic() + BATCH_SECONDS
        shown = -1
        while True:
            counts = await _patiently(lambda: state.inspector.counts("digits.default"))
            ended = counts.completed + counts.archived
            if ended * 10 // len(ids) != shown:
                shown = ended * 10 // len(ids)
                self._step(f"{_bar(ended, len(ids))} {ended}/{len(ids)}")
            if ended >= len(ids):
                break
            if time.monotonic() > deadline:
                report.problems.append(f"after {BATCH_SECONDS:.0f} s only {ended} of {len(ids)} images had ended")
                break
            await asyncio.sleep(0.05)
        starts, ends = [], []
        for id_, image in zip(ids, images, strict=True):
            view = await _patiently(lambda id_=id_: state.inspector.find(id_))  # type: ignore[misc]
            if view is None or view.state != "completed" or not view.attempts:
                continue
            attempt = view.attempts[-1]
            report.completed += 1
            report.right += json.loads(view.result or b"{}").get("digit") == image["label"]
            report.waits.append(max(attempt.started_at - sent_at, 0.0))
            report.runs.append(attempt.ended_at - attempt.started_at)
            starts.append(attempt.started_at)
            ends.append(attempt.ended_at)
        if starts:
            report.span = max(max(ends) - min(starts), 0.001)
        if report.completed < len(ids):
            report.problems.append(f"{len(ids) - report.completed} of {len(ids)} images did not complete")
        if report.accuracy < LEAST_ACCURACY:
            report.problems.append(f"accuracy is {report.accuracy:.1%}, less than {LEAST_ACCURACY:.0%}")

    async def _show_levers(self, stack: LocalStack) -> None:
        cases: list[tuple[str, str, dict[str, Any], Callable[[TaskView], bool], str]] = [
            (
                "max_retry",
                "fails once, then works",
                {"do": "fail once", "key": "demo"},
                lambda v: v.state == "completed" and v.retried == 1,
                "levers",
            ),
            (
                "max_retry",
                "fails every time",
                {"do": "fail always"},
                lambda v: v.state == "archived" and v.retried == 1 and len(v.attempts) == 2,
                "levers",
            ),
            (
                "-",
                "fails for good (no retry)",
                {"do": "give up"},
                lambda v: v.state == "archived" and v.retried == 0 and v.attempts[-1].ending == "failed",
                "levers",
            ),
            (
                "active_timeout",
                f"runs longer than {LEVERS_ACTIVE_TIMEOUT}s",
                {"do": "hang"},
                lambda v: v.state == "archived" and {a.ending for a in v.attempts} == {"timeout"},
                "levers",
            ),
            (
                "pending_timeout",
                f"waits longer than {STALE_PENDING_TIMEOUT}s",
                {"do": "nothing"},
                lambda v: v.state == "archived" and v.attempts[-1].ending == "expired",
                "stale",
            ),
        ]
        for lever, what, payload, promised, queue in cases:
            view = await self._run_lever(stack, queue, payload)
            if view is None:
                self._report.problems.append(f"the task that {what} did not end in {LEVER_SECONDS:.0f} s")
                continue
            last = view.error.strip().splitlines()[-1] if view.error.strip() else "-"
            self._report.levers.append(
                {
                    "lever": lever,
                    "task": what,
                    "ended": view.state.value,
                    "attempts": [a.ending for a in view.attempts],
                    "reason": last,
                    "kept_by": "ttl_completed" if view.state == "completed" else "ttl_archived",
                    "gone_at": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(view.expires_at)),
                }
            )
            if not promised(view):
                self._report.problems.append(
                    f"the task that {what} ended {view.state} after {[a.ending for a in view.attempts]}: {last}"
                )

    async def _run_lever(self, stack: LocalStack, queue: str, payload: dict[str, Any]) -> TaskView | None:
        assert stack.state is not None
        state, full = stack.state, f"{queue}.default"
        if queue == "stale":
            # Its worker is there, but may not take it in time.
            await _patiently(lambda: state.broker.pause(full))
        answer = await _post(stack, "/queue/add", {"queue": queue, "data": payload})
        task_id = answer["info"]["id"]
        if queue == "stale":
            await asyncio.sleep(STALE_PENDING_TIMEOUT + 0.2)
            await _patiently(lambda: state.broker.resume(full))
        if not await _patiently(lambda: state.events.wait_for_end(full, task_id, LEVER_SECONDS)):
            return None
        return await _patiently(lambda: state.inspector.find(task_id))

    def _show(self) -> None:
        report = self._report
        self._output.document(report.document())
        if self._output.as_json:
            return
        from rich.console import Console
        from rich.table import Table

        console = Console(highlight=False, width=None if self._output.on_terminal else 120)
        table = Table(title="digits: handwritten images through a warm classifier", title_justify="left", box=None)
        for column in ("images", "right", "tasks/s", "wait p50", "wait p95", "run p50", "run p95"):
            table.add_column(column, justify="right")
        table.add_row(
            f"{report.completed}/{report.images}",
            f"{report.accuracy:.1%}",
            f"{report.throughput:,.0f}",
            *(f"{_ms(values, q)} ms" for values in (report.waits, report.runs) for q in (0.5, 0.95)),
        )
        console.print()
        console.print(table)
        console.print()
        levers = Table(
            title="five tasks that go wrong, and what the levers made of them", title_justify="left", box=None
        )
        for column in ("task", "lever", "attempts", "ended", "gone at", "by"):
            levers.add_column(column)
        for row in report.levers:
            levers.add_row(
                row["task"],
                row["lever"],
                ", ".join(row["attempts"]),
                row["ended"],
                row["gone_at"],
                row["kept_by"],
            )
        console.print(levers)
        for row in report.levers:
            if row["ended"] != "completed":
                console.print(f"  {row['task']}: {row['reason']}", style="dim")
        console.print()
        if not report.problems:
            console.print("Everything is as promised. Your own code: runqy dev FOLDER")

    async def _stay(self, stack: LocalStack, folder: Path) -> None:
        lines = [
            f"API      {stack.url}",
            f"Key      {stack.key_file}",
            f"Data     {folder}",
            f"Try      RUNQY_DATA_DIR={folder / 'data'} {sys.argv[0]} queue list",
            "Ctrl-C stops it and deletes the folder.",
        ]
        for line in lines:
            self._output.line(line)
        failing = asyncio.create_task(stack.failed())
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({failing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if failing.done():
            await failing
        failing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await failing


def _temporary_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="runqy-demo-"))
    except OSError as error:
        raise RunqyError(
            "The demo can't make its temporary folder",
            why=error.strerror or str(error),
            hint="make room, or name a folder that can be written: TMPDIR=/some/folder runqy demo",
        ) from error


async def _patiently(call: Callable[[], Awaitable[_T]]) -> _T:
    """The answer of a call, also when the storage has just died and is being started again."""
    deadline = time.monotonic() + STORAGE_SECONDS
    while True:
        try:
            return await call()
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


def _silent(_task_id: str | None, _stream: str, _text: str) -> None:
    """The demo's own report is enough."""


def _bar(done: int, total: int, width: int = 30) -> str:
    filled = width * done // max(total, 1)
    return "[" + "#" * filled + "." * (width - filled) + "]"


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _post(stack: LocalStack, path: str, body: dict[str, Any]) -> Any:
    """A call over HTTP, as any client makes it: with a key of its own, so that it may be repeated."""
    import httpx2

    headers = {"Authorization": f"Bearer {stack.key}", "Idempotency-Key": uuid.uuid4().hex}

    async def call() -> Any:
        async with httpx2.AsyncClient(base_url=stack.url) as http:
            response = await http.post(path, json=body, headers=headers, timeout=60)
        if response.status_code == 503:
            raise UnavailableError(f"{path} can't be answered now", why=response.text[:300])
        if response.status_code != 200:
            raise RunqyError(f"{path} was refused: {response.status_code}", why=response.text[:300])
        return response.json()

    return await _patiently(call)


async def make_repository(source: Path, place: Path) -> str:
    """A git repository of a folder's files; returns its address. Raises `RunqyError` when git is missing or fails."""
    if shutil.which("git") is None:
        raise RunqyError("git is not installed on this machine", hint="install it: apt-get install git")
    if not source.is_dir():
        raise RunqyError(
            f"The example {source} is not there", hint="run it from a source checkout, or install the wheel"
        )
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__", ".venv", ".git"))
    identity = ["-c", "user.name=runqy", "-c", "user.email=runqy@localhost", "-c", "commit.gpgsign=false"]
    for arguments in (
        ["init", "--quiet", "--initial-branch", "main"],
        ["add", "."],
        [*identity, "commit", "--quiet", "-m", "The digits example"],
    ):
        process = await asyncio.create_subprocess_exec(
            "git", *arguments, cwd=place, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, err = await process.communicate()
        if process.returncode:
            raise RunqyError(f"git {arguments[0]} failed", why=err.decode(errors="replace").strip())
    return f"file://{place}"


def _queues(repository: str) -> list[QueueConfig]:
    from runqy.config.model import Deployment, QueueConfig, SubQueue
    from runqy.tasks.limits import Override
    from runqy.tasks.retry import Backoff, RetryPolicy

    default = (SubQueue("default", 1),)
    quick = RetryPolicy(delay=0.5, backoff=Backoff.FIXED, jitter=0.0)
    code = Deployment(git_url=repository, startup_cmd="python main.py", startup_timeout_secs=120)
    misbehaving = replace(code, code_path="levers", retry=quick)
    limits = Override(max_retry=1, ttl_completed=3600, ttl_archived=24 * 3600)
    return [
        QueueConfig("digits", default, replace(code, limits=Override(ttl_completed=3600))),
        QueueConfig(
            "levers", default, replace(misbehaving, limits=replace(limits, active_timeout=LEVERS_ACTIVE_TIMEOUT))
        ),
        QueueConfig(
            "stale", default, replace(misbehaving, limits=replace(limits, pending_timeout=STALE_PENDING_TIMEOUT))
        ),
    ]
