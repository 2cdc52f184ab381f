"""Find tasks, act on a selection or on all that match, and see failures in groups."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request, Response

from runqy.broker.inspector import TaskView
from runqy.broker.search import Search
from runqy.errors import NotFoundError, UsageError
from runqy.server.answers import task_info, task_row, unix_ms
from runqy.server.bulk import MOST_TASKS, failure
from runqy.server.responding import (
    State,
    caller_of,
    json_answer,
    needs_operator_scoped,
    needs_viewer_scoped,
    note_audit,
    read_json_object,
    read_number,
)
from runqy.server.state import ServerState
from runqy.tasks.query import QUALIFIERS, parse_query
from runqy.tasks.state import OPERATOR_ACTIONS, Action
from runqy.tasks.state import State as TaskState
from runqy.timing import SYSTEM_CLOCK

router = APIRouter(tags=["tasks"])

LONGEST_PAGE = 500
MOST_SELECTED = 10_000
SAMPLED = 10
GROUPED_TASKS = 2_000
"""failed tasks that one look groups, in equal shares for the queues: none hides another"""
LEAST_SHARE = 50
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]+)*\b|\d+(?:\.\d+)?")


async def _search(request: Request, state: ServerState, q: str) -> Search:
    names = [name for name in await state.inspector.queues() if caller_of(request).sees(name)]
    return Search(state.inspector, parse_query(q), names, SYSTEM_CLOCK.now())


def _row(view: TaskView) -> dict[str, Any]:
    row = task_row(view)
    row["error"] = view.error
    for name, seconds in (
        ("pending_since_at", view.pending_since),
        ("completed_at_ms", view.completed_at),
        ("last_failed_at_ms", view.last_failed_at),
        ("next_process_at_ms", view.next_process_at if view.state is not TaskState.PENDING else None),
    ):
        if seconds is not None:
            row[name] = unix_ms(seconds)
    if len(row["payload"]) > _SHOWN:
        row["payload"] = row["payload"][:_SHOWN] + "…"
    row.pop("result", None)
    return row


_SHOWN = 500


@router.get("/api/search", dependencies=[needs_viewer_scoped])
async def search(request: Request, state: State, q: str = "", cursor: str = "", limit: str = "50") -> Response:
    """Tasks that match (role: viewer). By text only the newest 10,000 that fit the rest are read; `cursor` goes on."""
    size = read_number(limit, 50, most=LONGEST_PAGE)
    found = await (await _search(request, state, q)).page(size, cursor)
    return json_answer(
        {
            "tasks": [_row(view) for view in found.tasks],
            "cursor": found.cursor,
            "scanned": found.scanned,
            "limit_reached": found.limit_reached,
            "warnings": [],
        }
    )


@router.get("/api/search/complete", dependencies=[needs_viewer_scoped])
async def complete_search(request: Request, state: State, q: str = "") -> Response:
    """What could follow in the search bar (role: viewer): qualifiers, states, names of queues and workers."""
    word = q.split(" ")[-1]
    name, colon, _ = word.partition(":")
    if not colon:
        offered = [(f"{known}{'' if known.endswith('.') else ':'}", hint) for known, hint in QUALIFIERS.items()]
    elif name == "queue":
        names = [queue for queue in await state.inspector.queues() if caller_of(request).sees(queue)]
        offered = [(f"queue:{queue}", "") for queue in names]
    elif name == "state":
        offered = [(f"state:{each.value}", "") for each in TaskState]
    elif name == "worker":
        offered = [(f"worker:{record.worker_id}", record.status) for record in await state.workers.all()]
    else:
        offered = []
    fitting = [{"text": text, "hint": hint} for text, hint in offered if text.startswith(word)]
    return json_answer({"suggestions": fitting[:20]})


async def _seen(request: Request, state: ServerState, task_id: str) -> TaskView:
    view = await state.inspector.find(task_id)
    if view is None or not caller_of(request).sees(view.queue):
        raise NotFoundError("task not found")
    return view


@router.get("/api/tasks/{task_id}", dependencies=[needs_viewer_scoped])
async def show_task(task_id: str, request: Request, state: State) -> Response:
    """One task by its id, with everything that is known of it (role: viewer)."""
    return json_answer({"task": task_info(await _seen(request, state, task_id))})


@router.get("/api/tasks/{task_id}/log", dependencies=[needs_viewer_scoped])
async def show_log(task_id: str, request: Request, state: State, download: str = "") -> Response:
    """What a task printed, its last 64 KiB (role: viewer); `download=1` answers with a text file."""
    view = await _seen(request, state, task_id)
    text = await state.inspector.task_log(view.queue, task_id) or ""
    if download:
        headers = {"content-disposition": 'attachment; filename="task.log"', "x-content-type-options": "nosniff"}
        return Response(text, media_type="text/plain; charset=utf-8", headers=headers)
    size = len(text.encode())
    return json_answer({"task_id": task_id, "text": text, "size": size, "truncated": size >= 65536})


def _action(body: dict[str, Any]) -> Action:
    value = body.get("action")
    if value not in {action.value for action in OPERATOR_ACTIONS}:
        raise UsageError(f"invalid action {value!r}: it is one of {', '.join(OPERATOR_ACTIONS)}")
    return Action(value)


@router.post("/api/tasks:act", dependencies=[needs_operator_scoped])
async def act_on_selection(request: Request, state: State) -> Response:
    """Run, cancel, archive or delete tasks (role: operator): `{"action", "task_ids"}`; one answer for each."""
    body = await read_json_object(request)
    action, ids = _action(body), body.get("task_ids")
    if not isinstance(ids, list) or not all(isinstance(task_id, str) for task_id in ids):
        raise UsageError("invalid task_ids field: a list of ids")
    if len(ids) > MOST_SELECTED:
        raise UsageError(
            f"at most {MOST_SELECTED} tasks at once", hint="POST /api/bulk acts on all that match a search"
        )
    by_queue: dict[str, list[str]] = {}
    done: list[str] = []
    failed: list[dict[str, str]] = []
    for task_id in dict.fromkeys(ids):
        queue = await state.inspector.queue_of(task_id)
        if queue is None or not caller_of(request).sees(queue):
            failed.append({"id": task_id, "error": "task not found"})
        else:
            by_queue.setdefault(queue, []).append(task_id)
    for queue, members in by_queue.items():
        for acted in await state.operator.act(action, queue, members):
            reason = failure(acted.status, acted.state, action)
            if reason:
                failed.append({"id": acted.id, "error": reason})
            else:
                done.append(acted.id)
    note_audit(request, action=action.value, done=len(done), failed=len(failed))
    return json_answer({"done": done, "failed": failed})


@router.post("/api/bulk", dependencies=[needs_operator_scoped])
async def start_bulk(request: Request, state: State) -> Response:
    """Act on all tasks that a search matches (role: operator): `{"action", "q", "dry_run"?}`.

    `dry_run` counts and shows a sample, by text among the first 10,000 tasks read, and says when there are more.
    Otherwise 202, and `GET /api/bulk/{id}` tells how far it is.
    """
    body = await read_json_object(request)
    action, q = _action(body), body.get("q")
    if not isinstance(q, str) or not q.strip():
        raise UsageError("q is required", hint='name what is meant, such as "queue:echo state:archived"')
    search = await _search(request, state, q)
    if body.get("dry_run"):
        count, is_cut = await search.count(MOST_TASKS)
        sample = [_row(view) for view in (await search.page(SAMPLED)).tasks]
        note_audit(request, silent=True)
        return json_answer({"count": count, "limit_reached": is_cut or count > MOST_TASKS, "sample": sample})
    job = state.bulk.start(action, q, search, caller_of(request).who)
    note_audit(request, action=action.value, q=q, bulk=job.id)
    return json_answer(job.document(), 202)


@router.get("/api/bulk", dependencies=[needs_viewer_scoped])
async def list_bulk(state: State) -> Response:
    """Bulk actions of this server, newest first (role: viewer)."""
    return json_answer({"jobs": [job.document() for job in state.bulk.all()]})


@router.get("/api/bulk/{job_id}", dependencies=[needs_viewer_scoped])
async def show_bulk(job_id: str, state: State) -> Response:
    """How far a bulk action is, and what it could not do (role: viewer)."""
    return json_answer(state.bulk.get(job_id).document())


@router.post("/api/bulk/{job_id}/cancel", dependencies=[needs_operator_scoped])
async def cancel_bulk(job_id: str, state: State) -> Response:
    """Stop a bulk action after the batch at hand (role: operator)."""
    return json_answer((await state.bulk.cancel(job_id)).document())


@router.get("/api/errors", dependencies=[needs_viewer_scoped])
async def group_errors(request: Request, state: State, queue: str = "") -> Response:
    """The newest failures, grouped by what they have in common (role: viewer): numbers and ids don't count."""
    names = [
        entry
        for entry in await state.inspector.queues()
        if caller_of(request).sees(entry) and queue in {"", entry, entry.partition(".")[0]}
    ]
    failed = {
        (entry.queue, status): getattr(entry, status.value)
        for entry in await state.inspector.counts_of(names)
        for status in (TaskState.ARCHIVED, TaskState.RETRY)
        if getattr(entry, status.value)
    }
    share = max(GROUPED_TASKS // max(len(failed), 1), LEAST_SHARE)
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    looked = 0
    for name, status in failed:
        for view in await state.inspector.list_tasks(name, status, limit=share):
            looked += 1
            _group(groups, view)
    ordered = sorted(groups.values(), key=lambda group: -group["count"])
    is_cut = any(count > share for count in failed.values())
    return json_answer({"groups": ordered, "looked_at": looked, "limit_reached": is_cut})


def _group(groups: dict[tuple[str, str], dict[str, Any]], view: TaskView) -> None:
    # The last line of a traceback names the exception.
    lines = [line for line in view.error.strip().splitlines() if line.strip()] or ["(no error text)"]
    first = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    kind = _VARIABLE.sub("#", first)[:300]
    at = round((view.last_failed_at or view.completed_at or 0) * 1000)
    group = groups.setdefault(
        (view.queue, kind),
        {"error": kind, "queue": view.queue, "count": 0, "first_at": at, "last_at": at, "sample_ids": []},
    )
    group["count"] += 1
    group["first_at"], group["last_at"] = min(group["first_at"], at), max(group["last_at"], at)
    if len(group["sample_ids"]) < 5:
        group["sample_ids"].append(view.id)
