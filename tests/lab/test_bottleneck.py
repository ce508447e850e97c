"""What `identify_bottleneck` takes, and what it says of each."""

import math

import pytest

import advisor
from advisor.errors import UsageError
from advisor.lab.attention.components import COMPONENTS, AttentionProfile, Component
from tests.paths import ROOT, slow

TRACE = ROOT / "samples" / "launch-gap" / "slow.json.gz"
TIMES = dict(zip(COMPONENTS, (2.31, 5.67, 1.23, 4.89, 0.90), strict=True))


PROFILE = AttentionProfile(tuple(Component(name, ms) for name, ms in TIMES.items()))


def test_times_by_name():
    found = advisor.identify_bottleneck({"load": 1, "forward": 2.5, "backward": 6.5})
    assert (found.component, found.percent, found.limit) == ("backward", 65.0, "unknown")
    assert str(found).startswith("backward: 65.0% of the time. Times alone do not tell")
    assert advisor.identify_bottleneck({"only": 3.0}).percent == 100.0


def test_the_same_times_are_the_same_bottleneck_as_a_dict_and_as_a_profile():
    by_name, measured = advisor.identify_bottleneck(TIMES), advisor.identify_bottleneck(PROFILE)
    assert (by_name.component, by_name.percent) == (measured.component, measured.percent) == ("Score Computation", pytest.approx(37.8))
    for found in (by_name, measured, advisor.identify_bottleneck({"qkv_projection": 1.0, "softmax": 2.0})):
        assert found.why.endswith("A fused kernel keeps the scores on the chip.")
    assert "fused" not in advisor.identify_bottleneck({"qkv_projection": 2.0, "softmax": 1.0}).why


def test_a_sum_among_the_times_is_no_part_of_itself():
    assert advisor.identify_bottleneck({**TIMES, "Total": 15.0}) == advisor.identify_bottleneck(TIMES)
    assert advisor.identify_bottleneck({"total": 9.0, "forward": 1.0}).component == "total"  # not of these


@pytest.mark.parametrize("times", [{}, {"a": 0.0}, {"a": -1.0}, {"a": math.nan}, {"a": math.inf}, {"a": "3 ms"}, {"a": None}, 3, [1.0, 2.0], None])
def test_what_holds_no_times_is_refused_with_what_to_give(times):
    with pytest.raises(UsageError) as told:
        advisor.identify_bottleneck(times)
    assert "ms" in told.value.hint


def test_a_report_a_path_and_a_saved_report_are_told_what_bounds_the_step_and_what_to_do():
    report = advisor.analyze(TRACE)
    found = advisor.identify_bottleneck(report)
    assert (found.component, found.limit) == ("launch-bound", "launch")
    assert found.percent == pytest.approx(100 * sum(t.idle.launch for t in report.time) / (report.time[0].window_us - report.added_us(report.time[0])))
    assert report.headline.summary in found.why and report.findings[0].fix.title in found.why
    assert str(found).startswith(f"launch-bound: {found.percent:.1f}% of the time. The GPU is idle")
    assert advisor.identify_bottleneck(TRACE) == advisor.identify_bottleneck(str(TRACE)) == found
    assert advisor.identify_bottleneck(advisor.Report.from_json(report.to_json())) == found


@slow
def test_a_report_without_time_has_a_bottleneck_and_no_share():
    found = advisor.identify_bottleneck(ROOT / "samples" / "kernels" / "pairs.ncu-rep.gz")
    assert math.isnan(found.percent) and "% of the time." not in str(found).split(". ")[0]
    assert found.component == advisor.analyze(ROOT / "samples" / "kernels" / "pairs.ncu-rep.gz").headline.bottleneck
