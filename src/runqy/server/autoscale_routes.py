"""Autoscaling of rented machines: its routes exist and say that it is not in this release."""

from __future__ import annotations

from fastapi import APIRouter

from runqy.errors import NotImplementedYetError
from runqy.server.responding import needs_admin

router = APIRouter(tags=["autoscale"], dependencies=[needs_admin])

METHODS = ["GET", "POST", "PUT", "DELETE"]


@router.api_route("/api/autoscale/{path:path}", methods=METHODS, include_in_schema=False)
@router.api_route("/monitoring/api/autoscale/{path:path}", methods=METHODS, include_in_schema=False)
async def autoscale() -> None:
    """Answers 501 (role: admin)."""
    raise NotImplementedYetError(NotImplementedYetError.AUTOSCALE)
