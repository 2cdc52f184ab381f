"""The five levers: read an override, resolve it, stamp it onto a task, read the stamps back.

A value is decided field by field in the order request > queue > environment > default, is frozen onto the
task when it is enqueued, and carries where it came from. All durations become whole seconds here, rounded
up; 0 means "off" for the two timeouts and "for ever" for the two lifetimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from runqy.timing import DurationError, parse_duration, seconds_up

FOREVER_SECONDS = 100 * 365 * 24 * 3600
"""asynq's "no expiry": the history score of a task that is kept for ever lies this far ahead."""


class Source(StrEnum):
    """Where a value came from; the letter is what the stamp keeps."""

    DEFAULT = "default"
    ENVIRONMENT = "environment"
    QUEUE = "queue"
    REQUEST = "request"
    WORKER = "worker"
    """a worker's own fallback, for tasks that carry no stamps"""

    @property
    def letter(self) -> str:
        return self.value[0]


_SOURCE_BY_LETTER = {source.letter: source for source in Source}


class LimitError(ValueError):
    """A lever has a value that is refused. The message names field, value, and a right form."""


@dataclass(frozen=True, slots=True)
class Lever:
    """One of the five: its name everywhere, and what it is when nobody says anything."""

    name: str
    default: int
    is_duration: bool
    zero_means: str
    environment: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "environment", f"RUNQY_DEFAULT_{self.name.upper()}")


MAX_RETRY = Lever("max_retry", 3, False, "no retries")
TTL_COMPLETED = Lever("ttl_completed", 24 * 3600, True, "kept for ever")
TTL_ARCHIVED = Lever("ttl_archived", 72 * 3600, True, "kept for ever")
PENDING_TIMEOUT = Lever("pending_timeout", 0, True, "off")
ACTIVE_TIMEOUT = Lever("active_timeout", 0, True, "off")

LEVERS = (MAX_RETRY, TTL_COMPLETED, TTL_ARCHIVED, PENDING_TIMEOUT, ACTIVE_TIMEOUT)
LEVERS_BY_NAME: Mapping[str, Lever] = {lever.name: lever for lever in LEVERS}

_MAX_RETRY_BOUND = 2**31 - 1
"""The task message holds max_retry as an int32."""


def parse_lever(lever: Lever, value: object, name: str | None = None) -> int | None:
    """Read one lever's value from YAML, JSON, an environment variable or a flag.

    Returns whole seconds (or the count of retries), or None when the value means "not set" (None or "").
    ``name`` is how the user wrote the setting, for the message. The same value gives the same answer
    wherever it comes from. Raises `LimitError`.
    """
    shown = name or lever.name
    if value is None or value == "":
        return None
    if lever.is_duration:
        return seconds_up(parse_setting_duration(value, shown))
    return _parse_count(value, shown)


def parse_setting_duration(value: object, name: str) -> int:
    """Nanoseconds of a duration setting, at least 0. Raises `LimitError` naming the setting."""
    # bool is an int in Python; True must not become one nanosecond.
    if isinstance(value, int) and not isinstance(value, bool) and value == 0:
        return 0
    if not isinstance(value, str):
        raise LimitError(f'{name}: invalid duration {_shown(value)} (use forms like "24h", "90s", "0"): {_kind(value)}')
    try:
        nanoseconds = parse_duration(value)
    except DurationError as error:
        raise LimitError(
            f'{name}: invalid duration {_shown(value)} (use forms like "24h", "90s", "0"): {error}'
        ) from None
    if nanoseconds < 0:
        raise LimitError(f"{name} must be >= 0, got {_shown(value)}")
    return nanoseconds


def is_fractional(lever: Lever, value: object) -> bool:
    """Whether a duration that was accepted had a fraction of a second, which was rounded up."""
    if not lever.is_duration or not isinstance(value, str):
        return False
    try:
        return parse_duration(value) % 1_000_000_000 != 0
    except DurationError:
        return False


def _parse_count(value: object, name: str) -> int:
    text = value if isinstance(value, str) else None
    if text is not None:
        # Exactly what Go's strconv.Atoi takes: an optional sign and ASCII digits; YAML's 010 or 0x10 are typos.
        digits = text[1:] if text[:1] in {"+", "-"} else text
        if not (digits.isascii() and digits.isdigit()):
            raise LimitError(f"{name} must be an integer >= 0, got {_shown(value)}")
        if len(digits) > 1 and digits[0] == "0":
            raise LimitError(f"{name} must be an integer >= 0, got {_shown(value)} (write it without a leading zero)")
        value = int(text)
    if not isinstance(value, int) or isinstance(value, bool):
        raise LimitError(f"{name} must be an integer >= 0, got {_shown(value)}")
    if value < 0:
        raise LimitError(f"{name} must be >= 0, got {value}")
    if value > _MAX_RETRY_BOUND:
        raise LimitError(f"{name} must be at most {_MAX_RETRY_BOUND}, got {value}")
    return value


def _shown(value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean is not a duration"
    if isinstance(value, (int, float)):
        return "a number needs a unit"
    return "a duration is a text"


@dataclass(frozen=True, slots=True)
class Override:
    """Some of the five levers, as a queue or a request gives them; None is "not set". Seconds."""

    max_retry: int | None = None
    ttl_completed: int | None = None
    ttl_archived: int | None = None
    pending_timeout: int | None = None
    active_timeout: int | None = None

    @classmethod
    def parse(cls, values: Mapping[str, object], prefix: str = "") -> Override:
        """Read levers by name; unknown names and every bad value are refused together (`LimitError`)."""
        problems: list[str] = []
        read: dict[str, int | None] = {}
        for key, value in values.items():
            lever = LEVERS_BY_NAME.get(key)
            if lever is None:
                problems.append(f"{prefix}{key}: unknown limit, known are {', '.join(LEVERS_BY_NAME)}")
                continue
            try:
                read[key] = parse_lever(lever, value, prefix + key)
            except LimitError as error:
                problems.append(str(error))
        if problems:
            raise LimitError("; ".join(problems))
        return cls(**read)


@dataclass(frozen=True, slots=True)
class Limits:
    """The five values that one task carries, in seconds (max_retry: a count), each with its source."""

    max_retry: int = MAX_RETRY.default
    ttl_completed: int = TTL_COMPLETED.default
    ttl_archived: int = TTL_ARCHIVED.default
    pending_timeout: int = PENDING_TIMEOUT.default
    active_timeout: int = ACTIVE_TIMEOUT.default
    sources: str = Source.DEFAULT.letter * len(LEVERS)
    """one letter per lever, in the order of `LEVERS`"""

    def override(self, override: Override, source: Source) -> Limits:
        """These limits with every field that is set in ``override`` replaced; 0 counts as set (R14, R15)."""
        changed: dict[str, Any] = {}
        letters = list(self.sources)
        for index, lever in enumerate(LEVERS):
            value = getattr(override, lever.name)
            if value is not None:
                changed[lever.name] = value
                letters[index] = source.letter
        return replace(self, **changed, sources="".join(letters)) if changed else self

    def source(self, lever: Lever) -> Source:
        """Where the value of this lever came from."""
        return _SOURCE_BY_LETTER.get(self.sources[LEVERS.index(lever)], Source.DEFAULT)

    def value(self, lever: Lever) -> int:
        """The value of this lever: seconds, or a count for max_retry."""
        value: int = getattr(self, lever.name)
        return value

    def explain(self) -> dict[str, dict[str, int | str]]:
        """What each lever is and where it came from, as the HTTP API shows it."""
        return {lever.name: {"value": self.value(lever), "source": self.source(lever).value} for lever in LEVERS}


def resolve(environment: Limits, queue: Override, request: Override = Override()) -> Limits:
    """The limits of one new task: request > queue > environment > default, field by field."""
    return environment.override(queue, Source.QUEUE).override(request, Source.REQUEST)


def from_environment(values: Mapping[str, str]) -> Limits:
    """Base limits from ``RUNQY_DEFAULT_*``; an empty value counts as unset. Raises `LimitError` with all
    problems, each naming its variable."""
    problems: list[str] = []
    read: dict[str, int | None] = {}
    for lever in LEVERS:
        try:
            read[lever.name] = parse_lever(lever, values.get(lever.environment), lever.environment)
        except LimitError as error:
            problems.append(str(error))
    if problems:
        raise LimitError("; ".join(problems))
    return Limits().override(Override(**read), Source.ENVIRONMENT)


STAMPS = (TTL_COMPLETED, TTL_ARCHIVED, PENDING_TIMEOUT, ACTIVE_TIMEOUT)
"""The levers that stand in the task's hash; max_retry stands in the task message (field 5)."""


def read_stamp(text: str | bytes | None) -> int | None:
    """A stamp as it stands in the hash; None when it is absent or can't be read (then the worker's own
    fallback applies)."""
    if text is None:
        return None
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return int(text) if text.isascii() and text.isdigit() else None


def read_stamps(
    stamps: Mapping[str, str | bytes | None], max_retry: int | None, sources: str, fallback: Limits
) -> Limits:
    """The limits that a task carries; ``fallback`` fills each field that has no readable stamp (R64, R65)."""
    letters = list(sources if len(sources) == len(LEVERS) else Source.QUEUE.letter * len(LEVERS))
    values: dict[str, int] = {}
    for index, lever in enumerate(LEVERS):
        value = max_retry if lever is MAX_RETRY else read_stamp(stamps.get(lever.name))
        if value is None or value < 0:
            value = fallback.value(lever)
            letters[index] = Source.WORKER.letter
        values[lever.name] = value
    return Limits(**values, sources="".join(letters))
