"""The HTML report in a real browser: Debian's chromium, driven by playwright."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import advisor
from advisor.engine.analysis import Analysis
from advisor.knowledge import structs
from advisor.report.model import Report
from advisor.reports.report import html
from tests.paths import ROOT
from tests.reports.browser import Seen, drawn, opened
from tests.reports.examples import EXAMPLES, NASTY, healthy, hostile_trace
from tests.reports.report.test_draw import cut

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


def sample(name: str) -> Callable[[], Report]:
    return lambda: advisor.analyze(ROOT / "samples" / f"{name}.json.gz")


# Made by hand, which is what a saved report is; and with a picture.
PAGES: dict[str, Callable[[], Report]] = {
    **EXAMPLES,
    "hostile-trace": hostile_trace,
    "analysed": sample("launch-gap/slow"),
    "analysed-healthy": sample("healthy/gemm_loop"),
    "analysed-modules": sample("data-loading/slow"),
    "job": lambda: advisor.analyze(ROOT / "samples" / "jobs" / "ddp_forward_host"),
}
DRAWN = ["hostile-trace", "analysed", "analysed-healthy", "analysed-modules"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("reports")
    for name, make in PAGES.items():
        (folder / f"{name}.html").write_text(html.render(make()), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in PAGES}


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[Seen]:
    """One for all tests that leave it as it was: each of its own takes the browser half a second."""
    seen = Seen(browser)
    with seen:
        yield seen


def column(page: Page, number: int) -> list[str]:
    """The visible texts of a column of the kernel table."""
    cells = page.locator(f"#kernel-table tbody tr:visible > :nth-child({number})")
    return [text.strip() for text in cells.all_inner_texts()]


def test_sorting(window: Seen, files: dict[str, str]) -> None:
    with window.at(files["launch-bound"]) as page:
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


def test_search(window: Seen, files: dict[str, str]) -> None:
    with window.at(files["launch-bound"]) as page:
        box = page.get_by_label("Search kernels")
        box.fill("elementwise BF16")
        assert column(page, 4) == ["aten::gelu"]
        assert page.locator("#told-kernel-table").inner_text() == "1 of 5 shown"
        box.fill("no such kernel")
        assert column(page, 4) == []
        box.fill("")
        assert len(column(page, 4)) == 5


def test_a_deep_link_opens_its_finding(window: Seen, files: dict[str, str]) -> None:
    with window.at(files["hostile"]) as page:
        last = page.locator(".finding").last
        assert not last.evaluate("(one) => one.open")
        page.evaluate("(id) => { location.hash = id; }", last.get_attribute("id"))
        page.wait_for_function("(id) => document.getElementById(id).open", arg=last.get_attribute("id"))
    with window.at(files["launch-bound"] + "#finding-launch-gap-2") as page:
        page.wait_for_timeout(700)
        assert page.locator("#finding-launch-gap-2").evaluate("(one) => one.open")
        assert 0 <= page.locator("#finding-launch-gap-2").evaluate("(one) => one.getBoundingClientRect().top") < 700


def test_all_findings_open_and_close(window: Seen, files: dict[str, str]) -> None:
    with window.at(files["hostile"]) as page:
        page.get_by_role("button", name="Open all").click()
        assert page.locator(".finding[open]").count() == 10
        page.get_by_role("button", name="Close all").click()
        assert page.locator(".finding[open]").count() == 0


def test_copy(browser: Browser, files: dict[str, str]) -> None:
    with Seen(browser, files["launch-bound"]) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator("#finding-sync-stall > summary").click()
        page.locator("#finding-sync-stall").get_by_role("button", name="Copy").first.click()
        page.get_by_text("Copied").first.wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == "if next_token.item() == eos:\n    break"


def test_hostile_names_stay_text(window: Seen, files: dict[str, str]) -> None:
    with window.at(files["hostile"]) as page:
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


def test_the_keyboard_reaches_the_report(window: Seen, files: dict[str, str]) -> None:
    with window.at(files["launch-bound"]) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
        summary = page.locator("#finding-launch-gap > summary")
        summary.focus()
        page.keyboard.press("Enter")
        assert not page.locator("#finding-launch-gap").evaluate("(one) => one.open")


# --- charts


@pytest.mark.parametrize("name", DRAWN)
def test_every_chart_is_drawn(window: Seen, files: dict[str, str], name: str) -> None:
    with window.at(files[name]) as page:
        opened(page)
        charts = page.locator("[data-chart]")
        assert charts.count() >= 3
        for number in range(charts.count()):
            assert charts.nth(number).locator("canvas, svg").count() == 1
        assert page.locator("[data-moment]:visible canvas").count() == page.locator(".finding").count()
        # Something is painted: not one colour alone.
        colours = page.locator("#timeline canvas").evaluate(
            "(c) => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"
        )
        assert colours > 5


def test_a_saved_report_says_what_it_does_not_hold(window: Seen, files: dict[str, str]) -> None:
    with window.at(files["launch-bound"]) as page:
        assert page.locator("canvas").count() == 0
        opened(page)
        assert "A saved report does not hold the timeline" in page.locator("#timeline").inner_text()
        assert page.locator("#tree svg").count() == 1
        assert page.locator("#roofline svg").count() == 1


PIXELS = "(c) => c.toDataURL()"


def test_the_timeline_zooms_by_wheel_keys_buttons_and_drag(window: Seen, files: dict[str, str]) -> None:
    with window.at(files["analysed"]) as page:
        canvas = page.locator("#timeline canvas")
        canvas.scroll_into_view_if_needed()
        whole = canvas.evaluate(PIXELS)
        box = canvas.bounding_box()
        assert box
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(*middle)
        before = page.evaluate("scrollY")
        page.mouse.wheel(0, -100)
        page.wait_for_function("(y) => scrollY !== y", arg=before)  # not focused: the page scrolls
        canvas.evaluate("(c) => c.focus({ preventScroll: true })")
        canvas.scroll_into_view_if_needed()
        canvas.press("Escape")
        page.mouse.move(0, 0)
        page.get_by_role("button", name="Step: show what was shown first").first.click()
        assert canvas.evaluate(PIXELS) == whole
        canvas.press("+")
        closer = canvas.evaluate(PIXELS)
        assert closer != whole
        canvas.press("d")
        assert canvas.evaluate(PIXELS) != closer
        canvas.press("a")
        canvas.press("-")
        canvas.press("Home")
        assert canvas.evaluate(PIXELS) == whole
        canvas.dispatch_event("wheel", {"deltaY": -300, "clientX": middle[0], "clientY": 300, "bubbles": True, "cancelable": True})
        wheeled = canvas.evaluate(PIXELS)
        assert wheeled != whole
        box = canvas.bounding_box()
        assert box
        page.mouse.move(middle[0], box["y"] + 15)
        page.mouse.down()
        page.mouse.move(middle[0] - 150, box["y"] + 15, steps=4)
        page.mouse.up()
        page.mouse.move(0, 0)
        assert canvas.evaluate(PIXELS) not in (wheeled, whole)


def test_the_timeline_tells_what_is_hovered_and_chosen(window: Seen, files: dict[str, str]) -> None:
    with window.at(files["analysed"]) as page:
        told = page.locator("#timeline .tl-told")
        assert "Hover or focus" in told.inner_text()
        canvas = page.locator("#timeline canvas")
        canvas.focus()
        seen = set()
        for key in ("ArrowRight", "ArrowRight", "ArrowUp", "ArrowDown", "ArrowLeft"):
            canvas.press(key)
            seen.add(told.inner_text())
        assert len(seen) >= 3
        assert any("GPU 0 stream 7" in text and "launched" in text for text in seen)
        canvas.press("Escape")
        assert "Hover or focus" in told.inner_text()


def test_a_kernel_is_found_by_name_and_zoomed_to(window: Seen, files: dict[str, str]) -> None:
    """From load to a chosen kernel: type its name, press Enter."""
    with window.at(files["analysed"]) as page:
        canvas = page.locator("#timeline canvas")
        box = page.get_by_role("searchbox", name="Find", exact=True)
        box.fill("layer_norm_kernel")
        box.press("Enter")
        assert "layer_norm_kernel" in page.locator("#timeline .tl-told b").inner_text()
        assert "1 of" in page.locator(".tl-find [role=status]").inner_text()
        first = canvas.get_attribute("data-from")
        assert float(canvas.get_attribute("data-to") or 0) - float(first or 0) < 200
        box.press("Enter")
        assert canvas.get_attribute("data-from") != first


def test_a_finding_shows_its_moment_in_the_timeline(window: Seen, files: dict[str, str]) -> None:
    with window.at(files["analysed"]) as page:
        canvas = page.locator("#timeline canvas")
        whole = canvas.get_attribute("data-from"), canvas.get_attribute("data-to")
        page.get_by_role("group", name="Moments of the findings").get_by_role("button").first.click()
        assert (canvas.get_attribute("data-from"), canvas.get_attribute("data-to")) != whole
        assert page.locator("#timeline .legend .marked").count() == 1


def test_the_flame_graph_stands_beside_the_treemap(window: Seen, files: dict[str, str]) -> None:
    with window.at(files["analysed-modules"]) as page:
        tree = page.locator("#tree")
        tree.get_by_role("button", name="Flame graph, GPU").click()
        assert tree.get_by_role("button", name="Flame graph, GPU").get_attribute("aria-pressed") == "true"
        assert ".py:" in tree.locator("svg").inner_html()
        before = tree.locator("svg g").count()
        tree.locator("svg [role=button]").nth(1).click()
        assert tree.locator("svg g").count() != before
        tree.get_by_role("button", name="Flame graph, host").click()
        assert "host time" in (tree.locator("svg").get_attribute("aria-label") or "")


def test_ten_rows_until_all_are_asked_for(window: Seen, files: dict[str, str]) -> None:
    with window.at(files["analysed-modules"]) as page:
        rows = page.locator("#kernel-table tbody tr:visible")
        assert rows.count() == 10
        page.locator("#kernels .more-rows").click()
        assert rows.count() > 10


def test_roofline_and_treemap_answer_to_keys(window: Seen, files: dict[str, str]) -> None:
    with window.at(files["analysed"]) as page:
        opened(page)
        dot = page.locator("#roofline .dot").first
        dot.focus()
        assert "of its roofline" in page.locator("#roofline .tl-told").inner_text()
        name = page.locator("#roofline .tl-told b").inner_text()
        dot.press("ArrowRight")
        assert page.locator("#roofline .tl-told b").inner_text() != name
        dot.press("Enter")
        assert page.locator("#kernel-table tbody tr:visible").count() == 1
        boxes = page.locator("#tree svg [role=button]")
        before = page.locator("#tree svg g").count()
        boxes.first.focus()
        boxes.first.press("Enter")
        assert page.locator("#tree .crumbs button").count() == 2
        assert page.locator("#tree svg g").count() < before
        page.locator("#tree .crumbs button").first.click()
        assert page.locator("#tree svg g").count() == before


def test_ops_and_copies_are_searched_and_sorted(window: Seen, files: dict[str, str]) -> None:
    with window.at(files["analysed-modules"]) as page:
        opened(page)
        rows = page.locator("#op-table tbody tr:visible")
        everything = rows.count()
        page.get_by_label("Search ops").fill("conv")
        assert 0 < rows.count() < everything
        page.get_by_label("Search copies").fill("no such copy")
        assert page.locator("#copy-table tbody tr:visible").count() == 0
        page.get_by_label("Search ops").fill("")
        page.locator("#op-table").get_by_role("button", name="Calls").click()
        calls = [int(text.replace(",", "")) for text in page.locator("#op-table tbody td:nth-child(2)").all_inner_texts()]
        assert calls == sorted(calls, reverse=True)


def test_hostile_names_of_a_trace_stay_text(browser: Browser, files: dict[str, str]) -> None:
    seen = Seen(browser, files["hostile-trace"])
    with seen as page:
        opened(page)
        assert page.locator("img, iframe, object, embed, form, [onerror], [onmouseover], [onfocus], [autofocus]").count() == 0
        assert page.locator("script").count() == 2
        assert page.title() != "pwned"
        canvas = page.locator("#timeline canvas")
        canvas.focus()
        for _ in range(5):
            canvas.press("ArrowRight")
        assert page.locator("#tree").inner_text().count("<script>") or page.locator("#kernels").inner_text().count("<img src=x")
        assert seen.messages == []
        names = page.evaluate("JSON.parse(document.getElementById('data').textContent).names")
        assert NASTY[0] in names and NASTY[1] in names


def test_print_shows_every_moment(browser: Browser, files: dict[str, str]) -> None:
    with Seen(browser, files["analysed"]) as page:
        page.evaluate("document.querySelectorAll('.finding').forEach((one) => { one.open = false; })")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        page.wait_for_timeout(100)
        assert page.locator("[data-moment] canvas:visible").count() == page.locator(".finding.key").count() > 1, "those that are printed open"


COUNTED = """(() => { window.painted = 0; const own = CanvasRenderingContext2D.prototype.fillRect;
  CanvasRenderingContext2D.prototype.fillRect = function (...at) { window.painted++; return own.apply(this, at); }; })()"""


def test_a_step_of_zooming_costs_by_the_screen_not_by_the_trace(browser: Browser, files: dict[str, str], tmp_path: Path) -> None:
    """Of half a million slices no step draws more than a few for each pixel of a row, and the deepest shows single ones."""
    report = advisor.analyze(ROOT / "samples" / "launch-gap" / "slow.json.gz")
    assert report.picture is not None
    many = cut(500_000, 3.0)
    many = structs.replace(many, name=many.name % 50, names=many.names[:50])
    picture = structs.replace(report.picture, cut_whole=lambda: many, step=cut(1_000, 3.0), step_span_us=(0.0, 3_000.0), moments=())
    (tmp_path / "many.html").write_text(html.render(Analysis(healthy(), lambda: picture)), encoding="utf-8")
    with Seen(browser, viewport={"width": 1280, "height": 800}) as page:
        page.add_init_script(COUNTED)
        page.goto((tmp_path / "many.html").as_uri())
        canvas = page.locator("#timeline canvas")
        canvas.press("0")
        for key in ("0", *"+++++++++++++++", "d", "-"):
            page.evaluate("painted = 0")
            canvas.press(key)
            drawn(page)
            assert 0 < page.evaluate("painted") < 2 * 2 * 1280, key
        assert float(canvas.get_attribute("data-to") or 0) - float(canvas.get_attribute("data-from") or 0) < 5_000


def test_no_two_ticks_of_an_axis_have_one_label(window: Seen, files: dict[str, str]) -> None:
    source = (ROOT / "reports" / "templates" / "base.js").read_text(encoding="utf-8")
    label = source[source.index("const onAxis") : source.index("const duration")]
    with window.at(files["healthy"]) as page:
        for step, most in ((0.005, 0.04), (0.01, 12_345.0), (20.0, 100.0), (5e5, 3e6)):
            ticks = [most - 3 * step, most - 2 * step, most - step, most]
            labels = page.evaluate(f"(ticks) => {{ {label} return ticks.map((us) => onAxis(us, {step}, {most})); }}", ticks)
            assert len({*labels}) == 4, labels
