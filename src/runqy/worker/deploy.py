"""From a registration to something that can be started: code, environment, command."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runqy.errors import DeploymentError
from runqy.repository import Checkout, Repository
from runqy.settings.worker import WorkerSettings
from runqy.worker.command import child_environment, resolve_command
from runqy.worker.environment import EnvironmentBuilder
from runqy.worker.registration import DeploymentOrder, Registration


@dataclass(frozen=True, slots=True)
class Deployed:
    """What to start. ``env`` holds secrets of the vaults, so it is never printed."""

    parent: str
    work_dir: Path
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    commit: str
    order: DeploymentOrder


class Deployer:
    """Deploys the code of parent queues under ``deployment_dir``.

    Two workers that share the folder take turns: the lock is the kernel's and goes with its holder.
    """

    def __init__(self, settings: WorkerSettings, *, said: Callable[[str], None] = lambda _: None) -> None:
        self._settings = settings
        self._root = settings.deployment_dir.absolute()
        self._said = said

    async def deploy(self, registration: Registration) -> Deployed:
        """Fetch the code, build the environment, find the command. Raises `DeploymentError`.

        May be cancelled at any moment: programs it started are ended, nothing is left half-made.
        """
        order = registration.deployment
        async with self._turn(registration.parent):
            work_dir, commit = await self._code(registration)
            builder = EnvironmentBuilder(
                self._root / ".environments" / registration.parent,
                system_site_packages=self._settings.use_system_site_packages,
                said=self._said,
            )
            venv = await builder.build(work_dir, commit)
        environment = child_environment(venv, registration.vaults)
        argv = resolve_command(order.startup_cmd, venv / "bin" / "python", work_dir, environment)
        return Deployed(registration.parent, work_dir, tuple(argv), environment, commit, order)

    async def _code(self, registration: Registration) -> tuple[Path, str]:
        order = registration.deployment
        if order.path:
            work_dir = Path(order.path)
            if not work_dir.is_dir():
                raise DeploymentError(
                    f"The folder {order.path} does not exist on this machine",
                    why="the queue is configured with deployment.path, which is for a worker beside the server",
                    hint="use git_url in place of path, so that every worker can fetch the code",
                )
            return work_dir, ""
        folder = self._root / registration.parent
        repository = Repository(
            order.git_url, order.branch, order.code_path, registration.git_token, self._settings.git_ssh_key
        )
        commit = await Checkout(folder, repository, said=self._said).update()
        return folder / order.code_path, commit

    @contextlib.asynccontextmanager
    async def _turn(self, parent: str) -> AsyncIterator[None]:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._root / f".{parent}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DeploymentError(
                f"The deployment folder {self._root} can't be used",
                why=f"{error.strerror}: {error.filename}",
                hint="choose another with RUNQY_DEPLOYMENT_DIR, or change its owner",
            ) from error
        try:
            told = False
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not told:
                        self._said(f"another worker is deploying {parent}, waiting for it")
                        told = True
                    await asyncio.sleep(0.2)
            yield
        finally:
            os.close(lock)
