"""A YAML text as nodes that keep what was typed and where.

The library parses; which plain scalar means what is decided here: only ``true``/``false``, ``null``/``~``,
decimal integers and decimal fractions are other than text, so ``off``, ``no``, ``010``, ``0x10``, ``1:30``,
``1_000`` and ``2024-01-01`` stay what was typed (product decision 7).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runqy.settings.node import NOT_SET, Entries, Items, Node, Position, Problem, Reading, Scalar, is_storable

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_NODES = 20_000
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = {"", "~", "null", "Null", "NULL"}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,30})", re.ASCII)
_FRACTION = re.compile(r"[-+]?(0|[1-9][0-9]{0,30})(\.[0-9]+([eE][-+]?[0-9]{1,3})?|[eE][-+]?[0-9]{1,3})", re.ASCII)
_TEXT_TAGS = {"tag:yaml.org,2002:str", "!"}
_MERGE = "<<"


def read_yaml(path: Path, reading: Reading, *, shown_as: str | None = None) -> Node | None:
    """Read one file; None when it holds nothing or can't be read (then `reading` has the problem)."""
    name = shown_as or str(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        reading.refuse(f"{name} can't be read: {error.strerror or error}", None)
        return None
    try:
        # A byte order mark at the beginning is what some editors write; it means nothing.
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        reading.refuse("the file is not UTF-8 text", Position(name, line, column))
        return None
    return parse_yaml(text, name, reading)


def parse_yaml(text: str, file: str, reading: Reading) -> Node | None:
    """The one document of a YAML text; None when it is empty or refused (then `reading` has the problem)."""
    if len(text) > MAX_BYTES:
        reading.refuse(f"the file is larger than {MAX_BYTES // 1024} KiB", Position(file, 1, 1))
        return None
    if not text.strip():
        return None
    composer = _Composer(file, reading)
    try:
        node = composer.document(_events(text))
    except _RefusedError as refused:
        reading.problems.append(refused.problem)
        return None
    return None if node == NOT_SET else node


def _events(text: str) -> Iterator[Any]:
    # Imported here: a worker configured by environment alone never needs a YAML parser in its memory.
    from ruamel.yaml import YAML

    events: Iterator[Any] = YAML(typ="safe", pure=True).parse(text)
    return events


class _RefusedError(Exception):
    def __init__(self, text: str, where: Position) -> None:
        super().__init__(text)
        self.problem = Problem(text, where)


class _Composer:
    """Builds nodes from parser events; bounded in depth and, aliases expanded, in number."""

    def __init__(self, file: str, reading: Reading) -> None:
        self.file = file
        self.reading = reading
        self.anchors: dict[str, tuple[Node, int]] = {}
        self.open_anchors: set[str] = set()
        self.count = 0

    def document(self, events: Iterator[Any]) -> Node | None:
        from ruamel.yaml.error import MarkedYAMLError, YAMLError

        found: Node | None = None
        try:
            for event in events:
                name = type(event).__name__
                if name == "DocumentStartEvent":
                    if found is not None:
                        raise _RefusedError("a second document ('---') begins here, one per file", self._where(event))
                elif name not in {"StreamStartEvent", "StreamEndEvent", "DocumentEndEvent"}:
                    found = self._node(event, events, 0)
        except MarkedYAMLError as error:
            raise _RefusedError(_reason(error), self._mark(error.problem_mark or error.context_mark)) from None
        except YAMLError as error:
            raise _RefusedError(str(error).split("\n")[0], Position(self.file, 1, 1)) from None
        return found

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        where = self._where(event)
        if depth > MAX_DEPTH:
            raise _RefusedError(f"nested deeper than {MAX_DEPTH} levels", where)
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._alias(event.anchor, where)
        before = self.count
        self._add(1, where)
        anchor = event.anchor
        if anchor is not None:
            self.open_anchors.add(anchor)
        self._refuse_tag(event, where)
        if kind == "ScalarEvent":
            node: Node = self._scalar(event, where)
        elif kind == "SequenceStartEvent":
            node = self._sequence(events, depth, where)
        else:
            node = self._mapping(events, depth, where)
        if anchor is not None:
            self.open_anchors.discard(anchor)
            self.anchors[anchor] = (node, self.count - before)
        return node

    def _scalar(self, event: Any, where: Position) -> Scalar:
        text: str = event.value
        if not is_storable(text):
            raise _RefusedError("a text holds a NUL character or half of a surrogate pair", where)
        is_plain = event.style is None and event.implicit[0]
        return Scalar(_typed(text) if is_plain else text, text, where)

    def _sequence(self, events: Iterator[Any], depth: int, where: Position) -> Items:
        items: list[Node] = []
        for event in events:
            if type(event).__name__ == "SequenceEndEvent":
                break
            items.append(self._node(event, events, depth + 1))
        return Items(tuple(items), where)

    def _mapping(self, events: Iterator[Any], depth: int, where: Position) -> Entries:
        entries: dict[str, Node] = {}
        places: dict[str, Position] = {}
        merged: list[tuple[Node, Position]] = []
        for event in events:
            if type(event).__name__ == "MappingEndEvent":
                break
            key_place = self._where(event)
            key = self._node(event, events, depth + 1)
            if not isinstance(key, Scalar):
                raise _RefusedError("a key must be a text", key_place)
            value = self._node(next(events), events, depth + 1)
            if key.text == _MERGE and key.value == _MERGE:
                merged.append((value, key_place))
            elif key.text in entries:
                first = places[key.text]
                self.reading.refuse(f"duplicate key {key.text!r}, first on line {first.line}", key_place)
            else:
                entries[key.text] = value
                places[key.text] = key_place
        for node, place in merged:
            self._merge(node, place, entries, places)
        return Entries(entries, where, places)

    def _merge(self, node: Node, place: Position, entries: dict[str, Node], places: dict[str, Position]) -> None:
        """YAML's merge key: what the map says itself wins over what it merges in."""
        sources = node.items if isinstance(node, Items) else (node,)
        for source in sources:
            if not isinstance(source, Entries):
                raise _RefusedError("'<<' merges maps only", place)
            for key, value in source.entries.items():
                if key not in entries:
                    entries[key] = value
                    places[key] = source.place(key) or place

    def _alias(self, anchor: str, where: Position) -> Node:
        if anchor in self.open_anchors:
            raise _RefusedError(f"alias *{anchor} contains itself", where)
        if anchor not in self.anchors:
            raise _RefusedError(f"alias *{anchor} names no anchor above it", where)
        node, size = self.anchors[anchor]
        self._add(size, where)
        return node

    def _add(self, size: int, where: Position) -> None:
        self.count += size
        if self.count > MAX_NODES:
            raise _RefusedError(f"more than {MAX_NODES} values, aliases expanded", where)

    def _refuse_tag(self, event: Any, where: Position) -> None:
        tag = None if event.tag is None else str(event.tag)
        if tag is None or (type(event).__name__ == "ScalarEvent" and tag in _TEXT_TAGS):
            return
        written = "!!" + tag.removeprefix("tag:yaml.org,2002:") if tag.startswith("tag:yaml.org,2002:") else tag
        raise _RefusedError(f"the tag {written} is not allowed in a configuration", where)

    def _where(self, event: Any) -> Position:
        return self._mark(event.start_mark)

    def _mark(self, mark: Any) -> Position:
        return Position(self.file, mark.line + 1, mark.column + 1) if mark is not None else Position(self.file, 1, 1)


def _typed(text: str) -> str | int | float | bool | None:
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FRACTION.fullmatch(text):
        number = float(text)
        return number if abs(number) != float("inf") else text
    return text


def _reason(error: Any) -> str:
    problem = str(error.problem or error.context or "not YAML")
    if "\\t" in problem:
        return "a tab can't indent here, use spaces"
    if problem == "mapping values are not allowed here":
        return "not YAML: a ':' that is not expected here (check the indentation, or put the text in quotes)"
    # The library shows the offending line as well; a line can hold a secret, so only its reason is repeated.
    return f"not YAML: {problem}"
