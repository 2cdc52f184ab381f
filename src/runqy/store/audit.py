"""The audit log: who changed what, when, from where, and with which answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, insert, select

from runqy.store.database import Database
from runqy.store.tables import audit_log

KEPT_LINES = 100_000
_PRUNE_EVERY = 1_000


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One request that changed something, or tried to. ``at`` in unix seconds, ``status`` the HTTP status."""

    at: float
    who: str
    role: str
    address: str
    action: str
    """method and route, such as ``POST /api/queues/{queue}/pause``"""
    target: str
    """the path as it was called"""
    status: int
    detail: dict[str, Any] | None = None
    id: int = 0


class AuditStore:
    """Appends and reads. The newest 100,000 lines are kept."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, lines: Sequence[AuditLine]) -> None:
        """Add lines in one transaction. Raises `UnavailableError`; then none of them is kept."""
        if not lines:
            return
        values = [
            {
                "at": line.at,
                "who": line.who,
                "role": line.role,
                "address": line.address,
                "action": line.action,
                "target": line.target,
                "status": line.status,
                "detail": line.detail,
            }
            for line in lines
        ]
        async with self._database.write() as connection:
            await connection.execute(insert(audit_log), values)
            newest = (await connection.execute(select(func.max(audit_log.c.id)))).scalar() or 0
            if newest % _PRUNE_EVERY < len(values):
                await connection.execute(delete(audit_log).where(audit_log.c.id <= newest - KEPT_LINES))

    async def lines(
        self, *, target: str = "", who: str = "", limit: int = 100, before_id: int | None = None
    ) -> list[AuditLine]:
        """The newest lines first; ``target`` is a part of the path, ``who`` the exact name."""
        statement = select(audit_log).order_by(audit_log.c.id.desc()).limit(limit)
        if target:
            statement = statement.where(audit_log.c.target.contains(target, autoescape=True))
        if who:
            statement = statement.where(audit_log.c.who == who)
        if before_id is not None:
            statement = statement.where(audit_log.c.id < before_id)
        async with self._database.read() as connection:
            rows = (await connection.execute(statement)).all()
        return [AuditLine(r.at, r.who, r.role, r.address, r.action, r.target, r.status, r.detail, r.id) for r in rows]
