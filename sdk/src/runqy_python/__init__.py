"""runqy-python: write task handlers for runqy and enqueue tasks."""

from .context import cancelled, log, progress
from .decorator import load, task, unload
from .errors import (
    AuthenticationError,
    RetryableError,
    RunqyError,
    TaskNotFoundError,
)
from .runner import run, run_once
from .version import __version__

__all__ = [
    "AuthenticationError",
    "RetryableError",
    "RunqyError",
    "TaskNotFoundError",
    "__version__",
    "cancelled",
    "load",
    "log",
    "progress",
    "run",
    "run_once",
    "task",
    "unload",
]
