"""Passwords: hashed with argon2; the original's bcrypt hashes are read, and replaced at the next log-in."""

from __future__ import annotations

import asyncio

import bcrypt
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from runqy.errors import UsageError

SHORTEST, LONGEST = 8, 1024
_hasher = PasswordHasher()
# Checked for an unknown address too, so that the time of an answer does not tell who has an account.
_NOBODY = _hasher.hash("nobody has this password")


def check_password(text: object) -> str:
    """A password that may be set. Raises `UsageError`."""
    if not isinstance(text, str) or len(text) < SHORTEST:
        raise UsageError(f"password must be at least {SHORTEST} characters")
    if len(text) > LONGEST:
        raise UsageError(f"password must be at most {LONGEST} characters")
    return text


async def hash_password(password: str) -> str:
    """A salted argon2id hash; takes tens of milliseconds, in a thread."""
    return await asyncio.to_thread(_hasher.hash, password.encode("utf-8", "surrogatepass"))


async def is_password(password: str, stored: str | None) -> bool:
    """Whether the password fits the stored hash; as slow for no hash at all."""
    return await asyncio.to_thread(_fits, password.encode("utf-8", "surrogatepass")[: LONGEST * 4], stored)


def _fits(password: bytes, stored: str | None) -> bool:
    if stored is not None and is_old(stored):
        try:
            # bcrypt reads 72 bytes; the original cut there as well.
            return bcrypt.checkpw(password[:72], stored.encode())
        except ValueError:
            return False
    try:
        return _hasher.verify(stored or _NOBODY, password) and stored is not None
    except (Argon2Error, InvalidHashError):
        return False


def is_old(stored: str) -> bool:
    """A hash that the original made."""
    return stored.startswith("$2")
