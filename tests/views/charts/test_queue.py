"""The launch queue: GPU ops that are launched and have not begun."""

from __future__ import annotations

import json

import numpy as np
import pytest

from advisor.report.charts import QueueCurve
from advisor.report.model import Report
from advisor.reports.report import html, perfetto
from advisor.reports.report._queue import points, said
from advisor.views.charts import queue
from advisor.views.trace.launches import Launches
from advisor.views.trace.steps import Steps
from tests.build import Trace


def curves(trace: Trace) -> tuple[QueueCurve, ...]:
    return queue.curves(trace.timeline(), trace.get(Launches), trace.get(Steps))


def ahead(trace: Trace, at: float) -> Trace:
    """A step of 100 µs whose three kernels are launched at its begin and run one after another from its tenth µs on."""
    trace.step(at, 100)
    for k in range(3):
        trace.launch(at + 1 + 2 * k, at + 10 + 30 * k, at + 40 + 30 * k)
    return trace


def test_an_op_stands_in_the_queue_from_its_launch_to_its_begin() -> None:
    (found,) = curves(ahead(ahead(Trace(), 0), 100))
    assert found.time_us[:6].tolist() == [1, 3, 5, 10, 40, 70] and found.length[:6].tolist() == [1, 2, 3, 2, 1, 0]
    # The window is from the first kernel at 10 µs to that of the next step at 110: 2 to 40, 1 to 70, 0 to 101, then 1, 2 and 3.
    assert (found.most, found.median) == (3, 1) and found.empty_share == pytest.approx(0.31)
    assert found.ahead_us == pytest.approx(37.0)
    assert said(found) == (
        "An op of GPU 0 is launched 37.0 µs before it begins (median). The queue holds 1 op in the median of the time, 3 at the most, "
        "and is empty for 31% of the time."
    )


def test_each_device_has_a_queue_of_its_own() -> None:
    trace = ahead(ahead(Trace(), 0), 100)
    trace.launch(8, 60, 70, device=1).launch(108, 160, 170, device=1)
    assert [(curve.device, curve.most) for curve in curves(trace)] == [(0, 3), (1, 1)]


def test_what_was_not_launched_that_anybody_saw_stands_in_no_queue() -> None:
    trace = ahead(ahead(Trace(), 0), 100)
    for at in range(7):  # more than the launches
        trace.gpu(12 + 10 * at, 14 + 10 * at, stream=9)
    assert not curves(trace)


def test_an_op_before_its_launch_is_damage_and_makes_no_queue_negative() -> None:
    trace = ahead(ahead(Trace(), 0), 100)
    trace.launch(60, 50, 55, stream=9)
    (found,) = curves(trace)
    assert found.length.min() == 0 and found.most == 3


def test_few_points_keep_the_most_and_the_fewest_of_each_stretch() -> None:
    rng = np.random.default_rng(7)
    time, length = np.sort(rng.uniform(0, 1000, 5000)), rng.integers(0, 90, 5000)
    curve = QueueCurve(0, time, length, 0, 0, 0.0, 0.0)
    exact = points(curve, 100, 900, 10_000)
    assert exact.time_us[0] == 100 and (exact.most == exact.least).all()
    thin = points(curve, 100, 900, 40)
    assert len(thin.time_us) == 40
    for at, start in enumerate(thin.time_us):
        inside = (exact.time_us >= start) & (exact.time_us < start + 20)
        held = np.r_[exact.most[np.searchsorted(exact.time_us, start, "right") - 1], exact.most[inside]]
        assert (thin.most[at], thin.least[at]) == (held.max(), held.min())


def test_before_the_first_launch_and_after_the_last_nothing_is_made_up() -> None:
    curve = QueueCurve(0, np.array([10.0, 20.0]), np.array([1, 0]), 1, 0, 0.5, 1.0)
    assert points(curve, 0, 5, 600).most.tolist() == [0] and points(curve, 30, 40, 600).most.tolist() == [0]
    assert points(curve, 12, 15, 600).most.tolist() == [1] and points(curve, 0, 30, 600).most.tolist() == [0, 1, 0]


def test_the_page_and_perfetto_show_it() -> None:
    from advisor.engine.rule import built_in
    from advisor.engine.run import analysis

    trace = Trace()
    for step in range(4):
        ahead(trace, 100 * step)
    report = analysis(trace.timeline(), [built_in()["launch-gap"]])
    page = html.render(report)
    assert "is launched 37.0 µs before it begins" in page and 'data-chart="queue"' in page and '"queues":[{"device":0,' in page
    counts = [event for event in json.loads(perfetto.render(report))["traceEvents"] if event["ph"] == "C"]
    processes = {event["pid"] for event in json.loads(perfetto.render(report))["traceEvents"] if event["ph"] == "M" and "GPU 0" in str(event["args"])}
    assert counts and {event["name"] for event in counts} == {"launch queue"} and {event["pid"] for event in counts} <= processes
    assert max(event["args"]["ops"] for event in counts) == 3 and [e["ts"] for e in counts] == sorted(e["ts"] for e in counts)
    saved = Report.from_json(report.to_json())
    assert 'id="queue"' not in html.render(saved) and '"ph":"C"' not in perfetto.render(saved)
