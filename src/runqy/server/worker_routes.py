"""Workers: they register here, and are listed."""

from __future__ import annotations

import re
import time
from typing import Any

import structlog
from fastapi import APIRouter, Request, Response

from runqy.broker.workers import LOG_LINES, Order
from runqy.config.model import Deployment, QueueConfig, SubQueue, parse_queue_name
from runqy.errors import ConflictError, NotAllowedError, NotFoundError, RunqyError, UnavailableError, UsageError
from runqy.server.access import is_local
from runqy.server.answers import worker_row
from runqy.server.auth import Caller
from runqy.server.errors import error_answer, error_texts
from runqy.server.responding import (
    State,
    caller_of,
    json_answer,
    needs_operator,
    needs_viewer,
    needs_viewer_scoped,
    needs_worker,
    read_json_object,
    read_number,
)
from runqy.server.state import ServerState
from runqy.store.sealing import SealError

log = structlog.get_logger(__name__)
router = APIRouter()

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}", re.ASCII)


@router.post("/worker/register", tags=["workers"], dependencies=[needs_worker])
async def register(request: Request, state: State) -> Response:
    """Everything a worker needs for one parent queue: Redis, code, secrets (key: worker or admin)."""
    try:
        body = await read_json_object(request)
        return json_answer(
            await _registration(state, body, caller_of(request), request.client.host if request.client else "")
        )
    except RunqyError as error:
        status, _, _ = error_answer(error)
        texts = error_texts(error)
        # The original's worker reads `error`; everything else reads `errors`.
        return json_answer({"error": texts[0], "errors": texts}, status)


async def _registration(state: ServerState, body: dict[str, Any], by: Caller, address: str) -> dict[str, Any]:
    name = body.get("queue")
    if not name:
        raise UsageError("queue name is required")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError("invalid queue name: must be 1-128 chars, alphanumeric with dots, hyphens, underscores")
    if not by.sees(name):
        raise NotAllowedError(f"this key may not serve queue '{name}'", hint="use a worker key for this queue")
    config, subs = _served(state, name)
    deployment = config.deployment
    if deployment is None:
        raise NotFoundError(
            f"queue '{name}' has no deployment",
            hint="give it one: git_url and startup_cmd",
            why="no code is configured",
        )
    secrets = await _secrets(state, name, deployment)
    order: dict[str, Any] = {
        "git_url": deployment.git_url,
        "branch": deployment.branch,
        "startup_cmd": deployment.startup_cmd,
        "mode": deployment.mode.value,
        "startup_timeout_secs": deployment.startup_timeout_secs,
        "redis_storage": deployment.keeps_results,
        "prestart": deployment.prestart,
        "scheduling": config.scheduling.value,
    }
    if deployment.code_path:
        order["code_path"] = deployment.code_path
    if deployment.path:
        order["path"] = deployment.path
    if deployment.vaults:
        order["vaults"] = list(deployment.vaults)
    return {
        "redis": _redis(state, address),
        "queue": {"name": name, "priority": max(sub.priority for sub in subs)},
        "sub_queues": [{"name": config.full_name(sub), "priority": sub.priority} for sub in subs],
        "deployment": order,
        **secrets,
    }


async def _secrets(state: ServerState, name: str, deployment: Deployment) -> dict[str, Any]:
    """What the vaults hold for a queue: variables of its task code, and the token for its repository.

    Raises `UnavailableError` when any of it can't be had: a clone without its token would fail with less to say.
    """
    secrets: dict[str, Any] = {}
    if deployment.vaults:
        if state.vaults is None:
            raise UnavailableError(
                f"vaults requested for queue {name} but vaults feature is not configured (set RUNQY_VAULT_MASTER_KEY)"
            )
        variables = await state.vaults.merged(deployment.vaults)
        if variables:
            secrets["vaults"] = variables
    if deployment.git_token:
        secrets["git_token"] = await _git_token(state, name, deployment.git_token)
    return secrets


async def _git_token(state: ServerState, name: str, reference: str) -> str:
    if state.vaults is None:
        raise UnavailableError(
            f"the git token of queue {name} is in a vault, and vaults are not configured (set RUNQY_VAULT_MASTER_KEY)"
        )
    try:
        return await state.vaults.referenced(reference)
    except (NotFoundError, SealError) as error:
        raise UnavailableError(
            f"failed to resolve the git token of queue {name}", why=str(error), hint=error.hint
        ) from None


def _served(state: ServerState, name: str) -> tuple[QueueConfig, tuple[SubQueue, ...]]:
    wanted = parse_queue_name(name)
    config = state.queues.catalog.parent(wanted.parent)
    subs = config.ordered() if config is not None else ()
    if wanted.sub is not None:
        subs = tuple(sub for sub in subs if sub.name == wanted.sub)
    if config is None or not subs:
        tried = "" if wanted.sub is not None else f" (also tried '{name}.default')"
        raise NotFoundError(f"queue '{name}' not found{tried}")
    return config, subs


def _redis(state: ServerState, caller: str) -> dict[str, Any]:
    target = state.redis
    address = state.settings.redis_advertise or target.address
    if state.embedded and not state.settings.redis_advertise and not is_local(caller):
        raise ConflictError(
            "this server keeps its tasks in an embedded storage that only its own machine can reach",
            why=f"the worker calls from {caller}",
            hint="start the server with RUNQY_REDIS_URL pointing at a Redis that workers can reach",
        )
    document: dict[str, Any] = {
        "addr": address,
        "password": target.password,
        "use_tls": target.use_tls,
        "db": target.db,
    }
    if target.mode != "single":
        document |= {"mode": target.mode, "nodes": list(target.nodes), "master": target.master}
    return document


@router.get("/api/queue_stats", tags=["workers"], dependencies=[needs_viewer_scoped])
async def no_queue_stats() -> Response:
    """Always empty, as in the original; the days of each queue are at `/monitoring/api/queue_stats` (role: viewer)."""
    return json_answer({"stats": []})


@router.get("/api/workers", tags=["workers"], dependencies=[needs_viewer_scoped])
async def no_workers() -> Response:
    """Always empty, as in the original; the workers are at `/workers` (role: viewer)."""
    return json_answer({"workers": []})


@router.get("/api/servers", tags=["workers"], dependencies=[needs_viewer_scoped])
async def no_servers() -> Response:
    """Always empty, as in the original (role: viewer)."""
    return json_answer({"servers": []})


@router.get("/workers", tags=["workers"], dependencies=[needs_viewer])
async def list_workers(state: State) -> Response:
    """All workers that were heard of lately (role: viewer)."""
    now = time.time()
    rows = [worker_row(record, now) for record in await state.workers.all()]
    return json_answer({"workers": rows, "count": len(rows)})


@router.get("/api/workers/{worker_id}", tags=["workers"], dependencies=[needs_viewer])
@router.get("/workers/{worker_id}", tags=["workers"], dependencies=[needs_viewer])
async def get_worker(worker_id: str, state: State) -> Response:
    """One worker (role: viewer)."""
    record = await state.workers.get(worker_id)
    if record is None:
        raise NotFoundError("Worker not found")
    return json_answer(worker_row(record, time.time()))


@router.get("/api/workers/{worker_id}/logs", tags=["workers"], dependencies=[needs_viewer])
@router.get("/monitoring/api/workers/{worker_id}/logs", tags=["monitoring"], dependencies=[needs_viewer])
@router.get("/workers/{worker_id}/logs", tags=["workers"], dependencies=[needs_viewer])
async def get_worker_logs(worker_id: str, state: State, n: str = "200") -> Response:
    """The last lines that a worker's task processes printed (role: viewer)."""
    if await state.workers.get(worker_id) is None:
        raise NotFoundError("Worker not found")
    count = read_number(n, 200, most=LOG_LINES)
    lines = await state.workers.logs(worker_id, count)
    return json_answer({"lines": lines, "count": len(lines)})


@router.post("/api/workers/{worker_id}/{order}", tags=["workers"], dependencies=[needs_operator])
@router.post("/workers/{worker_id}/{order}", tags=["workers"], dependencies=[needs_operator])
async def order_worker(worker_id: str, order: str, state: State) -> Response:
    """Tell a worker to `pause` (take no more tasks, go on with those in hand), to `resume`, to `restart` its task
    processes, or to `drain` (finish what runs) and stop (role: operator)."""
    if order not in set(Order):
        raise NotFoundError(f"there is no order {order!r} for a worker", hint=f"there are {', '.join(Order)}")
    if await state.workers.get(worker_id) is None:
        raise NotFoundError("Worker not found")
    await state.workers.order(Order(order), worker_id)
    return json_answer({"message": f"worker told to {order}", "worker_id": worker_id})
