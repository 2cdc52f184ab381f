"""A connection that breaks where a test wants it to, and that knows which scripts really ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoScriptError

from runqy.broker import scripts
from runqy.broker.connection import Command, Connection
from runqy.errors import UnavailableError

_NAMES = {script.sha: script.name for script in scripts.ALL} | {script.text: script.name for script in scripts.ALL}


@dataclass(frozen=True)
class Crash:
    """Breaks the ``trip``-th round trip of an operation (from 1): before it reaches Redis, or after Redis did it
    and before the answer arrived. ``dead``: the process is gone, later round trips of the operation never happen."""

    trip: int
    after: bool
    dead: bool


class CrashingConnection(Connection):
    """See `Crash`. ``ran`` lists the scripts that Redis carried out since `begin`, each with its first key."""

    crash: Crash | None = None
    trips = 0
    ran: tuple[tuple[str, str], ...] = ()

    def begin(self, crash: Crash | None) -> None:
        """An operation begins."""
        self.crash, self.trips, self.ran = crash, 0, ()

    def times(self, script: str, key: str = "") -> int:
        """How often the script ran since `begin` (with that first key, if one is given)."""
        return sum(name == script and key in {"", first} for name, first in self.ran)

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        self.trips += 1
        crash = self.crash
        if crash and crash.dead and self.trips > crash.trip:
            raise UnavailableError("the process is dead")
        if crash and self.trips == crash.trip and not crash.after:
            raise UnavailableError("the connection broke before the call")
        replies = await super().run(commands)
        self._note(commands, replies)
        if crash and self.trips == crash.trip:
            raise UnavailableError("the connection broke before the answer")
        return replies

    def _note(self, commands: Sequence[Command], replies: Sequence[Any]) -> None:
        for command, reply in zip(commands, replies, strict=True):
            if command[0] in {"EVALSHA", "EVAL"} and not isinstance(reply, NoScriptError):
                assert not isinstance(reply, Exception), reply
                self.ran += ((_NAMES[command[1]], str(command[3])),)
