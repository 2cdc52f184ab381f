"""How problems name a queue's parts: in files with the queue before them, in the API without."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wording:
    """Prefixes of messages. ``queue`` is the queue's name for files, None for a request about one queue."""

    queue: str | None

    @property
    def prefix(self) -> str:
        return f"queue '{self.queue}': " if self.queue is not None else ""

    @property
    def deployment(self) -> str:
        return f"{self.prefix}deployment." if self.queue is not None else ""

    def deployment_needs(self, key: str) -> str:
        """The contract's text for a missing key of the deployment."""
        if self.queue is not None:
            return f"{self.deployment}{key} is required"
        return f"{key} is required for deployment"
