"""Asks the server who to work for: Redis, the queue's code and its secrets."""

from __future__ import annotations

import asyncio
import platform
import random
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec

from runqy import __version__
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
from runqy.settings.redis import RedisTarget
from runqy.settings.worker import WorkerSettings
from runqy.telemetry import add_secret

REQUEST_SECONDS = 30.0
FIRST_DELAY = 1.0
LONGEST_DELAY = 60.0


@dataclass(frozen=True, slots=True)
class DeploymentOrder:
    """What to deploy for one parent queue, as the server says it."""

    git_url: str
    branch: str
    startup_cmd: str
    path: str = ""
    code_path: str = ""
    mode: str = "long_running"
    startup_timeout_secs: int = 0
    keeps_results: bool = True
    prestart: bool = False
    scheduling: str = "strict"

    @property
    def startup_seconds(self) -> float:
        """How long a start may take; 0 or less means 60 s."""
        return float(self.startup_timeout_secs if self.startup_timeout_secs > 0 else 60)


@dataclass(frozen=True, slots=True)
class Registration:
    """The server's answer for one parent queue. ``queues`` maps full names to priorities."""

    parent: str
    queues: Mapping[str, int]
    redis: RedisTarget
    deployment: DeploymentOrder
    vaults: Mapping[str, str] = field(default_factory=dict, repr=False)
    git_token: str = field(default="", repr=False)


class RegistrationClient:
    """Registers at the server, with back-off, for as long as the settings say.

    ``waiting`` is called with one line each time before a wait.
    """

    def __init__(
        self, settings: WorkerSettings, http: httpx2.AsyncClient, *, waiting: Callable[[str], None] = lambda _: None
    ) -> None:
        self._settings = settings
        self._http = http
        self._waiting = waiting

    async def register(self, parent: str, *, for_ever: bool = False) -> Registration:
        """Ask for one parent queue until the server answers.

        With ``bootstrap.retries`` unset, or ``for_ever``, it never gives up on a server that can't be reached.
        A refusal (400, 401, 403, 404, 409) is raised at once. Raises `UnavailableError` when the tries are over.
        """
        delay, tries = FIRST_DELAY, 0
        while True:
            tries += 1
            try:
                return await self._ask(parent)
            except UnavailableError as error:
                limit = None if for_ever else self._settings.bootstrap_retries
                if limit is not None and tries >= max(limit, 1):
                    raise UnavailableError(
                        f"Giving up after {tries} tries to register for queue {parent}",
                        why=str(error),
                        hint="check RUNQY_SERVER_URL, or leave RUNQY_BOOTSTRAP_RETRIES unset to wait for ever",
                    ) from error
                wait = self._settings.bootstrap_retry_delay if limit is not None else delay
                wait *= random.uniform(0.9, 1.1)
                self._waiting(f"waiting for the server, next try in {wait:.0f} s: {error}")
                await asyncio.sleep(wait)
                delay = min(delay * 2, LONGEST_DELAY)

    async def _ask(self, parent: str) -> Registration:
        url = self._settings.server_url.rstrip("/") + "/worker/register"
        body = {"queue": parent, "hostname": socket.gethostname() or "unknown", "os": platform.system().lower()}
        try:
            response = await self._http.post(
                url,
                json={**body, "version": __version__},
                headers={"Authorization": f"Bearer {self._settings.api_key.get_secret_value()}"},
                timeout=REQUEST_SECONDS,
            )
        except httpx2.HTTPError as error:
            raise UnavailableError(
                f"{self._settings.server_url} can't be reached", why=str(error) or repr(error)
            ) from error
        except httpx2.InvalidURL as error:
            raise ConfigurationError(
                "The server's address can't be used", why=str(error), hint="check server.url or RUNQY_SERVER_URL"
            ) from error
        if response.status_code != 200:
            raise _refusal(response.status_code, _message(response.content), parent, self._settings.server_url)
        return read_registration(parent, response.content, self._settings)


def _message(body: bytes) -> str:
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body[:300].decode("utf-8", "replace").strip()
    if isinstance(document, dict):
        errors = document.get("errors")
        if isinstance(errors, list) and errors:
            return "; ".join(map(str, errors))
        if "error" in document:
            return str(document["error"])
    return str(document)[:300]


def _refusal(status: int, said: str, parent: str, server: str) -> RunqyError:
    what = f"The server refuses to register a worker for queue {parent}"
    match status:
        case 400:
            return UsageError(what, why=said, hint="check worker.queues or RUNQY_QUEUES")
        case 401:
            return NotAuthenticatedError(
                what, why=said, hint="check RUNQY_API_KEY: it must be the server's worker key or admin key"
            )
        case 403:
            return NotAllowedError(what, why=said, hint="use the server's worker key (RUNQY_WORKER_API_KEY there)")
        case 404:
            return NotFoundError(
                what, why=said, hint=f"`runqy queue list` shows the queues; check that {server} is the right server"
            )
        case 409:
            return ConflictError(what, why=said, hint="the server needs a Redis that other machines can reach")
        case _:
            return UnavailableError(f"{server} answers {status}", why=said)


def read_registration(parent: str, body: bytes, settings: WorkerSettings) -> Registration:
    """Read the server's answer. Raises `ConfigurationError` naming what is missing in it."""
    try:
        answer = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise UnavailableError(
            f"{settings.server_url} does not answer like a runqy server",
            why=f"its answer is not JSON: {error}",
            hint="check RUNQY_SERVER_URL",
        ) from error
    redis, deployment = _part(answer, "redis"), _part(answer, "deployment")
    missing = [
        name
        for name, value in (
            ("redis.addr", redis.get("addr")),
            ("deployment.startup_cmd", deployment.get("startup_cmd")),
        )
        if not value
    ]
    if not deployment.get("git_url") and not deployment.get("path"):
        missing.append("deployment.git_url")
    if missing:
        raise ConfigurationError(
            f"The server's registration for queue {parent} can't be used",
            why=f"{', '.join(missing)} is missing",
            hint=f"complete the deployment of queue {parent} on the server",
        )
    vaults = {str(key): str(value) for key, value in (answer.get("vaults") or {}).items()}
    token = str(answer.get("git_token") or "") or (
        settings.git_token.get_secret_value() if settings.git_token is not None else ""
    )
    for secret in (redis.get("password"), token, *vaults.values()):
        add_secret(str(secret) if secret else None)
    return Registration(
        parent=parent,
        queues=_queues(parent, answer),
        redis=_redis(redis),
        deployment=_deployment(deployment),
        vaults=vaults,
        git_token=token,
    )


def _part(answer: Any, name: str) -> dict[str, Any]:
    part = answer.get(name) if isinstance(answer, dict) else None
    return part if isinstance(part, dict) else {}


def _redis(redis: Mapping[str, Any]) -> RedisTarget:
    scheme = "rediss" if redis.get("use_tls") else "redis"
    mode = str(redis.get("mode") or "single")
    if mode not in {"single", "sentinel", "cluster"}:
        raise ConfigurationError(
            "The server names a Redis that this worker can't use",
            why=f"its mode is {mode!r}",
            hint="upgrade the worker",
        )
    return RedisTarget(
        f"{scheme}://{redis['addr']}/{int(redis.get('db') or 0)}",
        mode=mode,  # type: ignore[arg-type]
        nodes=tuple(str(node) for node in redis.get("nodes") or ()),
        master=str(redis.get("master") or ""),
        password=str(redis.get("password") or ""),
    )


def _queues(parent: str, answer: Mapping[str, Any]) -> dict[str, int]:
    subs = answer.get("sub_queues")
    if subs:
        return {str(sub["name"]): int(sub.get("priority") or 1) for sub in subs}
    priority = int(_part(answer, "queue").get("priority") or 1)
    return {parent if "." in parent else f"{parent}.default": priority}


def _deployment(order: Mapping[str, Any]) -> DeploymentOrder:
    return DeploymentOrder(
        git_url=str(order.get("git_url") or ""),
        path=str(order.get("path") or ""),
        branch=str(order.get("branch") or "main"),
        startup_cmd=str(order["startup_cmd"]),
        code_path=str(order.get("code_path") or ""),
        mode=str(order.get("mode") or "long_running"),
        startup_timeout_secs=int(order.get("startup_timeout_secs") or 0),
        keeps_results=bool(order.get("redis_storage", True)),
        prestart=bool(order.get("prestart")),
        scheduling=str(order.get("scheduling") or "strict"),
    )
