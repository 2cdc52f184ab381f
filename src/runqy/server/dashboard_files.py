"""The dashboard's files below /monitoring: built once, read once, the same page for every address inside."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from runqy.server.responding import json_answer

router = APIRouter(include_in_schema=False)

FOLDER = Path(__file__).parent / "dashboard_dist"
PAGE = "index.html"
_HASHED = "_app/immutable/"
_READ = ["GET", "HEAD"]
_SMALLEST_PACKED = 1024

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}

_NOT_BUILT = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>runqy</title></head>
<body>
<h1>The dashboard is not built</h1>
<p>This installation has no built dashboard, since Node or the network was missing when it was installed.
The API, the command line and the workers are not concerned.</p>
<p>With Node 20.19 or newer, in a clone of the repository:</p>
<pre>cd dashboard &amp;&amp; npm ci &amp;&amp; npm run build</pre>
<p>Then install runqy from that clone again (<code>pip install .</code>) unless it is installed in editable mode, and
load this page anew.</p>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class BuiltFile:
    """One file, ready to be sent; ``packed`` is the same in gzip, None where that gains nothing."""

    content: bytes
    packed: bytes | None
    media_type: str
    tag: str


def read_files(folder: Path) -> dict[str, BuiltFile]:
    """All files below a folder by their path in it; empty while nothing is built there."""
    if not (folder / PAGE).is_file():
        return {}
    return {str(path.relative_to(folder)): _read(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def _read(path: Path) -> BuiltFile:
    content = path.read_bytes()
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if path.suffix == ".js":
        # The machine's own table of types may say something else, which browsers would refuse.
        media_type = "text/javascript"
    packed = gzip.compress(content, 9, mtime=0) if len(content) >= _SMALLEST_PACKED else None
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return BuiltFile(content, packed, media_type, tag)


@lru_cache(maxsize=4)
def _files_of(folder: Path, _changed_at: int) -> dict[str, BuiltFile]:
    return read_files(folder)


def _files() -> dict[str, BuiltFile]:
    """What is built now; read again only after a new build."""
    try:
        changed_at = (FOLDER / PAGE).stat().st_mtime_ns
    except OSError:
        return {}
    return _files_of(FOLDER, changed_at)


@router.api_route("/", methods=_READ)
async def root() -> Response:
    """The dashboard is what a person looks for here."""
    return RedirectResponse("/monitoring", 301)


@router.api_route("/monitoring", methods=_READ)
async def without_slash() -> Response:
    """The page's own address has a slash at its end."""
    return RedirectResponse("/monitoring/", 307)


@router.api_route("/monitoring/{path:path}", methods=_READ)
async def dashboard_file(path: str, request: Request) -> Response:
    """A built file, or for every other address the page, which finds its own way from there."""
    if path == "api" or path.startswith("api/"):
        return json_answer({"errors": ["404 page not found"]}, 404)
    files = _files()
    if not files:
        return Response(_NOT_BUILT, 503, {**SECURITY_HEADERS, "cache-control": "no-store"}, "text/html; charset=utf-8")
    found = files.get(path)
    if found is None and path.startswith("_app/"):
        # A page from before an update asks for a file that is gone; the new page would be taken for a script.
        return json_answer({"errors": ["404 page not found"]}, 404)
    return _respond(found or files[PAGE], request, is_hashed=found is not None and path.startswith(_HASHED))


def _respond(file: BuiltFile, request: Request, *, is_hashed: bool) -> Response:
    headers = {
        **SECURITY_HEADERS,
        "cache-control": "public, max-age=31536000, immutable" if is_hashed else "no-cache",
        "etag": file.tag,
        "vary": "accept-encoding",
    }
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    content = file.content
    if file.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        content = file.packed
        headers["content-encoding"] = "gzip"
    media_type = file.media_type + ("; charset=utf-8" if file.media_type.startswith("text/") else "")
    return Response(content, 200, headers, media_type)
