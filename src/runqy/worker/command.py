"""The startup command: how its text becomes an argument list, and what environment it gets."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from runqy.errors import DeploymentError

_PYTHON = re.compile(r"python3?(\.exe)?\Z")
_OWN_SECRETS = re.compile(
    r"(RUNQY_.*(KEY|TOKEN|SECRET|PASSWORD).*|RUNQY_REDIS_URL|RUNQY_DATABASE_URL|REDIS_PASSWORD|DATABASE_PASSWORD|"
    r"GITHUB_PAT|GIT_ASKPASS|GIT_CONFIG_(COUNT|KEY_\d+|VALUE_\d+))(_FILE)?\Z"
)


def split_command(text: str) -> list[str]:
    """Split at spaces; ``'`` and ``"`` quote. No escapes, no shell; empty quoted arguments vanish.

    Raises `DeploymentError` for a quote that does not end.
    """
    words: list[str] = []
    word, quote = "", ""
    for character in text:
        if quote:
            if character == quote:
                quote = ""
            else:
                word += character
        elif character in "'\"":
            quote = character
        elif character == " ":
            if word:
                words.append(word)
            word = ""
        else:
            word += character
    if quote:
        raise DeploymentError(
            f"The startup command {text!r} can't be read",
            why=f"a quote {quote} does not end",
            hint="close it, or leave it out",
        )
    if word:
        words.append(word)
    if not words:
        raise DeploymentError("The startup command is empty", hint='write for example startup_cmd: "python main.py"')
    return words


def resolve_command(text: str, python: Path, work_dir: Path, environment: Mapping[str, str]) -> list[str]:
    """The argument list to start: `python` means the environment's own interpreter.

    Raises `DeploymentError` naming a program that does not exist.
    """
    words = split_command(text)
    if _PYTHON.match(words[0]):
        return [str(python), *words[1:]]
    program = words[0]
    if "/" in program:
        found = os.access(work_dir / program, os.X_OK)
        resolved = str((work_dir / program).absolute())
    else:
        resolved = shutil.which(program, path=environment.get("PATH", "")) or ""
        found = bool(resolved)
    if not found:
        raise DeploymentError(
            f"The startup command {program!r} was not found",
            why=f"it is neither on the PATH of the environment nor an executable file in {work_dir}",
            hint="check deployment.startup_cmd of the queue",
        )
    return [resolved, *words[1:]]


def child_environment(venv: Path | None, vaults: Mapping[str, str]) -> dict[str, str]:
    """The environment of a task process: the worker's, without the secrets of runqy itself; vault entries win."""
    environment = {name: value for name, value in os.environ.items() if not _OWN_SECRETS.match(name)}
    if venv is not None:
        environment["VIRTUAL_ENV"] = str(venv)
        environment["PATH"] = f"{venv / 'bin'}{os.pathsep}{environment.get('PATH', os.defpath)}"
        environment.pop("PYTHONHOME", None)
    environment["RUNQY_PROTOCOL"] = "2"
    environment.update(vaults)
    return environment
