"""The Lua scripts of the transitions: loaded once, each named here."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

_INCLUDE = re.compile(r"^-- include: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its whole text and the SHA-1 under which Redis caches it.

    One that ``follows`` copies what the scripts before it left, and may run as often as one likes.
    """

    name: str
    text: str
    sha: str
    follows: bool = False


def _source(name: str) -> str:
    return files("runqy.broker").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def _strip(source: str) -> str:
    """Without comment lines, which Redis would keep in memory and log; the shebang stays first."""
    lines = [line for line in source.splitlines() if line.strip() and not line.lstrip().startswith("--")]
    return "\n".join(lines)


def load(name: str, *, follows: bool = False) -> Script:
    """Read a script and the parts that it includes. Raises FileNotFoundError for an unknown name."""
    source = _source(name)
    match = _INCLUDE.search(source)
    parts = [_strip(_source(part.strip())) for part in match.group(1).split(",")] if match else []
    body = _strip(source)
    shebang = ""
    if body.startswith("#!"):
        shebang, _, body = body.partition("\n")
    text = "\n".join(filter(None, [shebang, *parts, body])) + "\n"
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), follows)


ENQUEUE = load("enqueue")
PICKUP = load("pickup")
COMPLETE = load("complete")
FINISH = load("finish")
EXTEND = load("extend")
FORWARD = load("forward")
EXPIRED = load("expired")
PURGE = load("purge")
ARCHIVE = load("archive")
RUN = load("run")
DELETE = load("delete")
PAUSE = load("pause")
RESUME = load("resume")
APPEND_LOG = load("append_log")
PROGRESS = load("progress")
WEBHOOK_CLAIM = load("webhook_claim")
WEBHOOK_SETTLE = load("webhook_settle")
REMEMBER = load("remember", follows=True)
AGREE = load("agree", follows=True)
SWEEP = load("sweep", follows=True)

ALL = (
    ENQUEUE,
    PICKUP,
    COMPLETE,
    FINISH,
    EXTEND,
    FORWARD,
    EXPIRED,
    PURGE,
    ARCHIVE,
    RUN,
    DELETE,
    PAUSE,
    RESUME,
    APPEND_LOG,
    PROGRESS,
    WEBHOOK_CLAIM,
    WEBHOOK_SETTLE,
    REMEMBER,
    AGREE,
    SWEEP,
)
