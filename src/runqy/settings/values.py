"""Readers: from a value as it was given to the value that a setting holds. Each raises `SettingError`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from runqy.settings.reading import Found, SettingError
from runqy.settings.secret import Secret
from runqy.settings.spelling import nearest
from runqy.tasks.limits import LimitError, parse_setting_duration
from runqy.timing import NANOSECONDS_PER_SECOND


def shown(found: Found) -> str:
    """The given value for a message."""
    text = found.text if isinstance(found.value, (str, int, float)) else "a list or a map"
    if not isinstance(found.value, str):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'


def text(found: Found) -> str:
    """A text in one line, as it was typed."""
    if isinstance(found.value, (list, tuple, dict)):
        raise SettingError(f"{found.name} must be a text, got {shown(found)}")
    if found.text != found.text.strip():
        raise SettingError(f"{found.name} must not begin or end with white space, got {shown(found)}")
    if not found.text.isprintable():
        raise SettingError(f"{found.name} must be printable text in one line, got {shown(found)}")
    return found.text


def secret(found: Found) -> Secret:
    """A key, password or token; a refusal never repeats it."""
    if isinstance(found.value, (list, tuple, dict)):
        raise SettingError(f"{found.name} must be a text")
    if found.text != found.text.strip():
        raise SettingError(f"{found.name} begins or ends with white space (value not shown)")
    if not found.text.isprintable():
        raise SettingError(f"{found.name} holds a character that can't be printed (value not shown)")
    return Secret(found.text)


def api_key(found: Found) -> Secret:
    """A key that travels in an HTTP header: ASCII without spaces."""
    value = secret(found)
    if not found.text.isascii() or " " in found.text:
        raise SettingError(f"{found.name} must be ASCII without spaces, it travels in a header (value not shown)")
    return value


def integer(minimum: int, maximum: int = 2**31 - 1, *, refusal: str = "") -> Callable[[Found], int]:
    """A whole number from ``minimum`` to ``maximum``; ``refusal`` is the contract's own text for too small."""

    def read(found: Found) -> int:
        number = found.value
        if isinstance(number, str):
            digits = number[1:] if number[:1] in {"+", "-"} else number
            is_number = digits.isascii() and digits.isdigit() and len(digits) <= 20
            # Like parse_lever: a leading zero is a slip, not an octal number.
            number = int(number) if is_number and (digits == "0" or digits[0] != "0") else None
        if not isinstance(number, int) or isinstance(number, bool):
            raise SettingError(f"{found.name} must be a whole number such as {max(minimum, 1)}, got {shown(found)}")
        if number < minimum:
            raise SettingError(f"{found.name} {refusal or f'must be >= {minimum}'}, got {number}")
        if number > maximum:
            raise SettingError(f"{found.name} must be at most {maximum}, got {number}")
        return number

    return read


def number(minimum: float) -> Callable[[Found], float]:
    """A number, fractions allowed, of at least ``minimum``."""

    def read(found: Found) -> float:
        refused = SettingError(f"{found.name} must be a number >= {minimum:g} such as 2.0, got {shown(found)}")
        if isinstance(found.value, bool) or not isinstance(found.value, (int, float, str)):
            raise refused
        try:
            value = float(found.text)
        except ValueError:
            raise refused from None
        if not minimum <= value < float("inf") or not found.text.isascii() or "_" in found.text:
            raise refused
        return value

    return read


def true_false(found: Found) -> bool:
    """``true`` or ``false``."""
    return _boolean(found, {"true": True, "false": False}, "true or false")


def switch(found: Found) -> bool:
    """``true``, ``1``, ``false`` or ``0``, as the worker's settings have it."""
    return _boolean(found, {"true": True, "1": True, "false": False, "0": False}, "true or false")


def _boolean(found: Found, words: dict[str, bool], forms: str) -> bool:
    value = words.get(found.text)
    if isinstance(found.value, bool):
        return found.value
    if value is None or isinstance(found.value, (list, tuple, dict)):
        raise SettingError(f"{found.name} must be {forms}, got {shown(found)}")
    return value


def duration(*, zero_allowed: bool = True) -> Callable[[Found], float]:
    """Seconds of a Go duration such as ``30s``; fractions of a second are kept."""

    def read(found: Found) -> float:
        try:
            nanoseconds = parse_setting_duration(found.value, found.name)
        except LimitError as error:
            raise SettingError(str(error)) from None
        if nanoseconds == 0 and not zero_allowed:
            raise SettingError(f'{found.name} must be > 0, such as "10s", got {shown(found)}')
        return nanoseconds / NANOSECONDS_PER_SECOND

    return read


def path(found: Found) -> Path:
    """A path; ``~`` is the home directory."""
    if isinstance(found.value, Path):
        return found.value.expanduser()
    if isinstance(found.value, (list, tuple, dict)) or "\0" in found.text:
        raise SettingError(f"{found.name} must be a path, got {shown(found)}")
    return Path(found.text).expanduser()


def choice(words: Sequence[str]) -> Callable[[Found], str]:
    """One of some words."""

    def read(found: Found) -> str:
        if found.value in words:
            return found.text
        guess = nearest(found.text, words)
        advice = f", did you mean {guess!r}?" if guess else ""
        raise SettingError(f"{found.name} must be {' or '.join(words)}, got {shown(found)}{advice}")

    return read


def names(found: Found) -> tuple[str, ...]:
    """Names from a list, or from a text with commas; empty ones are left out."""
    if isinstance(found.value, (list, tuple)):
        parts = [item if isinstance(item, str) else None for item in found.value]
    else:
        parts = list(found.text.split(","))
    if any(part is None for part in parts):
        raise SettingError(f"{found.name} must be a list of names")
    return tuple(name for part in parts if (name := (part or "").strip()))


def http_url(found: Found) -> str:
    """``http://`` or ``https://`` and a host; without a slash at its end. A password in it is refused."""
    url = text(found)
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise SettingError(f"{found.name} must not hold a user or a password (value not shown)")
    if parts.scheme not in {"http", "https"} or not parts.netloc or " " in url:
        raise SettingError(f'{found.name} must be a URL such as "https://runqy.example.com", got {shown(found)}')
    return url.rstrip("/")
