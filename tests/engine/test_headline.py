"""The headline: what every fix together gains, of findings that stand."""

from html import unescape

import msgspec
import pytest

from advisor.engine.grade import Weight, graded
from advisor.engine.headline import judge, torn
from advisor.engine.rule import Found
from advisor.engine.run import analyze, run
from advisor.report.finding import Evidence, Fix, Saving
from advisor.report.recording import Health
from advisor.report.wording import left_out
from advisor.reports import formats
from advisor.views.health import TraceHealth
from advisor.views.replay.true_step import TrueStep
from advisor.views.time.bound import Bound, Shares
from advisor.views.workspace import Workspace
from tests.engine.test_rule import halved, ruled, steps
from tests.paths import TRACES

# A kernel of 4 µs every 20 µs, all of it issuing: half of that is 10 µs.
STEP_US, HALF_US = 20.0, 10.0
POSSIBLE = {"status": "possible", "possible_why": "Recording may have made it.", "decide_with": "advisor analyze TRACE --step-ms MS"}


def second(**said):
    """The same finding by another rule."""
    made = ruled(halved(**said))
    return type(made)("acme/slower", made.function)


def as_json(report):
    return msgspec.json.decode(msgspec.json.encode(report))


def test_a_finding_that_is_only_possible_gains_nothing_in_the_headline():
    report = run(steps(), [ruled(halved(**POSSIBLE))])
    (found,) = report.findings
    assert found.status == "possible" and found.severity == "low" and found.saving.expected_us == pytest.approx(HALF_US, rel=0.1)
    after = as_json(report)["headline"]["predicted_step_us"]
    assert after == {"low": STEP_US, "expected": STEP_US, "high": STEP_US}


def test_a_possible_finding_adds_nothing_to_one_that_stands():
    alone = run(steps(), [second()])
    both = run(steps(), [second(), ruled(halved(**POSSIBLE))])
    assert {f.status for f in both.findings} == {"found", "possible"}
    assert alone.headline.predicted_step_us.expected == pytest.approx(STEP_US - HALF_US, rel=0.1)
    assert as_json(both)["headline"] == as_json(alone)["headline"]


@pytest.mark.parametrize(
    ("said", "allow", "why"),
    [
        ({}, {}, ""),
        (POSSIBLE, {}, "unconfirmed"),
        ({}, {"acme/slow": "known"}, "allowed"),
        ({"counted": False}, {}, "its gain overlaps with other fixes"),
        ({"per": "request"}, {}, "makes a request shorter, not the step"),
    ],
)
def test_what_the_step_with_every_fix_leaves_out_is_said_and_in_no_path_after_the_fixes(said, allow, why):
    report = run(steps(), [ruled(halved(**said))], allow=allow)
    (found,), head = report.findings, report.headline
    assert found.left_out == why
    assert (head.predicted_step_us.expected == head.step_us) == bool(why) and (report.critical_path_after == ()) == bool(why)
    told = f"Not counted as making the step shorter: {found.rule} ({why})."
    for form in ("text", "markdown", "html"):
        shown = " ".join(unescape(formats()[form].render(report)).replace("\\", "").split())
        assert (told in shown) == bool(why), form


def test_a_step_with_every_fix_is_named_only_where_it_is_shown():
    report = run(steps(), [ruled(halved(counted=False)), second()])
    assert left_out(report) == "Not included in the combined estimate: acme/slow (its gain overlaps with other fixes)."


def test_two_that_stand_are_replayed_together():
    both = run(steps(), [second(), ruled(halved())])
    assert both.headline.predicted_step_us.expected == pytest.approx(STEP_US / 4, rel=0.1)  # half of a half


def test_the_headline_is_no_surer_than_the_findings_that_it_rests_on():
    """A team's rule is held to be off by 1% of the step below and 8% above: two that halve 20 µs leave 5 µs, and would
    leave 3.4 to 5.2; but the kernel of 4 µs, which neither shortens, stays."""
    one = run(steps(), [second()])
    (saving,), after = [f.saving for f in one.findings], one.headline.predicted_step_us
    assert saving.low_us < saving.expected_us < saving.high_us
    assert (after.low, after.high) == pytest.approx((STEP_US - saving.high_us, STEP_US - saving.low_us))
    both = run(steps(), [second(), ruled(halved())]).headline.predicted_step_us
    assert (both.low, both.expected, both.high) == pytest.approx((4.0, 5.0, 5.2), rel=0.05)


@pytest.mark.parametrize(
    ("shares", "high_us", "is_torn"),
    [
        ((0.45, 0.13, 0.0, 0.42), 40.0, True),  # at 40 of 32 µs the kernels take 36 %, and the device idles for 54
        ((0.45, 0.13, 0.0, 0.42), 32.5, False),  # 44 and 43 %
        ((0.55, 0.05, 0.0, 0.40), 40.0, False),  # kernels work for most of the step
        ((0.48, 0.0, 0.48, 0.04), 40.0, False),  # the rest is copies
        ((0.40, 0.15, 0.0, 0.45), 40.0, False),  # named after its idle time
    ],
)
def test_less_than_half_of_a_step_is_no_sure_bound_where_idle_time_may_be_more(shares, high_us, is_torn):
    bound = Bound("launch-bound" if shares[3] > shares[0] else "gpu-bound", "", Shares(*shares), 0.4)
    step = TrueStep(27.0, 32.0, high_us, 46.0, "estimated")
    assert torn(bound, step) == is_torn
    assert not torn(bound, TrueStep(32.0, 32.0, 40.0, 46.0, "measured"))


def test_no_rule_that_looked_is_no_good_news():
    assert "No rule was run." in formats()["text"].render(run(steps(), ()))


@pytest.mark.parametrize(
    ("touches", "said"),
    [((), "the trace fails the check for profiler overhead (`recording-cost`): 9 of 10 ms"), (("host",), "rules that rely on it were skipped")],
)
def test_only_a_check_that_touches_what_rules_rest_on_kept_them_from_looking(touches, said):
    failed = Health(check="recording-cost", status="failed", detail="9 of 10 ms", touches=touches)
    judged, reason, why = judge(Workspace(steps(), TraceHealth((failed,))), ())
    assert (judged, reason) == ("partly", "checks-failed") and said in why and ("were skipped" in why) == bool(touches)


def test_no_margin_makes_a_saving_the_whole_step():
    """The best that a fix may do leaves 1 of 100 µs: a margin that is a share of the step takes half of that."""
    found = Found(summary="It is slow.", evidence=(Evidence("mm", 12.0, 4.0),), fix=Fix(title="Do less", steps=("Do less.",)))
    judged = graded(ruled(halved()), found, Weight(Saving(90.0, 98.0, 99.0, "simulated"), 100.0), {})
    assert judged.finding.saving.high_us == 99.5


def test_what_bounds_the_step_without_a_finding_that_speaks_of_it_says_why():
    report = analyze(TRACES / "tgn_visits.slow.trace.zst", options={"launch-gap": {"min_saving_share": 0.1}}).report
    assert report.headline.bottleneck == "launch-bound" and "launch-gap" not in {f.rule for f in report.findings}
    assert "launch-gap found nothing to fix: its fix would gain" in report.headline.summary
