"""The viewer in a real browser: nothing is refused by its own content policy, and keys, copying and news work."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright
from view_shelf import Shelf

from agentrl.monitor.serving import Server, listen
from agentrl.view.app import View

NEWS_MS = 20_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed: scripts/install-chromium.sh")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(shelf: Shelf) -> Iterator[str]:
    listening = listen("127.0.0.1", 0, "viewer")
    server = Server(uvicorn.Config(View(shelf.reader).app(["127.0.0.1"]), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A tab; what its console complains of fails the test."""
    context = browser.new_context(base_url=address, permissions=["clipboard-read", "clipboard-write"])
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("dialog", lambda dialog: complaints.append(f"a script ran: {dialog.message}"))
    yield tab
    context.close()
    assert complaints == []


def test_every_page__loads_without_a_complaint(page: Page, shelf: Shelf) -> None:
    odd = shelf.odd.trajectory
    (group, *_) = shelf.data("/runs/grouped/groups")["groups"]
    for path in (
        "/", "/runs/plain", "/runs/plain/trajectories", "/runs/plain/groups", "/runs/grouped/groups", "/runs/plain/steps/1",
        f"/groups/{group['grp']}", f"/trajectories/{odd}", f"/trajectories/{odd}/tokens",
        f"/compare/{odd}/{shelf.running.trajectory}", "/queries", "/queries/stuck?run=plain",
    ):  # fmt: skip
        page.goto(path)
        assert page.locator("h1").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{path} is wider than the window"
        assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "flex", "the style sheet is there"


def test_keys__rows_are_walked_and_opened(page: Page) -> None:
    page.goto("/runs/plain/trajectories")
    links = page.locator("table.rows tbody tr td:first-child a")
    second, third = (links.nth(n).get_attribute("href") for n in (1, 2))
    for key in ("j", "j", "j", "k"):
        page.keyboard.press(key)
    assert page.locator("tr.current a").first.get_attribute("href") == second
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{second}")
    page.keyboard.press("p")
    page.wait_for_url(f"**{third}")


def test_keys__in_a_field_are_text(page: Page) -> None:
    page.goto("/runs/plain/trajectories")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.closest('.filters') !== null")
    page.locator("input[name=task]").click()
    page.keyboard.type("jk?t1")
    assert page.locator("input[name=task]").input_value() == "jk?t1"
    assert not page.locator("dialog").is_visible()


def test_help__opens_and_closes(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("?")
    assert page.locator("dialog").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("dialog").is_visible()


def test_filter__form_leads_to_an_address_that_shows_the_same(page: Page) -> None:
    page.goto("/runs/plain/trajectories")
    page.locator("select[name=place]").select_option("dropped")
    page.get_by_role("button", name="show").click()
    page.wait_for_url("**place=dropped**")
    assert page.locator("table.rows tbody tr").count() == 1
    assert page.locator("select[name=place]").input_value() == "dropped"
    page.reload()
    assert page.locator("table.rows tbody tr").count() == 1


def test_copy__takes_the_statement(page: Page) -> None:
    page.goto("/runs/plain/trajectories?place=dropped")
    page.locator("summary", has_text="SQL of this page").click()
    page.locator("[data-copy]").first.click()
    page.get_by_text("copied").wait_for()
    statement = page.locator(".statement pre").first.inner_text()
    assert page.evaluate("navigator.clipboard.readText()") == statement


def test_news__are_counted_and_move_nothing(page: Page, shelf: Shelf) -> None:
    page.goto("/runs/grouped/trajectories")
    before = page.locator("table.rows tbody").inner_text()
    assert shelf.grouped.open(2)
    page.locator("#newer.some").wait_for(timeout=NEWS_MS)
    assert page.locator("table.rows tbody").inner_text() == before
    page.locator("#newer a").click()
    page.wait_for_function("n => document.querySelectorAll('table.rows tbody tr').length > n", arg=before.count("\n") + 1)


def test_run__is_kept_up_to_date(page: Page, shelf: Shelf) -> None:
    page.goto("/runs/plain")
    shelf.plain.publish()
    page.get_by_text(f"policy version {shelf.plain.version}").wait_for(timeout=NEWS_MS)


def test_copy__without_a_clipboard_selects_the_statement(page: Page) -> None:
    """As over plain HTTP from another machine."""
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.goto("/runs/plain/trajectories?place=dropped")
    page.locator("summary", has_text="SQL of this page").click()
    page.locator("[data-copy]").first.click()
    page.get_by_text("selected").wait_for()
    assert page.evaluate("window.getSelection().toString().trim()") == page.locator(".statement pre").first.inner_text().strip()


def test_keys__walk_the_groups_and_leave_turns_where_they_are(page: Page, shelf: Shelf) -> None:
    page.goto("/runs/grouped/groups")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/groups/*")
    page.goto(f"/trajectories/{shelf.odd.trajectory}")
    page.keyboard.press("j")
    assert page.locator("section.current").count() == 1
    page.keyboard.press("Enter")
    assert page.url.endswith(str(shelf.odd.trajectory))


def test_refresh__keeps_the_row_and_can_be_paused(page: Page, shelf: Shelf) -> None:
    page.goto("/")
    page.keyboard.press("j")
    with page.expect_response("**/", timeout=NEWS_MS):
        pass
    page.locator("tr.current").wait_for()
    page.get_by_role("button", name="pause").click()
    page.evaluate("document.querySelector('[data-live]').dataset.mark = document.querySelector('tbody').dataset.mark = 'x'")
    page.wait_for_timeout(6000)
    assert page.evaluate("document.querySelector('tbody').dataset.mark") == "x"


def test_page_that_gets_no_answer__says_since_when(browser: Browser, address: str) -> None:
    context = browser.new_context(base_url=address)
    tab = context.new_page()
    tab.goto("/runs/plain")
    tab.route("**/runs/plain", lambda route: route.fulfill(status=503, body="<h1>The database does not answer</h1>"))
    tab.get_by_text("Not up to date since").wait_for(timeout=NEWS_MS)
    assert "The database does not answer" in tab.locator("#away").inner_text()
    tab.unroute("**/runs/plain")
    tab.locator("#away").wait_for(state="hidden", timeout=NEWS_MS)
    context.close()


def test_colours__follow_the_system(browser: Browser, address: str) -> None:
    seen = set()
    for scheme in ("light", "dark"):
        context = browser.new_context(base_url=address, color_scheme=scheme)
        tab = context.new_page()
        tab.goto("/")
        seen.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        context.close()
    assert len(seen) == 2
