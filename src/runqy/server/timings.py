"""How long requests and Redis calls take, counted in this process since it started."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

BOUNDS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_DIRECT = frozenset({"/queue/add", "/queue/add-batch"})
"""answered before the framework looks for a route"""
UNKNOWN_ROUTE = "unknown"
"""stands for every address without a route, so that strangers can't make series"""


@dataclass(slots=True)
class Durations:
    """A histogram in seconds: one count per bound and one beyond the last."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_SECONDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.total += seconds


class Timings:
    """The histograms by their labels; as many as there are routes and status classes, and two for Redis."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], Durations] = {}
        self.redis: dict[str, Durations] = {"ok": Durations(), "error": Durations()}

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request under its route's template and its status class, such as ``2xx``."""
        key = (route, f"{status // 100}xx")
        found = self.requests.get(key)
        if found is None:
            found = self.requests[key] = Durations()
        found.add(seconds)

    def redis_call(self, seconds: float, succeeded: bool) -> None:
        """Count one round trip to Redis; a failed one is one without replies."""
        self.redis["ok" if succeeded else "error"].add(seconds)


class RequestTimes:
    """An ASGI application that measures the one within, from the request's head to the head of its answer.

    A stream or a long download counts until it begins: how long somebody watches says nothing about the server.
    """

    def __init__(self, timings: Timings, app: Any) -> None:
        self._timings = timings
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def send_timed(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._timings.request(_route_of(scope), message["status"], time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, send_timed)


def _route_of(scope: Any) -> str:
    path = scope["path"]
    if path in _DIRECT and scope["method"] == "POST":
        return str(path)
    return str(getattr(scope.get("route"), "path", UNKNOWN_ROUTE))
