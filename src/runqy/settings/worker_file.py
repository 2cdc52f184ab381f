"""The worker's ``config.yml``: variables replaced in its raw text, then YAML with known keys only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from runqy.settings.document import parse_yaml
from runqy.settings.node import Entries, Node, Position, Reading
from runqy.settings.worker_variables import FILE_KEYS

# A name holds no "}", ":" or space; a default holds no "}".
_VARIABLE = re.compile(r"\$\{([^}:\s]+)(?::-([^}]*))?\}")


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """Replace ``${VAR}`` and ``${VAR:-default}``; an empty variable counts as unset, unset is empty."""
    return _VARIABLE.sub(lambda match: environ.get(match[1]) or match[2] or "", text)


def read_worker_file(path: Path, environ: Mapping[str, str], reading: Reading) -> dict[str, Node]:
    """The file's values by dotted key, such as ``worker.concurrency``; every problem goes to `reading`."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reading.refuse(f"{path} can't be read: {error.strerror or error}", None)
        return {}
    except UnicodeDecodeError:
        reading.refuse("the file is not UTF-8 text", Position(str(path), 1, 1))
        return {}
    root = parse_yaml(substitute(text, environ), str(path), reading)
    if root is None:
        return {}
    sections = reading.entries(root, "the configuration")
    return {} if sections is None else _flatten(sections, reading)


def _flatten(root: Entries, reading: Reading) -> dict[str, Node]:
    known: dict[str, list[str]] = {}
    for key in FILE_KEYS:
        section, _, name = key.partition(".")
        known.setdefault(section, []).append(name)
    reading.known_keys(root, list(known), "")
    values: dict[str, Node] = {}
    for section, names in known.items():
        node = root.entries.get(section)
        entries = reading.entries(node, section) if node is not None else None
        if entries is None:
            continue
        reading.known_keys(entries, names, f"{section}: ")
        values.update({f"{section}.{name}": value for name, value in entries.entries.items() if name in names})
    return values
