"""Is the server there, and can it work?"""

from __future__ import annotations

import time

from fastapi import APIRouter, Response

from runqy.errors import UnavailableError
from runqy.server.answers import rfc3339
from runqy.server.responding import State, json_answer

router = APIRouter(tags=["health"])


def _now() -> str:
    return rfc3339(float(int(time.time())))


@router.get("/health")
async def health() -> Response:
    """The process answers; nothing it depends on is asked."""
    return json_answer({"status": "ok", "timestamp": _now()})


@router.get("/healthz")
async def healthz(state: State) -> Response:
    """Ready for work: Redis and the database answer. 503 names what is missing."""
    missing = {}
    try:
        await state.connection.ping()
    except UnavailableError as error:
        missing["redis"] = str(error)
    try:
        await state.database.ping()
    except UnavailableError as error:
        missing["database"] = str(error)
    document: dict[str, object] = {
        "status": "degraded" if missing else "ok",
        "redis": "redis" not in missing,
        "database": "database" not in missing,
        "timestamp": _now(),
    }
    if missing:
        document["missing"] = missing
    return json_answer(document, 503 if missing else 200)
