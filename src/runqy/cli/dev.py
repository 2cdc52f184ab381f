"""`runqy dev`: one's own code, running, with everything it needs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import shutil
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runqy.cli.app import Session
from runqy.cli.options import pass_session
from runqy.errors import ConfigurationError, RunqyError, UsageError

if TYPE_CHECKING:
    from runqy.cli.local import LocalStack
    from runqy.config.model import QueueConfig

IGNORED = {".git", ".runqy", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
SOURCE_SUFFIXES = {".py", ".pyi", ".pyx", ".toml", ".lock", ".yaml", ".yml", ".sh", ".js", ".mjs", ".ts", ".rb", ".go"}
"""What is watched. Logs, data and results in the same folder must not restart the process that writes them."""
RELOAD_DEBOUNCE_MS = 200
_QUEUES = re.compile(r"^queues\s*:", re.MULTILINE)
_READ_MEMBER = re.compile(r"\bpayload\[[\"'](\w+)[\"']\]")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")


@click.command()
@click.argument("target", type=click.Path(path_type=Path), default=Path(), metavar="[FOLDER|FILE.yaml]")
@click.option("--port", default=3000, show_default=True, help="Port of the server.")
@click.option("--data-dir", type=click.Path(path_type=Path), default=Path(".runqy"), help="Storage.  [default: .runqy]")
@click.option("--concurrency", default=1, show_default=True, help="Tasks at once per parent queue.")
@pass_session
def dev(session: Session, target: Path, port: int, data_dir: Path, concurrency: int) -> int:
    """Run task code here: storage, server and a worker, reloaded as you edit.

    TARGET is a folder with queue YAML or with just a `main.py` (its queue is named after the folder), or one YAML
    file. Earlier tasks are found again at the next start. Ctrl-C stops everything.

    \b
    Examples:
      runqy dev
      runqy dev examples/quickstart
    """
    import uvloop

    from runqy import telemetry

    telemetry.configure(verbose=session.output.verbose)
    project = read_project(target)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Dev(session, project, port, data_dir, concurrency).run())


@dataclass(frozen=True, slots=True)
class Project:
    """What is to be run: its queues, the folders to watch, and the YAML files they came from."""

    queues: tuple[QueueConfig, ...]
    folders: tuple[Path, ...]
    files: tuple[Path, ...]
    warnings: tuple[str, ...] = ()


def read_project(target: Path) -> Project:
    """Find the queues of a folder or a file. Raises `ConfigurationError` or `UsageError` saying what is missing."""
    from runqy.config.source import load_file

    path = target.absolute()
    if not path.exists():
        raise UsageError(f"{target} does not exist", hint="name a folder with task code, or a queue YAML file")
    if path.is_file():
        files = [path]
    else:
        files = [file for file in sorted([*path.glob("*.yaml"), *path.glob("*.yml")]) if _names_queues(file)]
    if not files:
        return _bare_project(path)
    queues: list[QueueConfig] = []
    warnings: list[str] = []
    for file in files:
        loaded = load_file(file)
        warnings += loaded.warnings
        queues += [_with_absolute_path(queue, file.parent) for queue in loaded.queues]
    names = [queue.name for queue in queues]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"The queue {twice[0]} is in two files of {path}", hint="keep one of them, or name the file to run"
        )
    if not queues:
        raise ConfigurationError(f"There is no queue in {files[0]}", hint="write one below `queues:`")
    folders = {Path(queue.deployment.path) for queue in queues if queue.deployment and queue.deployment.path}
    return Project(tuple(queues), tuple(sorted(folders)), tuple(files), tuple(warnings))


def _names_queues(file: Path) -> bool:
    try:
        return bool(_QUEUES.search(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError):
        return False


def _with_absolute_path(queue: QueueConfig, folder: Path) -> QueueConfig:
    """`path` is relative to its YAML file."""
    if queue.deployment is None or not queue.deployment.path:
        return queue
    path = str((folder / queue.deployment.path).resolve())
    return replace(queue, deployment=replace(queue.deployment, path=path))


def _bare_project(folder: Path) -> Project:
    """A folder with just a main.py: one queue, named after the folder."""
    from runqy.config.model import Deployment, Mode, QueueConfig, SubQueue

    main = folder / "main.py"
    if not main.is_file():
        raise UsageError(
            f"There is nothing to run in {folder}",
            why="it has neither a main.py nor a YAML file with `queues:`",
            hint="write a main.py with a @task and runqy_python.run(); examples/quickstart shows one",
        )
    name = _NOT_IN_A_NAME.sub("-", folder.resolve().name).strip("-_") or "app"
    text = main.read_text(encoding="utf-8", errors="replace")
    once = "run_once(" in text and not re.search(r"\brun\(", text)
    deployment = Deployment(
        path=str(folder.resolve()), startup_cmd="python main.py", mode=Mode.ONE_SHOT if once else Mode.LONG_RUNNING
    )
    queue = QueueConfig(name[:100], (SubQueue("default", 1),), deployment)
    return Project((queue,), (folder.resolve(),), ())


class _Dev:
    def __init__(self, session: Session, project: Project, port: int, data_dir: Path, concurrency: int) -> None:
        self._output = session.output
        self._project = project
        self._port = port
        self._data_dir = data_dir
        self._concurrency = concurrency
        self._stop = asyncio.Event()
        self._stack: LocalStack | None = None

    def _on_signal(self) -> None:
        if self._stop.is_set() and self._stack is not None:
            self._stack.hurry()
        self._stop.set()

    async def run(self) -> int:
        from runqy.cli.local import LocalStack
        from runqy.service import end_tasks
        from runqy.settings.server import load_server_settings

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        for warning in self._project.warnings:
            self._output.warn(warning)
        flags = {"port": str(self._port), "data_dir": str(self._data_dir), "host": "127.0.0.1"}
        settings = replace(load_server_settings(flags), config_dir=None, config_repository=None, watch=False)
        for warning in settings.warnings:
            self._output.warn(warning)
        self._stack = LocalStack(settings, stay_up=True, on_trouble=self._show_trouble)
        work = asyncio.create_task(self._work(self._stack), name="dev")
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            await end_tasks(work, stopped)
            await self._stack.stop()
        self._output.note("stopped; the tasks are kept for the next start")
        return 0

    async def _work(self, stack: LocalStack) -> None:
        state = await stack.start_server(self._project.queues)
        state.events.subscribe_changes(_log_change)
        from runqy.service import end_tasks

        watched = asyncio.Event()
        watching = asyncio.create_task(self._watch(stack, watched), name="watch")
        # Before any code is read, so that no change to it is missed.
        await watched.wait()
        for queue in self._project.queues:
            stack.start_worker((queue.name,), concurrency=self._concurrency)
        for local in stack.workers:
            await stack.wait_ready(local)
        for line in self._three_lines(stack):
            self._output.line(line)
        try:
            await stack.failed()
        finally:
            await end_tasks(watching)

    def _show_trouble(self, queues: tuple[str, ...], detail: str) -> None:
        self._output.note(detail)
        self._output.note(f"queue {queues[0]} can't run yet; it is tried again when its code changes")

    def _three_lines(self, stack: LocalStack) -> list[str]:
        first = self._project.queues[0]
        name = first.full_names()[0]
        program = _program()
        payload = shlex.quote(json.dumps(_sample(first)))
        return [
            f"API      {stack.url}",
            f"Key      {stack.key_file or 'from RUNQY_API_KEY'}",
            f"Enqueue  {program} task enqueue -q {name} -p {payload} --wait",
        ]

    async def _watch(self, stack: LocalStack, watched: asyncio.Event) -> None:
        """Restart task processes when their code changes; take over changed YAML, or keep the old and say so."""
        from watchfiles import awatch

        places = [*self._project.folders, *{file.parent for file in self._project.files}]
        if not places:
            watched.set()
            return
        async for changes in awatch(
            *places,
            debounce=RELOAD_DEBOUNCE_MS,
            step=50,
            rust_timeout=100,
            yield_on_timeout=True,
            watch_filter=_is_source,
        ):
            watched.set()
            if not changes:
                continue
            changed = {Path(path) for _, path in changes}
            if changed & set(self._project.files) or any(_new_queue_file(p, self._project) for p in changed):
                await self._reload_queues(stack)
            names = ", ".join(sorted(path.name for path in changed)[:3])
            self._output.note(f"changed: {names}; reloading")
            for local in stack.workers:
                local.worker.reload()

    async def _reload_queues(self, stack: LocalStack) -> None:
        try:
            target = self._project.files[0] if len(self._project.files) == 1 else self._project.files[0].parent
            project = read_project(target)
            await stack.store(project.queues)
        except RunqyError as error:
            self._output.error(error)
            self._output.note("the former queue configuration stays in force")
            return
        known = {name for local in stack.workers for name in local.queues}
        self._project = replace(project, folders=self._project.folders)
        for queue in project.queues:
            if queue.name not in known:
                stack.start_worker((queue.name,), concurrency=self._concurrency)


def _log_change(queue: str, state: str, task_id: str) -> None:
    import structlog

    if state in {"completed", "archived", "retry", "deleted"}:
        structlog.get_logger("runqy").info(f"task {state}", queue=queue, task=task_id)


def _is_source(_change: object, path: str) -> bool:
    """Whether a change is one of code or configuration, not of something that a program writes beside it."""
    file = Path(path)
    if any(part in IGNORED for part in file.parts):
        return False
    return file.suffix in SOURCE_SUFFIXES or file.name.startswith("requirements")


def _new_queue_file(path: Path, project: Project) -> bool:
    return bool(project.files) and path.suffix in {".yaml", ".yml"} and path.exists() and _names_queues(path)


def _sample(queue: QueueConfig) -> dict[str, object]:
    """A payload that fits the queue's fields; without any, one with the members that main.py reads."""
    if not queue.input and queue.deployment is not None and queue.deployment.path:
        with contextlib.suppress(OSError):
            main = Path(queue.deployment.path, "main.py").read_text(encoding="utf-8", errors="replace")
            return dict.fromkeys(_READ_MEMBER.findall(main), "text")
    examples: dict[str, object] = {"string": "text", "int": 1, "float": 1.5, "bool": True, "array": [], "object": {}}
    sample: dict[str, object] = {}
    for field in queue.input:
        if field.default is not None:
            with contextlib.suppress(ValueError):
                sample[field.name] = json.loads(field.default)
                continue
        if field.required:
            sample[field.name] = examples[field.types[0].value] if field.types else "text"
    return sample


def _program() -> str:
    """How to call runqy from another shell as it was called here."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m runqy"
    found = shutil.which("runqy")
    if found is not None and Path(found).resolve() == called.resolve():
        return "runqy"
    return shlex.quote(str(called.absolute()))
