"""Single values that every server of one database must agree on."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import insert, select

from runqy.store.database import Database
from runqy.store.tables import server_values


async def value_of(database: Database, name: str, make: Callable[[], str]) -> str:
    """The stored value; the first server to ask makes it. Servers that start together get the same one."""
    async with database.write() as connection:
        found = (await connection.execute(select(server_values.c.value).where(server_values.c.name == name))).scalar()
        if found is None:
            found = make()
            await connection.execute(insert(server_values).values(name=name, value=found))
    return str(found)
