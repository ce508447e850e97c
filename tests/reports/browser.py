"""Pages in Debian's chromium, driven by playwright."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.paths import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

CHROMIUM = Path("/usr/bin/chromium")
SCREENS = ((400, "dark"), (1280, "light"), (3840, "light"))
"""Width and colour scheme: a phone, a laptop, a wall."""

FETCHED = ROOT / ".cache" / "node_modules" / "axe-core" / "axe.min.js"
AXE = Path(os.environ.get("AXE_CORE", FETCHED))
"""The accessibility tests' engine: .ci/run fetches it."""


class Seen:
    """A page, and what it said and asked for. A window takes the browser longer than what it shows: `go` shows the next page in it."""

    def __init__(self, browser: Browser, url: str = "", **options: Any) -> None:
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page: Page = browser.new_page(**options)
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", self.refuse)
        self.page.on("request", lambda request: self.requests.append(request.url))
        if url:
            self.go(url)

    def go(self, url: str) -> None:
        """Another page, of which nothing was said yet."""
        self.page.goto("about:blank")  # else an address within the page that is shown would not load it again
        self.page.mouse.move(0, 0)
        self.messages.clear()
        self.requests.clear()
        self.page.goto(url)

    @contextmanager
    def at(self, url: str) -> Iterator[Page]:
        """The page at this address, to work with."""
        self.go(url)
        yield self.page

    def refuse(self, dialog: Dialog) -> None:
        self.messages.append(dialog.message)
        dialog.dismiss()

    def __enter__(self) -> Page:
        return self.page

    def __exit__(self, *error: object) -> None:
        self.page.close()


def opened(page: Page, most: int = 1_000) -> None:
    """Unfold everything, or the first of those that stand side by side, and wait until it is drawn."""
    page.evaluate(
        """(most) => document.querySelectorAll("details").forEach((one) => {
          one.open = [...one.parentElement.children].filter((other) => other.tagName === "DETAILS").indexOf(one) < most; })""",
        most,
    )
    drawn(page)


def drawn(page: Page) -> None:
    """Wait for two frames: in the first a page learns its new size, in the second it has drawn; and for what that set off."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 20))))")


CONTRAST = """() => {
  const luminance = (c) => { const p = c.map((v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * p[0] + .7152 * p[1] + .0722 * p[2]; };
  const kept = (make, seen = new Map()) => (key) => seen.has(key) ? seen.get(key) : seen.set(key, make(key)).get(key);
  const parse = (t) => (t.match(/[\\d.]+/g) || []).map((v, i) => t.startsWith("color(") && i < 3 ? 255 * v : Number(v));
  const bright = kept((t) => luminance(parse(t).slice(0, 3)));
  const ground = kept((n) => { const t = n ? getComputedStyle(n).backgroundColor : "rgb(255, 255, 255)", c = parse(t);
    return c.length === 3 || c[3] > 0 ? bright(t) : ground(n.parentElement); });
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) { const n = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || ["SCRIPT", "STYLE"].includes(n.tagName) || !n.checkVisibility()) continue;
    const [a, b] = [bright(getComputedStyle(n).color), ground(n)];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push([n.className || n.tagName, walker.currentNode.data.trim().slice(0, 30), ratio.toFixed(2)]); }
  return bad; }"""
