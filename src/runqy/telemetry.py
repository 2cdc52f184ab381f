"""Logs: structured, one line each, with the task, queue and worker bound; secrets never in them."""

from __future__ import annotations

import base64
import logging
import sys
import threading
from typing import Any, TextIO
from urllib.parse import quote, quote_plus

import structlog

MASK = "****"
_SHORTEST_SECRET = 6
"""Shorter texts are not redacted: they would turn ordinary words into asterisks."""


class Redactor:
    """Knows every secret of this process, in each form in which it could turn up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forms: tuple[str, ...] = ()

    def add(self, secret: str | None) -> None:
        """Keep a secret out of all output from now on: plain, percent-encoded, and in base64."""
        if not secret or len(secret) < _SHORTEST_SECRET:
            return
        encoded = secret.encode()
        forms = {secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]}
        # In base64 a secret looks different at each of three offsets; the ends depend on its neighbours.
        for offset in range(3):
            text = base64.b64encode(b"\0" * offset + encoded).decode()
            start = -(-offset * 4 // 3)
            stable = text[start : (offset + len(encoded)) * 8 // 6]
            if len(stable) >= _SHORTEST_SECRET:
                forms |= {stable, stable.replace("+", "-").replace("/", "_")}
        with self._lock:
            self._forms = tuple(sorted({*self._forms, *forms}, key=len, reverse=True))

    def clean(self, text: str) -> str:
        """The text with every known secret replaced."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text


REDACTOR = Redactor()


def redact(text: str) -> str:
    """The text without any secret that this process knows."""
    return REDACTOR.clean(text)


def add_secret(secret: str | None) -> None:
    """Keep a secret out of logs and messages from now on."""
    REDACTOR.add(secret)


def configure(*, verbose: bool = False, json: bool | None = None, stream: TextIO | None = None) -> None:
    """Set up the logs of this process: on stderr, as lines for people on a terminal or with ``json`` for machines."""
    target = stream or sys.stderr
    level = logging.DEBUG if verbose else logging.INFO
    renderer: Any = structlog.processors.JSONRenderer() if json else _render_line
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso" if json else "%H:%M:%S", utc=bool(json)),
            structlog.processors.format_exc_info,
            renderer,
            _redact_rendered,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=target),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, stream=target, force=True, format="%(levelname)s %(name)s %(message)s")


def _redact_rendered(_logger: Any, _name: str, rendered: Any) -> Any:
    return REDACTOR.clean(rendered) if isinstance(rendered, str) else rendered


_FIRST = ("worker", "queue", "task")


def _render_line(_logger: Any, _name: str, event: Any) -> str:
    """`14:03:22 info  what happened  queue=a.default task=… key=value`"""
    event = dict(event)
    time, level, said = event.pop("timestamp"), event.pop("level"), event.pop("event")
    trace = event.pop("exception", None)
    names = [name for name in _FIRST if name in event] + sorted(name for name in event if name not in _FIRST)
    pairs = " ".join(f"{name}={_shown(event[name])}" for name in names)
    line = f"{time} {level:<7} {said}" + (f"  {pairs}" if pairs else "")
    return f"{line}\n{trace}" if trace else line


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " | ".join(map(str, value)) or "-"
    text = str(value)
    return repr(text) if " " in text and "\n" not in text else text
