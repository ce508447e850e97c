"""What the page's timeline draws, added up in a browser: each row draws for as long as it is busy, at every zoom."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from advisor.errors import AdvisorError
from advisor.intervals import Spans, clip, length, union
from advisor.report.charts import Cut, Lane
from advisor.reports.report._wide import DEEPEST, wide
from advisor.reports.report.html import _asset
from advisor.sources import read
from advisor.views.charts.build import picture
from advisor.views.workspace import Workspace
from tests.golden.facts import name, recordings
from tests.paths import ALL_SAMPLES, MANY_SAMPLES, ROOT
from tests.reports.browser import Seen, drawn

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

FEW = ("samples/launch-gap/slow.json.gz", "samples/nsys/encoder_infer.slow.sqlite")
PIXEL = 1.0
"""What edges of the screen may round to, in pixels of a row."""
OFF = 0.02
PAINTED = """(() => { window.painted = [];
  const own = CanvasRenderingContext2D.prototype.fillRect;
  CanvasRenderingContext2D.prototype.fillRect = function (...at) {
    painted.push([...at, this.fillStyle, this.globalAlpha]);
    return own.apply(this, at); }; })()"""
"""Keeps every rectangle: x, y, width, height, colour and how opaque it is."""
ROW, BETWEEN = 14, 16
"""Pixels: how high a row's slices are, and from one row of a lane to the next."""


def charted(cut: Cut, view: tuple[float, float], most: int = 600_000) -> str:
    """A page that holds nothing but the timeline of this cut. view: what it shows first, in µs from the trace's start."""
    codes: dict[str, int] = {}
    data = {
        "timeline": wide(cut, most, lambda text: codes.setdefault(text, len(codes)), [view]),
        "view": [time - cut.start_us for time in view], "span": [], "moments": [], "short": {}, "tree": [],
    }  # fmt: skip
    text = json.dumps(data | {"names": [*codes]}).replace("<", "\\u003c")
    script = "\n".join(_asset(f"{part}.js") for part in ("base", "timeline", "start"))
    return (
        f'<!doctype html><meta charset="utf-8"><style>{_asset("report.css")}</style><main><div data-chart="timeline"></div></main>'
        f'<script type="application/json" id="data">{text}</script><script>(() => {{{script}}})();</script>'
    )


def rows_of(cut: Cut) -> list[tuple[int, int, Spans]]:
    """The chart's rows: lane, depth, and when something runs."""
    end = cut.slice_start_us + cut.slice_dur_us
    found = sorted({*zip(cut.lane.tolist(), cut.depth.tolist(), strict=True)})
    return [
        (lane, depth, union(cut.slice_start_us[here], end[here]))
        for lane, depth in found
        if depth < DEEPEST and (here := (cut.lane == lane) & (cut.depth == depth)).any()
    ]


def widths(page: Page) -> dict[tuple[int, int], float]:
    """Pixels that each row draws, by the lane's place among those that have rows, and depth."""
    painted = page.evaluate("painted")
    ground = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--sunk').trim()")
    lanes = [y for x, y, _, high, colour, alpha in painted if x == 0 and colour == ground and 0 < alpha < 1 and high >= ROW]
    found: dict[tuple[int, int], float] = {}
    for _, y, width, high, colour, alpha in painted:
        if high != ROW or colour == ground:
            continue
        lane = max(at for at, top in enumerate(lanes) if top <= y)
        key = lane, round((y - lanes[lane]) / BETWEEN)
        found[key] = found.get(key, 0.0) + width * alpha
    return found


def wrong(page: Page, cut: Cut) -> Iterator[str]:
    """The rows that draw more or less than they are busy, in what is shown now."""
    canvas = page.locator("canvas").first
    start, end = (float(canvas.get_attribute(f"data-{at}") or 0) + cut.start_us for at in ("from", "to"))
    wide_px, drawn_px = canvas.evaluate("(c) => c.clientWidth"), widths(page)
    places = {lane: at for at, lane in enumerate(dict.fromkeys(lane for lane, *_ in rows_of(cut)))}
    for lane, depth, spans in rows_of(cut):
        busy = length(clip(spans, start, end)) / (end - start) * wide_px
        found = drawn_px.get((places[lane], depth), 0.0)
        if abs(found - busy) > OFF * busy + PIXEL:
            yield f"{cut.lanes[lane].label}, row {depth}, {end - start:.1f} µs shown: {busy:.1f} pixels busy, {found:.1f} drawn"


def at_three_zooms(window: Seen, cut: Cut, view: tuple[float, float], file: Path, most: int = 600_000) -> list[str]:
    """What is drawn wrongly of the step, of all, and of the middle of the step, fifteen times as near."""
    file.write_text(charted(cut, view, most), encoding="utf-8")
    found = []
    with window.at(file.as_uri()) as page:
        page.wait_for_selector("[data-ready]")
        page.locator("canvas").first.focus()
        for keys in (("Home",), ("0",), ("Home", *"++++++")):
            for key in keys:
                page.evaluate("painted.length = 0")
                page.locator("canvas").first.press(key)
            drawn(page)
            found += wrong(page, cut)
        assert not window.messages
    return found


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[Seen]:
    seen = Seen(browser, viewport={"width": 1280, "height": 800})
    with seen as page:
        page.add_init_script(PAINTED)
        yield seen


@pytest.mark.parametrize("sample", [name(path) for path in recordings()[:: 1 if ALL_SAMPLES else 24]] if MANY_SAMPLES else FEW)
def test_a_row_draws_for_as_long_as_it_is_busy(window: Seen, tmp_path: Path, sample: str) -> None:
    try:
        recording = read(ROOT / sample)
    except AdvisorError:
        pytest.skip("it has no timeline: it is refused")
    if recording.kind != "trace":
        pytest.skip("it has no timeline")
    made = picture(Workspace(*recording.parts), ())
    if made.whole is None or made.step is None:
        pytest.skip("its timeline is empty: nothing is drawn")
    bad = at_three_zooms(window, made.whole, (made.step.start_us, made.step.end_us), tmp_path / "page.html")
    assert not bad


def by_hand(*slices: tuple[int, int, float, float, int]) -> Cut:
    """Lane, depth, start and duration in µs, and kind."""
    lane, depth, start, dur, kind = (np.array(column) for column in zip(*sorted(slices), strict=True))
    many = len(slices)
    lanes = tuple(Lane(f"GPU 0 stream {at}", "gpu", 0, at) for at in range(int(lane.max()) + 1))
    return Cut(
        0.0, float((start + dur).max()), lanes, lane, depth, start.astype(float), dur.astype(float), kind, ("gemm", "fill", "norm"),
        np.arange(many), np.full(many, -1), tuple(f"k{at}" for at in range(many)), np.full(many, -1), 0,
    )  # fmt: skip


STEP_US = 10_000.0


def test_a_product_behind_its_memset_is_drawn(window: Seen, tmp_path: Path) -> None:
    """cuBLAS sets a flag to zero before a large product: both begin within one pixel of a step."""
    steps = [(0, 0, at * 1_000.0, 1.2, 1) for at in range(10)] + [(0, 0, at * 1_000.0 + 1.6, 950.0, 0) for at in range(10)]
    made = by_hand(*steps)
    assert not at_three_zooms(window, made, (0.0, STEP_US), tmp_path / "page.html")
    window.page.locator("canvas").first.press("Home")
    drawn(window.page)
    at = "(share) => { const c = document.querySelector('canvas'); return [...c.getContext('2d').getImageData(c.width * share, 43, 1, 1).data].join(); }"
    assert len({window.page.evaluate(at, share) for share in (0.02, 0.15, 0.55, 0.91)}) == 1, "all of it is the products'"


@pytest.mark.parametrize(
    "slices",
    [
        pytest.param([(0, 0, at * 10.0, 0.4, at % 3) for at in range(1_000)], id="short and far between"),
        pytest.param([(0, 0, at * 2.0, 1.9, at % 3) for at in range(5_000)], id="short and back to back"),
        pytest.param([(0, 0, 0.0, 5_000.0, 0), (0, 1, 4_000.0, 6_000.0, 1), (0, 1, 4_100.0, 3.0, 2)], id="overlapping in a row"),
        pytest.param([(0, 0, at * 100.0, 99.0, at % 3) for at in range(100)] + [(1, 0, 5_000.0, 0.5, 0)], id="long ones"),
    ],
)
def test_rows_of_all_kinds_draw_what_they_are_busy(window: Seen, tmp_path: Path, slices: list[tuple[int, int, float, float, int]]) -> None:
    assert not at_three_zooms(window, by_hand(*slices), (0.0, STEP_US), tmp_path / "page.html")


def test_merged_slices_draw_no_more_than_they_run(window: Seen, tmp_path: Path) -> None:
    """Of a trace with too many to send, what lies outside of the step is merged: a tenth of it runs, and a tenth of it is drawn."""
    made = by_hand(*[(0, 0, at * 10.0, 1.0, 0) for at in range(20_000)])
    assert not at_three_zooms(window, made, (0.0, 500.0), tmp_path / "page.html", most=2_000)
