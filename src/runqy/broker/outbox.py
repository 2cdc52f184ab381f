"""The webhooks that wait to be sent, kept in each queue's own slot of Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from runqy.broker import keys, scripts
from runqy.broker.connection import Connection

CLAIM_SECONDS = 60
"""longer than any try may last, so that nobody else sends meanwhile"""
KEPT_LINES = 200
KEPT_SECONDS = 7 * 86400
LONGEST_ADDRESS = 2048
FIELD = "webhook"
"""field of a task's hash: keys of its outbox and of the records, and the address; without one the queue's counts"""


def is_webhook_address(url: str) -> bool:
    """Whether a webhook can go there: a web address without a user, in visible ASCII."""
    if len(url) > LONGEST_ADDRESS or not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
        )
    except ValueError:
        return False


def webhook_fields(queue: str, url: str) -> tuple[tuple[str, str], ...]:
    """The hash fields of a task whose end is to be told."""
    return (FIELD, f"{keys.webhooks(queue)} {keys.webhook_records(queue)} {url}"), ("more", "1")


def address_of(field: bytes) -> str:
    """The task's own address in its field; empty for that of the queue."""
    return field.decode("utf-8", "replace").split(" ", 2)[-1]


@dataclass(frozen=True, slots=True)
class Claim:
    """A webhook that is ours to send for `CLAIM_SECONDS`; ``record`` is None before the first try ended."""

    queue: str
    id: str
    token: str
    record: bytes | None


class Outbox:
    """Errors as in `Connection`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def waiting(self, queues: Sequence[str]) -> list[str]:
        """Those queues that have something to send, now or later."""
        replies = await self._connection.replies([("EXISTS", keys.webhooks(queue)) for queue in queues])
        return [queue for queue, reply in zip(queues, replies, strict=True) if reply]

    async def claim(self, queue: str, limit: int) -> list[Claim]:
        """Take what is due, atomically: no other server gets it before the claim ends."""
        call = (
            scripts.WEBHOOK_CLAIM,
            [keys.webhooks(queue), keys.webhook_records(queue)],
            [limit, CLAIM_SECONDS, KEPT_SECONDS],
        )
        (flat,) = await self._connection.call([call])
        return [Claim(queue, flat[i].decode(), flat[i + 1].decode(), flat[i + 2]) for i in range(0, len(flat), 3)]

    async def settle(self, claim: Claim, delay: float | None, record: bytes, line: bytes) -> bool:
        """Note a try; it is due again in ``delay`` seconds, or never. False when the claim was ours no more."""
        arguments: list[Any] = [claim.id, claim.token, "" if delay is None else f"{delay:.3f}", record, line]
        call = (
            scripts.WEBHOOK_SETTLE,
            [keys.webhooks(claim.queue), keys.webhook_records(claim.queue), keys.webhook_history(claim.queue)],
            [*arguments, KEPT_LINES, KEPT_SECONDS],
        )
        (reply,) = await self._connection.call([call])
        return bool(reply)

    async def history(self, queue: str) -> list[bytes]:
        """The last tries of a queue as JSON lines, newest first."""
        lines: list[bytes] = await self._connection.command("LRANGE", keys.webhook_history(queue), 0, KEPT_LINES - 1)
        return lines
