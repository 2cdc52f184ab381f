"""The environment as settings see it: real variables above ``.env.secret`` or ``.env``; empty is unset."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from runqy.settings.spelling import nearest

PREFIX = "RUNQY_"
FILE_SUFFIX = "_FILE"


class Layer(IntEnum):
    """Where a value stands; the higher one wins (product decisions 23 and 31)."""

    DEFAULT = 0
    FILE = 1
    DOTENV = 2
    ENVIRONMENT = 3
    FLAG = 4


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable that is set to something."""

    name: str
    value: str = field(repr=False)
    layer: Layer
    origin: str


@dataclass(frozen=True, slots=True)
class Environment:
    """All variables that are set, each from its highest layer."""

    variables: Mapping[str, Variable]
    problems: tuple[str, ...] = ()

    def get(self, name: str) -> Variable | None:
        return self.variables.get(name)

    def plain(self) -> dict[str, str]:
        """Names and values, for code that wants an ordinary mapping."""
        return {name: variable.value for name, variable in self.variables.items()}


def read_environment(environ: Mapping[str, str], directory: Path | None = None) -> Environment:
    """Variables of the process and, where ``directory`` is given, of its dotenv file.

    The file is ``../.env.secret`` or ``./.env.secret``; only where neither exists, ``./.env``. A line that
    can't be read is a problem with file and line; its text is not repeated, it may hold a secret.
    """
    found: dict[str, Variable] = {}
    problems: list[str] = []
    file = _dotenv_file(directory) if directory is not None else None
    if file is not None:
        for name, value in _read_dotenv(file, problems).items():
            if value:
                found[name] = Variable(name, value, Layer.DOTENV, f"{name} in {file}")
    for name, value in environ.items():
        if value:
            found[name] = Variable(name, value, Layer.ENVIRONMENT, f"environment variable {name}")
    return Environment(found, tuple(problems))


def _dotenv_file(directory: Path) -> Path | None:
    candidates = (directory.parent / ".env.secret", directory / ".env.secret", directory / ".env")
    return next((path for path in candidates if path.is_file()), None)


def _read_dotenv(file: Path, problems: list[str]) -> dict[str, str | None]:
    # Imported here: a worker reads no dotenv file.
    from dotenv import dotenv_values
    from dotenv.parser import parse_stream

    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        problems.append(f"{file} can't be read: {error.strerror or error}")
        return {}
    except UnicodeDecodeError:
        problems.append(f"{file} is not UTF-8 text")
        return {}
    bad = [binding.original.line for binding in parse_stream(io.StringIO(text)) if binding.error]
    if bad:
        problems.extend(f'{file}:{line}: not a line of the form NAME=value or NAME="value"' for line in bad)
        return {}
    return dotenv_values(stream=io.StringIO(text))


def misspelt(environment: Environment, known: Iterable[str]) -> list[str]:
    """One warning for each variable with our prefix that nothing reads, with the nearest known name."""
    names = set(known)
    warnings: list[str] = []
    for name in sorted(environment.variables):
        if not name.upper().startswith(PREFIX) or name in names:
            continue
        guess = nearest(name, sorted(names))
        advice = f", did you mean {guess}?" if guess else ""
        warnings.append(f"{environment.variables[name].origin} is not known and has no effect{advice}")
    return warnings
