"""HTTP to the server: connections that are reused, retries where they are safe, errors by status."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
import ssl
import time
import urllib.request
from base64 import b64encode
from email.message import Message
from typing import Any, Iterator, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from .errors import (
    AuthenticationError,
    ConflictError,
    InvalidRequestError,
    PermissionDeniedError,
    RunqyError,
    ServerUnavailableError,
    TaskNotFoundError,
)
from .version import __version__

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
MOST_IDLE = 32
CLOSED = "the client was closed"
BUSY = frozenset((429, 502, 503, 504))

_ERROR_BY_STATUS: dict[int, tuple[type[RunqyError], str]] = {
    400: (InvalidRequestError, "HTTP 400"),
    401: (AuthenticationError, "Authentication failed"),
    403: (PermissionDeniedError, "HTTP 403"),
    404: (TaskNotFoundError, "Task not found"),
    409: (ConflictError, "HTTP 409"),
    413: (InvalidRequestError, "HTTP 413"),
    422: (InvalidRequestError, "HTTP 422"),
}


class Answer(NamedTuple):
    status: int
    headers: Message
    body: str


class Transport:
    """Requests to one server, from any thread. A request takes an idle connection or opens one."""

    retries = 3

    def __init__(self, server_url: str, api_key: str, timeout: float) -> None:
        """`timeout` is seconds per HTTP call: for connecting, and for every wait for bytes."""
        url = urlsplit(server_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise RunqyError(
                f"The server address {server_url!r} is not an http:// or https:// address, "
                "such as http://localhost:3000"
            )
        self._url = url
        self._api_key = api_key
        self._timeout = timeout
        self._idle: list[http.client.HTTPConnection] = []
        self._process = os.getpid()
        self._in_use: set[socket.socket] = set()
        self._is_aborted = False

    def call(
        self, method: str, path: str, body: str | None = None, key: str | None = None, timeout: float = 0
    ) -> dict[str, Any]:
        """The JSON object that the server answers.

        Repeated after connection errors and busy answers when that can't do harm: for GET, and with an
        idempotency key. A time-out is not repeated, as the caller's patience is over.
        Raises the RunqyError that fits the status.
        """
        answer = self._answer(method, path, body, key, timeout or self._timeout)
        if not 200 <= answer.status < 300:
            raise error_of(answer)
        if not answer.body:
            return {}
        try:
            decoded = json.loads(answer.body)
        except ValueError:
            decoded = None
        if not isinstance(decoded, dict):
            raise RunqyError(
                f"The answer of {self._url.netloc.rpartition('@')[2]} is not a JSON object; "
                f"is it a runqy server? It begins with {answer.body[:80]!r}",
                answer.status,
            )
        return decoded

    @contextlib.contextmanager
    def stream(
        self, path: str, last_event_id: str | None, timeout: float
    ) -> Iterator[http.client.HTTPResponse]:
        """The response to a GET for server-sent events, on a connection of its own."""
        connection = self._connect(timeout)
        headers = self._headers(None, None)
        headers["Accept"] = "text/event-stream"
        headers["Connection"] = "close"
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        try:
            connection.request("GET", self._target(path), headers=headers)
            with self._used(connection), connection.getresponse() as response:
                if response.status != 200:
                    raise error_of(Answer(response.status, response.headers, _text(response.read())))
                yield response
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(error) from error
        finally:
            connection.close()
        if self._is_aborted:
            raise _unreachable(ConnectionAbortedError(CLOSED))

    def pause(self, earlier: int, at_least: float = 0.0) -> None:
        """Sleep before an attempt is repeated, twice as long after each of the `earlier` pauses."""
        # Spread, so that the clients of a server that was away do not all come back in the same moment.
        time.sleep(max(at_least, FIRST_PAUSE * 2**earlier * random.uniform(0.5, 1.5)))

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def abort(self) -> None:
        """Fail the calls that are under way in other threads, and every later one."""
        self._is_aborted = True
        for used in list(self._in_use):
            with contextlib.suppress(OSError):
                used.shutdown(socket.SHUT_RDWR)
        self.close()

    def _answer(self, method: str, path: str, body: str | None, key: str | None, timeout: float) -> Answer:
        safe = method == "GET" or key is not None
        headers = self._headers(body, key)
        pauses = 0
        while True:
            if self._is_aborted:
                raise _unreachable(ConnectionAbortedError(CLOSED))
            connection, is_fresh = self._take(timeout)
            try:
                answer = self._exchange(connection, method, path, body, headers)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not is_fresh and safe and not isinstance(error, socket.timeout):
                    # The server had closed a connection that was kept; that says nothing about the server.
                    self.close()
                    continue
                if not safe or pauses >= self.retries or isinstance(error, socket.timeout):
                    raise _unreachable(error) from error
                wait = 0.0
            else:
                if not safe or answer.status not in BUSY or pauses >= self.retries:
                    return answer
                wait = _asked_pause(answer)
            self.pause(pauses, wait)
            pauses += 1

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: str | None,
        headers: dict[str, str],
    ) -> Answer:
        connection.request(
            method, self._target(path), None if body is None else body.encode("utf-8"), headers
        )
        with self._used(connection):
            response = connection.getresponse()
            answer = Answer(response.status, response.headers, _text(response.read()))
        if response.will_close or len(self._idle) >= MOST_IDLE:
            connection.close()
        else:
            self._idle.append(connection)
        return answer

    @contextlib.contextmanager
    def _used(self, connection: http.client.HTTPConnection) -> Iterator[None]:
        """Its socket may be shut down by `abort` meanwhile."""
        used = connection.sock
        self._in_use.add(used)
        try:
            # Between the look at the beginning of the call and now, abort may have passed by.
            if self._is_aborted:
                raise ConnectionAbortedError(CLOSED)
            yield
        finally:
            self._in_use.discard(used)

    def _take(self, timeout: float) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it is a new one."""
        if self._process != os.getpid():
            # A forked process must not share its parent's connections: answers would get mixed up.
            self._idle = []
            self._process = os.getpid()
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._connect(timeout), True
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        return connection, False

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        proxy = self._proxy()
        if self._url.scheme == "https":
            context = ssl.create_default_context()
            if proxy is None:
                return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
            tunnel = http.client.HTTPSConnection(
                proxy.hostname or "", proxy.port, timeout=timeout, context=context
            )
            tunnel.set_tunnel(host, port or 443, _proxy_headers(proxy))
            return tunnel
        if proxy is None:
            return http.client.HTTPConnection(host, port, timeout=timeout)
        return http.client.HTTPConnection(proxy.hostname or "", proxy.port, timeout=timeout)

    def _proxy(self) -> SplitResult | None:
        address = urllib.request.getproxies().get(self._url.scheme)
        if not address or urllib.request.proxy_bypass(self._url.hostname or ""):
            return None
        proxy = urlsplit(address if "//" in address else "//" + address)
        return proxy if proxy.hostname else None

    def _target(self, path: str) -> str:
        target = self._url.path.rstrip("/") + path
        if self._url.scheme == "http" and self._proxy() is not None:
            return f"http://{self._url.netloc}{target}"
        return target

    def _headers(self, body: str | None, key: str | None) -> dict[str, str]:
        headers = {
            "Authorization": f"Bearer {self._api_key}",
            "Content-Type": "application/json",
            "User-Agent": f"runqy-python/{__version__}",
        }
        if key is not None:
            headers["Idempotency-Key"] = key
        proxy = self._proxy()
        if proxy is not None and self._url.scheme == "http":
            headers.update(_proxy_headers(proxy))
        return headers


def error_of(answer: Answer) -> RunqyError:
    """The exception for an answer that is not a success, with the server's own messages."""
    kind, label = _ERROR_BY_STATUS.get(answer.status, (RunqyError, f"HTTP {answer.status}"))
    if answer.status in BUSY:
        kind = ServerUnavailableError
    text = f"{label}: {answer.body}"
    if 300 <= answer.status < 400:
        text = (
            f"HTTP {answer.status}: the server redirects to "
            f"{answer.headers.get('Location', 'another address')}; use that address as server_url"
        )
    return kind(text, answer.status, _messages(answer.body))


def _messages(body: str) -> list[str]:
    try:
        decoded = json.loads(body)
    except ValueError:
        return []
    if not isinstance(decoded, dict):
        return []
    errors = decoded.get("errors") or decoded.get("error")
    if isinstance(errors, list):
        return [str(entry) for entry in errors]
    return [] if errors is None else [str(errors)]


def _unreachable(error: Exception) -> ServerUnavailableError:
    # The address is not repeated here: it may hold a password.
    return ServerUnavailableError(f"Connection error: {error if str(error) else type(error).__name__}")


def _asked_pause(answer: Answer) -> float:
    try:
        return min(max(float(answer.headers.get("Retry-After", "0")), 0.0), LONGEST_PAUSE)
    except ValueError:
        return 0.0


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": "Basic " + b64encode(credentials).decode("ascii")}


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")
