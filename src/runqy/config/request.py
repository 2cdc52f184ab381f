"""A request to create or change one queue (``POST /workers/queues``, ``config create``, the dashboard's form)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from runqy.config.model import Deployment, QueueConfig, SubQueue
from runqy.config.validation import SHARED_KEYS, QueueReader
from runqy.config.wording import Wording
from runqy.errors import ConfigurationError, UsageError
from runqy.settings.node import NOT_SET, Entries, Reading, node_of
from runqy.settings.queue_name import DEFAULT_SUB_QUEUE, QueueName, parse_queue_name
from runqy.tasks.limits import Override

_ANSWERED = ("created_at", "updated_at", "enabled", "provider")
"""keys of an answer that a client may send back; they change nothing"""
_KEYS = ("name", "priority", "sub_queues", *SHARED_KEYS)
_NAME_REQUIRED = "Key: 'CreateQueueRequest.Name' Error:Field validation for 'Name' failed on the 'required' tag"
_PRIORITY_REQUIRED = (
    "Key: 'CreateQueueRequest.Priority' Error:Field validation for 'Priority' failed on the 'required' tag"
)


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """A validated request; ``given`` names the keys that it holds, the others keep what is stored."""

    name: QueueName
    config: QueueConfig
    given: frozenset[str]
    warnings: tuple[str, ...] = ()

    @property
    def sub_queue(self) -> SubQueue:
        """The sub-queue that the request is about; the first one where it lists several."""
        return self.config.sub_queues[0]

    def applied_to(self, stored: QueueConfig | None) -> QueueConfig:
        """The parent queue after this request.

        The deployment is replaced as a whole; everything else that is not given stays. Parent and named
        sub-queue become enabled. Raises `ConfigurationError` when limits are given under a sub-queue's name
        and differ from the parent's (R22, product decision 42).
        """
        deployment = self._deployment(stored)
        if stored is None:
            return replace(self.config, deployment=deployment)
        kept = {
            key: getattr(stored if key not in self.given else self.config, key)
            for key in SHARED_KEYS
            if key != "deployment"
        }
        return replace(
            self.config,
            sub_queues=self._sub_queues(stored),
            deployment=deployment,
            enabled=True,
            created_at=stored.created_at,
            **kept,
        )

    def _sub_queues(self, stored: QueueConfig) -> tuple[SubQueue, ...]:
        if "sub_queues" in self.given:
            return self.config.sub_queues
        mine = {sub.name: sub for sub in self.config.sub_queues}
        kept = [mine.pop(sub.name, sub) for sub in stored.sub_queues]
        return (*kept, *mine.values())

    def _deployment(self, stored: QueueConfig | None) -> Deployment | None:
        wanted, current = self.config.deployment, stored.limits if stored is not None else Override()
        if wanted is None:
            return stored.deployment if stored is not None else None
        if self.name.sub is None:
            return wanted
        if wanted.limits == Override():
            return replace(wanted, limits=current)
        if wanted.limits != current:
            raise ConfigurationError(
                f"limits belong to the parent queue '{self.name.parent}', not to '{self.name.full}'",
                why="all sub-queues of a parent share its limits",
                hint=f"send them with the name '{self.name.parent}', or leave them out",
            )
        return wanted


def parse_queue_request(body: Mapping[str, object]) -> QueueRequest:
    """Validate a request body. Raises `ConfigurationError` (400) with every problem, `UsageError` for the name."""
    reading = Reading()
    try:
        node = node_of(body)
    except TypeError as error:
        raise UsageError("invalid request", why=str(error)) from None
    assert isinstance(node, Entries)
    name = _name(node, reading)
    reading.known_keys(node, (*_KEYS, *_ANSWERED), "")
    reader = QueueReader(node, reading, Wording(None))
    shared = reader.shared(QueueConfig(name.parent, _sub_queues(reader, name, reading)))
    _refuse(reading)
    # An explicit null clears what is stored; only the deployment and the sub-queues can't be cleared.
    given = frozenset(
        key for key in node.entries if key in _KEYS and not (key == "sub_queues" and reader.is_empty(key))
    )
    return QueueRequest(name, shared, given, tuple(str(warning) for warning in reading.warnings))


def _name(node: Entries, reading: Reading) -> QueueName:
    text = reading.text(node.entries.get("name", NOT_SET), "name")
    if text is None:
        reading.refuse(_NAME_REQUIRED, None)
        return QueueName("unnamed")
    return parse_queue_name(text)


def _sub_queues(reader: QueueReader, name: QueueName, reading: Reading) -> tuple[SubQueue, ...]:
    if not reader.is_empty("sub_queues"):
        if name.sub is not None:
            reading.refuse("sub_queues need the name of a parent queue, without a dot", None)
        return reader.sub_queues()
    before = len(reading.problems)
    priority = reader.priority()
    if priority is None and len(reading.problems) == before:
        reading.refuse(_PRIORITY_REQUIRED, None)
    return (SubQueue(name.sub or DEFAULT_SUB_QUEUE, priority or 1),)


def _refuse(reading: Reading) -> None:
    if reading.problems:
        problems = tuple(dict.fromkeys(str(problem) for problem in reading.problems))
        raise ConfigurationError("The queue's configuration is refused", problems=problems)
