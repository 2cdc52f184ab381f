"""The stream of one task: what it is, what it prints and yields, how far it is, how it ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from sse_starlette import ServerSentEvent

from runqy.broker.inspector import TaskView
from runqy.server.answers import task_info
from runqy.server.state import ServerState
from runqy.tasks.state import TERMINAL

LOOK_SECONDS = 5.0
"""how often the task is read without being told of a change: an older worker tells nothing"""


async def follow_task(state: ServerState, queue: str, task_id: str) -> AsyncGenerator[ServerSentEvent, None]:
    """Events until the task has ended or is gone. Ends also when Redis can't be asked; the client connects again."""
    async with state.events.follow(task_id) as follower:
        view = await state.inspector.get(queue, task_id)
        if view is None:
            yield _gone(task_id)
            return
        yield _state(view)
        printed = await state.inspector.task_log(queue, task_id)
        if printed:
            yield ServerSentEvent(_json({"text": printed}), event="log")
        while view.state not in TERMINAL:
            told = await follower.next(LOOK_SECONDS)
            kind, text = told or ("state", "")
            if kind == "log":
                yield ServerSentEvent(_json({"text": text}), event="log")
            elif kind in {"progress", "output"}:
                yield ServerSentEvent(text, event=kind)
            elif kind == "state":
                newer = await state.inspector.get(queue, task_id)
                if newer is None:
                    yield _gone(task_id)
                    return
                if (newer.state, len(newer.attempts)) != (view.state, len(view.attempts)):
                    yield _state(newer)
                view = newer
        yield ServerSentEvent(_json({"state": view.state.value, "Info": task_info(view)}), event="end")


def _state(view: TaskView) -> ServerSentEvent:
    return ServerSentEvent(_json({"state": view.state.value, "Info": task_info(view)}), event="state")


def _gone(task_id: str) -> ServerSentEvent:
    return ServerSentEvent(_json({"state": "gone", "id": task_id}), event="end")


def _json(document: object) -> str:
    return msgspec.json.encode(document).decode()
