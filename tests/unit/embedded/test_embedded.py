"""The embedded storage: it keeps its data, comes back when it dies, and dies with its parent."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from harness.waiting import eventually

from runqy.broker.connection import connected
from runqy.broker.embedded import EmbeddedRedis, find_binary
from runqy.errors import ConflictError, RunqyError, UnavailableError

PARENT = """
import asyncio, sys
from pathlib import Path
from runqy.broker.connection import connected
from runqy.broker.embedded import EmbeddedRedis

async def main():
    storage = EmbeddedRedis(Path(sys.argv[1]))
    target = await storage.start()
    async with connected(target) as connection:
        await connection.command("INCR", "starts")
    print(storage.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_second_start_finds_the_data_of_the_first_at_the_same_address(tmp_path: Path) -> None:
    first = EmbeddedRedis(tmp_path)
    before = await first.start()
    async with connected(before) as connection:
        await connection.command("SET", "kept", "yes")
    await first.stop()
    second = EmbeddedRedis(tmp_path)
    after = await second.start()
    try:
        async with connected(after) as connection:
            assert await connection.command("GET", "kept") == b"yes"
        assert (after.url, after.password) == (before.url, before.password)
    finally:
        await second.stop()


async def test_it_is_started_again_when_it_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    storage = EmbeddedRedis(tmp_path)
    target = await storage.start()
    try:
        for number in range(5):
            async with connected(target) as connection:
                await connection.command("RPUSH", "numbers", number)
            pid = storage.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda wanted=number: storage.restarts == wanted + 1, 20)
        async with connected(target) as connection:
            assert await connection.command("LRANGE", "numbers", 0, -1) == [b"0", b"1", b"2", b"3", b"4"]
    finally:
        await storage.stop()


async def test_a_second_instance_on_the_folder_is_refused_and_names_the_first(tmp_path: Path) -> None:
    first = EmbeddedRedis(tmp_path)
    await first.start()
    try:
        with pytest.raises(ConflictError) as refusal:
            await EmbeddedRedis(tmp_path).start()
        assert str(os.getpid()) in refusal.value.why
        assert "--data-dir" in refusal.value.hint
    finally:
        await first.stop()


async def test_it_dies_with_its_parent_and_the_next_start_goes_on(tmp_path: Path) -> None:
    for round_number in range(1, 4):
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        assert parent.stdout is not None
        with parent.stdout:
            try:
                pid = int(next(line for line in parent.stdout if line.strip().isdigit()))
                assert alive(pid)
            finally:
                parent.kill()
                parent.wait(10)
        await eventually(lambda pid=pid: not alive(pid), 10, f"round {round_number}")
    storage = EmbeddedRedis(tmp_path)
    target = await storage.start()
    try:
        async with connected(target) as connection:
            assert await connection.command("GET", "starts") == b"3"
    finally:
        await storage.stop()


async def test_it_needs_its_password_and_keeps_it_out_of_sight(tmp_path: Path) -> None:
    storage = EmbeddedRedis(tmp_path)
    target = await storage.start()
    try:
        from dataclasses import replace

        with pytest.raises(UnavailableError):
            async with connected(replace(target, password="wrong")):
                pass
        command = Path(f"/proc/{storage.pid}/cmdline").read_bytes()
        assert target.password.encode() not in command
        assert target.password not in repr(target)
        for file in ("password", "valkey.conf"):
            assert stat.S_IMODE((tmp_path / "valkey" / file).stat().st_mode) == 0o600
    finally:
        await storage.stop()


async def test_without_any_binary_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runqy.broker.embedded.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunqyError) as refusal:
        find_binary()
    assert "runqy[embedded]" in refusal.value.hint
    assert "RUNQY_REDIS_URL" in refusal.value.hint


async def test_a_damaged_append_only_file_is_named(tmp_path: Path) -> None:
    storage = EmbeddedRedis(tmp_path)
    await storage.start()
    await storage.stop()
    manifest = next((tmp_path / "valkey" / "appendonlydir").glob("*.manifest"))
    manifest.write_text("this is no manifest\n")
    with pytest.raises(UnavailableError) as refusal:
        await EmbeddedRedis(tmp_path).start()
    assert str(tmp_path / "valkey") in refusal.value.hint


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """Root may write everywhere, so another user tries."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    code = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from runqy.broker.embedded import EmbeddedRedis\n"
        "from runqy.errors import RunqyError\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    asyncio.run(EmbeddedRedis(Path(sys.argv[1])).start())\n"
        "except RunqyError as error:\n"
        "    print(*error.lines(), sep='\\n')\n"
    )
    if os.getuid() != 0:
        closed.chmod(0o555)
        code = code.replace("os.setgid(65534); os.setuid(65534)\n", "")
    said = subprocess.run(
        [sys.executable, "-c", code, str(closed / "data")], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert f"The data folder {closed / 'data'} can't be used" in said
    assert "Permission denied" in said
    assert "--data-dir" in said
