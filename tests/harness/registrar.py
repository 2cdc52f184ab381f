"""A small real HTTP server that answers `POST /worker/register`, for tests of the worker alone."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Registrar:
    """What the server answers: per parent a body, or a status with a text; what it was asked."""

    answers: dict[str, Any] = field(default_factory=dict)
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, parent: str) -> tuple[int, bytes]:
        if parent in self.refusals:
            status, text = self.refusals[parent]
            return status, json.dumps({"error": text}).encode()
        if parent not in self.answers:
            return 404, b'{"error": "queue not found"}'
        return 200, json.dumps(self.answers[parent]).encode()


@contextlib.contextmanager
def registrar() -> Iterator[Registrar]:
    """A registrar on a free loopback port."""
    told = Registrar()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            told.asked.append({**body, "authorization": self.headers["authorization"]})
            status, answer = told.answer(body["queue"])
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    told.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
