"""Queue files from a git repository: a clone of this server's own, gone when the server ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import structlog

from runqy.errors import ConfigurationError, DeploymentError, UnavailableError
from runqy.repository import Checkout, Repository
from runqy.settings.secret import Secret
from runqy.settings.server import ConfigRepository
from runqy.telemetry import add_secret

log = structlog.get_logger(__name__)

_PREFIX = "queueworker-configs-"
_LOCK = "lock"
_HINT = "check CONFIG_REPO_URL, CONFIG_REPO_BRANCH, CONFIG_REPO_PATH and GITHUB_PAT (or its file)"


class ConfigCloneError(UnavailableError):
    """The repository can't be fetched; what was fetched before stays."""


class ConfigClone:
    """A clone of one branch. `start` before use, `stop` at the end; `update` as often as wanted."""

    def __init__(self, repository: ConfigRepository, token: Secret | None) -> None:
        path = repository.path.strip("/")
        self._wanted = Repository(
            repository.url,
            repository.branch,
            "" if path == "." else path,
            token.get_secret_value() if token is not None else "",
        )
        add_secret(self._wanted.token)
        self._parent = repository.clone_dir.absolute()
        self._home: Path | None = None
        self._lock_file = -1
        self._updating = asyncio.Lock()
        self.commit = ""
        """what is checked out; empty before the first `update` has succeeded"""

    @property
    def folder(self) -> Path:
        """Where the queue files are."""
        assert self._home is not None
        return self._home / "clone" / self._wanted.code_path

    def start(self) -> None:
        """Make a folder of our own, and remove those of servers that died. Raises `ConfigurationError`."""
        try:
            self._parent.mkdir(parents=True, exist_ok=True)
            for left in self._parent.glob(f"{_PREFIX}*"):
                _remove_unless_held(left)
            self._home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._parent))
            # The system lets go of it when the process ends, however it ends.
            self._lock_file = os.open(self._home / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigurationError(
                f"The clone of the configuration repository can't be kept in {self._parent}",
                why=error.strerror or str(error),
                hint="make the folder writable, or choose another with --clone-dir",
            ) from error

    async def update(self) -> str:
        """Fetch the branch; returns its commit. Raises `ConfigCloneError`, and keeps what it had.

        Who reads `folder` without waiting in between reads the files of that commit.
        """
        assert self._home is not None
        async with self._updating:
            try:
                self.commit = await Checkout(self._home / "clone", self._wanted).update()
            except DeploymentError as error:
                raise ConfigCloneError(error.what, why=error.why, hint=_HINT) from None
            except OSError as error:
                raise ConfigCloneError(
                    f"The clone in {self._home} can't be written",
                    why=error.strerror or str(error),
                    hint="check its disk and its owner",
                ) from error
        return self.commit

    async def stop(self) -> None:
        """Remove the clone."""
        if self._home is not None:
            await asyncio.to_thread(shutil.rmtree, self._home, ignore_errors=True)
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1


def _remove_unless_held(folder: Path) -> None:
    """A folder whose lock nobody holds belonged to a server that was killed."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            log.info("removed the clone of a server that died", folder=str(folder))
        finally:
            os.close(descriptor)
