"""SIGTERM and SIGINT: the first asks for an orderly stop, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Callable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Counts the signals that ask to stop.

    Python runs signal handlers only between two bytecodes of the main thread, which a handler stuck in native
    code never reaches. So a thread watches the wake-up descriptor, which is written at once. Task code may
    take that descriptor away (an event loop of its own does), so the handlers count too, separately: neither
    ever sees more signals than were sent.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self._seen_by_handler = 0
        self._seen_by_watcher = 0

    def install(self) -> None:
        """Take the signals over; does nothing outside the main thread, where Python does not allow it."""
        if threading.current_thread() is not threading.main_thread():
            return
        reading, writing = os.pipe()
        try:
            os.set_blocking(writing, False)
            signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        except (OSError, ValueError):
            os.close(reading)
            os.close(writing)
        else:
            threading.Thread(target=self._watch, args=(reading,), name="runqy-signals", daemon=True).start()
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._seen_by_handler += 1
        self._act(self._seen_by_handler)

    def _watch(self, reading: int) -> None:
        while True:
            for number in os.read(reading, 64):
                if number in STOP_SIGNALS:
                    self._seen_by_watcher += 1
                    self._act(self._seen_by_watcher)

    def _act(self, seen: int) -> None:
        if seen > 1:
            os._exit(1)
        self._on_first()
