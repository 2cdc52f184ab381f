"""The doctor's findings."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Response

from runqy.doctor import Patient, examine
from runqy.server.responding import State, json_answer, needs_viewer

router = APIRouter(tags=["health"])


@router.get("/api/doctor", dependencies=[needs_viewer])
async def doctor(state: State) -> Response:
    """What is well, what is not, and what mends it (role: viewer)."""
    patient = Patient(
        settings=state.settings,
        connection=state.connection,
        inspector=state.inspector,
        workers=state.workers,
        database=state.database,
        catalog=state.queues.catalog,
        embedded=state.embedded,
    )
    return json_answer({"checks": [asdict(finding) for finding in await examine(patient)]})
