"""Takes the screenshots in docs/shots/ anew: python docs/shots.py (needs playwright and /usr/bin/chromium)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import advisor
from advisor.compare import compare
from advisor.reports.comparison import html as comparison
from advisor.reports.report import html

ROOT = Path(__file__).parents[1]
SAMPLES, SHOTS = Path("samples"), Path("docs/shots")  # the pages show where a trace lies: not where this checkout does
FLAME = "document.querySelectorAll('#tree .switch button')[{}].click()"

# File, page, what is shown ("" is the screen), width, scheme, script before.
PAGES: tuple[tuple[str, str, str, int, str, str], ...] = (
    ("report", "launch", "", 1280, "light", ""),
    ("timeline", "launch", "#timeline", 1280, "light", ""),
    ("finding", "launch", "#finding-launch-gap", 1280, "light", ""),
    ("flame-graph", "vit", "#tree", 1280, "dark", FLAME.format(1)),
    ("phone", "vit", "", 400, "dark", ""),
    ("diff", "diff", "", 1280, "light", ""),
)


def pages(folder: Path) -> None:
    """The pages that are shown."""
    for name, path in (("launch", "launch-gap/slow"), ("vit", "data-loading/slow")):  # the README shows the first as text
        (folder / f"{name}.html").write_text(html.render(advisor.analyze(SAMPLES / f"{path}.json.gz")), encoding="utf-8")
    sides = [advisor.analyze(SAMPLES / "launch-gap" / f"{side}.json.gz") for side in ("slow", "fixed")]
    (folder / "diff.html").write_text(comparison.render(compare(sides[:1], sides[1:])), encoding="utf-8")


def shoot(browser: Any, url: str, target: Path, selector: str, width: int, scheme: str, script: str) -> None:
    """One picture."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.goto(url)
    page.wait_for_timeout(500)
    if script:
        page.evaluate(script)
    page.add_style_tag(content=".top { position: static; }")
    page.wait_for_timeout(300)
    (page.locator(selector) if selector else page).screenshot(path=target)
    page.close()


def main() -> None:
    """All of them."""
    from playwright.sync_api import sync_playwright

    os.chdir(ROOT)
    SHOTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        folder = Path(name)
        pages(folder)
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"])
        for shot, page, selector, width, scheme, script in PAGES:
            shoot(browser, (folder / f"{page}.html").as_uri(), SHOTS / f"{shot}.png", selector, width, scheme, script)


if __name__ == "__main__":
    main()
