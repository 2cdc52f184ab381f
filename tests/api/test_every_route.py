"""Every route with every role, and every route with malformed input, from the server's own list of routes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from harness.api import ADMIN, CLIENT, WORKER, Api

from runqy.server import dashboard_files
from runqy.server.app import ROUTES
from runqy.server.responding import Guard
from runqy.store.roles import Role

PUBLIC = {
    *("/health", "/healthz", "/metrics", "/", "/monitoring", "/monitoring/{path:path}"),
    *(f"/monitoring/api/auth/{name}" for name in ("status", "setup", "login", "logout")),
}
BY_ITSELF = {"/queue/{task_id}": {Role.CLIENT, Role.VIEWER}, "/queue/{task_id}/events": {Role.CLIENT, Role.VIEWER}}
"""routes that ask for a key only where results are not public"""


def routes() -> Iterator[tuple[str, str, frozenset[Role] | None]]:
    """Method, path, and the roles that its guards let through; None for a public one."""
    routers = [module.router for module in (*ROUTES, dashboard_files)]
    found = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    assert len(found) > 90
    for route in found:
        roles = guarded_by(route.dependant)
        if route.path in BY_ITSELF:
            roles = frozenset(BY_ITSELF[route.path])
        for method in sorted(route.methods - {"HEAD"}):
            yield method, route.path, roles


def guarded_by(dependant: Dependant) -> frozenset[Role] | None:
    for each in dependant.dependencies:
        if isinstance(each.call, Guard):
            return each.call.roles
        if (inner := guarded_by(each)) is not None:
            return inner
    return None


def filled(path: str) -> str:
    return re.sub(r"\{[^}]+\}", "nope", path)


@asynccontextmanager
async def callers(api: Api) -> AsyncIterator[dict[Role, httpx2.AsyncClient]]:
    """A caller of each role: the fixed keys of programs, named keys of people."""
    async with api.client() as admin:
        keys = {Role.ADMIN: ADMIN, Role.CLIENT: CLIENT, Role.WORKER: WORKER}
        for role in (Role.OPERATOR, Role.VIEWER):
            answer = await admin.post("/api/keys", json={"name": role.value, "role": role.value})
            keys[role] = answer.json()["key"]
    async with (
        api.client(keys[Role.ADMIN]) as a,
        api.client(keys[Role.OPERATOR]) as o,
        api.client(keys[Role.VIEWER]) as v,
        api.client(keys[Role.CLIENT]) as c,
        api.client(keys[Role.WORKER]) as w,
    ):
        yield dict(
            zip((Role.ADMIN, Role.OPERATOR, Role.VIEWER, Role.CLIENT, Role.WORKER), (a, o, v, c, w), strict=True)
        )


async def status_of(client: httpx2.AsyncClient, method: str, path: str, **sent: Any) -> tuple[int, str]:
    """Status and, unless it is a stream, the body."""
    async with client.stream(method, path, **sent) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status_code, ""
        return answer.status_code, (await answer.aread()).decode("utf-8", "replace")


def test_only_the_listed_routes_are_public() -> None:
    assert {path for _, path, roles in routes() if roles is None} == PUBLIC


async def test_every_route_lets_exactly_its_roles_through(api: Api) -> None:
    """Nobody 401; a role that is not enough 403 (a program's key on the admin's routes 401)."""
    async with api.client(None) as nobody, callers(api) as known:
        for method, path, roles in routes():
            if roles is None:
                continue
            status, body = await status_of(nobody, method, filled(path))
            assert (status, "access unauthorized" in body) == (401, True), (method, path, body)
            for role, client in known.items():
                status, body = await status_of(client, method, filled(path))
                if role.includes & roles:
                    assert status not in {401, 403}, (method, path, role, body)
                    assert status < 500 or status == 501 or "VAULT_MASTER_KEY" in body or "PROMETHEUS" in body, body
                else:
                    assert status in {401, 403}, (method, path, role, status, body)


async def test_no_route_breaks_on_malformed_input(api: Api) -> None:
    """No 5xx but the ones that say what is missing, no hang, and every refusal in the one shape."""
    bodies: tuple[bytes, ...] = (
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"a": NaN}',
        b"\xff\xfe",
        b'"\\ud800"',
        b"[" * 5000,
        b"0" * 3000,
    )
    async with api.client() as admin:
        for method, path, roles in routes():
            if roles is None and path not in {"/monitoring/api/auth/login", "/monitoring/api/auth/setup"}:
                continue
            if method == "GET":
                await refuses_queries(admin, path)
                continue
            for body in bodies:
                status, text = await status_of(admin, method, filled(path), content=body)
                allowed = status < 500 or status == 501 or "VAULT_MASTER_KEY" in text
                assert allowed, (method, path, body[:20], status, text)
                if status >= 400 and status != 405:
                    assert '"error' in text, (method, path, body[:20], status, text)


async def refuses_queries(client: httpx2.AsyncClient, path: str) -> None:
    for value in ("", "-1", "9" * 40, "%00", "\x00", "' OR 1=1 --", "é" * 300, "../../etc/passwd"):
        names = (
            "limit",
            "offset",
            "page",
            "size",
            "cursor",
            "q",
            "queue",
            "range",
            "state",
            "n",
            "before",
            "timeout",
            "wait",
        )
        sent = {"params": dict.fromkeys(names, value)}
        status, text = await status_of(client, "GET", filled(path), **sent)
        allowed = status < 500 or status == 501 or "VAULT_MASTER_KEY" in text or "PROMETHEUS" in text
        assert allowed, (path, value, status, text)


async def test_hostile_names_in_paths_are_not_found(api: Api) -> None:
    async with api.client() as admin:
        for name in ("%00", "%2e%2e%2f", "a%20b", "x" * 5000, "%F0%9F%92%A9", "a.b.c", "*", "%7B%7D"):
            for method, path, roles in routes():
                if roles is None or method != "GET" or "{" not in path:
                    continue
                status, text = await status_of(admin, method, re.sub(r"\{[^}]+\}", name, path))
                allowed = status < 500 or status == 501 or "VAULT_MASTER_KEY" in text
                assert allowed, (path, name, status, text)
