"""The only printer: tables for people, JSON for programs, errors in three short lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from runqy.errors import RunqyError


class Output:
    """Writes what a command has to say. Results go to stdout; everything else to stderr."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose

    @property
    def on_terminal(self) -> bool:
        return sys.stdout.isatty()

    def line(self, text: str = "") -> None:
        """A line of the result, for people."""
        if not self.as_json:
            print(text, flush=True)

    def note(self, text: str) -> None:
        """Something beside the result; never in the way of a pipe."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """What the user should know although the command goes on."""
        print(paint(f"warning: {text}", "33", sys.stderr), file=sys.stderr, flush=True)

    def document(self, value: Any) -> None:
        """The result as JSON, where it was asked for."""
        if self.as_json:
            print(json.dumps(value, indent=2 if self.on_terminal else None, ensure_ascii=False), flush=True)

    def clear(self) -> None:
        """Begin a terminal's screen anew; in a pipe what was printed stays."""
        if self.on_terminal and not self.as_json:
            print("\x1b[H\x1b[2J", end="", flush=True)

    def json_line(self, value: Any) -> None:
        """One event of a stream as JSON on a line of its own."""
        if self.as_json:
            print(json.dumps(value, ensure_ascii=False), flush=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Left-aligned columns, two spaces between them, headings in capitals."""
        if self.as_json:
            return
        lines = [list(columns), *([_cell(value) for value in row] for row in rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        for number, line in enumerate(lines):
            text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            print(paint(text, "1", sys.stdout) if number == 0 else text, flush=True)

    def fields(self, values: Mapping[str, Any]) -> None:
        """Names and values below each other."""
        if self.as_json:
            return
        width = max((len(name) for name in values), default=0) + 1
        for name, value in values.items():
            print(f"{name + ':':<{width}} {_cell(value)}", flush=True)

    def error(self, error: RunqyError) -> None:
        """What happened, why, what to do."""
        if self.as_json:
            document = {"error": error.what, "why": error.why, "hint": error.hint, "code": error.exit_code}
            print(json.dumps(document, ensure_ascii=False), file=sys.stderr, flush=True)
            return
        first, *rest = error.lines()
        print(paint(f"error: {first}", "31", sys.stderr), *rest, sep="\n", file=sys.stderr, flush=True)


def paint(text: str, code: str, stream: TextIO) -> str:
    """The text in a colour, on a terminal that wants one (NO_COLOR and FORCE_COLOR are honoured)."""
    wanted = os.environ.get("FORCE_COLOR") or (stream.isatty() and not os.environ.get("NO_COLOR"))
    return f"\x1b[{code}m{text}\x1b[0m" if wanted else text


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).replace("\n", "\\n").replace("\t", " ").replace("\x1b", "")


def shorten(text: str, length: int) -> str:
    """At most ``length`` characters, with dots where it was cut."""
    return text if len(text) <= length else text[: length - 3] + "..."
