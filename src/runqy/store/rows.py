"""Between rows and queues: reads parents with their sub-queues, writes one parent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runqy.config.encoding import deployment_document, fields_document, options_document, stored_queue
from runqy.config.model import QueueConfig, SubQueue
from runqy.settings.node import Reading
from runqy.settings.queue_name import name_problem
from runqy.store.tables import queues, sub_queues


async def read_queues(
    connection: AsyncConnection, warnings: list[str], names: Sequence[str] | None = None
) -> dict[str, QueueConfig]:
    """Parents by name, disabled ones and disabled sub-queues included.

    What can't be used (it was stored by another program) is left out with a warning.
    """
    statement, children = select(queues), select(sub_queues)
    if names is not None:
        statement = statement.where(queues.c.name.in_(names))
        children = children.where(sub_queues.c.queue_id.in_(select(queues.c.id).where(queues.c.name.in_(names))))
    subs: dict[int, list[SubQueue]] = {}
    # Sorted here: each database has an order of texts of its own.
    rows = sorted((await connection.execute(statement)).all(), key=lambda row: str(row.name))
    for row in sorted((await connection.execute(children)).all(), key=lambda row: str(row.name)):
        subs.setdefault(row.queue_id, []).append(SubQueue(row.name, row.priority, bool(row.enabled)))
    found: dict[str, QueueConfig] = {}
    for row in rows:
        queue = _queue(row, subs.get(row.id, []), warnings)
        if queue is not None:
            found[queue.name] = queue
    return found


def _queue(row: Row[Any], subs: Sequence[SubQueue], warnings: list[str]) -> QueueConfig | None:
    problem = name_problem(row.name)
    if problem is not None:
        warnings.append(f"stored queue '{row.name}' can't be used: {problem}")
        return None
    usable = []
    for sub in subs:
        problem = name_problem(sub.name, is_sub=True)
        if problem is not None:
            warnings.append(f"stored queue '{row.name}.{sub.name}' can't be used: {problem}")
        else:
            usable.append(sub)
    config = QueueConfig(
        row.name,
        tuple(usable),
        enabled=bool(row.enabled),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
    reading = Reading(lenient=True)
    options = row.options if isinstance(row.options, dict) else {}
    options = {**options, "description": row.description}
    queue = stored_queue(config, row.deployment, row.input_schema, row.output_schema, options, reading)
    warnings.extend(f"stored {warning}" for warning in reading.warnings)
    if queue is None:
        reasons = "; ".join(str(problem) for problem in reading.problems)
        warnings.append(f"stored queue '{row.name}' can't be used: {reasons}")
    return queue


async def write_queue(connection: AsyncConnection, config: QueueConfig, now: float) -> None:
    """Insert or update one parent and its sub-queues. Sub-queues that ``config`` does not hold are disabled.

    A sub-queue is never deleted: its tasks still stand in Redis.
    """
    values = {
        "deployment": None if config.deployment is None else deployment_document(config.deployment),
        "input_schema": fields_document(config.input),
        "output_schema": fields_document(config.output),
        "description": config.description,
        "enabled": config.enabled,
        "options": options_document(config),
        "updated_at": now,
    }
    queue_id = (await connection.execute(select(queues.c.id).where(queues.c.name == config.name))).scalar()
    if queue_id is None:
        statement = insert(queues).values(name=config.name, provider="", created_at=now, **values)
        queue_id = (await connection.execute(statement.returning(queues.c.id))).scalar_one()
    else:
        await connection.execute(update(queues).where(queues.c.id == queue_id).values(**values))
    await _write_sub_queues(connection, queue_id, config, now)


async def _write_sub_queues(connection: AsyncConnection, queue_id: int, config: QueueConfig, now: float) -> None:
    statement = select(sub_queues).where(sub_queues.c.queue_id == queue_id)
    stored = {row.name: row for row in await connection.execute(statement)}
    wanted = {sub.name: sub for sub in config.sub_queues}
    for name, row in stored.items():
        sub = wanted.pop(name, None) or SubQueue(name, row.priority, enabled=False)
        if (sub.priority, sub.enabled) != (row.priority, bool(row.enabled)):
            await connection.execute(
                update(sub_queues)
                .where(sub_queues.c.id == row.id)
                .values(priority=sub.priority, enabled=sub.enabled, updated_at=now)
            )
    for sub in wanted.values():
        await connection.execute(
            insert(sub_queues).values(
                queue_id=queue_id,
                name=sub.name,
                priority=sub.priority,
                enabled=sub.enabled,
                created_at=now,
                updated_at=now,
            )
        )
