"""Finds the server and calls it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from runqy.cli.app import Session
from runqy.cli.profiles import CREDENTIALS, load_profiles
from runqy.errors import (
    BackPressureError,
    ConflictError,
    NotAllowedError,
    NotAuthenticatedError,
    NotFoundError,
    RunqyError,
    TooLargeError,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    import httpx2

SECONDS = 30.0

_BY_STATUS: dict[int, type[RunqyError]] = {
    400: UsageError,
    401: NotAuthenticatedError,
    403: NotAllowedError,
    404: NotFoundError,
    409: ConflictError,
    413: TooLargeError,
    429: BackPressureError,
    503: UnavailableError,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server is, with which key, and how that was found out."""

    url: str
    key: str
    source: str
    data_dir: Path | None = None
    """of a server that runs on this machine"""


class NoServerError(UnavailableError):
    """Nothing names a server, and none runs here."""


def find_server(session: Session) -> Endpoint:
    """Flag, `RUNQY_SERVER`, saved profile, `server.json` of a server here or in a parent folder; in this order.

    Raises `NoServerError` when none of them names a server.
    """
    key = session.api_key or environment_key()
    url = session.server or os.environ.get("RUNQY_SERVER", "")
    if url:
        return Endpoint(url.rstrip("/"), key, "--server" if session.server else "RUNQY_SERVER")
    profile = load_profiles().chosen
    if profile is not None:
        return Endpoint(profile.url.rstrip("/"), key or profile.api_key, str(CREDENTIALS))
    running = _running_server()
    if running is not None:
        url, key_file, path = running
        if not key and key_file:
            try:
                key = Path(key_file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise NotAllowedError(
                    f"The key of the running server can't be read from {key_file}",
                    why=error.strerror or str(error),
                    hint="run as the user who started the server, or set RUNQY_API_KEY",
                ) from error
        return Endpoint(url, key, str(path), path.parent)
    raise NoServerError(
        "No server is known",
        why="neither --server, RUNQY_SERVER nor a saved login names one, and none runs from this folder or a parent",
        hint="start one with `runqy serve` or `runqy dev`, or say where it is: --server http://host:3000",
    )


def environment_key() -> str:
    """RUNQY_API_KEY, or the contents of the file that RUNQY_API_KEY_FILE names; empty without both."""
    key = os.environ.get("RUNQY_API_KEY", "")
    file = os.environ.get("RUNQY_API_KEY_FILE", "")
    if not key and file:
        try:
            key = Path(file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise RunqyError(f"RUNQY_API_KEY_FILE can't be read: {file}", why=error.strerror or str(error)) from error
    return key


def _running_server() -> tuple[str, str, Path] | None:
    named = os.environ.get("RUNQY_DATA_DIR")
    here = Path.cwd()
    candidates = [Path(named)] if named else [folder / ".runqy" for folder in (here, *here.parents)]
    for folder in candidates:
        path = folder / "server.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            pid = int(document["pid"])
            os.kill(pid, 0)
            return str(document["url"]), str(document.get("key_file") or ""), path
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


class Client:
    """Calls to one server; every refusal becomes the error that names its exit code."""

    def __init__(self, session: Session, *, seconds: float = SECONDS) -> None:
        """``seconds``: how long an answer may take."""
        # Imported where a call is made: it takes longer than the help and the completion of options may.
        import httpx2

        self.endpoint = find_server(session)
        headers = {"Authorization": f"Bearer {self.endpoint.key}"} if self.endpoint.key else {}
        self._http = httpx2.Client(base_url=self.endpoint.url, headers=headers, timeout=seconds)
        click.get_current_context().call_on_close(self._http.close)

    def get(self, *path: str, **query: Any) -> Any:
        """GET; the parts of the path are quoted."""
        return self._call("GET", path, params={name: value for name, value in query.items() if value is not None})

    def post(
        self,
        *path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
    ) -> Any:
        """POST with a JSON body."""
        return self._call("POST", path, json=body if body is not None else {}, headers=headers, params=query)

    def post_text(self, *path: str, body: bytes) -> Any:
        """POST with a body that is JSON text already."""
        return self._call("POST", path, content=body, headers={"content-type": "application/json"})

    def delete(self, *path: str, **query: Any) -> Any:
        return self._call("DELETE", path, params=query)

    def put(self, *path: str, body: Any) -> Any:
        """PUT with a JSON body."""
        return self._call("PUT", path, json=body)

    def events(self, *path: str) -> Iterator[tuple[str, str]]:
        """Kind and data of each server-sent event, until the server ends the stream."""
        url = "/" + "/".join(quote(part, safe=":") for part in path)
        import httpx2

        kind, data = "message", list[str]()
        try:
            with self._http.stream("GET", url, timeout=httpx2.Timeout(SECONDS, read=60.0)) as response:
                if not response.is_success:
                    response.read()
                    raise self._refusal(response)
                for line in response.iter_lines():
                    name, _, value = line.partition(":")
                    if name == "event":
                        kind = value.strip()
                    elif name == "data":
                        data.append(value.removeprefix(" "))
                    elif not line and data:
                        yield kind, "\n".join(data)
                        kind, data = "message", []
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error

    def wait(self, task_id: str, seconds: float) -> Any:
        """The task once it has ended; None when that takes longer than ``seconds``."""
        try:
            return self._call(
                "GET", ("queue", task_id), params={"wait": "true", "timeout": str(seconds)}, timeout=seconds + 10
            )["Info"]
        except _StillRunningError:
            return None

    def _call(self, method: str, path: tuple[str, ...], **options: Any) -> Any:
        import httpx2

        url = "/" + "/".join(quote(part, safe=":") for part in path)
        try:
            response = self._http.request(method, url, **options)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error
        except httpx2.InvalidURL as error:
            raise UsageError(
                f"The server's address {self.endpoint.url!r} can't be used", why=str(error), hint=self.endpoint.source
            ) from error
        if response.is_success:
            try:
                return response.json()
            except ValueError as error:
                raise UnavailableError(
                    f"{self.endpoint.url} does not answer like a runqy server", why=f"the answer is not JSON: {error}"
                ) from error
        if response.status_code == 408:
            raise _StillRunningError("the task has not ended yet")
        raise self._refusal(response)

    def _unreachable(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"The server at {self.endpoint.url} can't be reached",
            why=str(error) or type(error).__name__,
            hint=f"its address comes from {self.endpoint.source}; check that it runs",
        )

    def _refusal(self, response: httpx2.Response) -> RunqyError:
        texts: list[str] = []
        try:
            document = response.json()
            texts = [str(text) for text in document.get("errors") or [document.get("error") or ""]]
        except (ValueError, AttributeError):
            texts = [response.text[:300]]
        kind = _BY_STATUS.get(response.status_code, RunqyError)
        hint = ""
        if kind is NotAuthenticatedError:
            hint = "set RUNQY_API_KEY or RUNQY_API_KEY_FILE to the server's key"
        elif kind is NotAllowedError:
            hint = "this needs the server's admin key"
        error = kind(
            "; ".join(text for text in texts if text) or f"the server answered {response.status_code}", hint=hint
        )
        # A request that the server finds wrong is a failure, not a wrong use of the command.
        if isinstance(error, UsageError):
            error.exit_code = 1
        return error


class _StillRunningError(RunqyError):
    """The server waited as long as it was asked to (408)."""
