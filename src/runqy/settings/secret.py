"""A text that is never printed by accident."""

from __future__ import annotations

import hmac
from typing import final

MASK = "****"


@final
class Secret:
    """Holds a key, password or token; ``repr`` and ``str`` show a mask, only `get_secret_value` the text."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def get_secret_value(self) -> str:
        """The text itself: for the wire, never for a log or a message."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK!r})" if self._value else "Secret('')"

    def __str__(self) -> str:
        return MASK if self._value else ""

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> str:
        # Pickles and copies by pickle end up in files and pipes.
        raise TypeError("a Secret can't be pickled")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self
