"""Queue files: a folder of YAML, or one file, as queues; every problem of every file is listed together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runqy.config.model import QueueConfig
from runqy.config.validation import QUEUE_KEYS, WITHOUT_EFFECT, read_queue
from runqy.errors import ConfigurationError
from runqy.settings.document import parse_yaml, read_yaml
from runqy.settings.node import Entries, Node, Position, Problem, Reading, Scalar, plain
from runqy.settings.spelling import unknown_name

ROOT = "queues"
_EXTENSION = "x-"
"""root keys that begin so hold anchors for reuse and are passed over"""
_HINT = "each place is file:line:column; nothing was applied"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What queue files say. ``files`` counts the files that were read, the empty ones too."""

    queues: tuple[QueueConfig, ...]
    warnings: tuple[str, ...] = ()
    files: int = 0


def queue_files(folder: Path) -> list[Path]:
    """``*.yaml`` then ``*.yml`` of a folder, each sorted by name; not those of folders in it.

    Raises `ConfigurationError` when there is no such folder.
    """
    if not folder.exists():
        raise ConfigurationError(f"queueworkers directory not found: {folder}", hint="name a folder of queue files")
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a directory", hint="name the folder that holds the queue files")
    try:
        names = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise ConfigurationError(f"{folder} can't be read", why=error.strerror or str(error)) from None
    return [path for suffix in (".yaml", ".yml") for path in names if path.suffix == suffix]


def load_folder(folder: Path) -> Loaded:
    """All queues of a folder. Raises `ConfigurationError` with every problem of every file."""
    return _load(queue_files(folder), f"failed to load YAML files from {folder}")


def load_file(path: Path) -> Loaded:
    """All queues of one file. Raises `ConfigurationError` with every problem."""
    return _load([path], f"failed to load {path}")


def load_create_file(path: Path) -> Loaded:
    """The file of ``config create -f``: either ``queues:``, or one queue with ``name`` at its root.

    Raises `ConfigurationError` with every problem; an empty file is one.
    """
    reading = Reading()
    root = read_yaml(path, reading)
    single = isinstance(root, Entries) and "name" in root.entries and ROOT not in root.entries
    collected = _Collected(reading)
    if single and isinstance(root, Entries):
        _read_single(root, collected)
    elif root is not None:
        _read_root(root, collected)
    if not collected.queues and not reading.problems:
        reading.refuse(f"neither '{ROOT}:' nor a queue with 'name:' in it", Position(str(path), 1, 1))
    return _finish(collected, f"failed to load {path}", 1)


def load_text(text: str, file: str) -> Loaded:
    """All queues of a YAML text; ``file`` is its name in messages. Raises `ConfigurationError`."""
    return load_texts({file: text}, f"failed to load {file}")


def load_texts(texts: Mapping[str, str], what: str = "failed to load the files") -> Loaded:
    """All queues of several YAML texts by their names, as of a folder. Raises `ConfigurationError`."""
    reading = Reading()
    collected = _Collected(reading)
    for name, text in texts.items():
        root = parse_yaml(text, name, reading)
        if root is not None:
            _read_root(root, collected)
    return _finish(collected, what, len(texts))


class _Collected:
    """Queues by name as they are read, with where each was first seen."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.queues: dict[str, QueueConfig] = {}
        self.places: dict[str, Position | None] = {}

    def add(self, name: str, node: Node, where: Position | None) -> None:
        if name in self.places:
            self.reading.refuse(f"queue '{name}' is defined twice, first at {self.places[name]}", where)
        self.places.setdefault(name, where)
        queue = read_queue(name, node, self.reading, where)
        if queue is not None:
            self.queues[name] = queue


def _load(paths: Iterable[Path], what: str) -> Loaded:
    reading = Reading()
    collected = _Collected(reading)
    count = 0
    for path in paths:
        count += 1
        root = read_yaml(path, reading)
        if root is not None:
            _read_root(root, collected)
    return _finish(collected, what, count)


def _finish(collected: _Collected, what: str, files: int) -> Loaded:
    reading = collected.reading
    if reading.problems:
        raise ConfigurationError(what, hint=_HINT, problems=tuple(str(p) for p in _in_order(reading.problems)))
    warnings = tuple(str(warning) for warning in _in_order(reading.warnings))
    return Loaded(tuple(collected.queues.values()), warnings, files)


def _in_order(problems: list[Problem]) -> list[Problem]:
    """By place within a file; the files in the order in which they were read."""
    order: dict[str, int] = {}
    for problem in problems:
        if problem.where is not None:
            order.setdefault(problem.where.file, len(order))
    return sorted(
        dict.fromkeys(problems),
        key=lambda p: (-1, 0, 0) if p.where is None else (order[p.where.file], p.where.line, p.where.column),
    )


def _read_root(root: Node, collected: _Collected) -> None:
    reading = collected.reading
    entries = reading.entries(root, "the file")
    if entries is None:
        return
    for key in entries.entries:
        if key != ROOT and not key.startswith(_EXTENSION):
            reading.refuse(_unknown_root(key), entries.place(key))
    queues = entries.entries.get(ROOT)
    named = reading.entries(queues, f"'{ROOT}'") if queues is not None else None
    if named is not None:
        for name, node in named.entries.items():
            collected.add(name, node, named.place(name))


def _unknown_root(key: str) -> str:
    if key in QUEUE_KEYS:
        return f"key '{key}' stands at the root of the file; it belongs below '{ROOT}: <name>:' (check the indentation)"
    return unknown_name("key", key, [ROOT])


def _read_single(root: Entries, collected: _Collected) -> None:
    reading = collected.reading
    known = ("name", *QUEUE_KEYS, *WITHOUT_EFFECT)
    reading.known_keys(root, known, "")
    name = reading.text(root.entries["name"], "name")
    if name is None:
        reading.refuse("name is required", root.where)
        return
    entries = {key: node for key, node in root.entries.items() if key in known and key != "name"}
    if "sub_queues" not in entries and plain(entries.get("priority", Scalar(None, ""))) in (None, 0):
        # The single form has a priority of its own kind: absent or 0 means 1.
        entries["priority"] = Scalar(1, "1", root.where)
    collected.add(name, Entries(entries, root.where, root.places), root.place("name"))
