"""The system's Chromium, and the account that the browser tests use."""

from __future__ import annotations

import json
import shutil

from playwright.async_api import BrowserContext, Page

from harness.api import Api

EMAIL, PASSWORD = "admin@example.com", "correct horse battery"


def chromium() -> str:
    """The path of the system's Chromium."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found is not None, "the browser tests need Chromium: apt-get install chromium"
    return found


async def signed_in(context: BrowserContext, api: Api) -> Page:
    """A page whose owner has made the first account, an admin."""
    answer = await context.request.post(
        f"{api.url}/monitoring/api/auth/setup",
        data=json.dumps({"email": EMAIL, "password": PASSWORD, "confirm_password": PASSWORD}),
        headers={"content-type": "application/json"},
    )
    assert answer.ok, await answer.text()
    return await context.new_page()
