"""Tells the ends of tasks to web addresses: signed, tried again for a day, by one server at a time."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import random
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
import structlog

from runqy.broker.inspector import TaskView
from runqy.broker.outbox import FIELD, Claim, Outbox, address_of
from runqy.errors import NotAllowedError, RunqyError, UnavailableError
from runqy.server.answers import rfc3339
from runqy.server.state import ServerState
from runqy.server.webhook_targets import checked_address
from runqy.service import Service, end_tasks

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5
AT_ONCE = 50
AT_ONCE_PER_QUEUE = 10
TRY_SECONDS = 20.0
"""the whole of one try; well below the claim's `CLAIM_SECONDS`"""
FIRST_DELAY_SECONDS = 5.0
LONGEST_DELAY_SECONDS = 3600.0
GIVE_UP_SECONDS = 24 * 3600.0
LARGEST_RESULT_BYTES = 1024 * 1024
GONE_STATUS = 410


class Record(msgspec.Struct, frozen=True):
    """What a further try needs, whatever has become of the task meanwhile. ``first`` is unix seconds."""

    url: str
    body: bytes
    first: float
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Tried:
    """How one try ended; ``status`` is 0 where nobody answered."""

    delivered: bool
    final: bool = False
    status: int = 0
    reason: str = ""


def sign(secret: str, at: int, body: bytes) -> str:
    """The value of `X-Runqy-Signature`: HMAC-SHA256 over the unix second, a dot and the body."""
    digest = hmac.new(secret.encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def delay_after(tries: int) -> float:
    """Seconds until the next try: doubled each time up to an hour, and spread by a fifth."""
    return min(FIRST_DELAY_SECONDS * 2.0 ** min(tries - 1, 20), LONGEST_DELAY_SECONDS) * random.uniform(0.8, 1.2)


class WebhookSender:
    """Runs in every server; each webhook is claimed in Redis before it is sent.

    At least once: a server that dies between the answer and its note lets another one send again when the claim
    has ended.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._outbox = Outbox(state.connection)
        self._service = Service("webhooks", self._look, interval=LOOK_SECONDS)
        self._sending: dict[asyncio.Task[None], str] = {}
        self._client = httpx2.AsyncClient(timeout=TRY_SECONDS / 2, follow_redirects=False, trust_env=False)

    async def start(self) -> None:
        await self._service.start()

    async def stop(self) -> None:
        """End; what is being sent is due again when its claim has ended."""
        await self._service.stop()
        await end_tasks(*self._sending)
        await self._client.aclose()

    async def _look(self) -> bool:
        for queue in await self._outbox.waiting(await self._state.inspector.queues()):
            busy = sum(1 for sending in self._sending.values() if sending == queue)
            room = min(AT_ONCE - len(self._sending), AT_ONCE_PER_QUEUE - busy)
            if room <= 0:
                continue
            for claim in await self._outbox.claim(queue, room):
                task = asyncio.create_task(self._handle(claim), name="webhook")
                self._sending[task] = queue
                task.add_done_callback(self._sending.pop)
        return False

    async def _handle(self, claim: Claim) -> None:
        try:
            record = await self._record(claim)
            tried = Tried(False, True, 0, "the task or its queue's webhook is gone")
            if record.url:
                tried = await self._try(claim, record)
            record = msgspec.structs.replace(record, tries=record.tries + 1)
            delay: float | None = delay_after(record.tries)
            if tried.delivered or tried.final or time.time() + (delay or 0) > record.first + GIVE_UP_SECONDS:
                delay = None
            line = _line(claim, record, tried, delay)
            await self._outbox.settle(claim, delay, msgspec.msgpack.encode(record), line)
        except RunqyError as error:
            log.warning("a webhook is left for later", queue=claim.queue, task=claim.id, reason=str(error))
        except Exception:
            log.exception("a webhook is left for later", queue=claim.queue, task=claim.id)

    async def _record(self, claim: Claim) -> Record:
        if claim.record is not None:
            return msgspec.msgpack.decode(claim.record, type=Record)
        view = await self._state.inspector.get(claim.queue, claim.id)
        if view is None:
            return Record("", b"", time.time())
        url = address_of(view.fields.get(FIELD, b""))
        if not url:
            found = self._state.queues.catalog.lookup(claim.queue)
            url = found[0].webhook.url if found is not None and found[0].webhook is not None else ""
        return Record(url, body_of(view), time.time())

    async def _secret(self, queue: str) -> str | None:
        found = self._state.queues.catalog.lookup(queue)
        reference = found[0].webhook.secret if found is not None and found[0].webhook is not None else None
        if reference is None:
            return None
        if self._state.vaults is None:
            raise UnavailableError("the signing secret can't be read", why="RUNQY_VAULT_MASTER_KEY is not set")
        return await self._state.vaults.referenced(reference)

    async def _try(self, claim: Claim, record: Record) -> Tried:
        try:
            async with asyncio.timeout(TRY_SECONDS):
                status = await self._post(claim, record)
        except NotAllowedError as error:
            return Tried(False, True, 0, str(error))
        except RunqyError as error:
            return Tried(False, False, 0, str(error))
        except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            return Tried(False, False, 0, type(error).__name__)
        if 200 <= status < 300:
            return Tried(True, True, status)
        reason = "redirects are not followed" if 300 <= status < 400 else f"answered {status}"
        return Tried(False, status == GONE_STATUS, status, reason)

    async def _post(self, claim: Claim, record: Record) -> int:
        parts = urlsplit(record.url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        address = await checked_address(host, port, allow_private=self._state.settings.webhook_allow_private)
        headers = {
            "Host": parts.netloc,
            "Content-Type": "application/json",
            "User-Agent": "runqy-webhook",
            "X-Runqy-Delivery": f"{claim.id}/{round(record.first * 1000)}",
        }
        secret = await self._secret(claim.queue)
        if secret is not None:
            headers["X-Runqy-Signature"] = sign(secret, int(time.time()), record.body)
        target = httpx2.URL(record.url).copy_with(host=address, port=port)
        request = self._client.build_request("POST", target, content=record.body, headers=headers)
        # The certificate must be the name's, though the connection goes to the address that was checked.
        request.extensions["sni_hostname"] = host
        answer = await self._client.send(request, stream=True)
        await answer.aclose()
        return answer.status_code


def body_of(view: TaskView) -> bytes:
    """What a webhook says: the same bytes at every try."""
    result = view.result
    document: dict[str, Any] = {
        "id": view.id,
        "queue": view.queue,
        "state": view.state.value,
        "result": None,
        "error": view.error or None,
        "result_stored": view.result_stored,
        "attempts": len(view.attempts),
        "ended_at": rfc3339(view.attempts[-1].ended_at if view.attempts else None),
    }
    if result is not None and len(result) > LARGEST_RESULT_BYTES:
        document["result_omitted"] = f"larger than {LARGEST_RESULT_BYTES} bytes; read it with GET /queue/{view.id}"
    elif result is not None:
        document["result"] = result.decode("utf-8", "replace")
    return msgspec.json.encode(document)


def _line(claim: Claim, record: Record, tried: Tried, delay: float | None) -> bytes:
    parts = urlsplit(record.url)
    outcome = "delivered" if tried.delivered else ("given_up" if delay is None else "failed")
    return msgspec.json.encode(
        {
            "id": claim.id,
            "queue": claim.queue,
            "at": round(time.time() * 1000),
            # A query may hold a token of the receiver.
            "target": f"{parts.scheme}://{parts.netloc}{parts.path}" if record.url else "",
            "try": record.tries,
            "outcome": outcome,
            "status": tried.status or None,
            "reason": tried.reason,
            "next_try_at": None if delay is None else round((time.time() + delay) * 1000),
        }
    )
