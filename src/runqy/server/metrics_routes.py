"""Metrics: our own for Prometheus to read, and charts from a Prometheus that is configured."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Annotated, Any

import httpx2
from fastapi import APIRouter, Query, Response

from runqy.errors import UnavailableError
from runqy.server.responding import State, json_answer, needs_viewer

router = APIRouter(tags=["metrics"])

PROMETHEUS_TIMEOUT_SECONDS = 10.0
_STEPS = ((6 * 3600, 10), (24 * 3600, 60), (8 * 86400, 180), (30 * 86400, 600))
LONGEST_SECONDS = 10 * 366 * 86400
_QUERIES = {
    "queue_size": "asynq_queue_size{%s}",
    "queue_latency_seconds": "asynq_queue_latency_seconds{%s}",
    "queue_memory_usage_approx_bytes": "asynq_queue_memory_usage_approx_bytes{%s}",
    "tasks_processed_per_second": "rate(asynq_tasks_processed_total{%s}[5m])",
    "tasks_failed_per_second": "rate(asynq_tasks_failed_total{%s}[5m])",
    "error_rate": "rate(asynq_tasks_failed_total{%s}[5m]) / rate(asynq_tasks_processed_total{%s}[5m])",
    "pending_tasks_by_queue": 'asynq_tasks_enqueued_total{state="pending",%s}',
    "retry_tasks_by_queue": 'asynq_tasks_enqueued_total{state="retry",%s}',
    "archived_tasks_by_queue": 'asynq_tasks_enqueued_total{state="archived",%s}',
}


@router.get("/metrics")
async def metrics(state: State) -> Response:
    """Prometheus's text format (public)."""
    text = await state.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/monitoring/api/metrics", dependencies=[needs_viewer])
async def charts(
    state: State,
    duration: Annotated[int, Query(ge=1, le=LONGEST_SECONDS)] = 3600,
    endtime: Annotated[float | None, Query(ge=0, le=1e11)] = None,
    queues: str = "",
) -> Response:
    """Nine range results of the Prometheus at PROMETHEUS_ADDRESS (role: viewer); 503 without one."""
    address = state.settings.prometheus_address
    if not address:
        raise UnavailableError(
            "no Prometheus is configured",
            why="PROMETHEUS_ADDRESS is not set",
            hint="set it, or read /api/history, which needs no Prometheus",
        )
    end = time.time() if endtime is None else endtime
    span = {"start": end - duration, "end": end, "step": _step(duration)}
    base = address if "://" in address else f"http://{address}"
    async with httpx2.AsyncClient(timeout=PROMETHEUS_TIMEOUT_SECONDS) as client:
        answers = await asyncio.gather(
            *(
                _ask(client, f"{base.rstrip('/')}/api/v1/query_range", {**span, "query": query})
                for query in _queries(queues).values()
            )
        )
    return json_answer(dict(zip(_QUERIES, answers, strict=True)))


def _step(duration: int) -> float:
    """Seconds between two points, so that no chart has more than some thousand."""
    return next((step for longest, step in _STEPS if duration <= longest), duration / 3000)


def _queries(queues: str) -> dict[str, str]:
    names = [name for name in queues.split(",") if name]
    # A JSON text is also a text of the query language.
    chosen = f"queue=~{json.dumps('|'.join(map(re.escape, names)))}" if names else ""
    return {name: query.replace("%s", chosen) for name, query in _QUERIES.items()}


async def _ask(client: httpx2.AsyncClient, url: str, parameters: dict[str, Any]) -> Any:
    try:
        answer = await client.get(url, params=parameters)
        document = answer.json()
    except (httpx2.HTTPError, ValueError) as error:
        raise UnavailableError(
            "Prometheus can't be asked",
            why=type(error).__name__,
            hint="check PROMETHEUS_ADDRESS and that it runs there",
        ) from error
    if answer.status_code >= 500 or not isinstance(document, dict):
        raise UnavailableError("Prometheus could not answer", why=f"status {answer.status_code}")
    return document
