"""Registration: what is asked, what is read, when it is tried again, and how a refusal ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness.registrar import Registrar, registrar

from runqy.errors import (
    ConfigurationError,
    ConflictError,
    NotAllowedError,
    NotAuthenticatedError,
    NotFoundError,
    RunqyError,
    UnavailableError,
    UsageError,
)
from runqy.settings.secret import Secret
from runqy.settings.worker import WorkerSettings
from runqy.telemetry import redact
from runqy.worker.registration import RegistrationClient, read_registration
from runqy.worker.worker import choose_queues, group_queues

ANSWER: dict[str, Any] = {
    "redis": {"addr": "10.0.0.5:6379", "password": "redis-canary-pw", "db": 2, "use_tls": True},
    "queue": {"name": "a", "priority": 3},
    "sub_queues": [{"name": "a.high", "priority": 9}, {"name": "a.low", "priority": 1}],
    "deployment": {
        "git_url": "https://example.com/x.git",
        "branch": "main",
        "startup_cmd": "python main.py",
        "mode": "one_shot",
        "startup_timeout_secs": 300,
        "redis_storage": False,
    },
    "vaults": {"HF_TOKEN": "vault-canary-value"},
    "git_token": "server-canary-token",
}


@pytest.fixture
def server() -> Iterator[Registrar]:
    with registrar() as told:
        told.answers["a"] = json.loads(json.dumps(ANSWER))
        yield told


def settings_for(server: Registrar, **options: Any) -> WorkerSettings:
    base = WorkerSettings(server.url, Secret("worker-canary-key"), ("a",), deployment_dir=Path("x"))
    return replace(base, **options)


async def register(server: Registrar, waits: list[str] | None = None, **options: Any) -> Any:
    async with httpx2.AsyncClient() as http:
        told = waits if waits is not None else []
        return await RegistrationClient(settings_for(server, **options), http, waiting=told.append).register("a")


async def test_it_asks_as_the_original_and_reads_everything(server: Registrar) -> None:
    got = await register(server)
    (asked,) = server.asked
    assert asked["authorization"] == "Bearer worker-canary-key"
    assert set(asked) == {"queue", "hostname", "os", "version", "authorization"}
    assert asked["queue"] == "a"
    assert got.queues == {"a.high": 9, "a.low": 1}
    assert got.redis.url == "rediss://10.0.0.5:6379/2"
    assert got.deployment.mode == "one_shot"
    assert got.deployment.startup_seconds == 300
    assert got.deployment.keeps_results is False
    assert got.vaults == {"HF_TOKEN": "vault-canary-value"}
    assert got.git_token == "server-canary-token"
    assert "canary" not in repr(got)
    for secret in ("redis-canary-pw", "vault-canary-value", "server-canary-token"):
        assert secret not in redact(f"a text with {secret} in it")


async def test_the_servers_token_beats_the_workers_own(server: Registrar) -> None:
    assert (await register(server, git_token=Secret("own-token-123"))).git_token == "server-canary-token"
    del server.answers["a"]["git_token"]
    assert (await register(server, git_token=Secret("own-token-123"))).git_token == "own-token-123"


async def test_without_sub_queues_there_is_a_default_one(server: Registrar) -> None:
    del server.answers["a"]["sub_queues"]
    del server.answers["a"]["deployment"]["redis_storage"]
    got = await register(server)
    assert got.queues == {"a.default": 3}
    assert got.deployment.keeps_results is True


REFUSALS: list[tuple[int, type[RunqyError], int]] = [
    (400, UsageError, 2),
    (401, NotAuthenticatedError, 4),
    (403, NotAllowedError, 4),
    (404, NotFoundError, 3),
    (409, ConflictError, 1),
]


@pytest.mark.parametrize(("status", "kind", "code"), REFUSALS)
async def test_a_refusal_ends_at_once_with_what_to_do(
    server: Registrar, status: int, kind: type[RunqyError], code: int
) -> None:
    """Decision 38."""
    server.refusals["a"] = (status, "the reason of the server")
    with pytest.raises(kind) as caught:
        await register(server)
    assert len(server.asked) == 1
    assert caught.value.exit_code == code
    assert "the reason of the server" in caught.value.why
    assert caught.value.hint
    assert "canary" not in str(caught.value)


async def test_a_number_of_tries_is_honoured(server: Registrar) -> None:
    """Decision 38: then exit 5, saying what it waited for."""
    server.refusals["a"] = (503, "starting")
    waits: list[str] = []
    with pytest.raises(UnavailableError) as caught:
        await register(server, waits, bootstrap_retries=3, bootstrap_retry_delay=0.01)
    assert len(server.asked) == 3
    assert len(waits) == 2
    assert all("waiting for the server" in wait and "starting" in wait for wait in waits)
    assert caught.value.exit_code == 5


async def test_without_a_number_it_goes_on_until_the_server_is_there(
    server: Registrar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 38: growing delay, for ever."""
    monkeypatch.setattr("runqy.worker.registration.FIRST_DELAY", 0.001)
    server.refusals["a"] = (502, "bad gateway")
    waits: list[str] = []

    class Listener(list[str]):
        def append(self, text: str) -> None:
            waits.append(text)
            if len(waits) == 5:
                server.refusals.clear()

    got = await register(server, Listener())
    assert got.parent == "a"
    assert len(server.asked) == 6


async def test_a_server_that_is_not_there_is_waited_for(server: Registrar) -> None:
    with pytest.raises(UnavailableError, match="Giving up after 1 tries"):
        await register(server, server_url="http://127.0.0.1:9", bootstrap_retries=1)
    with pytest.raises(ConfigurationError):
        await register(server, server_url="http://x:port", bootstrap_retries=1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"redis": {}}, "redis.addr"),
        ({"deployment": {"git_url": "x"}}, "deployment.startup_cmd"),
        ({"deployment": {"startup_cmd": "x"}}, "deployment.git_url"),
        ({"redis": None, "deployment": None}, "redis.addr, deployment.startup_cmd, deployment.git_url"),
    ],
)
def test_what_is_missing_in_the_answer_is_named(change: dict[str, Any], named: str) -> None:
    settings = WorkerSettings("http://x", Secret("k"), ("a",))
    with pytest.raises(ConfigurationError) as caught:
        read_registration("a", json.dumps({**ANSWER, **change}).encode(), settings)
    assert named in caught.value.why


@pytest.mark.parametrize("body", [b"<html>", b"", b"\xff"])
def test_an_answer_that_is_no_json_is_no_runqy_server(body: bytes) -> None:
    with pytest.raises(UnavailableError, match="does not answer like a runqy server"):
        read_registration("a", body, WorkerSettings("http://x", Secret("k"), ("a",)))


def test_queues_are_grouped_by_parent_and_a_bare_parent_means_all() -> None:
    assert group_queues(("b.x", "a", "b.y", "a.z")) == {"a": (), "b": ("b.x", "b.y")}


def test_wanted_queues_that_do_not_exist_are_left_out_and_none_is_an_error() -> None:
    settings = WorkerSettings("http://x", Secret("k"), ("a",))
    got = read_registration("a", json.dumps(ANSWER).encode(), settings)
    assert choose_queues(got, ("a.low", "a.nope")) == {"a.low": 1}
    with pytest.raises(RunqyError, match="None of the wanted queues exists"):
        choose_queues(got, ("a.nope",))
