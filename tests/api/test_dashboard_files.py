"""The dashboard's files: what is cached, what is not, and what a browser may do with them."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from harness.api import Api

from runqy.server import dashboard_files
from runqy.server.app import create_app

MOST_JAVASCRIPT = 120 * 1024


async def test_the_root_leads_to_the_dashboard(api: Api) -> None:
    async with api.client(None) as client:
        root = await client.get("/")
        short = await client.get("/monitoring")
    assert (root.status_code, root.headers["location"]) == (301, "/monitoring")
    assert short.headers["location"] == "/monitoring/"


@pytest.mark.parametrize("path", ["/monitoring/", "/monitoring/queues/one.high", "/monitoring/tasks/a/b?x=1"])
async def test_every_address_inside_is_the_page_and_is_never_cached(api: Api, path: str) -> None:
    async with api.client(None) as client:
        answer = await client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert "script-src 'self';" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_the_page_has_no_inline_script_or_style(api: Api) -> None:
    async with api.client(None) as client:
        page = (await client.get("/monitoring/")).text
        scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL)
        assert scripts
        for attributes, text in scripts:
            assert "src=" in attributes
            assert not text.strip()
        assert not re.search(r"<style| style=| on[a-z]+=", page)


async def test_hashed_files_are_cached_for_ever_and_sent_packed(api: Api) -> None:
    async with api.client(None) as client:
        page = (await client.get("/monitoring/")).text
        found = re.search(r"/monitoring/_app/immutable/bundle[^\"]*\.js", page)
        assert found is not None
        answer = await client.get(found[0], headers={"accept-encoding": "gzip"})
        assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
        assert answer.headers["cache-control"].endswith("immutable")
        assert answer.headers["content-encoding"] == "gzip"
        again = await client.get(found[0], headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.parametrize("path", ["/monitoring/_app/immutable/old.js", "/monitoring/api/nothing", "/monitoring/api"])
async def test_a_missing_file_or_route_is_not_the_page(api: Api, path: str) -> None:
    async with api.client() as client:
        answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.json() == {"errors": ["404 page not found"]}


async def test_without_the_dashboard_there_is_no_page(api: Api) -> None:
    app = create_app(replace(api.state, settings=replace(api.state.settings, no_ui=True)))
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
        assert (await client.get("/")).status_code == 404
        assert (await client.get("/monitoring/")).status_code == 404


async def test_a_page_tells_how_to_build_what_is_missing(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard_files, "FOLDER", tmp_path / "none")
    async with api.client(None) as client:
        answer = await client.get("/monitoring/")
    assert answer.status_code == 503
    assert "npm run build" in answer.text


def test_all_javascript_is_small() -> None:
    scripts = sorted(dashboard_files.FOLDER.rglob("*.js"))
    assert scripts
    packed = sum(len(gzip.compress(path.read_bytes(), 9)) for path in scripts)
    print(f"the dashboard's JavaScript: {packed / 1024:.1f} KiB in gzip")
    assert packed < MOST_JAVASCRIPT
