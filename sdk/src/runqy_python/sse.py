"""Server-sent events, as the server's live routes send them."""

from __future__ import annotations

from typing import Iterable, Iterator, NamedTuple


class Message(NamedTuple):
    """One message: its event name, its data lines joined, and the id to resume after."""

    event: str
    data: str
    last_id: str | None


def messages(lines: Iterable[bytes]) -> Iterator[Message]:
    """The messages in a stream of lines; one that is cut off at the end is dropped, as the format demands."""
    event = "message"
    data: list[str] = []
    last_id: str | None = None
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if data:
                yield Message(event, "\n".join(data), last_id)
            event, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "event":
            event = value
        elif name == "data":
            data.append(value)
        elif name == "id":
            last_id = value
