"""Values of vaults, sealed with AES-256-GCM under the master key.

Two forms stand in databases::

    the original's   nonce (12 bytes) · ciphertext · tag (16 bytes)
    ours             MARKER · nonce (12 bytes) · ciphertext · tag (16 bytes)

In ours vault and key are authenticated with the value, so that a row which somebody moved to another vault or
key can't be opened. Both are read; only ours is written.
"""

from __future__ import annotations

import base64
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from runqy.errors import UnavailableError
from runqy.settings.secret import Secret

MARKER = b"runqy\x00v2"
"""begins every value that we wrote; a random nonce of the original begins so once in 2**64"""
_NONCE_BYTES = 12
_TAG_BYTES = 16


class SealError(UnavailableError):
    """A stored value can't be opened with this master key."""


class MasterKey:
    """Seals and opens values. ``text`` is the standard base64 of 32 bytes, as the settings have checked."""

    def __init__(self, text: Secret) -> None:
        self._cipher = AESGCM(base64.b64decode(text.get_secret_value(), validate=True))

    def seal(self, vault: str, key: str, value: str) -> bytes:
        """The value as it is stored under this vault and key."""
        nonce = os.urandom(_NONCE_BYTES)
        return MARKER + nonce + self._cipher.encrypt(nonce, value.encode(), _bound_to(vault, key))

    def open(self, vault: str, key: str, sealed: bytes) -> str:
        """The value of either form. Raises `SealError`, which never holds any of it."""
        bound: bytes | None = None
        body = sealed
        if sealed.startswith(MARKER):
            body, bound = sealed[len(MARKER) :], _bound_to(vault, key)
        try:
            return self.open_bytes(body, bound).decode()
        except (InvalidTag, UnicodeDecodeError):
            raise SealError(
                f"key '{key}' in vault '{vault}' can't be decrypted",
                why="it was stored with another master key, or was changed in the database",
                hint="check RUNQY_VAULT_MASTER_KEY, or set the value again",
            ) from None

    def open_bytes(self, body: bytes, bound: bytes | None = None) -> bytes:
        """What nonce, ciphertext and tag hold. Raises `InvalidTag`."""
        if len(body) < _NONCE_BYTES + _TAG_BYTES:
            raise InvalidTag
        return self._cipher.decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], bound)


def _bound_to(vault: str, key: str) -> bytes:
    # Neither name can hold a NUL, so no two pairs give the same bytes.
    return b"\0".join((b"runqy vault", vault.encode(), key.encode()))
