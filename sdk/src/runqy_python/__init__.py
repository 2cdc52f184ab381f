"""runqy-python: write task handlers for runqy and enqueue tasks."""

from .aclient import AsyncRunqyClient
from .client import RunqyClient, enqueue, enqueue_batch
from .context import cancelled, log, progress
from .decorator import load, task, unload
from .errors import (
    AuthenticationError,
    ConflictError,
    InvalidRequestError,
    PayloadEncodingError,
    PermissionDeniedError,
    ResultNotStoredError,
    RetryableError,
    RunqyError,
    ServerUnavailableError,
    TaskFailedError,
    TaskNotFoundError,
    WaitTimeoutError,
)
from .runner import run, run_once
from .task_info import BatchResult, TaskEvent, TaskInfo
from .version import __version__

__all__ = [
    "AsyncRunqyClient",
    "AuthenticationError",
    "BatchResult",
    "ConflictError",
    "InvalidRequestError",
    "PayloadEncodingError",
    "PermissionDeniedError",
    "ResultNotStoredError",
    "RetryableError",
    "RunqyClient",
    "RunqyError",
    "ServerUnavailableError",
    "TaskEvent",
    "TaskFailedError",
    "TaskInfo",
    "TaskNotFoundError",
    "WaitTimeoutError",
    "__version__",
    "cancelled",
    "enqueue",
    "enqueue_batch",
    "load",
    "log",
    "progress",
    "run",
    "run_once",
    "task",
    "unload",
]
