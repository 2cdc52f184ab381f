"""Addresses under which the original's documents name routes that stand elsewhere."""

from __future__ import annotations

from typing import Any

_DOCUMENTED, _REAL = "/api/cli/", "/api/"


class Aliases:
    """An ASGI application that answers ``/api/cli/…`` as ``/api/…``, before anything looks at the path."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_DOCUMENTED):
            real = dict(scope)
            real["path"] = _REAL + scope["path"].removeprefix(_DOCUMENTED)
            real["raw_path"] = real["path"].encode()
            scope = real
        await self._app(scope, receive, send)
