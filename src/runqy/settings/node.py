"""A value of a configuration document together with the place where it was written.

YAML and JSON both become nodes, so that one validator serves files, the HTTP API and the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from runqy.settings.spelling import unknown_name

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Place in a file, line and column from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and where."""

    text: str
    where: Position | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value: ``value`` as typed by YAML 1.2 or JSON, ``text`` as it was written."""

    value: str | int | float | bool | None
    text: str
    where: Position | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    where: Position | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Entries:
    """A map with text keys; `places` says where each key stands."""

    entries: Mapping[str, Node]
    where: Position | None = field(default=None, compare=False)
    places: Mapping[str, Position] = field(default_factory=dict, compare=False)

    def place(self, key: str) -> Position | None:
        return self.places.get(key, self.where)


Node = Scalar | Items | Entries

NOT_SET = Scalar(None, "")


def is_storable(text: str) -> bool:
    """Whether every database can hold the text: no NUL character, no half of a surrogate pair."""
    return not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text)


def node_of(value: object) -> Node:
    """The node of a JSON value. Raises `TypeError` for what JSON does not know or no database can hold."""
    if isinstance(value, float) and not isfinite(value):
        raise TypeError("NaN and Infinity are not JSON")
    if isinstance(value, str) and not is_storable(value):
        raise TypeError("a text holds a NUL character or half of a surrogate pair")
    if value is None or isinstance(value, (str, bool, int, float)):
        return Scalar(value, value if isinstance(value, str) else _written(value))
    if isinstance(value, Mapping):
        return Entries({_key(key): node_of(member) for key, member in value.items()})
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return Items(tuple(node_of(item) for item in value))
    raise TypeError(f"not a JSON value: {type(value).__name__}")


def _key(key: object) -> str:
    text = str(key)
    if not is_storable(text):
        raise TypeError("a key holds a NUL character or half of a surrogate pair")
    return text


def plain(node: Node) -> object:
    """The node as plain Python: dicts, lists, texts, numbers, booleans, None."""
    match node:
        case Scalar(value=value):
            return value
        case Items(items=items):
            return [plain(item) for item in items]
        case Entries(entries=entries):
            return {key: plain(member) for key, member in entries.items()}


def _written(value: bool | int | float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def shown(node: Node) -> str:
    """The node for a message, cut to a length that fits one line."""
    match node:
        case Scalar(value=str() as text):
            return '"' + (text if len(text) <= 60 else text[:57] + "...").replace("\n", "\\n") + '"'
        case Scalar(value=None):
            return "nothing"
        case Scalar(text=text):
            return text
        case Items():
            return "a list"
        case Entries():
            return "a map"


class Reading:
    """Reads nodes and gathers what is wrong: `problems` refuse, `warnings` don't.

    ``lenient`` is for what was stored earlier, perhaps by another program: keys that are not known are passed
    over, and what `object_to` finds is a warning.
    """

    def __init__(self, *, lenient: bool = False) -> None:
        self.lenient = lenient
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def refuse(self, text: str, where: Position | None) -> None:
        self.problems.append(Problem(text, where))

    def warn(self, text: str, where: Position | None) -> None:
        self.warnings.append(Problem(text, where))

    def object_to(self, text: str, where: Position | None) -> None:
        """Refuse what is new, put up with what was stored."""
        (self.warnings if self.lenient else self.problems).append(Problem(text, where))

    def entries(self, node: Node, name: str) -> Entries | None:
        """A map, or None (and a problem unless the node is empty)."""
        if isinstance(node, Entries):
            return node
        if node != NOT_SET and not (isinstance(node, Scalar) and node.value is None):
            self.refuse(f"{name} must be a map of keys and values, got {shown(node)}", node.where)
        return None

    def items(self, node: Node, name: str) -> Iterator[tuple[int, Node]]:
        """The items of a list with their index; nothing (and a problem) when it is none."""
        if isinstance(node, Items):
            yield from enumerate(node.items)
        elif not (isinstance(node, Scalar) and node.value is None):
            self.refuse(f"{name} must be a list, got {shown(node)}", node.where)

    def known_keys(self, node: Entries, known: Sequence[str], prefix: str) -> None:
        """Refuse every key that is not known, with the nearest known name. ``prefix`` ends in ``.`` or ``: ``."""
        inside = f"{prefix.removesuffix('.')}: " if prefix.endswith(".") else prefix
        for key in node.entries:
            if key not in known and not self.lenient:
                self.refuse(f"{inside}{unknown_name('key', key, known)}", node.place(key))

    def text(self, node: Node, name: str) -> str | None:
        """A text exactly as it was typed (an unquoted number stays as written); None when empty or refused."""
        if not isinstance(node, Scalar):
            self.refuse(f"{name} must be a text, got {shown(node)}", node.where)
            return None
        if node.value is None or node.text == "":
            return None
        if any((c < " " and c not in "\t\n") or c == "\x7f" for c in node.text):
            self.refuse(f"{name} holds a control character", node.where)
            return None
        return node.text

    def integer(self, node: Node, name: str, example: str) -> int | None:
        """A whole number; a quoted one, a fraction, a boolean are refused. None when empty or refused."""
        if isinstance(node, Scalar) and node.value is None:
            return None
        if isinstance(node, Scalar) and isinstance(node.value, int) and not isinstance(node.value, bool):
            return node.value
        quoted = isinstance(node, Scalar) and isinstance(node.value, str) and _INTEGER.fullmatch(node.value)
        advice = "write it without quotes" if quoted else f"such as {example}"
        self.refuse(f"{name} must be a whole number, got {shown(node)} ({advice})", node.where)
        return None

    def boolean(self, node: Node, name: str) -> bool | None:
        """``true`` or ``false`` and nothing else (not yes, on, 1). None when empty or refused."""
        if isinstance(node, Scalar) and (node.value is None or isinstance(node.value, bool)):
            return node.value
        self.refuse(f"{name} must be true or false, got {shown(node)}", node.where)
        return None
