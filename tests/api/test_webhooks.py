"""Webhooks against a real receiver: signed, tried again, sent once, and never into the private network."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness.api import Api, complete, running_server, take
from harness.redis_servers import RedisServer

from runqy.broker import keys
from runqy.broker.connection import Connection
from runqy.broker.outbox import Outbox, is_webhook_address
from runqy.broker.transitions import AttemptEnd
from runqy.server import webhooks
from runqy.server.webhook_targets import is_public
from runqy.tasks.limits import Limits
from runqy.tasks.outcome import Archive, Ending
from runqy.tasks.state import Action

SECRET = "a-secret-of-the-receiver"
ALLOWED = {"RUNQY_WEBHOOK_ALLOW_PRIVATE": "true"}


@dataclass
class Receiver:
    """A web server that keeps what it was sent and answers with the next of ``statuses``, then 200."""

    port: int = 0
    statuses: list[int] = field(default_factory=list)
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    slow: float = 0.0

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/hook?token=hidden"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:] if line)}
                body = await reader.readexactly(int(headers["content-length"]))
                headers["line"] = lines[0]
                self.got.append((headers, body))
                await asyncio.sleep(self.slow)
                status = self.statuses.pop(0) if self.statuses else 200
                location = f"location: http://localhost:{self.port}/elsewhere\r\n" if status == 302 else ""
                writer.write(f"HTTP/1.1 {status} X\r\n{location}content-length: 0\r\n\r\n".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


async def until(done: Callable[[], bool], seconds: float = 15) -> None:
    async with asyncio.timeout(seconds):
        while not done():
            await asyncio.sleep(0.02)


async def end_one(api: Api, url: str | None = None, queue: str = "echo") -> str:
    async with api.client() as admin:
        extra = {} if url is None else {"webhook_url": url}
        answer = await admin.post("/queue/add", json={"queue": queue, "data": {"n": 1}, **extra})
        assert answer.status_code == 200, answer.text
    task = await take(api, f"{queue}.default")
    await complete(api, task)
    return task.id


async def tries(api: Api, task: str, wanted: int) -> list[dict[str, Any]]:
    async with api.client() as admin, asyncio.timeout(15):
        while True:
            answer = await admin.get("/api/webhooks", params={"queue": "echo", "task": task})
            if len(found := answer.json()["tries"]) >= wanted:
                return list(found)
            await asyncio.sleep(0.05)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "FIRST_DELAY_SECONDS", 0.2)


def signed_queue(folder: Path, url: str) -> None:
    (folder / "queues").mkdir()
    (folder / "queues" / "all.yaml").write_text(
        "queues:\n  echo:\n    priority: 1\n    deployment: {git_url: 'https://example.com/e.git', startup_cmd: x}\n"
        f"    webhook: {{url: '{url}', secret: 'vault://hooks/signing'}}\n"
    )


async def test_a_queues_webhook_is_signed_as_the_page_says(
    valkey: RedisServer, connection: Connection, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    verify = names["verify"]
    key = base64.b64encode(b"k" * 32).decode()
    async with receiving() as receiver:
        signed_queue(tmp_path, receiver.url)
        async with running_server(tmp_path, valkey.url, RUNQY_VAULT_MASTER_KEY=key, **ALLOWED) as api:
            assert api.state.vaults is not None
            await api.state.vaults.create("hooks")
            await api.state.vaults.set_entry("hooks", "signing", SECRET)
            task = await end_one(api)
            await until(lambda: bool(receiver.got))
            (tried,) = await tries(api, task, 1)
    ((headers, body),) = receiver.got
    assert json.loads(body) | {"ended_at": ""} == {
        "id": task, "queue": "echo.default", "state": "completed", "result": '"done"', "error": None,
        "result_stored": True, "attempts": 1, "ended_at": "",
    }  # fmt: skip
    assert headers["line"].startswith("POST /hook?token=hidden ")
    assert headers["host"] == f"localhost:{receiver.port}"
    assert verify(SECRET, headers["x-runqy-signature"], body)
    assert not verify(SECRET, headers["x-runqy-signature"], body + b" ")
    assert not verify("another", headers["x-runqy-signature"], body)
    assert not verify(SECRET, webhooks.sign(SECRET, int(time.time()) - 1000, body), body)
    assert (tried["outcome"], tried["status"], tried["try"]) == ("delivered", 200, 1)
    assert "hidden" not in json.dumps(tried)


async def test_a_failed_task_tells_its_error_to_its_own_address(
    valkey: RedisServer, connection: Connection, tmp_path: Path
) -> None:
    async with receiving() as receiver, running_server(tmp_path, valkey.url, **ALLOWED) as api:
        async with api.client() as admin:
            await admin.post("/queue/add", json={"queue": "echo", "data": {}, "webhook_url": receiver.url})
        task = await take(api, "echo.default")
        end = AttemptEnd(task.queue, task.id, task.token, Archive(Ending.FAILED, "it broke"), task.limits, 0.01)
        assert await api.broker.finish([end]) == [True]
        await until(lambda: bool(receiver.got))
        headers, body = receiver.got[0]
        assert (json.loads(body)["state"], json.loads(body)["error"]) == ("archived", "it broke")
        assert "x-runqy-signature" not in headers
        await tries(api, task.id, 1)
        assert await connection.command("EXISTS", keys.webhooks("echo.default")) == 0


async def test_only_tasks_that_asked_are_told(valkey: RedisServer, connection: Connection, tmp_path: Path) -> None:
    async with receiving() as receiver, running_server(tmp_path, valkey.url, **ALLOWED) as api:
        async with api.client() as admin:
            # In a flat body every key is payload.
            await admin.post("/queue/add", json={"queue": "echo", "webhook_url": receiver.url})
            jobs = [{"data": {}, "webhook_url": receiver.url}, {"data": {}}]
            await admin.post("/queue/add-batch", json={"queue": "echo", "jobs": jobs})
        told = [await take(api, "echo.default") for _ in range(3)]
        for task in told:
            await complete(api, task)
        await until(lambda: bool(receiver.got))
        await asyncio.sleep(1.2)
    assert [json.loads(body)["id"] for _, body in receiver.got] == [told[1].id]


@pytest.mark.usefixtures("quick")
async def test_a_refusal_is_tried_again_with_the_same_body(
    valkey: RedisServer, connection: Connection, tmp_path: Path
) -> None:
    async with receiving() as receiver, running_server(tmp_path, valkey.url, **ALLOWED) as api:
        receiver.statuses = [500, 302, 200]
        task = await end_one(api, receiver.url)
        found = await tries(api, task, 3)
    assert [one["outcome"] for one in reversed(found)] == ["failed", "failed", "delivered"]
    assert [one["try"] for one in reversed(found)] == [1, 2, 3]
    assert len({body for _, body in receiver.got}) == 1
    assert len({headers["x-runqy-delivery"] for headers, _ in receiver.got}) == 1
    assert not [headers for headers, _ in receiver.got if "elsewhere" in headers["line"]]


@pytest.mark.usefixtures("quick")
async def test_what_waits_survives_a_restart_and_the_task(
    valkey: RedisServer, connection: Connection, tmp_path: Path
) -> None:
    async with receiving() as receiver:
        receiver.statuses = [503]
        async with running_server(tmp_path, valkey.url, **ALLOWED) as api:
            task = await end_one(api, receiver.url)
            await tries(api, task, 1)
        await connection.command("DEL", keys.task("echo.default", task))
        async with running_server(tmp_path, valkey.url, **ALLOWED) as api:
            found = await tries(api, task, 2)
    assert found[0]["outcome"] == "delivered"
    assert json.loads(receiver.got[-1][1])["result"] == '"done"'


async def test_several_servers_send_once(valkey: RedisServer, connection: Connection, tmp_path: Path) -> None:
    async with receiving() as receiver, AsyncExitStack() as stack:
        receiver.slow = 0.5
        servers = []
        for number in range(3):
            folder = tmp_path / str(number)
            folder.mkdir()
            servers.append(await stack.enter_async_context(running_server(folder, valkey.url, **ALLOWED)))
        ids = [await end_one(servers[0], receiver.url) for _ in range(20)]
        await until(lambda: len(receiver.got) >= 20)
        await asyncio.sleep(1.5)
    assert sorted(json.loads(body)["id"] for _, body in receiver.got) == sorted(ids)


async def test_a_claim_has_one_owner(api: Api, connection: Connection) -> None:
    outbox = Outbox(connection)
    await connection.command("ZADD", keys.webhooks("echo.default"), 2_000_000_000_000, "later")
    assert await outbox.claim("echo.default", 5) == []
    await connection.command("ZADD", keys.webhooks("small.default"), 2_000_000_000_000, "x")
    await connection.command("ZADD", keys.webhooks("q"), 1, "mine")
    claims = await asyncio.gather(*(outbox.claim("q", 5) for _ in range(8)))
    (claim,) = [claim for taken in claims for claim in taken]
    await connection.command("ZADD", keys.webhooks("q"), 1, "mine")
    assert not await outbox.settle(claim, None, b"", b"{}")
    (again,) = await outbox.claim("q", 5)
    assert await outbox.settle(again, None, b"", b"{}")
    assert await outbox.waiting(["q"]) == []


async def test_private_targets_are_refused(valkey: RedisServer, connection: Connection, tmp_path: Path) -> None:
    async with receiving() as receiver, running_server(tmp_path, valkey.url) as api:
        task = await end_one(api, receiver.url)
        (tried,) = await tries(api, task, 1)
        assert (tried["outcome"], tried["status"]) == ("given_up", None)
        assert "not public" in tried["reason"]
    assert receiver.got == []


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "169.254.169.254", "192.168.0.1", "100.64.0.1", "0.0.0.0", "224.0.0.1"),
        *("::1", "fe80::1", "fe80::1%eth0", "fc00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::"),
    ],
)
def test_no_private_address_passes_for_public(address: str) -> None:
    assert not is_public(address)


def test_public_addresses_pass() -> None:
    assert all(map(is_public, ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"]))


@pytest.mark.parametrize(
    "url", ["ftp://a.b/", "http://", "https://u:p@a.b/", "http://a b/", "http://a:0/", "x", 5, "http://[::1"]
)
async def test_what_is_no_address_is_refused(api: Api, url: Any) -> None:
    assert not isinstance(url, str) or not is_webhook_address(url)
    async with api.client() as admin:
        answer = await admin.post("/queue/add", json={"queue": "echo", "data": {}, "webhook_url": url})
    assert answer.status_code == 400
    assert "webhook_url" in answer.text
    assert "u:p" not in answer.text


def test_the_delays_grow_to_an_hour() -> None:
    delays = [webhooks.delay_after(number) for number in range(1, 30)]
    assert 4 <= delays[0] <= 6
    assert max(delays) <= 3600 * 1.2
    assert min(delays[11:]) >= 3600 * 0.8


async def test_ends_without_a_run_are_told_too(valkey: RedisServer, connection: Connection, tmp_path: Path) -> None:
    """What an operator archives, and what waited too long."""
    async with receiving() as receiver, running_server(tmp_path, valkey.url, **ALLOWED) as api:
        ids = []
        async with api.client() as admin:
            for _ in range(2):
                body = {"queue": "echo", "data": {}, "webhook_url": receiver.url}
                ids.append((await admin.post("/queue/add", json=body)).json()["info"]["id"])
        await api.state.operator.act(Action.ARCHIVE, "echo.default", ids[:1])
        await connection.command("HSET", keys.task("echo.default", ids[1]), "pending_timeout", 1, "pending_since", "1")
        taken = await api.broker.pick_up(["echo.default"], 1, token="w#1", starting=1, fallback=Limits())
        assert taken.expired == 1
        await until(lambda: len(receiver.got) == 2)
        assert {json.loads(body)["id"]: json.loads(body)["state"] for _, body in receiver.got} == dict.fromkeys(
            ids, "archived"
        )
        for task in ids:
            await tries(api, task, 1)


async def test_it_is_given_up_after_a_day_or_when_the_receiver_is_gone(
    valkey: RedisServer, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving() as receiver, running_server(tmp_path, valkey.url, **ALLOWED) as api:
        receiver.statuses = [410]
        (tried,) = await tries(api, await end_one(api, receiver.url), 1)
        assert (tried["outcome"], tried["status"], tried["next_try_at"]) == ("given_up", 410, None)
        monkeypatch.setattr(webhooks, "GIVE_UP_SECONDS", 0)
        receiver.statuses = [500]
        (tried,) = await tries(api, await end_one(api, receiver.url), 1)
        assert (tried["outcome"], tried["status"]) == ("given_up", 500)
        assert await connection.command("EXISTS", keys.webhooks("echo.default")) == 0
