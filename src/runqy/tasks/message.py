"""The task as it travels: asynq's message, byte for byte, and the values a worker gets at pickup."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from runqy.tasks.limits import Limits
from runqy.tasks.message_pb2 import TaskMessage
from runqy.tasks.retry import DEFAULT_RETRY_POLICY, RetryPolicy

__all__ = ["LIBRARY_TIMEOUT_SECONDS", "MessageError", "NewTask", "PickedTask", "TaskMessage", "decode", "new_task_id"]

LIBRARY_TIMEOUT_SECONDS = 1800
"""What asynq writes into field 8 of a task without a time limit; its inspector shows it, nothing enforces it."""


class MessageError(ValueError):
    """The bytes are not a task message."""


def new_task_id() -> str:
    """A fresh id: a UUIDv4 in text form."""
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task that is about to be enqueued, with everything that is stamped onto it.

    ``payload`` is JSON text and is kept byte for byte. ``run_at`` is unix time in seconds, None for now.
    ``handler`` names the task type within a process (`task` in an enqueue body).
    """

    id: str
    queue: str
    payload: bytes
    limits: Limits
    retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY
    run_at: float | None = None
    handler: str = ""
    once: str = ""
    """digest of the idempotency key under which this task is created at most once; empty for none"""
    body_hash: str = ""
    """hash of the request's body: the same key with another one is refused"""
    extra: tuple[tuple[str, str], ...] = ()
    """more hash fields, such as a webhook's address"""

    def encode(self) -> bytes:
        """The message as asynq writes it at enqueue."""
        return TaskMessage(
            type=self.queue,
            payload=self.payload,
            id=self.id,
            queue=self.queue,
            retry=self.limits.max_retry,
            timeout=self.limits.active_timeout or LIBRARY_TIMEOUT_SECONDS,
            retention=self.limits.ttl_completed,
        ).SerializeToString()


def decode(data: bytes) -> TaskMessage:
    """Read a stored message. Raises `MessageError`."""
    try:
        return TaskMessage.FromString(data)
    except DecodeError as error:
        raise MessageError(str(error)) from error


@dataclass(frozen=True, slots=True)
class PickedTask:
    """A task that this worker now holds: its lease runs, and ``token`` proves the ownership.

    ``wait`` is how long it stood in pending, in seconds. ``attempt`` counts from 1.
    ``ahead`` says that it was taken beyond what can start at once.
    """

    id: str
    queue: str
    type: str
    payload: bytes
    limits: Limits
    retried: int
    attempt: int
    retry_policy: RetryPolicy
    token: str
    wait: float
    handler: str = ""
    ahead: bool = False
