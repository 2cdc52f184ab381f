"""The client: enqueue tasks, ask for them, wait for their results, watch them."""

from __future__ import annotations

import json
import math
import os
import socket
import time
import uuid
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generator, Iterable
from urllib.parse import quote

from .enqueue_body import Duration, batch_bodies, single_body
from .errors import (
    AuthenticationError,
    ResultNotStoredError,
    RunqyError,
    ServerUnavailableError,
    TaskFailedError,
    TaskNotFoundError,
    WaitTimeoutError,
)
from .sse import messages
from .task_info import BatchResult, TaskEvent, TaskInfo, added_batch, added_task, fetched_task

__all__ = [
    "AuthenticationError",
    "BatchResult",
    "RunqyClient",
    "RunqyError",
    "TaskInfo",
    "TaskNotFoundError",
    "enqueue",
    "enqueue_batch",
]

# The longest that one request may wait at the server, and how long to pause if it answers early.
LONGEST_WAIT = 300
EARLY_PAUSE = 0.5
# A live stream is never silent for longer: the server sends comments to keep it open.
STREAM_SILENCE = 60.0


class RunqyClient:
    """Talks to one runqy server; may be shared by threads, and used as a context manager.

    `server_url` and `api_key` default to the environment variables RUNQY_SERVER and RUNQY_API_KEY.
    `timeout` is seconds for one HTTP call. Connections are kept and reused until `close`.

    A call is repeated by itself where that is safe, after connection errors and when the server is busy: all
    questions, and all enqueues, since those carry an idempotency key.

    Raises RunqyError if no server is known, and from every method: AuthenticationError,
    PermissionDeniedError, TaskNotFoundError, ConflictError, InvalidRequestError, ServerUnavailableError.
    """

    def __init__(
        self, server_url: str | None = None, api_key: str | None = None, timeout: float = 30
    ) -> None:
        url = server_url or os.environ.get("RUNQY_SERVER")
        if not url:
            raise RunqyError(
                "No server is known: pass server_url or set RUNQY_SERVER (http://localhost:3000)"
            )
        self.server_url = url.rstrip("/")
        self.api_key = api_key if api_key is not None else os.environ.get("RUNQY_API_KEY", "")
        self.timeout = timeout
        # Imported where it is needed, with HTTP and TLS behind it: a task process starts without them.
        from .transport import Transport

        self._transport = Transport(self.server_url, self.api_key, timeout)

    def enqueue(
        self,
        queue: str,
        payload: Any,
        timeout: Duration | None = None,
        *,
        task: str | None = None,
        delay: Duration | timedelta | None = None,
        run_at: datetime | None = None,
        task_id: str | None = None,
        webhook_url: str | None = None,
        idempotency_key: str | None = None,
    ) -> TaskInfo:
        """Enqueue one task and return it as accepted.

        `timeout` limits its run: seconds, or a text such as "90s"; None leaves the queue's own limit.
        `task` chooses a handler registered as `@task("name")`. `delay` (seconds, text or timedelta) or
        `run_at` (a naive datetime is local time) let it start later. `webhook_url` is called when it ends.
        `idempotency_key` makes repeated calls one task, also across processes; without it each call has a
        key of its own, which covers the repeats made inside it. The payload takes the forms of results.

        Raises PayloadEncodingError, and what the class names.
        """
        body = single_body(
            queue,
            payload,
            timeout,
            {"task": task, "delay": delay, "run_at": run_at, "task_id": task_id, "webhook_url": webhook_url},
        )
        answer = self._transport.call("POST", "/queue/add", body, idempotency_key or _new_key())
        return added_task(answer, queue, payload)

    def enqueue_batch(
        self,
        queue: str,
        payloads: Iterable[Any],
        timeout: Duration | None = None,
        *,
        task: str | None = None,
        idempotency_key: str | None = None,
    ) -> BatchResult:
        """Enqueue many tasks and return how many were accepted, with their ids in order.

        Any number is fine: it is sent in parts of at most 1,000 jobs or 8 MiB, each with an idempotency key
        derived from that of the batch. `timeout` and `task` are as for `enqueue`, for all jobs.

        Raises PayloadEncodingError before anything is sent. If a later part fails, the exception's `accepted`
        is the BatchResult so far; the same call with its `idempotency_key` sends the rest without doubles.
        """
        key = idempotency_key or _new_key()
        bodies = batch_bodies(queue, payloads, timeout, task)
        total = BatchResult(0, 0)
        for number, body in enumerate(bodies, 1):
            part_key = key if len(bodies) == 1 else f"{key}.{number}"
            try:
                total.add(added_batch(self._transport.call("POST", "/queue/add-batch", body, part_key)))
            except RunqyError as error:
                error.accepted = total
                error.idempotency_key = key
                raise
        return total

    def get_task(self, task_id: str) -> TaskInfo:
        """The task as it is now. Raises TaskNotFoundError if there is none, or its retention is over."""
        return fetched_task(self._transport.call("GET", _task_path(task_id)), task_id)

    def wait(self, task: str | TaskInfo, timeout: float | None = None) -> TaskInfo:
        """Wait until the task has ended, however it ended, and return it.

        `timeout` is in seconds; None waits for as long as it takes. Raises WaitTimeoutError when the time is
        over (the task goes on), TaskNotFoundError if there is no such task.
        """
        task_id = _id_of(task)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            info = self._waited(task_id, left) if left > 0 else self.get_task(task_id)
            if info is not None and info.ended:
                return info
            if deadline <= time.monotonic():
                raise WaitTimeoutError(
                    f"Task {task_id} has not ended within {timeout} s"
                    + (f"; it is {info.state} and goes on" if info is not None else " and goes on")
                )

    def result(self, task: str | TaskInfo, timeout: float | None = None) -> Any:
        """Wait for the task and return its result.

        Raises TaskFailedError if it ended in any other way, ResultNotStoredError if its queue keeps no
        results, and what `wait` raises.
        """
        info = self.wait(task, timeout)
        if info.state != "completed":
            reason = info.error or "the server gave no reason"
            raise TaskFailedError(f"Task {info.task_id} is {info.state}: {reason}", info, info.error)
        if not info.result_stored:
            raise ResultNotStoredError(
                f"Task {info.task_id} succeeded, but queue {info.queue} does not keep results: its "
                "deployment says redis_storage: false. Set it to true for tasks whose result is asked for."
            )
        return info.result

    def stream(self, task: str | TaskInfo) -> Generator[TaskEvent, None, None]:
        """The task's events as they happen, up to the state in which it ended.

        A lost connection is taken up again where it broke off. Raises TaskNotFoundError if there is no such
        task, ServerUnavailableError if the server can't be reached again.
        """
        path = _task_path(_id_of(task)) + "/events"
        last_id: str | None = None
        next_output = 0
        failures = 0
        while True:
            try:
                with self._transport.stream(path, last_id, STREAM_SILENCE) as response:
                    for message in messages(response):
                        failures = 0
                        last_id = message.last_id or last_id
                        event = TaskEvent(message.event, _event_data(message.data))
                        if event.kind == "output":
                            # After a new connection the server may send again what was seen.
                            seq = _field(event, "seq")
                            if isinstance(seq, int):
                                if seq < next_output:
                                    continue
                                next_output = seq + 1
                        yield event
                        if event.kind == "state" and TaskInfo("", "", str(_field(event, "state"))).ended:
                            return
            except ServerUnavailableError as error:
                problem = error
            else:
                problem = ServerUnavailableError("Connection error: the server ended the stream of events")
            if failures >= self._transport.retries:
                raise problem
            self._transport.pause(failures)
            failures += 1

    def close(self) -> None:
        """Close the connections that are kept; the client may be used again afterwards."""
        self._transport.close()

    def __enter__(self) -> RunqyClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        transport = getattr(self, "_transport", None)
        if transport is not None:
            transport.close()

    def __repr__(self) -> str:
        return f"RunqyClient({self.server_url!r})"

    def _waited(self, task_id: str, left: float) -> TaskInfo | None:
        """One wait at the server, of at most `left` seconds; None if the task has not ended in it."""
        seconds = max(1, math.ceil(min(left, LONGEST_WAIT)))
        started = time.monotonic()
        try:
            answer = self._transport.call(
                "GET",
                f"{_task_path(task_id)}?wait=true&timeout={seconds}",
                timeout=min(left, seconds) + (self.timeout if left > seconds else 0),
            )
        except ServerUnavailableError as error:
            if isinstance(error.__cause__, socket.timeout) and left <= LONGEST_WAIT:
                return None
            raise
        except RunqyError as error:
            if error.status != 408:
                raise
            return None
        info = fetched_task(answer, task_id)
        if not info.ended and time.monotonic() - started < EARLY_PAUSE:
            time.sleep(max(min(EARLY_PAUSE, left), 0))
        return info


def enqueue(
    queue: str,
    payload: Any,
    server_url: str | None = None,
    api_key: str | None = None,
    timeout: Duration | None = None,
) -> TaskInfo:
    """Enqueue one task without keeping a client; see RunqyClient and its `enqueue`."""
    with RunqyClient(server_url, api_key) as client:
        return client.enqueue(queue, payload, timeout)


def enqueue_batch(
    queue: str,
    payloads: Iterable[Any],
    server_url: str | None = None,
    api_key: str | None = None,
    timeout: Duration | None = None,
) -> BatchResult:
    """Enqueue many tasks without keeping a client; see RunqyClient and its `enqueue_batch`."""
    with RunqyClient(server_url, api_key) as client:
        return client.enqueue_batch(queue, payloads, timeout)


def _new_key() -> str:
    return uuid.uuid4().hex


def _id_of(task: str | TaskInfo) -> str:
    return task.task_id if isinstance(task, TaskInfo) else task


def _task_path(task_id: str) -> str:
    return "/queue/" + quote(task_id, safe="")


def _event_data(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _field(event: TaskEvent, name: str) -> Any:
    return event.data.get(name) if isinstance(event.data, dict) else None
