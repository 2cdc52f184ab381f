"""Reads a queue's ``deployment``: code, start, storage, limits, retry. One validator for every entry point."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from runqy.config.autoscale import read_autoscale
from runqy.config.model import DEFAULT_BRANCH, Autoscale, Deployment, Mode
from runqy.config.wording import Wording
from runqy.settings.node import NOT_SET, Entries, Node, Reading, plain
from runqy.settings.spelling import nearest
from runqy.tasks.limits import LEVERS_BY_NAME, LimitError, Override, is_fractional, parse_lever
from runqy.tasks.retry import DEFAULT_RETRY_POLICY, RetryPolicy

KEYS = (
    "git_url",
    "branch",
    "code_path",
    "startup_cmd",
    "mode",
    "startup_timeout_secs",
    "redis_storage",
    "vaults",
    "git_token",
    "limits",
    "retry",
    "prestart",
    "path",
    "autoscale",
)
WITHOUT_EFFECT = ("env_vars",)
_RETRY_KEYS = ("delay", "backoff", "max_delay", "jitter")
_VAULT_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}", re.ASCII)
_VAULT_ENTRY = re.compile(r"vault://[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}/[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
MAX_STARTUP_SECS = 24 * 3600


def is_vault_entry(text: str) -> bool:
    """Whether ``text`` names one value in a vault: ``vault://<vault>/<key>``."""
    return _VAULT_ENTRY.fullmatch(text) is not None


def read_deployment(node: Entries, reading: Reading, wording: Wording) -> Deployment | None:
    """The deployment, or None when it is refused; every problem goes to ``reading``."""
    before = len(reading.problems)
    reader = _DeploymentReader(node, reading, wording)
    deployment = reader.read()
    return deployment if len(reading.problems) == before else None


class _DeploymentReader:
    def __init__(self, node: Entries, reading: Reading, wording: Wording) -> None:
        self.node = node
        self.reading = reading
        self.wording = wording

    def read(self) -> Deployment:
        self.reading.known_keys(self.node, (*KEYS, *WITHOUT_EFFECT), self.wording.deployment)
        self._warn_without_effect()
        git_url, path = self._source()
        before = len(self.reading.problems)
        # YAML's block texts end in a newline, which is no part of the command.
        startup_cmd = (self._text("startup_cmd") or "").strip()
        if "\n" in startup_cmd:
            self._refuse("startup_cmd", "must be one line")
        if not startup_cmd and len(self.reading.problems) == before:
            self.reading.refuse(self.wording.deployment_needs("startup_cmd"), self.node.where)
        return Deployment(
            git_url=git_url,
            path=path,
            branch=self._branch(),
            code_path=self._code_path(),
            startup_cmd=startup_cmd,
            mode=self._mode(),
            startup_timeout_secs=self._startup_timeout(),
            redis_storage=self.reading.boolean(self._get("redis_storage"), self._name("redis_storage")),
            vaults=self._vaults(),
            git_token=self._git_token(),
            limits=self._limits(),
            retry=self._retry(),
            prestart=self.reading.boolean(self._get("prestart"), self._name("prestart")) or False,
            autoscale=self._autoscale(),
        )

    def _get(self, key: str) -> Node:
        return self.node.entries.get(key, NOT_SET)

    def _name(self, key: str) -> str:
        return self.wording.deployment + key

    def _text(self, key: str) -> str | None:
        text = self.reading.text(self._get(key), self._name(key))
        return text if text is None or text.strip() else None

    def _refuse(self, key: str, text: str) -> None:
        self.reading.refuse(f"{self._name(key)} {text}", self._get(key).where or self.node.place(key))

    def _warn_without_effect(self) -> None:
        for key in WITHOUT_EFFECT:
            if key in self.node.entries:
                self.reading.warn(
                    f"{self._name(key)} has no effect; put variables for the task into a vault", self.node.place(key)
                )

    def _source(self) -> tuple[str, str]:
        before = len(self.reading.problems)
        git_url, path = self._text("git_url"), self._text("path")
        if git_url is None and path is None and len(self.reading.problems) == before:
            self.reading.refuse(self.wording.deployment_needs("git_url"), self.node.where)
        if git_url is not None and path is not None:
            self._refuse("path", "and git_url exclude each other, give one of them")
        if git_url is not None:
            self._check_git_url(git_url)
        return git_url or "", path or ""

    def _check_git_url(self, url: str) -> None:
        if url.startswith("-") or any(character.isspace() for character in url):
            self._refuse("git_url", "must be the address of a repository, without spaces")
            return
        try:
            parts = urlsplit(url)
        except ValueError:
            self._refuse("git_url", "can't be read as an address")
            return
        is_token = parts.password is not None or len(parts.username or "") >= 20
        if parts.scheme in {"http", "https"} and is_token:
            # The address is shown in lists, logs and the dashboard, so it must hold no secret.
            self.reading.object_to(
                f"{self._name('git_url')} holds a password or token (value not shown); "
                "keep it in a vault and name it in git_token: vault://<vault>/<key>",
                self._get("git_url").where,
            )

    def _branch(self) -> str:
        branch = self._text("branch")
        if branch is None:
            return DEFAULT_BRANCH
        if branch.startswith("-") or any(character.isspace() or character in "~^:?*[\\" for character in branch):
            self._refuse("branch", f"must be the name of a branch, got {branch!r}")
        return branch

    def _code_path(self) -> str:
        path = self._text("code_path") or ""
        if path.startswith(("/", "-")) or ".." in path.split("/") or "\\" in path:
            self._refuse("code_path", f"must be a folder inside the repository, got {path!r}")
        return path.strip("/")

    def _mode(self) -> Mode:
        text = self._text("mode")
        if text is None:
            return Mode.LONG_RUNNING
        if text in list(Mode):
            return Mode(text)
        guess = nearest(text, list(Mode))
        advice = f", did you mean '{guess}'?" if guess else ""
        self.reading.refuse(
            f"{self.wording.prefix}invalid mode '{text}', must be 'long_running' or 'one_shot'{advice}",
            self._get("mode").where,
        )
        return Mode.LONG_RUNNING

    def _startup_timeout(self) -> int:
        seconds = self.reading.integer(self._get("startup_timeout_secs"), self._name("startup_timeout_secs"), "60")
        if seconds is not None and not 0 <= seconds <= MAX_STARTUP_SECS:
            self._refuse("startup_timeout_secs", f"must be from 0 (means 60) to {MAX_STARTUP_SECS}, got {seconds}")
        return seconds or 0

    def _vaults(self) -> tuple[str, ...]:
        names: list[str] = []
        for index, item in self.reading.items(self._get("vaults"), self._name("vaults")):
            name = self.reading.text(item, f"{self._name('vaults')}[{index}]")
            if name is None or _VAULT_NAME.fullmatch(name) is None:
                self.reading.refuse(f"{self._name('vaults')}[{index}] must be the name of a vault", item.where)
            else:
                names.append(name)
        return tuple(names)

    def _git_token(self) -> str:
        token = self._text("git_token")
        if token is not None and not is_vault_entry(token):
            # Never shown: whoever writes something else here most likely wrote the token itself.
            self._refuse("git_token", "must be vault://<vault>/<key> (value not shown)")
        return token or ""

    def _limits(self) -> Override:
        limits = self.reading.entries(self._get("limits"), self._name("limits"))
        if limits is None:
            return Override()
        prefix = self._name("limits.")
        self.reading.known_keys(limits, tuple(LEVERS_BY_NAME), prefix)
        values: dict[str, int | None] = {}
        for key, member in limits.entries.items():
            lever = LEVERS_BY_NAME.get(key)
            if lever is None:
                continue
            value = plain(member)
            try:
                values[key] = parse_lever(lever, value, prefix + key)
            except LimitError as error:
                self.reading.refuse(str(error), member.where or limits.place(key))
                continue
            if is_fractional(lever, value):
                self.reading.warn(f"{prefix}{key}: {value} is rounded up to {values[key]} s", member.where)
        return Override(**values)

    def _retry(self) -> RetryPolicy:
        retry = self.reading.entries(self._get("retry"), self._name("retry"))
        if retry is None:
            return DEFAULT_RETRY_POLICY
        prefix = self._name("retry.")
        self.reading.known_keys(retry, _RETRY_KEYS, prefix)
        good: dict[str, object] = {}
        for key, member in retry.entries.items():
            value = plain(member)
            if key not in _RETRY_KEYS or value is None or value == "":
                continue
            try:
                RetryPolicy.parse({key: value}, prefix)
            except LimitError as error:
                self.reading.refuse(str(error), member.where or retry.place(key))
            else:
                good[key] = value
        return RetryPolicy.parse(good, prefix)

    def _autoscale(self) -> Autoscale | None:
        return read_autoscale(self._get("autoscale"), self.reading, self._name("autoscale"))
