"""The device's clock, set by the fastest launches; a trace whose clocks agree stays as it is."""

import numpy as np
import pytest

from advisor.intervals import CLOCKS_APART_US
from advisor.sources.clocks import FEWEST_LAUNCHES, LEAST_LAUNCH_US, aligned
from advisor.views.health.events import causality
from advisor.views.trace.launches import Launches
from advisor.views.trace.steps import Steps
from advisor.views.workspace import Workspace
from tests.build import Trace


def recorded(behind, launches=20, took=5.5, device=0):
    """Launches 100 µs apart whose kernels begin `took` µs after them, on a device whose clock is behind."""
    trace = Trace()
    for k in range(launches):
        trace.launch(100.0 * k, 100 * k + took - behind, 100 * k + took + 20 - behind, device=device)
    return trace


def starts(timeline):
    return timeline.gpu_ops["start_us"]


def test_a_clock_that_is_behind_is_set_by_the_fastest_launch():
    before = recorded(5).timeline()
    after = aligned(before)
    assert after.source.device_clock_us == pytest.approx(LEAST_LAUNCH_US - 0.5)
    assert starts(after) - starts(before) == pytest.approx(np.full(20, LEAST_LAUNCH_US - 0.5))
    workspace = Workspace(after)
    check = causality(after, workspace.get(Launches), workspace.get(Steps))
    assert check.status == "ok" and "set forward by 2.5" in check.detail


@pytest.mark.parametrize(
    ("behind", "launches", "why"),
    [
        (0, 20, "launches take as long as they do"),
        (-5, 20, "a clock that is ahead shows slow launches, which there are"),
        (5.5 + CLOCKS_APART_US + 1, 20, "what is that far off is for the check of clocks"),
        (5, FEWEST_LAUNCHES - 1, "few launches tell no clock"),
    ],
)
def test_a_clock_that_is_not_told_to_be_behind_stays(behind, launches, why):
    before = recorded(behind, launches).timeline()
    assert aligned(before) is before, why


def test_one_early_record_among_thousands_sets_no_clock():
    trace = recorded(0, 2000).launch(300_000, 300_000 - 4, 300_010)
    before = trace.timeline()
    assert aligned(before) is before


def test_each_device_has_a_clock_of_its_own():
    trace = recorded(5)
    for k in range(20):
        trace.launch(100.0 * k + 50, 100 * k + 55.5, 100 * k + 60, device=1)
    before = trace.timeline()
    after = aligned(before)
    first, then = ({at: one.gpu_ops["start_us"][one.gpu_ops["device"] == at].min() for at in (0, 1)} for one in (before, after))
    assert {at: then[at] - first[at] for at in (0, 1)} == pytest.approx({0: LEAST_LAUNCH_US - 0.5, 1: 0.0})
