"""Every report holds against itself: a few made by hand, and those of samples that other tests analyse too."""

import msgspec
import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.report.finding import Evidence, Saving
from advisor.report.model import Together
from advisor.report.recording import Prediction
from advisor.report.step import PathPart
from advisor.reports import formats
from advisor.views.replay.edits import CheaperDispatch, Edits
from tests.analysed import analysed
from tests.engine.test_headline import STEP_US, second
from tests.engine.test_rule import halved, ruled, steps
from tests.laws import broken
from tests.paths import ROOT
from tests.rules.test_rules import queued, repeat, small_kernels

replace = msgspec.structs.replace


def overlapping():
    """A chain of products on one stream, copies on another, in a step bound by the device."""

    def body(trace, host, gpu):
        trace.launch(host + 1, gpu, gpu + 400, "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNN")
        trace.launch(host + 2, gpu + 100, gpu + 700, "vectorized_elementwise_kernel", stream=9)
        trace.launch(host + 3, gpu + 690, gpu + 1000, "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNN")

    return queued(body, gpu=1000).timeline()


MOST = Edits.exact(CheaperDispatch(0.2))

BY_HAND = {
    "launch-bound": lambda: run(repeat(100, small_kernels).timeline(), built_in().values()),
    "overlapping": lambda: run(overlapping(), built_in().values()),
    "two fixes": lambda: run(steps(), [second(), ruled(halved())]),
    "an alternative": lambda: run(steps(), [second(), ruled(halved(counted=False, instead_of=("acme/slower",)))]),
    "allowed": lambda: run(steps(), [second(), ruled(halved())], allow={"acme/slow": "known"}),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_report_made_by_hand_keeps_the_laws(name):
    assert broken(BY_HAND[name]()) == []


@pytest.mark.parametrize("path", sorted((ROOT / "samples").glob("*/slow.*")), ids=lambda p: p.parent.name)
def test_a_samples_report_keeps_the_laws(path):
    assert broken(analysed(path)) == []


def test_each_law_is_noticed_where_it_is_broken():
    report = BY_HAND["two fixes"]()
    first, *others = report.findings
    time = report.time[0]
    whole = Prediction(low=STEP_US, expected=STEP_US, high=STEP_US)
    for wrong in (
        replace(report, time=(replace(time, compute_us=time.compute_us + 5), *report.time[1:])),
        replace(report, critical_path=(PathPart("kernel-to-kernel", 1e3, 1.0, 9),), time=(replace(time, idle_us=0.0, compute_us=time.compute_us + time.idle_us),)),
        replace(report, headline=replace(report.headline, predicted_step_us=whole, together=Together(whole, report.headline.together.findings))),
        replace(report, headline=replace(report.headline, together=Together(report.headline.predicted_step_us, ("acme/slow-1",)))),
        replace(report, findings=(replace(first, evidence_us=1e6), *others)),
        replace(report, findings=(replace(first, saving=Saving(0.0, 0.1, 0.2, "simulated")), *others)),
    ):  # fmt: skip
        assert broken(wrong)


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        ({}, False),  # as good as the one that counts
        ({"edits": MOST}, True),
        ({"edits": MOST, "confidence": 0.4}, False),  # no more likely than not
        ({"edits": MOST, "instead_of": ("acme/other",)}, False),  # nothing that it could stand in for
        ({"edits": MOST, "status": "possible", "possible_why": "Recording may have made it.", "decide_with": "a timer"}, False),
    ],
)
def test_the_better_of_two_ways_to_one_gain_counts(said, counts):
    """One way takes half of what issuing costs, the other most of it: both at once cannot be had."""
    other = halved(**{"counted": False, "instead_of": ("acme/slower",), **said})
    report = run(steps(), [second(), ruled(other)])
    told = {finding.rule: finding.left_out for finding in report.findings}
    assert (told["acme/slow"] == "") == counts and told["acme/slower"] == ("an alternative to acme/slow" if counts else "")
    assert report.headline.together.findings == ("acme/slow-1" if counts else "acme/slower-1",)
    assert report.headline.predicted_step_us.expected == pytest.approx(STEP_US - max(f.saving.expected for f in report.findings if not f.left_out), rel=0.01)
    assert broken(report) == []


def test_what_another_stream_runs_in_a_gap_is_no_gap():
    """A product waits 300 µs for the one before it, in the trace's order of streams, while another stream keeps the device busy."""
    report = BY_HAND["overlapping"]()
    assert sum(part.share for part in report.critical_path if part.link == "kernel-to-kernel") < 0.05


def test_evidence_is_told_of_one_step():
    report = analysed(ROOT / "samples" / "launch-gap" / "slow.json.gz")
    gap = report.findings[0]
    assert gap.rule == "launch-gap" and gap.evidence_us == pytest.approx(sum(item.dur_us for item in gap.evidence) / report.window.steps)
    shown = formats()["markdown"].render(report)
    assert "Evidence per step (mean of 2)" in shown


def test_places_that_lie_in_one_another_are_not_added_up():
    """Of a loader that takes 15 µs of a step of 20, and an op in it that takes 12."""
    places = Evidence("next batch", 0.0, 60.0, 4), Evidence("aten::stack in the loader", 1.0, 48.0, 4)
    (finding,) = run(steps(), [ruled(halved(evidence=places))]).findings
    assert finding.evidence_us == pytest.approx(15.0)
