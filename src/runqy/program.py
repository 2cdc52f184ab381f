"""Runs a helper program (git, pip, uv) to its end: bounded, cancellable, its whole tree ended, its last lines kept."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runqy.errors import DeploymentError
from runqy.lifeline import bound_command
from runqy.telemetry import redact

KEPT_LINES = 40
LINE_LIMIT = 1 << 20
KILL_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Output:
    """How a program ended, and its last lines (stdout and stderr together, secrets removed)."""

    code: int
    tail: tuple[str, ...]

    @property
    def last(self) -> str:
        return next((line for line in reversed(self.tail) if line.strip()), "")


async def run_program(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout: float,
    said: Callable[[str], None] = lambda _: None,
) -> Output:
    """Run the program and wait for it. ``timeout`` in seconds; ``said`` gets each line.

    When it is over time, or the caller is cancelled, the program and all its children are killed. Raises
    `DeploymentError` for a program that does not exist or is over time.
    """
    process = await asyncio.create_subprocess_exec(
        *bound_command(command),
        cwd=cwd,
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        limit=LINE_LIMIT,
    )
    tail: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
    try:
        async with asyncio.timeout(timeout):
            await _drain(process, tail, said)
            code = await process.wait()
    except TimeoutError:
        raise DeploymentError(
            f"{Path(command[0]).name} did not end within {timeout:.0f} s",
            hint="check the network and what it was waiting for",
            tail=tuple(tail),
        ) from None
    finally:
        await _end_group(process)
    if code == 127 and len(tail) == 1 and tail[0].startswith(f"{command[0]}: No such file"):
        raise DeploymentError(f"{command[0]} is not installed on this machine", hint=f"install {command[0]}")
    return Output(code, tuple(tail))


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Kill whatever is left of the program's process group.

    More than once: a child that was being forked at the moment of the signal is not in the group yet.
    """
    for _ in range(KILL_ROUNDS):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            break
        await asyncio.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        await process.wait()


async def _drain(
    process: asyncio.subprocess.Process, tail: collections.deque[str], said: Callable[[str], None]
) -> None:
    assert process.stdout is not None
    while True:
        try:
            line = await process.stdout.readline()
        except ValueError:
            # A line without an end over the limit: what was read of it is dropped.
            continue
        if not line:
            return
        text = redact(line.decode("utf-8", "replace").rstrip("\r\n"))
        tail.append(text)
        said(text)
