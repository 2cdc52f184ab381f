"""Opening a database: schema, adoption, locks, refusals."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import delete, insert, inspect, select
from sqlalchemy.ext.asyncio import AsyncConnection

from runqy.config.model import Deployment, QueueConfig, SubQueue
from runqy.errors import ConfigurationError, RunqyError, UnavailableError
from runqy.settings.secret import Secret
from runqy.store.database import Database
from runqy.store.queues import QueueStore
from runqy.store.tables import metadata, queue_changes, queues, sub_queues, vault_entries, vaults
from runqy.tasks.limits import Override

CODE = Deployment(git_url="https://example.com/r.git", startup_cmd="python main.py")


async def columns(connection: AsyncConnection, table: str) -> set[str]:
    return await connection.run_sync(lambda sync: {column["name"] for column in inspect(sync).get_columns(table)})


async def test_the_migrated_schema_is_what_the_statements_use(database: Database) -> None:
    async with database.read() as connection:
        for table in metadata.tables.values():
            assert await columns(connection, table.name) == {column.name for column in table.columns}


async def test_opening_again_keeps_everything(database_url: str, store: QueueStore) -> None:
    await store.save(QueueConfig("echo", (SubQueue("default", 5),), CODE), "test")
    again = Database(database_url)
    await again.open()
    try:
        assert [queue.name for queue in await QueueStore(again).all()] == ["echo"]
    finally:
        await again.close()


async def test_many_servers_may_open_a_new_database_at_once(database_url: str) -> None:
    databases = [Database(database_url) for _ in range(6)]
    try:
        await asyncio.gather(*(database.open() for database in databases))
        async with databases[0].read() as connection:
            assert "options" in await columns(connection, "queues")
    finally:
        await asyncio.gather(*(database.close() for database in databases))


async def test_a_newer_schema_is_refused(database_url: str, database: Database) -> None:
    async with database.write() as connection:
        await connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    again = Database(database_url)
    with pytest.raises(ConfigurationError, match="was made by a newer runqy") as caught:
        await again.open()
    assert "9999" in caught.value.why
    assert "upgrade runqy" in caught.value.hint


async def test_a_failing_migration_leaves_the_schema_as_it_was(database_url: str, database: Database) -> None:
    """The first step works, the second finds its table in the way: then the first is undone as well."""
    async with database.write() as connection:
        await connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
        await connection.exec_driver_sql("ALTER TABLE queues DROP COLUMN options")
    with pytest.raises(RunqyError):
        await Database(database_url).open()
    async with database.read() as connection:
        version = await connection.exec_driver_sql("SELECT version_num FROM alembic_version")
        assert version.scalar() == "0001"
        assert "options" not in await columns(connection, "queues")


async def test_deleting_a_parent_row_deletes_its_children(database: Database) -> None:
    """SQLite enforces references only when it is told to."""
    async with database.write() as connection:
        queue_id = (
            await connection.execute(insert(queues).values(name="q", enabled=True).returning(queues.c.id))
        ).scalar_one()
        await connection.execute(insert(sub_queues).values(queue_id=queue_id, name="s", priority=1, enabled=True))
        await connection.execute(delete(queues))
        assert (await connection.execute(select(sub_queues))).all() == []


async def test_bytes_and_times_survive(database: Database) -> None:
    value = bytes(range(256))
    async with database.write() as connection:
        vault = (
            await connection.execute(
                insert(vaults).values(name="v", created_at=1_800_000_000.25).returning(vaults.c.id)
            )
        ).scalar_one()
        await connection.execute(insert(vault_entries).values(vault_id=vault, key="K", value=value, is_secret=True))
    async with database.read() as connection:
        assert (await connection.execute(select(vaults.c.created_at))).scalar_one() == 1_800_000_000.25
        assert (await connection.execute(select(vault_entries.c.value))).scalar_one() == value


async def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    async def fail_in_the_middle() -> None:
        async with database.write() as connection:
            await connection.execute(insert(queues).values(name="q", enabled=True))
            raise LookupError

    with pytest.raises(LookupError):
        await fail_in_the_middle()
    async with database.read() as connection:
        assert (await connection.execute(select(queues))).all() == []


async def test_an_unreadable_stored_queue_is_told_and_does_not_stop_the_others(
    store: QueueStore, database: Database
) -> None:
    await store.save(QueueConfig("good", (SubQueue("default", 5),), CODE), "test")
    async with database.write() as connection:
        for name, deployment in (
            ("a.b", {"git_url": "x", "startup_cmd": "y"}),
            ("bad", {"git_url": "x", "startup_cmd": "y", "limits": {"ttl_completed": "24hh"}}),
            ("old", {"git_url": "https://u:tok3n@example.com/x", "startup_cmd": "y", "unheard_of": 1}),
        ):
            await connection.execute(insert(queues).values(name=name, deployment=deployment, enabled=True))
    catalog = await store.refresh()
    assert [queue.name for queue in catalog.queues()] == ["good", "old"]
    assert len(catalog.warnings) == 3
    assert any("24hh" in warning for warning in catalog.warnings)
    assert not any("tok3n" in warning for warning in catalog.warnings)


ORIGINAL_SQLITE = """
CREATE TABLE queue_workers_config (id INTEGER PRIMARY KEY);
CREATE TABLE queues (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, provider TEXT NOT NULL DEFAULT '',
  deployment TEXT, input_schema TEXT, output_schema TEXT, description TEXT DEFAULT '', enabled BOOLEAN DEFAULT 1,
  created_at DATETIME DEFAULT CURRENT_TIMESTAMP, updated_at DATETIME DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE sub_queues (id INTEGER PRIMARY KEY AUTOINCREMENT, queue_id INTEGER NOT NULL REFERENCES queues(id)
  ON DELETE CASCADE, name TEXT NOT NULL, priority INTEGER NOT NULL DEFAULT 1,
  created_at DATETIME DEFAULT CURRENT_TIMESTAMP, updated_at DATETIME DEFAULT CURRENT_TIMESTAMP, UNIQUE(queue_id, name));
"""
ORIGINAL_POSTGRESQL = """
CREATE TABLE queue_workers_config (id SERIAL PRIMARY KEY);
CREATE TABLE queues (id SERIAL PRIMARY KEY, name VARCHAR(255) NOT NULL UNIQUE,
  provider VARCHAR(100) NOT NULL DEFAULT '', deployment JSONB, input_schema JSONB, output_schema JSONB,
  description TEXT DEFAULT '', enabled BOOLEAN DEFAULT TRUE, created_at TIMESTAMPTZ DEFAULT NOW(),
  updated_at TIMESTAMPTZ DEFAULT NOW());
CREATE TABLE sub_queues (id SERIAL PRIMARY KEY, queue_id INTEGER NOT NULL REFERENCES queues(id) ON DELETE CASCADE,
  name VARCHAR(255) NOT NULL, priority INTEGER NOT NULL DEFAULT 1, created_at TIMESTAMPTZ DEFAULT NOW(),
  updated_at TIMESTAMPTZ DEFAULT NOW(), UNIQUE(queue_id, name));
"""
ROWS = """
INSERT INTO queues (name, deployment, input_schema, created_at) VALUES ('inference',
  '{"git_url":"https://example.com/r.git","branch":"main","startup_cmd":"python main.py","startup_timeout_secs":300,
    "redis_storage":true,"vaults":["keys"],"limits":{"max_retry":1,"ttl_completed":"1h"}}',
  '[{"name":"n","type":["int"],"required":true,"description":""}]', '2026-12-01 11:31:29.846936426+00:00');
INSERT INTO queues (name, deployment) VALUES ('bare', NULL);
INSERT INTO sub_queues (queue_id, name, priority) VALUES (1, 'high', 10), (1, 'low', 2), (2, 'default', 1);
"""


def make_original(url: str) -> None:
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.executescript(ORIGINAL_SQLITE + ROWS)
        connection.commit()
        connection.close()
        return
    with psycopg.connect(url) as postgres:
        postgres.execute(ORIGINAL_POSTGRESQL + ROWS)


async def test_a_database_of_the_original_is_adopted(database_url: str) -> None:
    make_original(database_url)
    database = Database(database_url)
    await database.open()
    try:
        store = QueueStore(database)
        catalog = await store.refresh()
        assert catalog.warnings == ()
        assert catalog.full_names() == ("bare.default", "inference.high", "inference.low")
        inference = catalog.parent("inference")
        assert inference is not None
        assert inference.limits == Override(max_retry=1, ttl_completed=3600)
        assert inference.created_at == pytest.approx(1796124689.846936, abs=1e-5)
        bare = catalog.parent("bare")
        assert bare is not None
        assert bare.deployment is None
        await store.delete("inference.low", "test")
        async with database.read() as connection:
            names = await connection.run_sync(lambda sync: set(inspect(sync).get_table_names()))
            assert "queue_workers_config" not in names
            assert (await connection.execute(select(queue_changes.c.who))).scalars().all() == ["test"]
    finally:
        await database.close()


async def test_the_sqlite_file_is_its_owners_alone(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'data' / 'runqy.db'}")
    await database.open()
    await database.close()
    assert stat.S_IMODE((tmp_path / "data" / "runqy.db").stat().st_mode) == 0o600


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runqy.db"
    path.write_text("this is certainly not a database file at all" * 100)
    with pytest.raises(ConfigurationError, match="damaged or no database"):
        await Database(f"sqlite:///{path}").open()


async def test_a_folder_that_can_not_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="can't be written") as caught:
        await Database(f"sqlite:///{tmp_path / 'file' / 'runqy.db'}").open()
    assert "--data-dir" in caught.value.hint


async def test_a_wrong_password_is_told_without_it(postgres: Any) -> None:
    database = Database(Secret(postgres.url("postgres", password="wr0ng-p4ss")))
    with pytest.raises(UnavailableError, match="refuses user or password") as caught:
        await database.open()
    assert "wr0ng-p4ss" not in "\n".join(caught.value.lines())
    assert "wr0ng-p4ss" not in repr(database)


async def test_a_missing_database_is_told(postgres: Any) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        await Database(postgres.url("no_such_database")).open()


async def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="can't be used") as caught:
        await Database("postgresql://u:s3cret@127.0.0.1:1/x").open()
    assert "s3cret" not in "\n".join(caught.value.lines())


@pytest.mark.parametrize("url", ["mysql://u:pw99@h/x", "sqlite://", "nonsense", "postgresql://u:pw99@h:port/x"])
async def test_an_address_of_another_kind_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Database(url)
    assert "pw99" not in "\n".join(caught.value.lines())


async def test_a_killed_writer_leaves_the_database_usable(tmp_path: Path) -> None:
    """A process that dies inside its transaction: its work is gone, others go on."""
    url = f"sqlite:///{tmp_path / 'runqy.db'}"
    database = Database(url)
    await database.open()
    script = (
        "import asyncio, os, signal, sys\n"
        "from sqlalchemy import insert\n"
        "from runqy.store.database import Database\n"
        "from runqy.store.tables import queues\n"
        "async def main():\n"
        "    database = Database(sys.argv[1])\n"
        "    await database.open()\n"
        "    async with database.write() as connection:\n"
        "        await connection.execute(insert(queues).values(name='half', enabled=True))\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    try:
        process = subprocess.run([_python(), "-c", script, url], timeout=60, check=False, capture_output=True)
        assert process.returncode == -9, process.stderr.decode()
        store = QueueStore(database)
        await store.save(QueueConfig("echo", (SubQueue("default", 5),), CODE), "test")
        assert [queue.name for queue in await store.all()] == ["echo"]
    finally:
        await database.close()


def _python() -> str:
    import sys

    assert os.access(sys.executable, os.X_OK)
    return sys.executable
