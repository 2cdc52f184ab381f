"""The dashboard as people meet it: in a browser, before a running server."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from harness.api import ADMIN, Api, running_server
from harness.browser import EMAIL, PASSWORD, signed_in
from harness.redis_servers import RedisServer
from harness.registrar import registrar
from harness.waiting import eventually
from harness.workers import Bench, worker_on
from playwright.async_api import Browser, BrowserContext, Page, expect

from runqy.broker.connection import Connection

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
FURTHER_PAGES = ["vaults", "changes", "access", "audit", "system", "settings"]


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


async def test_numbers_of_a_server_that_is_gone_are_called_old(
    tmp_path: Path, valkey: RedisServer, connection: Connection, browser: Browser
) -> None:
    async with running_server(tmp_path, valkey.url) as api:
        context = await browser.new_context(base_url=api.url)
        page = await signed_in(context, api)
        await page.goto("/monitoring/")
        await expect(page.get_by_role("button", name="live")).to_be_visible()
    await expect(page.get_by_text("These numbers are")).to_be_visible()
    await context.close()


async def test_a_read_only_server_offers_no_action(
    tmp_path: Path, valkey: RedisServer, connection: Connection, browser: Browser
) -> None:
    async with running_server(tmp_path, valkey.url, ASYNQ_READ_ONLY="true") as api:
        context = await browser.new_context(base_url=api.url)
        page = await signed_in(context, api)
        await page.goto("/monitoring/queues")
        await expect(page.get_by_role("link", name="echo.default")).to_be_visible()
        await expect(page.get_by_text("read-only server")).to_be_visible()
        await expect(page.get_by_role("button", name="Pause")).to_have_count(0)
        await context.close()


async def test_tasks_are_chosen_with_the_keyboard(api: Api, page: Page) -> None:
    ids = [await send(api, "echo", {"n": n}) for n in range(3)]
    await page.goto("/monitoring/queues/echo.default")
    await expect(page.get_by_role("link", name=ids[2][:13])).to_be_visible()
    for key in "jxjjx":
        await page.keyboard.press(key)
    await expect(page.get_by_role("toolbar")).to_contain_text("2 selected")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text(ids[2])


async def test_a_queue_is_made_and_its_mistakes_are_named(api: Api, page: Page) -> None:
    """R21: a limit that is given in the dashboard is checked there and stamped onto the tasks."""
    await page.goto("/monitoring/queues/new")
    await page.get_by_label("Name, or name.sub-queue").fill("vision")
    await page.get_by_label("Git address").fill("https://example.com/vision.git")
    await page.get_by_label("active_timeout").fill("1d")
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_role("alert")).to_contain_text("active_timeout")
    await page.get_by_label("active_timeout").fill("5m")
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_role("heading", name="vision.default")).to_be_visible()
    await expect(page.get_by_label("Configuration")).to_contain_text("5m")
    async with api.client() as client:
        task_id = (await client.post("/queue/add", json={"queue": "vision", "data": {}})).json()["info"]["id"]
        limits = (await client.get(f"/queue/{task_id}")).json()["Info"]["limits"]
    assert (limits["active_timeout"]["value"], limits["active_timeout"]["source"]) == (300, "queue")
    await page.goto("/monitoring/changes")
    await expect(page.locator("b", has_text="vision")).to_be_visible()


async def test_a_secret_goes_into_a_vault_and_is_never_shown(
    tmp_path: Path, valkey: RedisServer, connection: Connection, browser: Browser
) -> None:
    key = base64.b64encode(bytes(range(32))).decode()
    async with running_server(tmp_path, valkey.url, RUNQY_VAULT_MASTER_KEY=key) as api:
        context = await browser.new_context(base_url=api.url)
        page = await signed_in(context, api)
        await page.goto("/monitoring/vaults")
        await page.get_by_label("Name of the new vault").fill("models")
        await page.get_by_role("button", name="Make vault").click()
        await page.get_by_role("link", name="models").click()
        await page.get_by_role("textbox", name="Key").fill("HF_TOKEN")
        await page.get_by_role("textbox", name="Value").fill("a-very-secret-token")
        await page.get_by_role("button", name="Keep").click()
        await expect(page.get_by_role("cell", name="HF_TOKEN")).to_be_visible()
        assert "a-very-secret-token" not in await page.content()
        await context.close()


async def test_a_task_is_sent_from_the_page(api: Api, page: Page) -> None:
    await page.goto("/monitoring/playground?queue=one.high")
    await expect(page.get_by_label("Fields")).to_contain_text("int")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("alert")).to_contain_text("n is required")
    await page.get_by_role("button", name="Fill in an example").click()
    await page.get_by_role("button", name="Send").click()
    await page.get_by_label("Fields").get_by_role("link").click()
    await expect(page.get_by_label("Payload")).to_contain_text('"n": 1')


async def test_all_that_a_search_finds_are_counted_and_then_cancelled(api: Api, page: Page) -> None:
    for n in range(5):
        await send(api, "echo", {"n": n})
    await send(api, "one.high", {"n": 1})
    await page.goto("/monitoring/search")
    await page.get_by_label("Search for tasks").fill("queue:echo.default state:pending")
    await page.get_by_role("button", name="Search").click()
    await expect(page.get_by_text("5 shown")).to_be_visible()
    assert "q=queue%3Aecho.default%20state%3Apending" in page.url
    await page.get_by_role("button", name="Cancel…").click()
    await expect(page.get_by_role("dialog")).to_contain_text("Cancel: 5 tasks?")
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    await expect(page.get_by_text("5 of 5 done, 0 failed (done)")).to_be_visible()
    await page.goto("/monitoring/errors")
    await expect(page.get_by_role("row", name="cancelled")).to_contain_text("5")
    await page.get_by_role("link", name="cancelled").click()
    await expect(page.get_by_text("5 shown")).to_be_visible()


async def test_the_system_page_names_what_is_not_well(api: Api, page: Page) -> None:
    await send(api, "echo", {"n": 1})
    await page.goto("/monitoring/system")
    await expect(page.get_by_label("Findings")).to_contain_text("tasks wait where no worker serves")
    await page.get_by_text("Settings of the server").click()
    await expect(page.get_by_text("RUNQY_API_KEY", exact=True)).to_be_visible()
    assert ADMIN not in await page.content()


async def test_a_worker_is_paused_after_a_question_and_resumed(
    page: Page, connection: Connection, tmp_path: Path
) -> None:
    """The button, the route, a real worker, and its own record back on the page."""
    with registrar() as told:
        bench = Bench(connection, told, tmp_path, tmp_path / "deployments")
        async with worker_on(bench) as running:
            await eventually(bench.record)
            await page.goto(f"/monitoring/workers/{running.worker.worker_id}")
            await page.get_by_role("button", name="Pause", exact=True).click()
            await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
            await expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
            await expect(page.locator(".head")).to_contain_text("paused")
            task = await bench.send({"echo": 1})
            await page.get_by_role("button", name="Resume", exact=True).click()
            await bench.ended(task)
            await expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
