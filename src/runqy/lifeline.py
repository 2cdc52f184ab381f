"""Child processes that do not outlive their parent, whatever ends it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

# Sets the parent-death signal and becomes the program. The kernel sends the signal when the thread that started
# the child ends, SIGKILL included; the comparison of parents closes the gap before the signal was set.
_LAUNCHER = """
import ctypes, os, sys
signal_number, parent = int(sys.argv[1]), int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(1, signal_number, 0, 0, 0) != 0:
    sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
if os.getppid() != parent:
    sys.exit("the parent is gone")
try:
    os.execvp(sys.argv[3], sys.argv[3:])
except OSError as error:
    sys.stderr.write(f"{sys.argv[3]}: {error.strerror}\\n")
    sys.exit(127)
"""


def bound_command(command: Sequence[str], death_signal: signal.Signals = signal.SIGKILL) -> list[str]:
    """The command, started through a launcher that binds its life to the calling process.

    ``death_signal`` is what the program gets when its parent is gone. Start it from a thread that lives as
    long as the process, such as the main one. A program that can't be started ends with 127 and says why on
    stderr.
    """
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(int(death_signal)), str(os.getpid()), *command]
