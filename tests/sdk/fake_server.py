"""A server that answers a client as a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Seen:
    """One request that the server got."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = json.loads(body) if body else None


class Server:
    """A server that answers as told. `answer` maps a request to (status, JSON or text); None cuts the connection."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.connections = 0
        self.answer: Callable[[Seen], Any] = lambda seen: (200, {})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Head and body leave together; apart, the second would wait for an acknowledgement.
            wbufsize = 65536

            def setup(self) -> None:
                super().setup()
                outer.connections += 1

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                seen = Seen(self.command, self.path, dict(self.headers), self.rfile.read(length))
                outer.seen.append(seen)
                answer = outer.answer(seen)
                if answer is None:
                    self.close_connection = True
                    return
                status, content, *headers = answer
                if isinstance(content, list) and content and isinstance(content[0], bytes):
                    self.stream(content)
                    return
                data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def stream(self, pieces: list[bytes]) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                for piece in pieces:
                    self.wfile.write(piece)
                    self.wfile.flush()
                self.close_connection = True

            do_GET = do_POST = handle_any  # noqa: N815

            def log_message(self, *arguments: Any) -> None:
                pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that goes away is part of the tests."""

        self._http = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
