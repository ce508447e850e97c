"""The HTML report in a real browser: Debian's chromium, driven by playwright."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from advisor.reports import html
from tests.reports.examples import EXAMPLES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

CHROMIUM = Path("/usr/bin/chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no browser at {CHROMIUM}: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("reports")
    for name, make in EXAMPLES.items():
        (folder / f"{name}.html").write_text(html.render(make()), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in EXAMPLES}


class Seen:
    """A page, and what it said and asked for."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page: Page = browser.new_page(**options)
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", self.refuse)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)

    def refuse(self, dialog: Dialog) -> None:
        self.messages.append(dialog.message)
        dialog.dismiss()

    def __enter__(self) -> Page:
        return self.page

    def __exit__(self, *error: object) -> None:
        self.page.close()


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("width", [400, 1280, 3840])
def test_nothing_overflows_errs_or_is_fetched(browser: Browser, files: dict[str, str], name: str, width: int) -> None:
    seen = Seen(browser, files[name], viewport={"width": width, "height": 900})
    with seen as page:
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        page.wait_for_timeout(50)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        inside = "[...document.querySelectorAll('main > section')].every((s) => s.getBoundingClientRect().right <= innerWidth)"
        assert page.evaluate(inside)
        assert seen.messages == []
        assert [url for url in seen.requests if not url.startswith("data:")] == [files[name]]


def column(page: Page, number: int) -> list[str]:
    """The visible texts of a column of the kernel table."""
    cells = page.locator(f"#kernel-table tbody tr:visible > :nth-child({number})")
    return [text.strip() for text in cells.all_inner_texts()]


def test_sorting(browser: Browser, files: dict[str, str]) -> None:
    with Seen(browser, files["launch-bound"]) as page:
        calls = page.locator("#kernel-table").get_by_role("button", name="Calls")
        calls.click()
        assert column(page, 5) == ["1,362", "1,008", "288", "288", "144"]
        assert page.locator("#kernel-table th", has_text="Calls").get_attribute("aria-sort") == "descending"
        calls.press("Enter")
        assert column(page, 5) == ["144", "288", "288", "1,008", "1,362"]
        assert page.locator("#kernel-table th", has_text="Calls").get_attribute("aria-sort") == "ascending"
        page.locator("#kernel-table").get_by_role("button", name="Family").click()
        assert column(page, 2) == sorted(column(page, 2))
        assert page.locator("#kernel-table th[aria-sort]").count() == 1


def test_search(browser: Browser, files: dict[str, str]) -> None:
    with Seen(browser, files["launch-bound"]) as page:
        box = page.get_by_label("Search kernels")
        box.fill("elementwise BF16")
        assert column(page, 4) == ["aten::gelu"]
        assert page.locator("#told-kernel-table").inner_text() == "1 of 5 shown"
        box.fill("no such kernel")
        assert column(page, 4) == []
        box.fill("")
        assert len(column(page, 4)) == 5


def test_a_deep_link_opens_its_finding(browser: Browser, files: dict[str, str]) -> None:
    with Seen(browser, files["hostile"]) as page:
        last = page.locator(".finding").last
        assert not last.evaluate("(one) => one.open")
        page.evaluate("(id) => { location.hash = id; }", last.get_attribute("id"))
        page.wait_for_function("(id) => document.getElementById(id).open", arg=last.get_attribute("id"))
    with Seen(browser, files["launch-bound"] + "#finding-launch-gap-2") as page:
        page.wait_for_timeout(700)
        assert page.locator("#finding-launch-gap-2").evaluate("(one) => one.open")
        assert 0 <= page.locator("#finding-launch-gap-2").evaluate("(one) => one.getBoundingClientRect().top") < 700


def test_all_findings_open_and_close(browser: Browser, files: dict[str, str]) -> None:
    with Seen(browser, files["hostile"]) as page:
        page.get_by_role("button", name="Open all").click()
        assert page.locator(".finding[open]").count() == 10
        page.get_by_role("button", name="Close all").click()
        assert page.locator(".finding[open]").count() == 0


def test_copy(browser: Browser, files: dict[str, str]) -> None:
    with Seen(browser, files["launch-bound"]) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator("#finding-sync-stall").get_by_role("button", name="Copy").first.click()
        page.get_by_text("Copied").first.wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == "if next_token.item() == eos:\n    break"


def test_hostile_names_stay_text(browser: Browser, files: dict[str, str]) -> None:
    with Seen(browser, files["hostile"]) as page:
        assert page.locator("img, iframe, object, embed, form, [onerror], [onmouseover], [onfocus], [autofocus]").count() == 0
        assert page.locator("script").count() == 2
        assert page.title() != "pwned"
        assert page.evaluate("[...document.querySelectorAll('a')].every((a) => !/^(javascript|data):/.test(a.href))")
        assert page.locator("#kernel-table").inner_text().count("</script><img src=x onerror=alert(1)>") >= 1


def test_everything_is_readable_without_javascript(browser: Browser, files: dict[str, str]) -> None:
    with Seen(browser, files["launch-bound"], java_script_enabled=False) as page:
        assert page.locator("#kernel-table tbody tr:visible").count() == 5
        assert not page.get_by_label("Search kernels").is_visible()
        closed = page.locator(".finding .page > summary")
        if closed.count():
            closed.first.click()
        assert page.locator("#finding-launch-gap .fix li").first.is_visible()


def test_the_keyboard_reaches_the_report(browser: Browser, files: dict[str, str]) -> None:
    with Seen(browser, files["launch-bound"]) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
        summary = page.locator("#finding-launch-gap > summary")
        summary.focus()
        page.keyboard.press("Enter")
        assert not page.locator("#finding-launch-gap").evaluate("(one) => one.open")


CONTRAST = """() => {
  const luminance = (c) => { const p = c.map((v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * p[0] + .7152 * p[1] + .0722 * p[2]; };
  const parse = (t) => (t.match(/[\\d.]+/g) || []).map(Number);
  const ground = (n) => { for (; n; n = n.parentElement) { const c = parse(getComputedStyle(n).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) { const n = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || ["SCRIPT", "STYLE"].includes(n.tagName) || !n.checkVisibility()) continue;
    const [a, b] = [luminance(parse(getComputedStyle(n).color).slice(0, 3)), luminance(ground(n))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push([n.className || n.tagName, walker.currentNode.data.trim().slice(0, 30), ratio.toFixed(2)]); }
  return bad; }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_text_has_contrast(browser: Browser, files: dict[str, str], name: str, scheme: str) -> None:
    """WCAG AA: 4.5 to 1 for every text that shows."""
    with Seen(browser, files[name], color_scheme=scheme) as page:
        assert page.evaluate(CONTRAST) == []
