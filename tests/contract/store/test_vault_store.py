"""Vaults, the same on SQLite and PostgreSQL: sealed, bound, readable in the original's form, rotated whole."""

from __future__ import annotations

import base64
import os
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import insert, select, update

from runqy.errors import ConflictError, NotFoundError, UnavailableError, UsageError
from runqy.settings.secret import Secret
from runqy.store.database import Database
from runqy.store.sealing import MARKER, SealError
from runqy.store.tables import vault_entries, vaults
from runqy.store.vaults import VaultStore

RAW_KEY = bytes(range(32))
KEY, OTHER_KEY = (Secret(base64.b64encode(raw).decode()) for raw in (RAW_KEY, bytes(32)))
CANARY = "canary-value-5581"


@pytest.fixture
def store(database: Database, clock: Any) -> VaultStore:
    return VaultStore(database, KEY, clock=clock)


async def stored(database: Database) -> dict[str, bytes]:
    async with database.read() as connection:
        rows = await connection.execute(select(vault_entries.c.key, vault_entries.c.value))
        return {row.key: bytes(row.value) for row in rows}


async def add_original(database: Database, vault: str, key: str, value: str) -> None:
    """A value as the original stores it."""
    nonce = os.urandom(12)
    sealed = nonce + AESGCM(RAW_KEY).encrypt(nonce, value.encode(), None)
    async with database.write() as connection:
        vault_id = (await connection.execute(select(vaults.c.id).where(vaults.c.name == vault))).scalar_one()
        await connection.execute(insert(vault_entries).values(vault_id=vault_id, key=key, value=sealed, is_secret=True))


async def test_what_is_set_is_listed_masked_and_read_in_clear_only_on_purpose(store: VaultStore, clock: Any) -> None:
    await store.create("keys", "for tests")
    await store.set_entry("keys", "TOKEN", CANARY)
    await store.set_entry("keys", "ADDRESS", "http://x", is_secret=False)
    clock.unix += 60
    await store.set_entry("keys", "ADDRESS", "yes", is_secret=False)
    vault = await store.get("keys")
    assert (vault.name, vault.description) == ("keys", "for tests")
    assert [(entry.key, entry.value, entry.is_secret) for entry in vault.entries] == [
        ("ADDRESS", "yes", False),
        ("TOKEN", "****", True),
    ]
    address, token = vault.entries
    assert (address.created_at, address.updated_at) == (clock.unix - 60, clock.unix)
    assert token.updated_at == clock.unix - 60
    assert [(vault.name, vault.entry_count) for vault in await store.all()] == [("keys", 2)]
    assert await store.value("keys", "TOKEN") == CANARY
    assert await store.referenced("vault://keys/TOKEN") == CANARY


async def test_no_value_stands_in_the_database_in_clear(store: VaultStore, database: Database) -> None:
    await store.create("keys")
    await store.set_entry("keys", "A", CANARY)
    await store.set_entry("keys", "B", CANARY, is_secret=False)
    values = await stored(database)
    assert all(value.startswith(MARKER) and CANARY.encode() not in value for value in values.values())
    assert values["A"][-40:] != values["B"][-40:]


async def test_values_of_the_original_are_read_and_become_ours_when_set(store: VaultStore, database: Database) -> None:
    await store.create("keys")
    await add_original(database, "keys", "OLD", "väl=ue")
    assert await store.merged(["keys"]) == {"OLD": "väl=ue"}
    assert await store.unreadable() == []
    await store.set_entry("keys", "OLD", "new")
    assert (await stored(database))["OLD"].startswith(MARKER)


async def test_a_value_that_was_moved_to_another_key_or_vault_does_not_open(
    store: VaultStore, database: Database
) -> None:
    for name in ("a", "b"):
        await store.create(name)
        await store.set_entry(name, "X", f"of {name}")
        await store.set_entry(name, "Y", "y")
    async with database.write() as connection:
        rows = (await connection.execute(select(vault_entries).order_by(vault_entries.c.id))).all()
        for target, source in ((rows[1], rows[0]), (rows[2], rows[0])):
            # With our mark and without it, as if the original had written it.
            moved = bytes(source.value) if target is rows[1] else bytes(source.value).removeprefix(MARKER)
            await connection.execute(update(vault_entries).where(vault_entries.c.id == target.id).values(value=moved))
    for name, key in (("a", "Y"), ("b", "X")):
        with pytest.raises(SealError, match=f"key '{key}' in vault '{name}' can't be decrypted"):
            await store.value(name, key)
    assert await store.unreadable() == ["a/Y", "b/X"]
    assert await store.value("a", "X") == "of a"


async def test_of_equal_keys_the_later_vault_wins(store: VaultStore) -> None:
    for name in ("one", "two"):
        await store.create(name)
        await store.set_entry(name, "SAME", name)
        await store.set_entry(name, name.upper(), "1")
    assert await store.merged(["one", "two"]) == {"SAME": "two", "ONE": "1", "TWO": "1"}
    assert (await store.merged(["two", "one"]))["SAME"] == "one"
    with pytest.raises(UnavailableError, match=r"failed to resolve vaults \[one nope\]: vault 'nope'"):
        await store.merged(["one", "nope"])


async def test_another_master_key_opens_nothing_and_says_so_without_the_value(
    store: VaultStore, database: Database
) -> None:
    await store.create("keys")
    await store.set_entry("keys", "A", CANARY)
    other = VaultStore(database, OTHER_KEY)
    with pytest.raises(UnavailableError, match="another master key") as caught:
        await other.merged(["keys"])
    assert CANARY not in "".join(caught.value.lines())
    assert await other.unreadable() == ["keys/A"]
    assert [entry.value for entry in (await other.get("keys")).entries] == ["****"]


async def test_the_master_key_is_rotated_for_all_values_at_once(store: VaultStore, database: Database) -> None:
    await store.create("keys")
    await store.set_entry("keys", "A", "1")
    await add_original(database, "keys", "B", "2")
    assert await store.rotate(OTHER_KEY) == 2
    assert await store.merged(["keys"]) == {"A": "1", "B": "2"}
    assert await VaultStore(database, OTHER_KEY).merged(["keys"]) == {"A": "1", "B": "2"}
    assert await VaultStore(database, KEY).unreadable() == ["keys/A", "keys/B"]
    # Again, as after a crash between the commit and the answer.
    assert await VaultStore(database, KEY).rotate(OTHER_KEY) == 2
    assert await VaultStore(database, OTHER_KEY).unreadable() == []


async def test_a_rotation_that_meets_a_closed_value_changes_nothing(store: VaultStore, database: Database) -> None:
    await store.create("keys")
    await store.set_entry("keys", "A", "1")
    await VaultStore(database, Secret(base64.b64encode(b"x" * 32).decode())).set_entry("keys", "B", "2")
    before = await stored(database)
    with pytest.raises(SealError, match="key 'B'"):
        await store.rotate(OTHER_KEY)
    assert await stored(database) == before
    assert await store.value("keys", "A") == "1"


async def test_what_is_deleted_is_gone(store: VaultStore, database: Database) -> None:
    await store.create("keys")
    await store.set_entry("keys", "A", "1")
    await store.set_entry("keys", "B", "1")
    await store.delete_entry("keys", "A")
    with pytest.raises(NotFoundError, match="key 'A' in vault 'keys': entry not found"):
        await store.delete_entry("keys", "A")
    await store.delete("keys")
    assert await stored(database) == {}
    for call in (store.get("keys"), store.delete("keys"), store.set_entry("keys", "A", "1"), store.value("keys", "B")):
        with pytest.raises(NotFoundError, match="vault not found"):
            await call
    await store.create("keys")
    assert (await store.get("keys")).entries == ()


async def test_two_vaults_of_one_name_are_refused(store: VaultStore) -> None:
    await store.create("keys")
    with pytest.raises(ConflictError, match="vault already exists"):
        await store.create("keys")


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a\0", "ä", "x" * 65, "PATH", "home", "Tmpdir", None, 1])
async def test_an_impossible_vault_name_is_refused(store: VaultStore, name: object) -> None:
    with pytest.raises(UsageError, match="vault name"):
        await store.create(name)
    if isinstance(name, str):
        with pytest.raises(NotFoundError):
            await store.get(name)


@pytest.mark.parametrize("key", ["", "1x", "A-B", "A B", "A=B", "Ä", "A\n", "PATH", "PYTHONPATH", None])
async def test_an_impossible_key_is_refused(store: VaultStore, key: object) -> None:
    await store.create("keys")
    with pytest.raises(UsageError, match="key name"):
        await store.set_entry("keys", key, "v")


@pytest.mark.parametrize("value", ["", None, 755, True, "se\0cret", "secret\ud800", "secret" * 20_000])
async def test_a_value_that_no_variable_can_hold_is_refused_without_being_shown(
    store: VaultStore, value: object
) -> None:
    await store.create("keys")
    with pytest.raises(UsageError) as caught:
        await store.set_entry("keys", "A", value)
    assert "secret" not in "".join(caught.value.lines())
    assert (await store.get("keys")).entries == ()


@pytest.mark.parametrize("value", ["0755", "yes", "2024-01-01", " spaces ", "line\nbreak", "ü☃", "x" * 100_000])
async def test_a_value_comes_back_exactly_as_it_was_given(store: VaultStore, value: str) -> None:
    await store.create("keys")
    await store.set_entry("keys", "A", value)
    assert await store.merged(["keys"]) == {"A": value}
