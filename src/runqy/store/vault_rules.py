"""What a vault, its keys and its values may be: names and values become environment variables of task code."""

from __future__ import annotations

import re

from runqy.errors import UsageError

LONGEST_VALUE_BYTES = 100_000
"""an environment variable of Linux holds 128 KiB with its name"""
LONGEST_DESCRIPTION = 1_000
_VAULT_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}", re.ASCII)
_KEY_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}", re.ASCII)
_RESERVED_VAULTS = frozenset({"PATH", "HOME", "VIRTUAL_ENV", "PYTHONPATH", "USER", "SHELL", "PWD", "TMPDIR"})
_RESERVED_KEYS = frozenset({"PATH", "HOME", "VIRTUAL_ENV", "PYTHONPATH"})


def check_vault_name(name: object) -> str:
    """The name, if a vault may be called so. Raises `UsageError`."""
    if not isinstance(name, str) or not _VAULT_NAME.fullmatch(name):
        raise UsageError(f"invalid vault name {_quoted(name)}: must match [a-zA-Z0-9][a-zA-Z0-9_-]{{0,63}}")
    if name.upper() in _RESERVED_VAULTS:
        raise UsageError(f'reserved vault name "{name}": cannot use system variable names')
    return name


def check_key_name(key: object) -> str:
    """The key, if an environment variable may be called so. Raises `UsageError`."""
    if not isinstance(key, str) or not _KEY_NAME.fullmatch(key):
        raise UsageError(f"invalid key name {_quoted(key)}: must match [A-Za-z_][A-Za-z0-9_]*")
    if key in _RESERVED_KEYS:
        raise UsageError(f'reserved key name "{key}": cannot override system variables')
    return key


def check_value(value: object) -> str:
    """The value, if an environment variable can hold it. Raises `UsageError`, which never repeats it."""
    if not isinstance(value, str):
        raise UsageError("the value must be a text (value not shown)", hint="put it in quotes, so it stays as typed")
    if not value:
        raise UsageError("the value is required", hint="delete the entry to have none")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise UsageError("the value is not valid Unicode (value not shown)") from None
    if "\0" in value or size > LONGEST_VALUE_BYTES:
        problem = "holds a NUL character" if "\0" in value else f"has more than {LONGEST_VALUE_BYTES} bytes"
        raise UsageError(f"the value {problem}, which no environment variable can (value not shown)")
    return value


def _quoted(text: object) -> str:
    return '"' + text[:80].encode("unicode_escape").decode() + '"' if isinstance(text, str) else "(not a text)"


def check_description(text: object) -> str:
    """The description, if it may stand in a list. Raises `UsageError`."""
    if not isinstance(text, str) or len(text) > LONGEST_DESCRIPTION or "\0" in text:
        raise UsageError(f"the description must be a text of at most {LONGEST_DESCRIPTION} characters")
    return text
