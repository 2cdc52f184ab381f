"""The system's Chromium, and the account that the browser tests use."""

from __future__ import annotations

import shutil

EMAIL, PASSWORD = "admin@example.com", "correct horse battery"


def chromium() -> str:
    """The path of the system's Chromium."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found is not None, "the browser tests need Chromium: apt-get install chromium"
    return found
