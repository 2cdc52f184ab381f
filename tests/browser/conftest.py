"""A real browser before a real server: the system's Chromium, nothing downloaded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.api import Api, running_server
from harness.browser import chromium, signed_in
from harness.redis_servers import RedisServer
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from runqy.broker.connection import Connection


@pytest.fixture
async def api(tmp_path: Path, valkey: RedisServer, connection: Connection) -> AsyncIterator[Api]:
    """A server on an empty Valkey."""
    async with running_server(tmp_path, valkey.url) as api:
        yield api


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.fixture
async def context(browser: Browser, api: Api) -> AsyncIterator[BrowserContext]:
    """A browser profile of its own, which knows the server's address."""
    context = await browser.new_context(base_url=api.url, viewport={"width": 1440, "height": 900})
    context.set_default_timeout(10_000)
    yield context
    await context.close()


@pytest.fixture
async def complaints(context: BrowserContext) -> AsyncIterator[list[str]]:
    """What the browser itself complains about, the content policy first of all; there must be nothing."""
    found: list[str] = []
    context.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda error: found.append(str(error.error)))
    yield found
    policy = [text for text in found if "Content Security Policy" in text or "Error:" in text]
    assert not policy


@pytest.fixture
async def page(context: BrowserContext, api: Api, complaints: list[str]) -> Page:
    """A page whose owner is signed in as an admin."""
    return await signed_in(context, api)
