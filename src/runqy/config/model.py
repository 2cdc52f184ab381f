"""What a queue is: frozen values, the same whether they came from YAML, the API, the CLI or the database."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from runqy.config.fields import Field, FieldType, PayloadError, validate_payload
from runqy.settings.queue_name import DEFAULT_SUB_QUEUE, SEPARATOR, QueueName, parse_queue_name
from runqy.tasks.limits import Override
from runqy.tasks.retry import DEFAULT_RETRY_POLICY, RetryPolicy

__all__ = [
    "DEFAULT_BRANCH",
    "DEFAULT_SUB_QUEUE",
    "SEPARATOR",
    "Autoscale",
    "Deployment",
    "Field",
    "FieldType",
    "Mode",
    "PayloadError",
    "QueueConfig",
    "QueueName",
    "Scheduling",
    "SubQueue",
    "Webhook",
    "parse_queue_name",
    "validate_payload",
]

DEFAULT_BRANCH = "main"
DEFAULT_STARTUP_TIMEOUT_SECS = 60
NO_LIMITS = Override()


class Mode(StrEnum):
    """How task code runs."""

    LONG_RUNNING = "long_running"
    """one process, kept warm"""
    ONE_SHOT = "one_shot"
    """a process for each task"""


class Scheduling(StrEnum):
    """How the sub-queues of a parent share a worker (product decision 18)."""

    STRICT = "strict"
    """by priority; equal priorities share"""
    WEIGHTED = "weighted"
    """shares in proportion to priority"""


@dataclass(frozen=True, slots=True)
class SubQueue:
    """A queue that tasks really stand in, ``parent.name``."""

    name: str
    priority: int
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where the ends of a queue's tasks are told; ``secret`` is ``vault://<vault>/<key>`` or None."""

    url: str
    secret: str | None = None


@dataclass(frozen=True, slots=True)
class Autoscale:
    """Validated and stored, not acted upon (product decision 35). ``document`` is its JSON text."""

    enabled: bool
    document: str


@dataclass(frozen=True, slots=True)
class Deployment:
    """The code of a parent queue and how it runs.

    Either ``git_url`` or ``path`` (a local folder) is set. ``redis_storage`` None is "not given".
    """

    git_url: str = ""
    path: str = ""
    branch: str = DEFAULT_BRANCH
    code_path: str = ""
    startup_cmd: str = ""
    mode: Mode = Mode.LONG_RUNNING
    startup_timeout_secs: int = 0
    redis_storage: bool | None = None
    vaults: tuple[str, ...] = ()
    git_token: str = ""
    limits: Override = NO_LIMITS
    retry: RetryPolicy = DEFAULT_RETRY_POLICY
    prestart: bool = False
    autoscale: Autoscale | None = None

    @property
    def keeps_results(self) -> bool:
        """Whether results are stored: unless ``redis_storage`` is false (product decision 1)."""
        return self.redis_storage is not False

    @property
    def startup_seconds(self) -> int:
        """How long a start may take; 0 in the configuration means 60."""
        return self.startup_timeout_secs or DEFAULT_STARTUP_TIMEOUT_SECS


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """One parent queue with its sub-queues.

    The two times are unix seconds, None for what was never stored; they don't count for equality.
    """

    name: str
    sub_queues: tuple[SubQueue, ...]
    deployment: Deployment | None = None
    """None only for a queue made by the API without one; no worker can serve it"""
    input: tuple[Field, ...] = ()
    output: tuple[Field, ...] = ()
    description: str = ""
    scheduling: Scheduling = Scheduling.STRICT
    max_pending: int | None = None
    webhook: Webhook | None = None
    redact: tuple[str, ...] = ()
    enabled: bool = True
    created_at: float | None = field(default=None, compare=False)
    updated_at: float | None = field(default=None, compare=False)

    @property
    def priority(self) -> int:
        """The priority of its highest enabled sub-queue; 0 when there is none."""
        return max((sub.priority for sub in self.sub_queues if sub.enabled), default=0)

    @property
    def limits(self) -> Override:
        """What the queue says about the five levers."""
        return self.deployment.limits if self.deployment is not None else NO_LIMITS

    @property
    def retry(self) -> RetryPolicy:
        """How long its tasks wait before a retry."""
        return self.deployment.retry if self.deployment is not None else DEFAULT_RETRY_POLICY

    def sub_queue(self, name: str) -> SubQueue | None:
        """The enabled sub-queue of that name."""
        return next((sub for sub in self.sub_queues if sub.name == name and sub.enabled), None)

    def full_name(self, sub: SubQueue) -> str:
        return f"{self.name}{SEPARATOR}{sub.name}"

    def ordered(self) -> tuple[SubQueue, ...]:
        """Enabled sub-queues, highest priority first, then by name."""
        enabled = (sub for sub in self.sub_queues if sub.enabled)
        return tuple(sorted(enabled, key=lambda sub: (-sub.priority, sub.name)))

    def full_names(self) -> tuple[str, ...]:
        """``parent.sub`` of every enabled sub-queue, highest priority first."""
        return tuple(self.full_name(sub) for sub in self.ordered()) if self.enabled else ()
