"""The known name that a misspelt one most likely meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``word``, or None when nothing is close."""
    by_lower = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    if matches:
        return by_lower[matches[0]]
    # "retry" for "max_retry", "ttl" for "ttl_completed": a part of a name is a good guess too.
    if len(word) >= 3:
        return next((name for lower, name in by_lower.items() if word.lower() in lower), None)
    return None


def unknown_name(kind: str, word: str, known: Iterable[str]) -> str:
    """``unknown key 'limit', did you mean 'limits'?``, or the list of known names when none is near."""
    names = list(known)
    guess = nearest(word, names)
    if guess is not None:
        return f"unknown {kind} {word!r}, did you mean {guess!r}?"
    return f"unknown {kind} {word!r}, known are {', '.join(names)}"
