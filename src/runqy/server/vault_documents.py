"""Vaults as the API answers them, and as the command line shows those of a local database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runqy.server.answers import rfc3339
from runqy.store.vaults import Entry, Vault, VaultSummary


def vaults_document(vaults: Iterable[VaultSummary]) -> dict[str, Any]:
    """All vaults, without their entries."""
    rows = [
        {"name": vault.name, "description": vault.description, "entry_count": vault.entry_count} for vault in vaults
    ]
    return {"vaults": rows, "count": len(rows)}


def vault_document(vault: Vault) -> dict[str, Any]:
    """One vault with its entries, secrets masked."""
    return {
        "name": vault.name,
        "description": vault.description,
        "entries": [_entry(entry) for entry in vault.entries],
        "created_at": _time(vault.created_at),
        "updated_at": _time(vault.updated_at),
    }


def entries_document(entries: Iterable[Entry]) -> dict[str, Any]:
    """Entries alone, secrets masked."""
    rows = [_entry(entry) for entry in entries]
    return {"entries": rows, "count": len(rows)}


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "key": entry.key,
        "value": entry.value,
        "is_secret": entry.is_secret,
        "created_at": _time(entry.created_at),
        "updated_at": _time(entry.updated_at),
    }


def _time(seconds: float | None) -> str:
    return rfc3339(None if seconds is None else float(int(seconds)))
