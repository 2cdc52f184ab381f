"""Queue files from a git repository: fetched at start, on request and by polling; never a token told."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.api import Api, running_server
from harness.programs import run
from harness.redis_servers import RedisServer, free_port
from harness.repositories import Repo, git
from harness.waiting import eventually

from runqy.broker.connection import Connection
from runqy.errors import ConfigurationError
from runqy.settings.server import load_server_settings

TOKEN = "canary-of-the-repository"


def queue_file(name: str, priority: int = 1) -> str:
    deployment = "{git_url: 'https://example.com/r.git', startup_cmd: python main.py}"
    return f"queues:\n  {name}:\n    priority: {priority}\n    deployment: {deployment}\n"


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "origin", **{"deployment/a.yaml": queue_file("first"), "other/b.yaml": queue_file("second")})


def environment(repo: Repo, tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "CONFIG_REPO_URL": repo.url,
        "CONFIG_CLONE_DIR": str(tmp_path / "clones"),
        "GITHUB_PAT": TOKEN,
        **more,
    }


def clones(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "clones").iterdir())


async def names(api: Api) -> set[str]:
    async with api.client() as client:
        return {row["name"] for row in (await client.get("/workers/queues")).json()["queues"]}


async def test_the_repository_is_cloned_read_again_on_request_and_removed_at_the_end(
    tmp_path: Path, repo: Repo, valkey: RedisServer, connection: Connection
) -> None:
    async with running_server(tmp_path, valkey.url, **environment(repo, tmp_path)) as api, api.client() as client:
        # The folder that --config names as well does not count.
        assert await names(api) == {"first.default"}
        (clone,) = clones(tmp_path)
        assert clone.name.startswith("queueworker-configs-")
        assert git(clone / "clone", "rev-list", "--count", "HEAD") == "1"
        repo.commit(**{"deployment/a.yaml": queue_file("first", 9), "deployment/c.yml": queue_file("third")})
        planned = (await client.post("/api/config/plan")).json()
        assert [(entry["queue"], entry["action"]) for entry in planned["changes"]] == [
            ("first", "updated"),
            ("third", "created"),
        ]
        assert await names(api) == {"first.default"}
        report = (await client.post("/workers/reload")).json()
        assert (report["reloaded"], report["errors"]) == (["first.default", "third.default"], None)
        assert TOKEN not in "".join(path.read_text("latin-1") for path in clone.rglob("*") if path.is_file())
    assert clones(tmp_path) == []


async def test_a_new_commit_is_taken_over_by_polling_and_a_bad_one_changes_nothing(
    tmp_path: Path, repo: Repo, valkey: RedisServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = environment(repo, tmp_path, CONFIG_WATCH_INTERVAL="1")
    async with running_server(tmp_path, valkey.url, {"watch": True}, **more) as api:
        repo.commit(**{"deployment/a.yaml": queue_file("first", 9)})

        def priority() -> bool:
            found = api.state.queues.catalog.parent("first")
            return found is not None and found.priority == 9

        await eventually(priority, 10, "the new priority is in force")
        bad = repo.commit(**{"deployment/a.yaml": queue_file("first", 3).replace("priority", "priorty")})
        assert api.state.repository is not None
        await eventually(lambda: api.state.repository.commit == bad, 10, "the bad commit was fetched")
        repo.folder.rename(tmp_path / "away")
        async with api.client() as client:
            errors = (await client.post("/workers/reload")).json()["errors"]
            assert "CONFIG_REPO_URL" in errors[0]
            assert priority()
        (tmp_path / "away").rename(repo.folder)
        repo.commit(**{"deployment/a.yaml": queue_file("first", 4)})
        await eventually(
            lambda: api.state.queues.catalog.parent("first").priority == 4, 10, "polling goes on after failures"
        )


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("CONFIG_REPO_URL", "file:///nowhere/at/all", "no repository at file:///nowhere/at/all"),
        ("CONFIG_REPO_BRANCH", "missing", "has no branch 'missing'"),
        ("CONFIG_REPO_PATH", "missing", "no folder 'missing'"),
        ("CONFIG_REPO_PATH", "../..", "leads out of the repository"),
        ("CONFIG_REPO_BRANCH", "--upload-pack=x", "is not a name that git knows"),
    ],
)
async def test_a_first_start_without_the_repository_is_refused_and_a_later_one_goes_on(
    tmp_path: Path, repo: Repo, valkey: RedisServer, connection: Connection, variable: str, value: str, text: str
) -> None:
    wrong = environment(repo, tmp_path, **{variable: value})
    with pytest.raises(ConfigurationError) as refused:
        async with running_server(tmp_path, valkey.url, **wrong):
            pass
    assert text in str(refused.value)
    assert "GITHUB_PAT" in str(refused.value)
    assert TOKEN not in str(refused.value)
    assert clones(tmp_path) == []
    async with running_server(tmp_path, valkey.url, **environment(repo, tmp_path)):
        pass
    async with running_server(tmp_path, valkey.url, **wrong) as api:
        assert await names(api) == {"first.default"}


async def test_the_clone_of_a_dead_server_is_removed_and_that_of_a_living_one_stays(
    tmp_path: Path, repo: Repo, valkey: RedisServer, connection: Connection
) -> None:
    dead, foreign = tmp_path / "clones" / "queueworker-configs-dead", tmp_path / "clones" / "mine"
    for folder in (dead, foreign):
        folder.mkdir(parents=True)
        (folder / "lock").touch()
    second = tmp_path / "second"
    second.mkdir()
    more = environment(repo, tmp_path)
    async with running_server(tmp_path, valkey.url, **more):
        (living,) = [path for path in clones(tmp_path) if path != foreign]
        assert living != dead
        async with running_server(second, valkey.url, **more):
            assert living.exists()
            assert len(clones(tmp_path)) == 3
    assert clones(tmp_path) == [foreign]


@pytest.mark.parametrize(
    "url", [f"https://{TOKEN}@example.com/x.git", f"https://u:{TOKEN}@example.com/x.git", f"ssh://u:{TOKEN}@h/x"]
)
def test_a_token_in_the_address_is_refused_without_being_shown(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationError, match="GITHUB_PAT") as refused:
        load_server_settings({"config_repo": url}, {}, tmp_path)
    assert TOKEN not in str(refused.value)
    said = run(["serve", "--config-repo", url, "--port", str(free_port())], tmp_path)
    assert said.code == 1
    assert TOKEN not in said.err + said.out
    assert load_server_settings({"config_repo": "ssh://git@h/x"}, {}, tmp_path).config_repository is not None
