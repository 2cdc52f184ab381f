"""POST /queue/add and /queue/add-batch: the two routes that must be fast, so they stand before the framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from runqy.broker.transitions import Enqueued, EnqueueStatus
from runqy.errors import BackPressureError, ConflictError, NotAllowedError, RunqyError, TooLargeError, UsageError
from runqy.server.answers import added, expired_task, task_info
from runqy.server.auth import Caller, permitted
from runqy.server.enqueue import (
    Job,
    Members,
    Target,
    digest,
    find_queue,
    make_task,
    read_batch_job,
    read_flag,
    read_job,
    read_jobs,
    read_members,
    read_queue,
    read_timeout,
    refuse_foreign_id,
)
from runqy.server.errors import error_answer
from runqy.server.state import ServerState
from runqy.store.roles import Role
from runqy.tasks.message import NewTask

Headers = Iterable[tuple[bytes, bytes]]
_encode = msgspec.json.Encoder().encode
IDEMPOTENCY_HEADER = b"idempotency-key"
LONGEST_KEY = 255


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished response: status, JSON body, further headers."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = field(default=())


async def add(state: ServerState, caller: Caller, headers: Headers, body: bytes) -> Answer:
    """Enqueue one task. Raises `RunqyError` with the status of the refusal."""
    members = read_members(body)
    target = _target(state, caller, members)
    job = read_job(members)
    key = _idempotency_key(headers)
    once = digest(f"key {key}") if key else ""
    task = make_task(state, target, job, once=once, body_hash=digest(body) if key else "")
    await refuse_foreign_id(state, task, job)
    (answer,) = await state.broker.enqueue([task], max_pending=target.config.max_pending or 0)
    if answer.status is EnqueueStatus.CREATED:
        return Answer(200, added(task, job.payload, job.warnings))
    return Answer(200, await _repeated(state, target, answer))


async def _repeated(state: ServerState, target: Target, answer: Enqueued) -> bytes:
    """The answer for a task that exists already: the same task for a repetition, else the refusal."""
    refusal = refused(answer, target)
    if refusal is not None:
        raise refusal
    view = await state.inspector.get(target.full, answer.id)
    if view is None:
        return _encode(expired_task(answer.id, target.full))
    return _encode({"info": task_info(view), "repeated": True})


def refused(answer: Enqueued, target: Target) -> RunqyError | None:
    """The error for a task that was not accepted; None when it was, now or before."""
    match answer.status:
        case EnqueueStatus.MISMATCH:
            return ConflictError(
                "this idempotency key was used with another body",
                why=f"it belongs to task {answer.id}",
                hint="use a new key",
            )
        case EnqueueStatus.EXISTS:
            return ConflictError(f"a task with the id {answer.id} exists already", hint="use another task_id")
        case EnqueueStatus.FULL:
            return BackPressureError(
                f"queue {target.full} is full",
                why=f"it holds max_pending = {target.config.max_pending} waiting tasks",
                hint="send again later",
            )
        case _:
            return None


async def add_batch(state: ServerState, caller: Caller, headers: Headers, body: bytes) -> Answer:
    """Enqueue many tasks of one queue, item by item, or all or none with `"atomic": true`."""
    members = read_members(body)
    target = _target(state, caller, members)
    timeout = read_timeout(members.get("timeout"))
    atomic = read_flag(members, "atomic")
    key = _idempotency_key(headers)
    tasks: list[NewTask | None] = []
    errors: list[str] = []
    warnings: list[str] = []
    for index, raw in enumerate(read_jobs(members)):
        try:
            job = read_batch_job(raw)
            once = digest(f"key {key} {index}") if key else ""
            task = make_task(
                state, target, job, batch_timeout=timeout, once=once, body_hash=digest(bytes(raw)) if key else ""
            )
            await refuse_foreign_id(state, task, job)
        except RunqyError as error:
            tasks.append(None)
            errors.append(f"job {index}: {error}")
            continue
        tasks.append(task)
        warnings += [f"job {index}: {warning}" for warning in job.warnings]
    if atomic:
        _refuse_partly(state, target, tasks, errors)
    return await _enqueue_all(state, target, members, tasks, errors, warnings)


def _refuse_partly(state: ServerState, target: Target, tasks: list[NewTask | None], errors: list[str]) -> None:
    if errors:
        raise UsageError("nothing was enqueued, since the batch is atomic: " + "; ".join(errors[:20]))
    ids = [task.id for task in tasks if task is not None]
    if len(set(ids)) < len(ids):
        raise ConflictError("nothing was enqueued, since the batch is atomic: a task_id occurs twice in it")


async def _enqueue_all(
    state: ServerState,
    target: Target,
    members: Members,
    tasks: list[NewTask | None],
    errors: list[str],
    warnings: list[str],
) -> Answer:
    accepted = [task for task in tasks if task is not None]
    answers = iter(await state.broker.enqueue(accepted, max_pending=target.config.max_pending or 0) if accepted else [])
    ids: list[str] = []
    results: list[dict[str, Any]] = []
    full: RunqyError | None = None
    for index, task in enumerate(tasks):
        if task is None:
            results.append({"error": next(e for e in errors if e.startswith(f"job {index}:"))})
            continue
        answer = next(answers)
        refusal = refused(answer, target)
        if refusal is None:
            ids.append(answer.id)
            results.append({"id": answer.id})
            continue
        full = refusal if isinstance(refusal, BackPressureError) else full
        errors.append(f"job {index}: {refusal}")
        results.append({"error": errors[-1]})
    if full is not None and not ids:
        raise full
    document: dict[str, Any] = {"enqueued": len(ids), "failed": len(tasks) - len(ids), "task_ids": ids}
    if errors:
        document["errors"] = errors
        document["results"] = results
    if warnings:
        document["warnings"] = warnings
    return Answer(200, _encode(document))


def _target(state: ServerState, caller: Caller, members: Members) -> Target:
    target = find_queue(state, read_queue(members))
    if not caller.sees(target.full):
        raise NotAllowedError(
            f"this key may not enqueue into {target.full}",
            why=f"it is limited to {', '.join(sorted(caller.queues or ()))}",
            hint="use a key for this queue",
        )
    return target


def _idempotency_key(headers: Headers) -> str:
    for name, value in headers:
        if name == IDEMPOTENCY_HEADER:
            key = value.decode("latin-1").strip()
            if not 0 < len(key) <= LONGEST_KEY:
                raise UsageError(f"Idempotency-Key must have 1 to {LONGEST_KEY} characters")
            return key
    return ""


Handler = Callable[[ServerState, Caller, Headers, bytes], Awaitable[Answer]]
FAST_ROUTES: dict[str, Handler] = {"/queue/add": add, "/queue/add-batch": add_batch}
_ENQUEUERS = (Role.CLIENT,)


class FastRoutes:
    """An ASGI application that answers the two routes itself and hands everything else on."""

    def __init__(self, state: ServerState, otherwise: Any) -> None:
        self._state = state
        self._otherwise = otherwise

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        handler = FAST_ROUTES.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if handler is None:
            await self._otherwise(scope, receive, send)
            return
        try:
            # The key comes first: a stranger's body is not even read.
            caller = permitted(await self._state.access.caller("POST", scope["headers"]), _ENQUEUERS)
            body = await read_body(receive, self._state.settings.max_body_size)
            answer = await handler(self._state, caller, scope["headers"], body)
        except RunqyError as error:
            answer = Answer(*error_answer(error))
        await send(
            {
                "type": "http.response.start",
                "status": answer.status,
                "headers": [
                    (b"content-type", b"application/json; charset=utf-8"),
                    (b"content-length", b"%d" % len(answer.body)),
                    (b"x-content-type-options", b"nosniff"),
                    *answer.headers,
                ],
            }
        )
        await send({"type": "http.response.body", "body": answer.body})


async def read_body(receive: Any, limit: int) -> bytes:
    """The whole body. Raises `TooLargeError` (413) as soon as it is over ``limit`` bytes."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise UsageError("the body was not sent to its end")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise TooLargeError(
                "http: request body too large", why=f"it has more than {limit} bytes", hint="raise RUNQY_MAX_BODY_SIZE"
            )
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


__all__ = ["FAST_ROUTES", "Answer", "FastRoutes", "Job", "add", "add_batch", "read_body"]
