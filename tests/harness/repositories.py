"""Real git repositories that tests make and change."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

GIT_ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@example.com",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@example.com",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=GIT_ENVIRONMENT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


class Repo:
    """A repository that a test makes and changes."""

    def __init__(self, folder: Path, **files: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        git(folder, "init", "-q", "-b", "main")
        self.commit(**(files or {"main.py": "print('one')\n"}))

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-q", "-m", "change")
        return git(self.folder, "rev-parse", "HEAD")
