"""Brings a folder to exactly one branch or commit of one repository, whatever was in it before."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from runqy.errors import DeploymentError
from runqy.program import Output, run_program
from runqy.telemetry import add_secret

GIT_SECONDS = 600.0
_SCHEMES = frozenset({"http", "https", "ssh", "git", "file"})
_SCP_FORM = re.compile(r"(?:[\w.-]+@)?[\w.-]+:(?!:)\S+\Z")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_REF = re.compile(r"[^\s\x00-\x1f~^:?*\[\\-][^\s\x00-\x1f~^:?*\[\\]*\Z")

_REFUSALS = ("authentication failed", "could not read username", "could not read password", "403", "permission denied")

# Answers only for the configured host, so that a redirect or a submodule elsewhere gets nothing.
_ASKPASS = """#!/bin/sh
case "$1" in
  Username*"//$RUNQY_GIT_HOST'"*|Username*"//"*"@$RUNQY_GIT_HOST'"*) printf '%s\\n' "x-access-token" ;;
  Password*"@$RUNQY_GIT_HOST'"*) printf '%s\\n' "$RUNQY_GIT_SECRET" ;;
  *) exit 1 ;;
esac
"""


@dataclass(frozen=True, slots=True)
class Repository:
    """What to bring: ``ref`` is a branch, a tag or a whole commit hash; ``code_path`` a folder inside or empty."""

    url: str
    ref: str
    code_path: str = ""
    token: str = field(default="", repr=False)
    ssh_key: Path | None = None


class Checkout:
    """A checkout in ``folder``. Not safe for two processes at once: the deployer holds a lock."""

    def __init__(self, folder: Path, repository: Repository, *, said: Callable[[str], None] = lambda _: None) -> None:
        self._folder = folder
        self._repository = repository
        self._said = said

    async def update(self) -> str:
        """Make the folder agree with the repository; returns the commit. Raises `DeploymentError`.

        What was in the folder from another repository is replaced only once the new code is there.
        """
        check_repository(self._repository)
        if shutil.which("git") is None:
            raise DeploymentError("git is not installed on this machine", hint="install it: apt-get install git")
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        if await self._is_usable():
            return await self._bring(self._folder)
        fresh = Path(tempfile.mkdtemp(prefix=f".{self._folder.name}.", dir=self._folder.parent))
        try:
            await self._git(fresh, "init", "--quiet", "--initial-branch", "runqy")
            commit = await self._bring(fresh)
            old = fresh.with_name(fresh.name + ".old")
            if self._folder.exists():
                self._folder.rename(old)
            fresh.rename(self._folder)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return commit

    async def _is_usable(self) -> bool:
        if not (self._folder / ".git").is_dir():
            return False
        seen = await self._git(self._folder, "rev-parse", "--git-dir", check=False)
        return seen.code == 0

    async def _bring(self, folder: Path) -> str:
        repository = self._repository
        # An interrupted git leaves its locks; ours is the only process here.
        for lock in (folder / ".git").glob("**/*.lock"):
            lock.unlink(missing_ok=True)
        await self._git(folder, "remote", "remove", "origin", check=False)
        await self._git(folder, "remote", "add", "--", "origin", repository.url)
        if repository.code_path:
            await self._git(folder, "sparse-checkout", "set", "--cone", repository.code_path.strip("/"))
        else:
            await self._git(folder, "sparse-checkout", "disable", check=False)
        await self._fetch(folder)
        await self._git(folder, "checkout", "--quiet", "--force", "--detach", "FETCH_HEAD")
        await self._git(folder, "clean", "-ffdq", "-e", ".venv", check=False)
        commit = (await self._git(folder, "rev-parse", "HEAD")).last
        work_dir = (folder / repository.code_path).resolve()
        if not work_dir.is_dir() or not work_dir.is_relative_to(folder.resolve()):
            raise DeploymentError(
                f"There is no folder {repository.code_path!r} in {_shown(repository.url)} at {repository.ref}",
                hint="check deployment.code_path and deployment.branch of the queue",
            )
        return commit

    async def _fetch(self, folder: Path) -> None:
        ref = self._repository.ref
        arguments = ["fetch", "--quiet", "--no-tags", "--force", "--depth", "1", "--", "origin", ref]
        fetched = await self._git(folder, *arguments, check=False)
        if fetched.code and _COMMIT.match(ref):
            # Not every server hands out single commits: then everything, and look in it.
            whole = await self._git(
                folder, "fetch", "--quiet", "--force", "origin", "+refs/heads/*:refs/remotes/origin/*", check=False
            )
            if whole.code == 0:
                known = await self._git(folder, "cat-file", "-e", f"{ref}^{{commit}}", check=False)
                if known.code == 0:
                    (folder / ".git" / "FETCH_HEAD").write_text(f"{ref}\t\t'{ref}' of origin\n")
                    return
        if fetched.code:
            raise self._failure(fetched)

    async def _git(self, folder: Path, *arguments: str, check: bool = True) -> Output:
        with self._environment() as environment:
            output = await run_program(
                ["git", "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false", *arguments],
                cwd=folder,
                env=environment,
                timeout=GIT_SECONDS,
                said=self._said,
            )
        if check and output.code:
            raise self._failure(output)
        return output

    @contextmanager
    def _environment(self) -> Iterator[dict[str, str]]:
        """Credentials reach git by the environment only: never an argument, a URL or a file that stays."""
        repository = self._repository
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SSH_ASKPASS", "RUNQY_"))
        }
        environment |= {
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": ":".join(sorted(_SCHEMES)),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_COUNT": "3",
            "GIT_CONFIG_KEY_0": "http.lowSpeedLimit",
            "GIT_CONFIG_VALUE_0": "1000",
            "GIT_CONFIG_KEY_1": "http.lowSpeedTime",
            "GIT_CONFIG_VALUE_1": "60",
            "GIT_CONFIG_KEY_2": "safe.directory",
            "GIT_CONFIG_VALUE_2": "*",
            "LC_ALL": "C",
        }
        if repository.ssh_key is not None:
            known_hosts = self._folder.parent / "known_hosts"
            environment["GIT_SSH_COMMAND"] = (
                f"ssh -i {shlex.quote(str(repository.ssh_key.absolute()))} -o IdentitiesOnly=yes -o BatchMode=yes "
                f"-o StrictHostKeyChecking=accept-new -o UserKnownHostsFile={shlex.quote(str(known_hosts))}"
            )
        parts = urlsplit(repository.url)
        if not repository.token or parts.scheme not in {"http", "https"}:
            yield environment
            return
        add_secret(repository.token)
        with tempfile.TemporaryDirectory(prefix="runqy-git-") as folder:
            askpass = Path(folder) / "askpass"
            askpass.write_text(_ASKPASS)
            askpass.chmod(stat.S_IRWXU)
            host = parts.netloc.rpartition("@")[2]
            yield environment | {
                "GIT_ASKPASS": str(askpass),
                "RUNQY_GIT_HOST": host,
                "RUNQY_GIT_SECRET": repository.token,
            }

    def _failure(self, output: Output) -> DeploymentError:
        repository = self._repository
        said = " ".join(output.tail).lower()
        where = _shown(repository.url)
        if "find remote ref" in said or "remote branch" in said:
            what, hint = f"{where} has no branch {repository.ref!r}", "check deployment.branch of the queue"
        elif "not our ref" in said or "unadvertised object" in said:
            what, hint = f"{where} has no commit {repository.ref}", "check deployment.branch of the queue"
        elif "does not appear to be a git repository" in said or "' not found" in said:
            what, hint = f"There is no repository at {where}", "check deployment.git_url of the queue"
        elif any(words in said for words in _REFUSALS):
            given = repository.token or repository.ssh_key
            what = f"{where} {'refuses the credentials' if given else 'asks for credentials'}"
            hint = "give the queue a git_token (vault://…), or the worker RUNQY_GIT_TOKEN or RUNQY_GIT_SSH_KEY"
        elif "no space left" in said:
            what, hint = f"{where} does not fit on the disk", "make room, or move deployment.dir"
        else:
            what, hint = f"{where} could not be fetched", "check deployment.git_url of the queue, and the network"
        why = next((line for line in output.tail if line.startswith(("fatal:", "error:"))), output.last)
        return DeploymentError(what, why=why, hint=hint, tail=output.tail[-8:])


def check_repository(repository: Repository) -> None:
    """Refuse what git could take for an option, run as a program, or read outside the repository."""
    parts = urlsplit(repository.url)
    usable = (
        (parts.scheme in _SCHEMES or repository.url.startswith("/") or bool(_SCP_FORM.match(repository.url)))
        and "::" not in repository.url.split("/")[0]
        and not any(c in repository.url for c in "\n\r\0")
    )
    if repository.url.startswith("-") or not usable:
        raise DeploymentError(
            f"The repository address {_shown(repository.url)!r} can't be used",
            hint="write https://host/path, ssh://host/path, user@host:path, or file:///path",
        )
    if not _REF.match(repository.ref) or ".." in repository.ref or "@{" in repository.ref:
        raise DeploymentError(
            f"The branch {repository.ref!r} is not a name that git knows", hint="check deployment.branch of the queue"
        )
    inside = Path(repository.code_path)
    if inside.is_absolute() or ".." in inside.parts or repository.code_path.startswith("-"):
        raise DeploymentError(
            f"The code path {repository.code_path!r} leads out of the repository",
            hint="give a folder relative to the repository's root",
        )


def _shown(url: str) -> str:
    """The address without credentials."""
    parts = urlsplit(url)
    if "@" in parts.netloc and parts.scheme in {"http", "https"}:
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return url
