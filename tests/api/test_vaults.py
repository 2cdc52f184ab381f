"""Vaults over HTTP: written, masked, handed to workers alone, and in no other answer or log."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.api import ADMIN, CLIENT, WORKER, Api, running_server
from harness.redis_servers import RedisServer, free_port, valkey_binary
from harness.waiting import eventually

from runqy.broker.connection import Connection
from runqy.errors import UnavailableError

MASTER = base64.b64encode(b"k" * 32).decode()
CANARY = "canary-0123456789-secret"
DEPLOYMENT = {"git_url": "https://example.com/r.git", "startup_cmd": "python main.py"}
CALLS = [
    ("GET", "", None),
    ("POST", "", {"name": "v"}),
    ("GET", "/v", None),
    ("GET", "/v/entries", None),
    ("POST", "/v/entries", {"key": "A", "value": "b"}),
    ("DELETE", "/v/entries/A", None),
    ("DELETE", "/v", None),
]


@pytest.fixture
async def vaulted(tmp_path: Path, valkey: RedisServer, connection: Connection) -> AsyncIterator[Api]:
    """A server with a master key."""
    async with running_server(tmp_path, valkey.url, RUNQY_VAULT_MASTER_KEY=MASTER) as api:
        yield api


@pytest.mark.parametrize("prefix", ["/api/vaults", "/monitoring/api/vaults"])
async def test_the_contract_of_the_vault_routes(vaulted: Api, prefix: str) -> None:
    async with vaulted.client() as client:
        created = await client.post(prefix, json={"name": "keys", "description": "d"})
        assert (created.status_code, created.json()) == (
            201,
            {"message": "vault created successfully", "vault": {"name": "keys", "description": "d"}},
        )
        again = await client.post(prefix, json={"name": "keys"})
        assert (again.status_code, again.json()) == (409, {"errors": ["vault already exists"]})
        for key, value, secret in (("TOKEN", CANARY, True), ("SHORT", "abc", True), ("PLAIN", "v", False)):
            answer = await client.post(f"{prefix}/keys/entries", json={"key": key, "value": value, "is_secret": secret})
            assert (answer.status_code, answer.json()) == (200, {"message": "entry set successfully"})
        assert (await client.get(prefix)).json() == {
            "vaults": [{"name": "keys", "description": "d", "entry_count": 3}],
            "count": 1,
        }
        vault = (await client.get(f"{prefix}/keys")).json()
        assert [(entry["key"], entry["value"], entry["is_secret"]) for entry in vault["entries"]] == [
            ("PLAIN", "v", False),
            ("SHORT", "****", True),
            ("TOKEN", "****", True),
        ]
        assert vault["created_at"].endswith("Z")
        assert (await client.get(f"{prefix}/keys/entries")).json() == {"entries": vault["entries"], "count": 3}
        gone = await client.delete(f"{prefix}/keys/entries/PLAIN")
        assert gone.json() == {"message": "entry deleted successfully"}
        missing = await client.delete(f"{prefix}/keys/entries/PLAIN")
        assert missing.status_code == 404
        assert missing.json()["errors"] == ["key 'PLAIN' in vault 'keys': entry not found"]
        assert (await client.delete(f"{prefix}/keys")).json() == {"message": "vault deleted successfully"}
        for method, path in (("GET", ""), ("GET", "/entries"), ("DELETE", ""), ("DELETE", "/entries/A")):
            assert (await client.request(method, f"{prefix}/keys{path}")).status_code == 404, (method, path)


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("", {}, "Key: 'CreateVaultRequest.Name' Error"),
        ("", {"name": "PATH"}, 'reserved vault name "PATH": cannot use system variable names'),
        ("", {"name": "a b"}, 'invalid vault name "a b"'),
        ("", {"name": ["x"]}, "invalid vault name"),
        ("", {"name": "x", "description": 1}, "description"),
        ("/v/entries", {"value": "x"}, "key is required"),
        ("/v/entries", {"key": "A"}, "value is required"),
        ("/v/entries", {"key": "A", "value": ""}, "value is required"),
        ("/v/entries", {"key": "1x", "value": "v"}, 'invalid key name "1x": must match [A-Za-z_][A-Za-z0-9_]*'),
        ("/v/entries", {"key": "PATH", "value": "v"}, "reserved key name"),
        ("/v/entries", {"key": "A", "value": 755}, "in quotes"),
        ("/v/entries", {"key": "A", "value": "v", "is_secret": "no"}, "is_secret"),
    ],
    ids=str,
)
async def test_what_is_wrong_is_a_400_and_nothing_is_stored(
    vaulted: Api, path: str, body: dict[str, object], text: str
) -> None:
    async with vaulted.client() as client:
        await client.post("/api/vaults", json={"name": "v"})
        refused = await client.post(f"/api/vaults{path}", json=body)
        assert refused.status_code == 400, refused.text
        assert text in refused.json()["errors"][0]
        assert (await client.get("/api/vaults")).json()["vaults"] == [
            {"name": "v", "description": "", "entry_count": 0}
        ]


@pytest.mark.parametrize("prefix", ["/api/vaults", "/monitoring/api/vaults"])
async def test_only_an_admin_reaches_vaults(vaulted: Api, prefix: str) -> None:
    async with vaulted.client() as client:
        viewer = (await client.post("/api/keys", json={"name": "look", "role": "viewer"})).json()["key"]
        operator = (await client.post("/api/keys", json={"name": "act", "role": "operator"})).json()["key"]
    for key in (None, "unknown-key", CLIENT, WORKER, viewer, operator):
        async with vaulted.client(key) as client:
            for method, path, body in CALLS:
                answer = await client.request(method, prefix + path, json=body)
                assert answer.status_code in {401, 403}, (key, method, path)


async def test_without_a_master_key_every_route_says_how_to_get_one(api: Api) -> None:
    async with api.client() as client:
        for method, path, body in CALLS:
            answer = await client.request(method, f"/api/vaults{path}", json=body)
            assert answer.status_code == 503
            assert answer.json()["errors"][0].startswith("vaults not enabled. Set RUNQY_VAULT_MASTER_KEY")
            answer = await client.request(method, f"/monitoring/api/vaults{path}", json=body)
            assert answer.status_code == 503
            assert answer.json()["errors"] == ["vaults not configured: RUNQY_VAULT_MASTER_KEY not set"]
        body = {"name": "q", "priority": 1, "deployment": {**DEPLOYMENT, "vaults": ["keys"]}}
        assert (await client.post("/workers/queues", json=body)).status_code == 201
    async with api.client(WORKER) as client:
        refused = await client.post("/worker/register", json={"queue": "q"})
        assert refused.status_code == 503
        assert refused.json()["error"].startswith("vaults requested for queue q but vaults feature is not configured")


async def test_a_worker_gets_the_variables_in_order_and_the_token_and_hears_of_changes(vaulted: Api) -> None:
    deployment = {**DEPLOYMENT, "vaults": ["one", "two"], "git_token": "vault://two/GIT"}
    async with vaulted.client() as client, vaulted.client(WORKER) as worker:
        created = await client.post("/workers/queues", json={"name": "q", "priority": 1, "deployment": deployment})
        assert created.status_code == 201
        early = await worker.post("/worker/register", json={"queue": "q"})
        assert early.status_code == 503
        assert early.json()["error"].startswith("failed to resolve vaults [one two]: vault 'one': vault not found")
        for name in ("one", "two"):
            assert (await client.post("/api/vaults", json={"name": name})).status_code == 201
            await client.post(f"/api/vaults/{name}/entries", json={"key": "SAME", "value": name, "is_secret": False})
        tokenless = await worker.post("/worker/register", json={"queue": "q"})
        assert tokenless.status_code == 503
        assert tokenless.json()["error"].startswith("failed to resolve the git token of queue q: key 'GIT'")
        version = await vaulted.state.workers.config_version()
        await client.post("/api/vaults/two/entries", json={"key": "GIT", "value": CANARY})
        assert await vaulted.state.workers.config_version() == version + 1
        answer = (await worker.post("/worker/register", json={"queue": "q"})).json()
        assert answer["git_token"] == CANARY
        assert answer["vaults"] == {"SAME": "two", "GIT": CANARY}
        assert answer["deployment"]["vaults"] == ["one", "two"]
        gone = await client.delete("/api/vaults/one")
        assert gone.json()["warnings"] == ["no worker can register for q until there is a vault 'one' again"]
        assert await vaulted.state.workers.config_version() == version + 2


async def test_a_secret_is_in_no_answer_but_the_workers(vaulted: Api, capfd: pytest.CaptureFixture[str]) -> None:
    """C70: with every route that could show it, and in the log."""
    forms = [CANARY, base64.b64encode(CANARY.encode()).decode().rstrip("=")[:-1], MASTER]
    async with vaulted.client() as client:
        await client.post("/api/vaults", json={"name": "v"})
        set_ = await client.post("/api/vaults/v/entries", json={"key": "A", "value": CANARY})
        deployment = {**DEPLOYMENT, "vaults": ["v"], "git_token": "vault://v/A"}
        saved = await client.post("/workers/queues", json={"name": "q", "priority": 1, "deployment": deployment})
        answers = [set_, saved]
        for bad in (
            {"key": "PATH", "value": CANARY},
            {"key": "A", "value": CANARY + "\0"},
            {"key": "A", "value": [CANARY]},
        ):
            answers += [await client.post("/api/vaults/v/entries", json=bad)]
        for path in (
            "/api/vaults", "/api/vaults/v", "/api/vaults/v/entries", "/monitoring/api/vaults/v", "/api/audit",
            "/workers/config/q", "/workers/queues", "/workers", "/api/queues", "/healthz", "/openapi.json",
        ):  # fmt: skip
            answers += [await client.get(path)]
        for answer in answers:
            assert not any(form in answer.text for form in forms), answer.request.url
        assert "vault" in (await client.get("/api/audit")).text
        assert (await client.post("/worker/register", json={"queue": "q"})).json()["vaults"] == {"A": CANARY}
    said = "".join(capfd.readouterr())
    assert not any(form in said for form in (*forms, ADMIN))


async def test_a_server_with_another_key_says_so_and_keeps_what_is_stored(
    tmp_path: Path, valkey: RedisServer, connection: Connection
) -> None:
    async with running_server(tmp_path, valkey.url, RUNQY_VAULT_MASTER_KEY=MASTER) as api, api.client() as client:
        await client.post("/api/vaults", json={"name": "v"})
        await client.post("/api/vaults/v/entries", json={"key": "A", "value": "v", "is_secret": False})
    other = base64.b64encode(b"o" * 32).decode()
    async with running_server(tmp_path, valkey.url, RUNQY_VAULT_MASTER_KEY=other) as api, api.client() as client:
        assert (await client.get("/api/vaults")).json()["count"] == 1
        shown = await client.get("/api/vaults/v")
        assert shown.status_code == 503
        assert "another master key" in shown.json()["errors"][0]
    async with running_server(tmp_path, valkey.url, RUNQY_VAULT_MASTER_KEY=MASTER) as api, api.client() as client:
        assert (await client.get("/api/vaults/v")).json()["entries"][0]["value"] == "v"


async def test_a_change_during_an_outage_of_redis_is_stored_and_told_when_it_is_back(tmp_path: Path) -> None:
    data = tmp_path / "redis"
    data.mkdir()
    server = RedisServer(valkey_binary(), data, free_port(), ("--appendonly", "yes")).start()
    try:
        async with running_server(tmp_path, server.url, RUNQY_VAULT_MASTER_KEY=MASTER) as api, api.client() as client:
            await client.post("/api/vaults", json={"name": "v"})
            before = await api.state.workers.config_version()
            server.kill()
            for value in ("1", "2"):
                answer = await client.post("/api/vaults/v/entries", json={"key": "A", "value": value})
                assert answer.status_code == 200, answer.text
            server.start()

            async def told() -> bool:
                try:
                    return await api.state.workers.config_version() > before
                except UnavailableError:
                    return False

            await eventually(told, 10, "the change is told")
    finally:
        server.stop()
