"""Saved log-ins: ``~/.runqy/credentials.json`` (mode 0600, in a folder of mode 0700)."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from runqy.errors import ConfigurationError, NotFoundError, RunqyError

CREDENTIALS = Path("~/.runqy/credentials.json")
DEFAULT_NAME = "default"


@dataclass(frozen=True, slots=True)
class Profile:
    """One server and the key for it."""

    url: str
    api_key: str = field(default="", repr=False)

    @property
    def masked(self) -> str:
        """What may be shown of the key: first and last four characters of a long one, nothing of a short one."""
        if not self.api_key:
            return "-"
        return "****" if len(self.api_key) < 20 else f"{self.api_key[:4]}...{self.api_key[-4:]}"


@dataclass(slots=True)
class Profiles:
    """All saved servers, and which of them is used."""

    servers: dict[str, Profile] = field(default_factory=dict)
    current: str = ""

    @property
    def chosen(self) -> Profile | None:
        return self.servers.get(self.current)

    def add(self, name: str, profile: Profile) -> None:
        """Save one; it becomes the current one when there is none, or when it is called `default`."""
        self.servers[name] = profile
        if self.chosen is None or name == DEFAULT_NAME:
            self.current = name

    def remove(self, name: str) -> None:
        """Forget one; where it was the current one, any other becomes it. Raises `NotFoundError`."""
        if self.servers.pop(name, None) is None:
            raise NotFoundError(f"profile '{name}' not found", hint="`runqy auth list` shows the saved ones")
        if self.current == name:
            self.current = next(iter(self.servers), "")

    def switch(self, name: str) -> Profile:
        """Make another one current. Raises `NotFoundError`."""
        if name not in self.servers:
            raise NotFoundError(
                f"failed to switch profile: profile '{name}' not found", hint="`runqy auth list` shows the saved ones"
            )
        self.current = name
        return self.servers[name]


def load_profiles() -> Profiles:
    """What is saved; nothing when there is no file. Raises `ConfigurationError` for a damaged one."""
    path = CREDENTIALS.expanduser()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        servers = {
            str(name): Profile(str(entry["url"]), str(entry.get("api_key") or ""))
            for name, entry in (document.get("servers") or {}).items()
        }
        return Profiles(servers, str(document.get("current") or ""))
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise RunqyError(f"{CREDENTIALS} can't be read", why=error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # The text of the error could repeat a key, so only its kind is told.
        raise ConfigurationError(
            f"{CREDENTIALS} is damaged",
            why=f"it does not have the form that `runqy login` writes ({type(error).__name__})",
            hint="`runqy logout --all` removes it; then log in again",
        ) from None


def save_profiles(profiles: Profiles) -> None:
    """Write the file in one step: another shell reads the former text or the new one, never a part."""
    path = CREDENTIALS.expanduser()
    document = {
        "servers": {name: {"url": p.url, "api_key": p.api_key} for name, p in profiles.servers.items()},
        "current": profiles.current,
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        # mkstemp makes the file with mode 0600 from the start.
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".credentials-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps(document, indent=2) + "\n")
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RunqyError(f"{CREDENTIALS} can't be written", why=error.strerror or str(error)) from error


def remove_profiles() -> None:
    """Delete the file, also a damaged one."""
    try:
        CREDENTIALS.expanduser().unlink(missing_ok=True)
    except OSError as error:
        raise RunqyError(f"{CREDENTIALS} can't be removed", why=error.strerror or str(error)) from error
