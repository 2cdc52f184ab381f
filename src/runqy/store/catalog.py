"""Every queue in memory: what the hot path asks instead of the database."""

from __future__ import annotations

from collections.abc import Iterable

from runqy.config.model import DEFAULT_SUB_QUEUE, SEPARATOR, QueueConfig, parse_queue_name


class QueueCatalog:
    """A snapshot of all enabled queues; `replace` exchanges it in one step."""

    def __init__(self) -> None:
        self._parents: dict[str, QueueConfig] = {}
        self._by_name: dict[str, tuple[QueueConfig, str]] = {}
        self.warnings: tuple[str, ...] = ()
        """stored queues that can't be used, and why"""

    def replace(self, queues: Iterable[QueueConfig], warnings: tuple[str, ...] = ()) -> None:
        """Take a new snapshot: readers see the old one or the new one, nothing between."""
        parents = {queue.name: queue for queue in queues if queue.enabled}
        by_name: dict[str, tuple[QueueConfig, str]] = {}
        for queue in parents.values():
            for full in queue.full_names():
                by_name[full] = (queue, full)
            # A bare parent means its default sub-queue, where there is one.
            default = f"{queue.name}{SEPARATOR}{DEFAULT_SUB_QUEUE}"
            if default in by_name:
                by_name[queue.name] = (queue, default)
        self._parents, self._by_name, self.warnings = parents, by_name, warnings

    def lookup(self, name: str) -> tuple[QueueConfig, str] | None:
        """The parent and the full name that a task's ``queue`` means; None when there is no such queue.

        A name without a dot means its ``default``. A name with two dots raises `UsageError` (400).
        """
        found = self._by_name.get(name)
        if found is None:
            parse_queue_name(name)
        return found

    def parent(self, name: str) -> QueueConfig | None:
        """The parent queue of that name."""
        return self._parents.get(name)

    def queues(self) -> tuple[QueueConfig, ...]:
        """All parents, by name."""
        return tuple(self._parents.values())

    def full_names(self) -> tuple[str, ...]:
        """``parent.sub`` of all queues: by parent, then by priority."""
        return tuple(full for queue in self._parents.values() for full in queue.full_names())
