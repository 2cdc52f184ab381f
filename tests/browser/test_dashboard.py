"""The dashboard as people meet it: in a browser, before a running server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness.api import Api
from harness.browser import EMAIL, PASSWORD
from harness.waiting import eventually
from playwright.async_api import BrowserContext, Page, expect

HOSTILE = "<img src=x onerror=\"document.title='broken in'\"><script>document.title='broken in'</script>"


async def send(api: Api, queue: str, data: object) -> str:
    """Enqueue one task; its id."""
    async with api.client() as client:
        answer = await client.post("/queue/add", json={"queue": queue, "data": data})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["info"]["id"])


async def paused(api: Api, queue: str) -> bool:
    return (await api.state.inspector.counts(queue)).paused


async def test_the_first_visitor_makes_an_account_and_logs_in_again(
    api: Api, context: BrowserContext, complaints: list[str]
) -> None:
    page = await context.new_page()
    await page.goto("/")
    await expect(page.get_by_role("heading", name="Welcome to runqy")).to_be_visible()
    await page.get_by_label("E-mail").fill(EMAIL)
    await page.get_by_label("Password, 8").fill(PASSWORD)
    await page.get_by_label("Password again").fill(PASSWORD)
    await page.get_by_role("button", name="Create account").click()
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()

    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_role("heading", name="Log in to runqy")).to_be_visible()
    await page.get_by_label("E-mail").fill(EMAIL)
    await page.get_by_label("Password").fill("wrong password")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_have_text("invalid email or password")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()


async def test_a_stranger_is_led_to_the_login_and_back(api: Api, page: Page) -> None:
    await page.context.clear_cookies()
    await page.goto("/monitoring/queues/echo.default?state=archived")
    await page.get_by_label("E-mail").fill(EMAIL)
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("heading", name="echo.default")).to_be_visible()
    assert page.url.endswith("/monitoring/queues/echo.default?state=archived")


async def test_the_overview_follows_what_happens(api: Api, page: Page) -> None:
    await page.goto("/monitoring/")
    row = page.get_by_role("row", name="echo.default")
    await expect(row.get_by_role("cell").nth(1)).to_have_text("0")
    await send(api, "echo", {"n": 1})
    await expect(row.get_by_role("cell").nth(1)).to_have_text("1")
    await expect(page.get_by_text("Tasks wait, but no worker is here")).to_be_visible()


async def test_a_queue_is_paused_and_resumed(api: Api, page: Page) -> None:
    await page.goto("/monitoring/queues")
    await page.get_by_role("button", name="Pause echo.default").click()
    await expect(page.get_by_role("button", name="Resume echo.default")).to_be_visible()
    await expect(page.get_by_text("echo.default is paused")).to_be_visible()
    assert await paused(api, "echo.default")
    await page.get_by_role("button", name="Resume echo.default").click()
    await expect(page.get_by_role("button", name="Pause echo.default")).to_be_visible()
    assert not await paused(api, "echo.default")


async def test_a_task_shows_its_payload_as_text_and_its_limits_with_their_origin(api: Api, page: Page) -> None:
    task_id = await send(api, "one.high", {"n": 7, HOSTILE: HOSTILE})
    await page.goto("/monitoring/queues/one.high")
    await page.get_by_role("link", name=task_id[:13]).click()
    await expect(page.get_by_role("heading", name=task_id)).to_be_visible()
    await expect(page.get_by_label("Payload")).to_contain_text(json.dumps(HOSTILE)[1:30])
    limits = page.get_by_label("Limits")
    await expect(limits.get_by_role("row", name="active timeout")).to_contain_text("30 sthe queue")
    assert "broken in" not in await page.title()


async def test_a_task_is_cancelled_after_a_question(api: Api, page: Page) -> None:
    task_id = await send(api, "echo", {"n": 1})
    await page.goto(f"/monitoring/tasks/{task_id}")
    await page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Leave it").click()
    await expect(page.get_by_label("Facts")).to_contain_text("Queue")
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await dialog.get_by_role("button", name="Cancel").click()
    await expect(page.locator(".head")).to_contain_text("archived")
    await expect(page.get_by_role("button", name="Run now")).to_be_visible()


async def test_selected_tasks_are_deleted_together(api: Api, page: Page) -> None:
    for n in range(3):
        await send(api, "echo", {"n": n})
    await page.goto("/monitoring/queues/echo.default")
    await page.get_by_label("Select all on this page").check()
    await page.get_by_role("toolbar").get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("No task of echo.default is pending.")).to_be_visible()
    await eventually(lambda: page.get_by_text("3 deleted").is_visible(), 5, "the message")


async def test_keys_lead_everywhere(api: Api, page: Page) -> None:
    await page.goto("/monitoring/")
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    await page.keyboard.press("g")
    await page.keyboard.press("w")
    await expect(page.get_by_role("heading", name="Workers")).to_be_visible()
    await page.keyboard.press("/")
    await expect(page.get_by_label("Search for tasks")).to_be_focused()
    await page.keyboard.press("Tab")
    await page.get_by_role("heading", name="Tasks").click()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_contain_text("search for tasks")


async def test_a_viewer_is_offered_no_action(api: Api, page: Page) -> None:
    async with api.client() as client:
        account = {"email": "viewer@example.com", "password": PASSWORD, "role": "viewer"}
        assert (await client.post("/api/accounts", json=account)).status_code == 201
    task_id = await send(api, "echo", {"n": 1})
    await page.context.clear_cookies()
    await page.goto(f"/monitoring/tasks/{task_id}")
    await page.get_by_label("E-mail").fill("viewer@example.com")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_label("Facts")).to_contain_text("echo.default")
    await expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    await page.goto("/monitoring/queues")
    await expect(page.get_by_role("link", name="echo.default")).to_be_visible()
    await expect(page.get_by_role("button", name="Pause")).to_have_count(0)


PAGES = ["", "queues", "queues/echo.default", "queues/new", "search?q=state:pending", "errors", "workers", "playground"]
FURTHER_PAGES = ["access", "audit", "system", "settings"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
async def test_every_page_fits_its_screen(api: Api, page: Page, theme: str, width: int, tmp_path: Path) -> None:
    task_id = await send(api, "echo", {"text": "word " * 200})
    await page.set_viewport_size({"width": width, "height": 900})
    await page.add_init_script(f"localStorage.setItem('runqy-settings', JSON.stringify({{theme: '{theme}'}}))")
    for path in [*PAGES, *FURTHER_PAGES, f"tasks/{task_id}"]:
        await page.goto(f"/monitoring/{path}")
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert await page.locator("html").get_attribute("data-theme") == theme
        too_wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert too_wide <= 0, f"{path} is {too_wide} px too wide"
