"""A measured kernel's page shows its launches in the timeline."""

from types import SimpleNamespace

import numpy as np

from advisor.report.charts import Launched
from advisor.reports.report import html
from advisor.reports.report._launches import launches_drawn
from tests.kernels import kernel
from tests.views.kernels.test_join import FEW_WARPS, joined


def test_launches_stand_where_they_ran():
    report = joined(kernel("void gather<int>(const float *, int)", us=777, **FEW_WARPS))
    name = next(row.name for row in report.kernels if row.counted)
    dots = launches_drawn(report.picture, name)
    # Four launches of 60 µs in a window of four steps of 100: the first at the left edge, the last at 300 of 360.
    assert dots.launches == 4 and dots.span_us == 360 and dots.least_us == dots.most_us == 60
    assert dots.points[0] == (52, 10) and dots.points[-1][0] == round(52 + 638 * 300 / 360, 1)
    page = html.render(report)
    assert "Its launches in the timeline" in page and "4 launches in the window" in page
    assert launches_drawn(report.picture, "another") is None and launches_drawn(None, name) is None


def test_of_very_many_launches_the_longest_is_among_those_drawn():
    launched = Launched(np.arange(5000.0), np.where(np.arange(5000) == 1234, 9.0, 1.0))
    dots = launches_drawn(SimpleNamespace(launched={"k": launched}), "k")
    assert 300 <= len(dots.points) <= 301 and min(y for _, y in dots.points) == 10
