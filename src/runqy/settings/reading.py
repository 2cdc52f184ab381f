"""How one setting gets its value: flag, environment, file or default; with its origin, refused together.

A `Setting` says under which names it can be given and how its value is read; a `Resolver` finds, reads and
remembers. Nothing is raised until `Resolver.finish`, so that a user sees every problem at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from runqy.errors import ConfigurationError
from runqy.settings.environment import FILE_SUFFIX, Environment, Layer
from runqy.settings.node import Items, Node, Position, Problem, Scalar, plain
from runqy.settings.redis import RedisTarget
from runqy.settings.secret import MASK

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
U = TypeVar("U")
MAX_SECRET_FILE_BYTES = 64 * 1024


class SettingError(ValueError):
    """A value that is refused; the text names the setting as the user wrote it, and a right form."""


@dataclass(frozen=True, slots=True)
class Found:
    """A value as it was given: ``name`` as the user wrote it, ``text`` as typed, ``value`` as typed data."""

    name: str
    value: object = field(repr=False)
    text: str = field(repr=False)
    layer: Layer
    origin: str
    where: Position | None = None


@dataclass(frozen=True, slots=True)
class Setting(Generic[T_co]):
    """One setting: its names and how its value is read.

    ``variables`` and ``keys`` (dotted paths in the configuration file) hold the main name first, then its
    aliases. ``flag`` is written as on the command line; in the mapping of flags its key is without the
    leading dashes and with ``_`` for ``-``. ``read`` raises `SettingError`.
    """

    name: str
    read: Callable[[Found], T_co]
    variables: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    flag: str = ""
    secret: bool = False

    @property
    def flag_key(self) -> str:
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def known_variables(self) -> tuple[str, ...]:
        """Its variables, with ``<NAME>_FILE`` where it is a secret (product decision 29)."""
        if not self.secret:
            return self.variables
        return (*self.variables, *(name + FILE_SUFFIX for name in self.variables))


@dataclass(frozen=True, slots=True)
class Described:
    """One effective setting as it may be shown: secrets masked."""

    name: str
    value: str
    origin: str


class Resolver:
    """Finds values by precedence, reads them, gathers problems and warnings."""

    def __init__(
        self,
        flags: Mapping[str, object],
        environment: Environment,
        file: Mapping[str, Node] | None = None,
    ) -> None:
        self._flags = flags
        self._environment = environment
        self._file = file or {}
        self.problems: list[Problem] = [Problem(text) for text in environment.problems]
        self.warnings: list[str] = []
        self.described: list[Described] = []

    def find(self, setting: Setting[T]) -> Found | None:
        """The value from the highest layer that has one; None when nobody gave any."""
        candidates = [self._from_flag(setting), self._from_environment(setting), self._from_file(setting)]
        given = [found for found in candidates if found is not None]
        return max(given, key=lambda found: found.layer, default=None)

    def take(self, setting: Setting[T], default: U) -> T | U:
        """The setting's value, or ``default`` when it is not given or refused."""
        found = self.find(setting)
        if found is None:
            self.describe(setting, default, "default")
            return default
        return self.read(setting, found, default)

    def read(self, setting: Setting[T], found: Found, default: U) -> T | U:
        """Read a value that was found; a refused one becomes a problem."""
        try:
            value = setting.read(found)
        except SettingError as error:
            self.problems.append(Problem(str(error), found.where))
            return default
        self.describe(setting, value, found.origin)
        return value

    def describe(self, setting: Setting[T], value: object, origin: str) -> None:
        self.described.append(Described(setting.name, _presentable(value, setting.secret), origin))

    def refuse(self, text: str, where: Position | None = None) -> None:
        self.problems.append(Problem(text, where))

    def finish(self, what: str, hint: str = "") -> None:
        """Raise one `ConfigurationError` with every problem, if there is any."""
        if self.problems:
            problems = tuple(str(problem) for problem in self.problems)
            raise ConfigurationError(
                what, why="; ".join(problems) if len(problems) == 1 else "", hint=hint, problems=problems
            )

    def _from_flag(self, setting: Setting[T]) -> Found | None:
        value = self._flags.get(setting.flag_key) if setting.flag else None
        if value is None or value == "" or value == ():
            return None
        if setting.secret:
            self._warn_once(
                f"{setting.flag} shows a secret to everyone who can list processes; "
                f"use {setting.variables[0]} or {setting.variables[0]}{FILE_SUFFIX} instead"
            )
        return Found(setting.flag, value, _flag_text(value), Layer.FLAG, f"flag {setting.flag}")

    def _from_environment(self, setting: Setting[T]) -> Found | None:
        best: Found | None = None
        for name in setting.variables:
            for found in (self._direct(name), self._from_secret_file(name) if setting.secret else None):
                if found is not None and (best is None or found.layer > best.layer):
                    best = found
        return best

    def _direct(self, name: str) -> Found | None:
        variable = self._environment.get(name)
        if variable is None:
            return None
        return Found(name, variable.value, variable.value, variable.layer, variable.origin)

    def _from_secret_file(self, name: str) -> Found | None:
        variable = self._environment.get(name + FILE_SUFFIX)
        if variable is None:
            return None
        direct = self._environment.get(name)
        if direct is not None and direct.layer >= variable.layer:
            self._warn_once(f"{name} and {variable.name} are both set; {name} is used")
            return None
        text = self._read_secret_file(variable.name, Path(variable.value))
        if text is None:
            return None
        return Found(variable.name, text, text, variable.layer, f"file {variable.value} ({variable.origin})")

    def _read_secret_file(self, name: str, path: Path) -> str | None:
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_SECRET_FILE_BYTES + 1)
            # An editor or `echo` ends the file with a newline, which is no part of the secret.
            text = raw.decode("utf-8").rstrip("\r\n")
        except OSError as error:
            self._refuse_once(f"{name}: {path} can't be read: {error.strerror or error}")
            return None
        except UnicodeDecodeError:
            self._refuse_once(f"{name}: {path} is not UTF-8 text")
            return None
        if not text or len(raw) > MAX_SECRET_FILE_BYTES:
            self._refuse_once(f"{name}: {path} is {'empty' if not text else 'too large for a secret'}")
            return None
        return text

    def _from_file(self, setting: Setting[T]) -> Found | None:
        for key in setting.keys:
            node = self._file.get(key)
            if node is None or (isinstance(node, Scalar) and node.text == ""):
                continue
            if isinstance(node, Scalar) and node.value is None:
                continue
            text = node.text if isinstance(node, Scalar) else ""
            return Found(key, _file_value(node), text, Layer.FILE, f"{key} in {node.where}", node.where)
        return None

    def _warn_once(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def _refuse_once(self, text: str) -> None:
        problem = Problem(text)
        if problem not in self.problems:
            self.problems.append(problem)


def _file_value(node: Node) -> object:
    # The items of a list are names: kept as typed, so that a queue may be called 1.
    if isinstance(node, Items):
        return [item.text if isinstance(item, Scalar) else plain(item) for item in node.items]
    return plain(node)


def _flag_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (tuple, list)):
        return ",".join(str(item) for item in value)
    return str(value)


def _presentable(value: object, is_secret: bool) -> str:
    if value is None:
        return "-"
    if isinstance(value, RedisTarget):
        return f"{value.mode} {value.address}"
    if is_secret:
        return MASK
    return _flag_text(value)
