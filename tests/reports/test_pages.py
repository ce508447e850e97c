"""What every page keeps to, whichever format, kind of recording or source it is of: it fits, it reads, it asks for nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import advisor
from advisor.engine.analysis import Analysis
from advisor.lab import page as lab
from advisor.report.model import Report
from advisor.reports.report import html
from tests.fuzz import examples
from tests.paths import ROOT
from tests.reports.browser import AXE, CONTRAST, SCREENS, Seen, drawn, opened
from tests.reports.examples import EXAMPLES, NASTY, hostile_trace
from tests.reports.shown import MAKERS, shown
from tests.reports.test_contract import formats
from tests.sources.jax.test_tpu import analyzed as tpu
from tests.sources.jax.test_tpu import core

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SCREENFULS, PRINTED = 6, 5
"""Screens of 1280 x 800 that a page takes, and sheets that it prints on, before anything is unfolded."""


def sample(name: str) -> Analysis:
    return advisor.analyze(ROOT / "samples" / name)


def jax_report(folder: Path) -> Analysis:
    (folder / "profile.xplane.pb").write_bytes(examples.xplane()[-1])
    return advisor.analyze(folder / "profile.xplane.pb")


def measured() -> str:
    """The lab's page, with all that it can hold."""
    table = lab.table([["Function", "Device µs"], [NASTY[0], "3.2"], ["short", "12"]], "Timings")
    plot = lab.lines({"p50 ms": [(1, 2.0), (8, 5.0)], NASTY[1]: [(1, 3.0), (8, 9.0)]}, "batch", "ms")
    return lab.page("Timings by size", table, plot, lab.preformatted(f"Size 8\n{'Function  Device µs  ' * 12}\n{NASTY[2]}"))


def written(folder: Path) -> Iterator[tuple[str, str]]:
    """Every page and its name: one of each thing that has a page, as it is and nasty throughout, of every source, and by hand."""
    for package, make in MAKERS.items():
        render = formats(package)["html"].render
        for what, things in (("", make()), ("-nasty", shown(package))):
            yield from ((f"{package}-{at}{what}", render(thing)) for at, thing in enumerate(things))
    traces: dict[str, Callable[[], Report | Analysis]] = {
        **EXAMPLES, "hostile-trace": hostile_trace, "healthy": partial(sample, "healthy/gemm_loop.json.gz"), "modules": partial(sample, "data-loading/slow.json.gz"),
        "nsys": partial(sample, "nsys/encoder_infer.slow.sqlite"), "job": partial(sample, "jobs/ddp_forward_host"), "jax": partial(jax_report, folder), "tpu": partial(tpu, folder, core(0), core(1)),
        "memory": partial(sample, "memory/kept_features.slow.pickle.gz"), "kernels": partial(sample, "kernels/pairs.ncu-rep.gz"), "large": partial(sample, "../corpus/traces/dla_cifar.slow.trace.zst"),
    }  # fmt: skip
    yield from ((name, html.render(make())) for name, make in traces.items())
    yield "lab", measured()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, text in written(folder):
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
        found[name] = (folder / f"{name}.html").as_uri()
    return found


def plain(pages: dict[str, str]) -> dict[str, str]:
    """Those whose names are of usual length."""
    return {name: url for name, url in pages.items() if not name.endswith("nasty") and not name.startswith("hostile")}


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_every_page_fits_reads_and_asks_for_nothing(browser: Browser, pages: dict[str, str], width: int, scheme: Any) -> None:
    bad = {}
    window = Seen(browser, viewport={"width": width, "height": 900}, color_scheme=scheme)
    with window as page:
        for name, url in pages.items():
            window.go(url)
            opened(page)
            outside = page.evaluate(
                "[...document.querySelectorAll('main > *')].filter((s) => s.getBoundingClientRect().right > innerWidth + 1).map((s) => s.id || s.tagName)"
            )
            found = {
                "wide": page.evaluate("document.documentElement.scrollWidth") > width, "outside": outside, "pale": page.evaluate(CONTRAST),
                "said": [*window.messages], "asked": [asked for asked in window.requests if asked != url and not asked.startswith("data:")],
            }  # fmt: skip
            if any(found.values()):
                bad[name] = {what: told for what, told in found.items() if told}
    assert not bad


RUN_AXE = """axe.run({rules: {'color-contrast': {enabled: false}}, resultTypes: ['violations']})
  .then((found) => [found.passes.length, found.violations.map((one) => [one.id, one.impact, one.nodes[0].html])])"""
"""How many rules hold, and those that do not. CONTRAST holds every text of every page to more than axe's own rule of colours."""


@pytest.mark.skipif("AXE_CORE" not in os.environ and not AXE.exists(), reason="axe-core is not fetched: npm install --prefix .cache axe-core")
@pytest.mark.parametrize(("width", "scheme"), SCREENS[:2])
def test_axe_finds_no_serious_violation(browser: Browser, pages: dict[str, str], width: int, scheme: Any) -> None:
    """By WCAG and axe's good practice, two of a kind unfolded, on a phone in the dark and on a laptop in the light."""
    bad = {}
    window = Seen(browser, viewport={"width": width, "height": 900}, color_scheme=scheme)
    with window as page:
        for name, url in plain(pages).items():
            window.go(url)
            opened(page, 2)
            page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
            passes, violations = page.evaluate(RUN_AXE)
            assert passes > 10
            told = [(rule, html[:200]) for rule, impact, html in violations if impact in ("moderate", "serious", "critical")]
            if told:
                bad[name] = told
    assert not bad


def test_every_page_is_six_screens_and_prints_on_five_sheets(browser: Browser, pages: dict[str, str]) -> None:
    large = {}
    window = Seen(browser, viewport={"width": 1280, "height": 800})
    with window as page:
        for name, url in plain(pages).items():
            window.go(url)
            drawn(page)
            screens = page.evaluate("document.documentElement.scrollHeight") / 800
            sheets = len(re.findall(rb"/Type\s*/Page[^s]", page.pdf(format="A4")))
            if screens > SCREENFULS or sheets > PRINTED:
                large[name] = screens, sheets
    assert not large


A4_WIDTH = 711
"""CSS pixels between the margins that the style sheet sets: 210 mm less 22."""


def test_no_printed_page_is_wider_than_its_sheet(browser: Browser, pages: dict[str, str]) -> None:
    wide = {}
    window = Seen(browser, viewport={"width": A4_WIDTH, "height": 1000})
    with window as page:
        page.emulate_media(media="print")
        for name, url in plain(pages).items():
            window.go(url)
            drawn(page)
            page.evaluate("dispatchEvent(new Event('beforeprint'))")
            if (width := page.evaluate("document.documentElement.scrollWidth")) > A4_WIDTH:
                wide[name] = width
    assert not wide


def test_a_historys_line_fits_a_phone(browser: Browser, pages: dict[str, str]) -> None:
    with Seen(browser, pages["history-0"], viewport={"width": 400, "height": 800}) as page:
        wide = page.evaluate(
            "[...document.querySelectorAll('.trend, .trend *')].filter((one) => one.scrollWidth > one.clientWidth + 1 && one.clientWidth).length"
        )
        box = page.locator(".trend").bounding_box()
        assert not wide and box and 300 < box["width"] <= 400
        assert page.locator(".trend-dot").count() == 2 and page.locator(".trend p").first.evaluate("(one) => parseFloat(getComputedStyle(one).fontSize)") > 12
