"""Deployments from real git repositories: exactly what is configured, whatever was there before, and no secret told."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness.repositories import GIT_ENVIRONMENT, Repo, git
from harness.waiting import eventually

from runqy.errors import DeploymentError
from runqy.repository import Repository, check_repository
from runqy.settings.redis import RedisTarget
from runqy.settings.secret import Secret
from runqy.settings.worker import WorkerSettings
from runqy.worker.deploy import Deployed, Deployer
from runqy.worker.environment import bundled_sdk
from runqy.worker.registration import DeploymentOrder, Registration


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment folder whose environment (without requirements) is built already."""
    return tmp_path_factory.mktemp("warm")


Deploy = Callable[..., Any]


@pytest.fixture
def settings(tmp_path: Path, warm: Path) -> WorkerSettings:
    folder = tmp_path / "deployment"
    folder.mkdir()
    # Environments are the same for all tests that have no requirements; only their own code folder is theirs.
    (folder / ".environments").symlink_to(warm)
    return WorkerSettings("http://127.0.0.1:9", Secret("k" * 20), ("q",), deployment_dir=folder)


def registration(url: str, *, token: str = "", **order: Any) -> Registration:
    values = {"branch": "main", "startup_cmd": "python main.py", **order}
    return Registration(
        "q", {"q.default": 1}, RedisTarget("redis://x/0"), DeploymentOrder(url, **values), git_token=token
    )


async def deploy(settings: WorkerSettings, url: str, **order: Any) -> Deployed:
    return await Deployer(settings).deploy(registration(url, **order))


async def test_a_fresh_deployment_is_exactly_the_configured_commit(settings: WorkerSettings, repo: Repo) -> None:
    deployed = await deploy(settings, repo.url)
    assert deployed.commit == git(repo.folder, "rev-parse", "HEAD")
    assert (deployed.work_dir / "main.py").read_text() == "print('one')\n"
    assert deployed.argv[1:] == ("main.py",)
    assert Path(deployed.argv[0]).is_file()


async def test_new_commits_local_changes_and_forced_pushes_are_followed(settings: WorkerSettings, repo: Repo) -> None:
    work = (await deploy(settings, repo.url)).work_dir
    (work / "main.py").write_text("scribbled over\n")
    (work / "left-over.py").write_text("stray\n")
    (work / ".git" / "index.lock").touch()
    second = repo.commit(**{"main.py": "print('two')\n", "more.py": "x = 1\n"})
    assert (await deploy(settings, repo.url)).commit == second
    assert (work / "main.py").read_text() == "print('two')\n"
    assert not (work / "left-over.py").exists()
    git(repo.folder, "reset", "-q", "--hard", "HEAD~1")
    third = repo.commit(**{"main.py": "print('rewritten')\n"})
    assert (await deploy(settings, repo.url)).commit == third
    assert not (work / "more.py").exists()


async def test_changed_branch_commit_code_path_and_repository_take_over(
    settings: WorkerSettings, repo: Repo, tmp_path: Path
) -> None:
    first = git(repo.folder, "rev-parse", "HEAD")
    git(repo.folder, "checkout", "-q", "-b", "feature/x")
    feature = repo.commit(**{"deep/er/main.py": "print('deep')\n", "other/big.txt": "x" * 100})
    git(repo.folder, "tag", "v1")
    assert (await deploy(settings, repo.url)).commit == first
    assert (await deploy(settings, repo.url, branch="feature/x")).commit == feature
    inside = await deploy(settings, repo.url, branch="v1", code_path="deep/er")
    assert inside.work_dir.name == "er"
    assert (inside.work_dir / "main.py").exists()
    assert not (settings.deployment_dir / "q" / "other").exists(), "sparse"
    whole = await deploy(settings, repo.url, branch="feature/x")
    assert (whole.work_dir / "other" / "big.txt").exists()
    pinned = await deploy(settings, repo.url, branch=first)
    assert pinned.commit == first
    assert not (pinned.work_dir / "other").exists()
    another = Repo(tmp_path / "another", **{"main.py": "print('another')\n"})
    moved = await deploy(settings, another.url)
    assert (moved.work_dir / "main.py").read_text() == "print('another')\n"


async def test_a_folder_that_is_no_repository_is_replaced(settings: WorkerSettings, repo: Repo) -> None:
    place = settings.deployment_dir / "q"
    place.mkdir(parents=True)
    (place / "junk").touch()
    await deploy(settings, repo.url)
    assert not (place / "junk").exists()


MISSING: list[tuple[str, dict[str, Any], str]] = [
    ("branch", {"branch": "nope"}, "no branch 'nope'"),
    ("commit", {"branch": "0" * 40}, f"has no commit {'0' * 40}"),
    ("code path", {"code_path": "no/where"}, "There is no folder 'no/where'"),
    ("repository", {"url": "file:///no/such/repository"}, "There is no repository at file:///no/such/repository"),
    ("host", {"url": "http://127.0.0.1:9/x.git"}, "could not be fetched"),
    ("startup command", {"startup_cmd": "./not-there.sh"}, "'./not-there.sh' was not found"),
    ("file as code path", {"code_path": "main.py"}, "There is no folder"),
]


@pytest.mark.parametrize(("what", "order", "text"), MISSING, ids=[row[0] for row in MISSING])
async def test_what_does_not_exist_is_named_with_what_to_do(
    settings: WorkerSettings, repo: Repo, what: str, order: dict[str, Any], text: str
) -> None:
    with pytest.raises(DeploymentError) as caught:
        await deploy(settings, **{"url": repo.url, **order})
    assert text in caught.value.what
    assert caught.value.hint


HOSTILE = [
    {"url": "--upload-pack=touch /tmp/x"},
    {"url": "ext::sh -c touch% /tmp/x"},
    {"url": "-oProxyCommand=x"},
    {"url": "file://x\ny"},
    {"url": "fd::17"},
    {"ref": "--upload-pack=x"},
    {"ref": "a..b"},
    {"ref": "@{upstream}"},
    {"ref": ""},
    {"code_path": "../.."},
    {"code_path": "/etc"},
    {"code_path": "--help"},
    {"code_path": "a/../../b"},
]


@pytest.mark.parametrize("part", HOSTILE, ids=lambda part: str(next(iter(part.values())))[:16])
def test_a_repository_can_be_no_option_no_program_and_not_outside(part: dict[str, str]) -> None:
    with pytest.raises(DeploymentError):
        check_repository(Repository(**{"url": "https://example.com/x.git", "ref": "main", **part}))


@pytest.mark.parametrize(
    "url", ["https://h/x.git", "ssh://git@h:22/x", "git@github.com:a/b.git", "/srv/x", "file:///x", "git://h/x"]
)
def test_ordinary_addresses_are_fine(url: str) -> None:
    check_repository(Repository(url, "release/1.2", "models/small"))


async def test_a_link_in_the_repository_does_not_lead_out_of_it(settings: WorkerSettings, repo: Repo) -> None:
    (repo.folder / "out").symlink_to("/etc")
    repo.commit()
    with pytest.raises(DeploymentError, match="There is no folder"):
        await deploy(settings, repo.url, code_path="out")


async def test_hooks_of_the_checkout_do_not_run(settings: WorkerSettings, repo: Repo, tmp_path: Path) -> None:
    await deploy(settings, repo.url)
    hook = settings.deployment_dir / "q" / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    repo.commit(**{"main.py": "print('again')\n"})
    await deploy(settings, repo.url)
    assert not (tmp_path / "hooked").exists()


async def test_two_workers_on_one_folder_take_turns(settings: WorkerSettings, repo: Repo) -> None:
    second = repo.commit(**{f"file{n}.py": "x\n" * 50 for n in range(50)})
    results = await asyncio.gather(*(deploy(settings, repo.url) for _ in range(4)))
    assert {result.commit for result in results} == {second}
    assert (results[0].work_dir / "file49.py").exists()


_KILLED = """
import asyncio, sys
sys.path.insert(0, sys.argv[4])
from pathlib import Path
from runqy.settings.redis import RedisTarget
from runqy.settings.secret import Secret
from runqy.settings.worker import WorkerSettings
from runqy.worker.deploy import Deployer
from runqy.worker.registration import DeploymentOrder, Registration
settings = WorkerSettings("http://x", Secret("k" * 20), ("q",), deployment_dir=Path(sys.argv[1]))
order = DeploymentOrder(sys.argv[2], sys.argv[3], "python main.py")
print("begin", flush=True)
asyncio.run(Deployer(settings).deploy(Registration("q", {"q.default": 1}, RedisTarget("redis://x/0"), order)))
print("done", flush=True)
"""


async def test_a_deployment_killed_midway_works_the_next_time(settings: WorkerSettings, repo: Repo) -> None:
    """kill -9 at growing delays: lock, half clones and half environments stand in nobody's way."""
    tip = repo.commit(**{f"file{n}.py": "x\n" * 500 for n in range(100)})
    (settings.deployment_dir / ".environments").unlink()
    for delay in (0.01, 0.04, 0.08, 0.15, 0.3):
        process = subprocess.Popen(
            [sys.executable, "-c", _KILLED, str(settings.deployment_dir), repo.url, "main", "src"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)
        await asyncio.sleep(delay)
        process.kill()
        process.wait()
        process.stdout.close()
    deployed = await asyncio.wait_for(deploy(settings, repo.url), 30)
    assert deployed.commit == tip
    done = subprocess.run([deployed.argv[0], "-c", "import runqy_python"], env=dict(deployed.env), check=False)
    assert done.returncode == 0


async def test_a_cancelled_deployment_ends_its_programs(settings: WorkerSettings) -> None:
    """A stop while cloning: git is gone at once."""
    with silent_server() as port:
        work = asyncio.ensure_future(deploy(settings, f"http://127.0.0.1:{port}/x.git"))

        def fetching() -> list[psutil.Process]:
            return [p for p in psutil.Process().children(recursive=True) if "remote-http" in " ".join(_argv(p))]

        processes = await eventually(fetching)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await eventually(lambda: not any(p.is_running() and p.status() != "zombie" for p in processes))


def _argv(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """Accepts and never answers."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


CANARY = "ghp_Canary0123456789abcdefXYZ"


@contextlib.contextmanager
def git_over_http(root: Path, token: str, seen: list[str]) -> Iterator[str]:
    """The real `git http-backend` behind Basic authentication."""
    wanted = "Basic " + base64.b64encode(f"x-access-token:{token}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def answer(self) -> None:
            seen.append(self.path)
            if self.headers.get("authorization") != wanted:
                self.send_response(401)
                self.send_header("www-authenticate", 'Basic realm="git"')
                self.send_header("content-length", "0")
                self.end_headers()
                return
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            done = subprocess.run(
                ["git", "http-backend"],
                input=body,
                capture_output=True,
                env={
                    **GIT_ENVIRONMENT,
                    "GIT_PROJECT_ROOT": str(root),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("content-type", ""),
                    "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
                    "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
                    "REMOTE_USER": "t",
                },
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = answer  # noqa: N815
        do_POST = answer  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Watch(threading.Thread):
    """Looks at every process listing for the canary while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.found: list[str] = []
        self.looked = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            for pid in psutil.pids():
                with contextlib.suppress(OSError):
                    argv = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if b"git" in argv:
                        self.looked += 1
                    if CANARY.encode() in argv:
                        self.found.append(argv.decode("utf-8", "replace"))
            time.sleep(0.002)


def _forms(secret: str) -> list[bytes]:
    return [secret.encode(), base64.b64encode(f"x-access-token:{secret}".encode()), base64.b64encode(secret.encode())]


async def test_a_token_opens_a_private_repository_and_stands_nowhere(
    settings: WorkerSettings, repo: Repo, tmp_path: Path
) -> None:
    """Decision 25: not in argv, not in .git/config, not in any file, log or error."""
    seen: list[str] = []
    said: list[str] = []
    with git_over_http(tmp_path, CANARY, seen) as base:
        watch = _Watch()
        watch.start()
        try:
            order = registration(f"{base}/repo/.git", token=CANARY)
            deployed = await Deployer(settings, said=said.append).deploy(order)
            repo.commit(**{"main.py": "print('two')\n"})
            again = await Deployer(settings, said=said.append).deploy(order)
        finally:
            watch.over.set()
            watch.join()
    assert watch.looked > 0
    assert not watch.found
    assert again.commit != deployed.commit
    for path in settings.deployment_dir.rglob("*"):
        if path.is_file() and ".environments" not in path.parts:
            data = path.read_bytes()
            assert not any(form in data for form in _forms(CANARY)), path
    assert not any(CANARY in line for line in said)
    assert CANARY not in json.dumps(dict(deployed.env)) + repr(deployed) + repr(order)
    assert not list(Path("/tmp").glob("runqy-git-*/askpass"))


async def test_a_wrong_token_is_refused_without_telling_it(
    settings: WorkerSettings, tmp_path: Path, repo: Repo
) -> None:
    with git_over_http(tmp_path, "the-right-one", []) as base:
        for token, text in ((CANARY, "refuses the credentials"), ("", "asks for credentials")):
            with pytest.raises(DeploymentError) as caught:
                await Deployer(settings).deploy(registration(f"{base}/repo/.git", token=token))
            told = f"{caught.value} {caught.value.lines()} {caught.value.tail}"
            assert text in caught.value.what
            assert CANARY not in told
            assert "git_token" in caught.value.hint


async def test_credentials_in_the_address_are_not_shown(settings: WorkerSettings) -> None:
    with pytest.raises(DeploymentError) as caught:
        await deploy(settings, f"http://user:{CANARY}@127.0.0.1:9/x.git")
    assert CANARY not in f"{caught.value} {caught.value.lines()} {caught.value.tail}"


async def test_the_environment_has_our_sdk_and_is_built_once(settings: WorkerSettings, repo: Repo) -> None:
    """Decision 30; rebuilt only when its inputs changed."""
    first = await deploy(settings, repo.url)
    done = subprocess.run(
        [first.argv[0], "-c", "import runqy_python, sys; print(runqy_python.__file__, sys.prefix)"],
        env=dict(first.env),
        capture_output=True,
        text=True,
        check=True,
    )
    file, prefix = done.stdout.split()
    assert Path(file).is_relative_to(bundled_sdk())
    assert prefix == first.env["VIRTUAL_ENV"]
    repo.commit(**{"main.py": "print('two')\n"})
    began = time.monotonic()
    second = await deploy(settings, repo.url)
    assert second.argv[0] == first.argv[0]
    assert time.monotonic() - began < 3


def _package(folder: Path, name: str, version: str, body: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\n'
    )
    (folder / "backend.py").write_text(
        "import zipfile\n"
        "def build_wheel(directory, config_settings=None, metadata_directory=None):\n"
        f"    file = '{name}-{version}-py3-none-any.whl'\n"
        "    with zipfile.ZipFile(directory + '/' + file, 'w') as wheel:\n"
        f"        wheel.writestr('{name}.py', {body!r})\n"
        f"        info = '{name}-{version}.dist-info/'\n"
        f"        wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n')\n"
        "        wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        "        wheel.writestr(info + 'RECORD', '')\n"
        "    return file\n"
    )
    return folder


async def test_what_the_requirements_bring_wins_and_a_failed_build_leaves_the_old_environment(
    tmp_path: Path,
) -> None:
    """Decision 30, and built beside: the old environment stays as it was and is used again at once."""
    settings = WorkerSettings(
        "http://x", Secret("k" * 20), ("q",), deployment_dir=tmp_path / "deployment", use_system_site_packages=False
    )
    own = _package(tmp_path / "own-sdk", "runqy_python", "0.2.2", "WHO = 'theirs'\n")
    repo = Repo(tmp_path / "repo", **{"main.py": "x\n", "requirements.txt": f"{own}\n"})
    good = await deploy(settings, repo.url)
    look = [good.argv[0], "-c", "import runqy_python; print(runqy_python.WHO)"]
    assert subprocess.run(look, capture_output=True, text=True, check=True).stdout.strip() == "theirs"
    repo.commit(**{"requirements.txt": f"{tmp_path}/no-such-package\n"})
    with pytest.raises(DeploymentError) as caught:
        await deploy(settings, repo.url)
    assert "could not be installed" in caught.value.what
    assert "no-such-package" in f"{caught.value.why} {caught.value.tail}"
    assert subprocess.run(look, capture_output=True, text=True, check=True).stdout.strip() == "theirs"
    repo.commit(**{"requirements.txt": f"{own}\n"})
    began = time.monotonic()
    back = await deploy(settings, repo.url)
    assert time.monotonic() - began < 5
    assert subprocess.run([back.argv[0], *look[1:]], capture_output=True, text=True, check=True).stdout == "theirs\n"


async def test_requirements_that_are_no_requirements_are_shown_with_their_line(
    settings: WorkerSettings, repo: Repo
) -> None:
    repo.commit(**{"requirements.txt": "this is not a requirement\n"})
    with pytest.raises(DeploymentError) as caught:
        await deploy(settings, repo.url)
    assert "this is not a requirement" in f"{caught.value.why} {caught.value.tail}"


async def test_a_pyproject_that_cannot_be_read_is_named(settings: WorkerSettings, repo: Repo) -> None:
    repo.commit(**{"pyproject.toml": "[project\n"})
    with pytest.raises(DeploymentError, match=r"pyproject\.toml can't be read"):
        await deploy(settings, repo.url)


async def test_without_git_the_message_says_how_to_get_it(
    settings: WorkerSettings, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(DeploymentError, match="git is not installed") as caught:
        await deploy(settings, repo.url)
    assert "apt-get install git" in caught.value.hint


async def test_a_local_folder_is_used_as_it_is(settings: WorkerSettings, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    deployed = await deploy(settings, "", path=str(tmp_path / "code"))
    assert deployed.work_dir == tmp_path / "code"
    assert deployed.commit == ""
    with pytest.raises(DeploymentError, match="does not exist on this machine"):
        await deploy(settings, "", path="/no/such/folder")


_AS_NOBODY = """
import os, sys
os.setgid(65534); os.setuid(65534)
sys.argv = ["x", sys.argv[1], sys.argv[2], "main", sys.argv[3]]
from runqy.errors import RunqyError
try:
    exec(sys.stdin.read())
except RunqyError as error:
    print("refused:", "; ".join(error.lines()))
"""


@pytest.mark.parametrize("place", ["closed", "file"])
def test_a_deployment_folder_that_cannot_be_written_is_named(tmp_path: Path, repo: Repo, place: str) -> None:
    """In a process without rights: root could write anywhere."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o755)
    target = folder / "deployment"
    if place == "file":
        target = folder / "file" / "deployment"
        (folder / "file").write_text("not a folder")
    program = "import os, sys\n" + _AS_NOBODY.partition("\n")[2].partition("\n")[2]
    drop = "os.setgid(65534); os.setuid(65534)\n" if os.getuid() == 0 and place == "closed" else ""
    # Everything is imported before the rights are given up: the interpreter may lie where nobody may read.
    preload = "import runqy.worker.deploy, runqy.errors, runqy.settings.worker, encodings.idna\n"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program.replace("import os, sys\n", "import os, sys\n" + preload + drop, 1),
            str(target),
            repo.url,
            "src",
        ],
        input=_KILLED,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "refused: The deployment folder" in done.stdout, done.stdout + done.stderr
    assert str(target.parent) in done.stdout
    assert "RUNQY_DEPLOYMENT_DIR" in done.stdout
    assert "Traceback" not in done.stderr


async def test_old_environments_are_cleared_away_unless_something_runs_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier deployment may still run while a new one is made."""
    monkeypatch.setattr("runqy.worker.environment.KEPT_ENVIRONMENTS", 1)
    settings = WorkerSettings("http://x", Secret("k" * 20), ("q",), deployment_dir=tmp_path / "deployment")
    code = tmp_path / "code"
    code.mkdir()

    async def environment(system: bool) -> Path:
        changed = replace(settings, use_system_site_packages=system)
        return Path((await deploy(changed, "", path=str(code))).env["VIRTUAL_ENV"])

    first = await environment(True)
    process = subprocess.Popen(
        [first / "bin" / "python", "-c", "input()"], stdin=subprocess.PIPE, env={"VIRTUAL_ENV": str(first)}
    )
    try:
        second = await environment(False)
        assert (first.exists(), second.exists()) == (True, True)
    finally:
        process.communicate(b"\n")
    (second / "runqy-ready").unlink()
    await environment(False)
    assert (first.exists(), second.exists()) == (False, True)
