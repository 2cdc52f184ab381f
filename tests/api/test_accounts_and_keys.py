"""Accounts, sessions, named keys, read-only mode and the audit log, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness.api import ADMIN, CLIENT, Api, running_server
from harness.redis_servers import RedisServer

from runqy.broker.connection import Connection
from runqy.errors import UnavailableError

PERSON = {"email": "ops@example.com", "password": "correct-horse-9", "confirm_password": "correct-horse-9"}


@asynccontextmanager
async def first_admin(api: Api) -> AsyncIterator[httpx2.AsyncClient]:
    """A browser that is logged in as the first admin."""
    async with api.client(None) as browser:
        answer = await browser.post("/monitoring/api/auth/setup", json=PERSON)
        assert answer.status_code == 200, answer.text
        yield browser


@asynccontextmanager
async def other_person(api: Api, admin: httpx2.AsyncClient, role: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A browser that is logged in with another role."""
    login = {"email": f"{role}@example.com", "password": "another-horse-9"}
    assert (await admin.post("/api/accounts", json={**login, "role": role})).status_code == 201
    async with api.client(None) as browser:
        assert (await browser.post("/monitoring/api/auth/login", json=login)).status_code == 200
        yield browser


async def test_the_first_account_is_made_once_and_logs_in(api: Api) -> None:
    async with api.client(None) as nobody:
        status = (await nobody.get("/monitoring/api/auth/status")).json()
        assert status == {"authenticated": False, "setup_required": True}
        for change, text in (
            ({"password": "x", "confirm_password": "x"}, "password must be at least 8 characters"),
            ({"confirm_password": "other"}, "passwords do not match"),
            ({"email": "a@b@c.d"}, "invalid email address"),
            ({"email": "a@localhost"}, "invalid email address"),
        ):
            answer = await nobody.post("/monitoring/api/auth/setup", json={**PERSON, **change})
            assert (answer.status_code, answer.json()["errors"]) == (400, [text])
        assert (await nobody.post("/monitoring/api/auth/setup", content=b"{")).json()["errors"] == [
            "Invalid request body"
        ]
        made = await nobody.post("/monitoring/api/auth/setup", json=PERSON)
        assert made.json()["message"] == "Admin created successfully"
        cookie = made.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(cookie.split("; "))
        status = (await nobody.get("/monitoring/api/auth/status")).json()
        assert status == {"authenticated": True, "setup_required": False, "email": PERSON["email"], "role": "admin"}
        again = await nobody.post("/monitoring/api/auth/setup", json=PERSON)
        assert (again.status_code, again.json()["errors"]) == (409, ["admin user already exists"])
    async with api.client(None) as other:
        for wrong in ({"password": "wrong-horse-9"}, {"email": "nobody@example.com"}):
            answer = await other.post("/monitoring/api/auth/login", json={**PERSON, **wrong})
            assert (answer.status_code, answer.json()["errors"]) == (401, ["invalid email or password"])
        answer = await other.post("/monitoring/api/auth/login", json={**PERSON, "email": "OPS@example.com"})
        assert answer.json()["message"] == "Login successful"
        assert (await other.get("/api/me")).json()["role"] == "admin"
        await other.post("/monitoring/api/auth/logout")
        assert (await other.get("/api/me")).status_code == 401


async def test_setup_from_elsewhere_needs_the_admin_key(api: Api) -> None:
    async with api.client(None) as stranger:
        forwarded = {"X-Forwarded-For": "203.0.113.7"}
        answer = await stranger.post("/monitoring/api/auth/setup", json=PERSON, headers=forwarded)
        assert answer.status_code == 403
        assert "admin key" in answer.json()["errors"][0]
        allowed = {**forwarded, "Authorization": f"Bearer {ADMIN}"}
        assert (await stranger.post("/monitoring/api/auth/setup", json=PERSON, headers=allowed)).status_code == 200


async def test_roles_decide_what_a_session_may_do(api: Api) -> None:
    """Reading for viewers, acting on tasks and queues for operators, configuration for admins."""
    async with (
        first_admin(api) as admin,
        other_person(api, admin, "operator") as operator,
        other_person(api, admin, "viewer") as viewer,
    ):
        browsers = {"viewer": viewer, "operator": operator, "admin": admin}
        for method, path, least in (
            ("GET", "/api/queues", "viewer"),
            ("GET", "/workers", "viewer"),
            ("GET", "/api/audit", "viewer"),
            ("POST", "/api/queues/echo.default/pause", "operator"),
            ("POST", "/api/tasks/nope/cancel", "operator"),
            ("POST", "/queue/add", "operator"),
            ("POST", "/workers/reload", "admin"),
            ("GET", "/api/keys", "admin"),
            ("GET", "/api/accounts", "admin"),
            ("DELETE", "/workers/queues/nope", "admin"),
            ("POST", "/worker/register", "admin"),
        ):
            for name, browser in browsers.items():
                answer = await browser.request(method, path)
                allowed = list(browsers).index(name) >= list(browsers).index(least)
                assert (answer.status_code not in {401, 403}) == allowed, (method, path, name, answer.text)
                assert answer.status_code < 500


async def test_a_page_of_another_site_can_not_use_a_session(api: Api) -> None:
    async with first_admin(api) as browser:
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            answer = await browser.post("/api/queues/echo.default/pause", headers=headers)
            assert answer.status_code == 403, headers
            assert (await browser.post("/monitoring/api/auth/login", json=PERSON, headers=headers)).status_code == 403
        assert not (await browser.get("/api/queues/echo.default")).json()["paused"]
        assert (await browser.post("/api/queues/echo.default/pause", headers={"Origin": api.url})).status_code == 200


async def test_guessing_is_slowed_down(api: Api) -> None:
    async with first_admin(api) as _, api.client(None) as thief:
        wrong = {**PERSON, "password": "wrong-horse-9"}
        statuses = [(await thief.post("/monitoring/api/auth/login", json=wrong)).status_code for _ in range(7)]
        assert statuses == [401] * 5 + [429] * 2
        answer = await thief.post("/monitoring/api/auth/login", json=PERSON)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 100


async def test_many_good_log_ins_from_one_address_are_no_guessing(api: Api) -> None:
    async with first_admin(api), api.client(None) as office:
        statuses = {(await office.post("/monitoring/api/auth/login", json=PERSON)).status_code for _ in range(25)}
        assert statuses == {200}


async def test_a_key_that_is_made_while_redis_is_away_is_still_shown(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown once only, so an announcement that fails may not take it away."""

    async def away() -> None:
        raise UnavailableError("Redis does not answer")

    monkeypatch.setattr(api.state.workers, "publish_access_change", away)
    async with api.client() as admin:
        made = await admin.post("/api/keys", json={"name": "app", "role": "client"})
        assert made.status_code == 201
    async with api.client(made.json()["key"]) as app:
        assert (await app.get("/api/me")).json()["role"] == "client"


async def test_sessions_survive_a_restart_and_can_be_revoked(
    tmp_path: Path, valkey: RedisServer, connection: Connection
) -> None:
    async with running_server(tmp_path, valkey.url) as api, first_admin(api) as browser:
        cookies = dict(browser.cookies)
    async with running_server(tmp_path, valkey.url) as api, api.client(None) as first, api.client(None) as second:
        first.cookies.update(cookies)
        assert (await first.get("/api/me")).json()["who"] == PERSON["email"]
        await second.post("/monitoring/api/auth/login", json=PERSON)
        rows = (await second.get("/api/sessions")).json()["sessions"]
        assert [row["is_own"] for row in rows] == [True, False]
        assert all(row["id"] not in str(cookies) or len(row["id"]) < 13 for row in rows)
        assert (await second.delete(f"/api/sessions/{rows[1]['id']}")).status_code == 200
        assert (await first.get("/api/me")).status_code == 401
        assert (await second.get("/api/me")).status_code == 200
        changed = {"password": PERSON["password"], "new_password": "new-horse-9"}
        wrong = await second.post("/api/me/password", json={**changed, "password": "no"})
        assert wrong.json()["errors"] == ["the present password is wrong"]
        assert (await second.post("/api/me/password", json=changed)).status_code == 200
        assert (await second.get("/api/me")).status_code == 200
        assert (await first.post("/monitoring/api/auth/login", json=PERSON)).status_code == 401


async def test_a_forged_cookie_is_nobody(api: Api) -> None:
    import jwt

    async with first_admin(api) as browser:
        good = str(browser.cookies["runqy_auth"])
        claims = jwt.decode(good, options={"verify_signature": False})
        forged = [
            jwt.encode(claims, "x" * 40, algorithm="HS256"),
            jwt.encode(claims, None, algorithm="none"),
            good[:-2],
            "..",
            "\x00",
        ]
    for cookie in forged:
        async with api.client(None) as thief:
            answer = await thief.get("/api/me", headers={"Cookie": f"runqy_auth={cookie}".replace("\x00", "%00")})
            assert answer.status_code == 401


async def test_the_last_admin_stays(api: Api) -> None:
    async with first_admin(api) as admin:
        path = f"/api/accounts/{PERSON['email']}"
        for answer in (await admin.delete(path), await admin.put(path, json={"role": "viewer"})):
            assert (answer.status_code, "last admin" in answer.json()["errors"][0]) == (409, True)
        assert (await admin.put("/api/accounts/no@example.com", json={"role": "admin"})).status_code == 404
        assert (await admin.put(path, json={})).status_code == 400


async def test_named_keys_reach_what_they_are_made_for(api: Api) -> None:
    async with api.client() as admin:
        made = (await admin.post("/api/keys", json={"name": "app", "role": "client", "queues": ["echo"]})).json()
        key = made["key"]
        assert key.startswith("rq_")
        assert key not in (await admin.get("/api/keys")).text
        again = await admin.post("/api/keys", json={"name": "app", "role": "client"})
        assert (again.status_code, "exists" in again.json()["errors"][0]) == (409, True)
        other = (await admin.post("/queue/add", json={"queue": "one.high", "data": {"n": 1}})).json()["info"]["id"]
        async with api.client(key) as app:
            added = await app.post("/queue/add", json={"queue": "echo", "data": {}})
            assert added.status_code == 200
            assert (await app.get(f"/queue/{added.json()['info']['id']}")).status_code == 200
            assert (await app.get(f"/queue/{other}")).status_code == 404
            refused = await app.post("/queue/add-batch", json={"queue": "one.high", "jobs": [{"n": 1}]})
            assert refused.status_code == 403
            assert "limited to echo" in refused.json()["errors"][0]
            assert (await app.get("/api/queues")).status_code == 403
        assert (await admin.get("/api/keys")).json()["keys"][0]["start"] == key[:8]
        await admin.delete("/api/keys/app")
        async with api.client(key) as app:
            assert (await app.post("/queue/add", json={"queue": "echo", "data": {}})).status_code == 401
        assert (await admin.delete("/api/keys/app")).status_code == 404


async def test_a_scoped_viewer_sees_its_queues_alone(api: Api) -> None:
    async with api.client() as admin:
        body = {"name": "eyes", "role": "viewer", "queues": ["one"]}
        key = (await admin.post("/api/keys", json=body)).json()["key"]
    async with api.client(key) as eyes:
        assert [row["queue"] for row in (await eyes.get("/api/queues")).json()["queues"]] == ["one.high", "one.low"]
        assert (await eyes.get("/api/queues/one.low")).status_code == 200
        assert (await eyes.get("/api/queues/echo.default")).status_code == 403
        assert (await eyes.get("/workers")).status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "x"},
        {"name": "x", "role": "boss"},
        {"name": "", "role": "client"},
        {"name": "a b", "role": "client"},
        {"name": "x", "role": "client", "queues": []},
        {"name": "x", "role": "client", "queues": "echo"},
        {"name": "x", "role": "client", "queues": ["a.b.c"]},
        {"name": "x", "role": "client", "expires_in": "1d"},
        {"name": "x", "role": "client", "expires_in": "0s"},
        {"name": "x", "role": "client", "expires_in": 5},
    ],
)
async def test_a_wrong_key_request_is_refused(api: Api, body: dict[str, Any]) -> None:
    async with api.client() as admin:
        assert (await admin.post("/api/keys", json=body)).status_code == 400
        assert (await admin.get("/api/keys")).json()["count"] == 0


async def test_an_expired_key_is_nobody(api: Api) -> None:
    async with api.client() as admin:
        body = {"name": "brief", "role": "client", "expires_in": "1ms"}
        key = (await admin.post("/api/keys", json=body)).json()["key"]
        assert (await admin.get("/api/keys")).json()["keys"][0]["is_expired"]
    async with api.client(key) as app:
        assert (await app.get("/api/me")).status_code == 401


async def test_every_change_leaves_a_line_with_who_and_what(api: Api) -> None:
    async with first_admin(api) as admin, api.client(None) as thief:
        await admin.post("/api/queues/echo.default/pause")
        await admin.delete("/workers/queues/nope")
        await thief.post("/monitoring/api/auth/login", json={**PERSON, "password": "wrong-horse-9"})
        await thief.post("/api/queues/echo.default/unpause")
        await admin.get("/api/queues")
        lines = (await admin.get("/api/audit")).json()["lines"]
    seen = [(line["who"], line["action"], line["target"].rsplit("/", 1)[-1], line["status"]) for line in lines]
    assert seen == [
        (PERSON["email"], "POST /monitoring/api/auth/login", "login", 401),
        (PERSON["email"], "DELETE /workers/queues/{name}", "nope", 404),
        (PERSON["email"], "POST /api/queues/{queue}/pause", "pause", 200),
        (PERSON["email"], "POST /monitoring/api/auth/setup", "setup", 200),
    ]
    assert PERSON["password"] not in str(lines)


async def test_read_only_refuses_changes_but_not_log_ins_or_programs(
    tmp_path: Path, valkey: RedisServer, connection: Connection
) -> None:
    async with running_server(tmp_path, valkey.url, ASYNQ_READ_ONLY="true") as api, first_admin(api) as browser:
        assert (await browser.get("/api/me")).json()["read_only"]
        for method, path in (("POST", "/api/queues/echo.default/pause"), ("DELETE", "/workers/queues/echo")):
            answer = await browser.request(method, path)
            text = f"API Server is running in read-only mode: {method} request is not allowed"
            assert (answer.status_code, answer.json()["errors"]) == (405, [text])
        async with api.client(CLIENT) as app:
            assert (await app.post("/queue/add", json={"queue": "echo", "data": {}})).status_code == 200
        assert not (await browser.get("/api/queues/echo.default")).json()["paused"]


async def test_other_origins_are_allowed_only_where_configured(
    tmp_path: Path, valkey: RedisServer, connection: Connection
) -> None:
    origin = {"Origin": "https://app.example"}
    async with running_server(tmp_path, valkey.url) as api, api.client() as client:
        assert "access-control-allow-origin" not in (await client.get("/health", headers=origin)).headers
    environ = {"RUNQY_CORS_ORIGINS": "https://app.example"}
    async with running_server(tmp_path, valkey.url, **environ) as api, api.client() as client:
        allowed = (await client.get("/health", headers=origin)).headers["access-control-allow-origin"]
        assert allowed == "https://app.example"
        other = await client.get("/health", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
