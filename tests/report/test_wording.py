"""Figures of a sentence next to the figures around it: the same thing has the same figure, and a limit is no measured value."""

import pytest
from msgspec.structs import replace

from advisor.report import wording
from advisor.report.numbers import percent, threshold
from advisor.report.recording import Health, Prediction
from advisor.report.wording import headlines
from advisor.report.wording.checks import tolerated
from tests.reports.examples import launch_bound
from tests.reports.test_contract import formats


@pytest.mark.parametrize(
    ("share", "limit", "text"),
    [
        (0.504, 0.5, "50.4%"),
        (0.5003, 0.5, "50.03%"),
        (0.5, 0.5, "50%"),
        (0.51, 0.5, "51%"),
        (0.0496, 0.05, "4.96%"),
        (0.0504, 0.05, "5.04%"),
        (0.0246, 0.025, "2.46%"),
        (0.0004, 0.001, "<0.1%"),
        (float("nan"), 0.5, "–"),
    ],
)
def test_a_share_is_not_rounded_to_its_limit(share, limit, text):
    assert percent(share, limit) == text


def test_a_limit_has_all_its_digits():
    assert [threshold(share) for share in (0.05, 0.025, 0.5, 1.5)] == ["5%", "2.5%", "50%", "150%"]
    assert tolerated(0.005) == "up to 0.5% is tolerated"


def recorded(step_us: float, low: float, expected: float, high: float):
    report = launch_bound()
    window = replace(report.window, step_us=step_us, true_step_us=Prediction(low, expected, high), true_step_basis="estimated", recording_us=step_us - expected)
    return replace(report, window=window, headline=replace(report.headline, step_us=expected))


@pytest.mark.parametrize(
    ("recorded_us", "true", "said"),
    [
        (17_600, (13_100, 15_000, 17_580), "13 to 17.6 ms"),
        (17_600, (13_100, 15_000, 18_400), "13 to 17.6 ms"),
        (17_600, (13_100, 15_000, 16_300), "13 to 16 ms"),
        (17_600, (17_590, 18_500, 19_400), "18 to 19 ms"),
    ],
)
def test_the_step_without_a_profiler_does_not_end_above_the_recorded_step(recorded_us, true, said):
    assert f"Without the profiler: {said}, estimated" in wording.profiler_overhead(recorded(recorded_us, *true))


def test_idle_time_names_the_share_of_each_cause():
    assert headlines.idle(0.9, "step", [(0.77, "waiting for launches")], "") == "The GPU is idle for 90% of the step, 77% waiting for launches."
    both = headlines.idle(0.9, "step", [(0.44, "waiting for a batch"), (0.42, "waiting for launches")], " in read()")
    assert both == "The GPU is idle for 90% of the step, 44% waiting for a batch in read() and 42% waiting for launches."
    assert headlines.idle(0.9, "step", [(0.899, "waiting")], "") == "The GPU is idle for 90% of the step, waiting."


def test_checks_that_passed_are_named():
    report = replace(launch_bound(), health=tuple(Health(check=check, status=status, detail="") for check, status in (("replay", "ok"), ("steps", "degraded"))))
    assert wording.checks_passed(report) == ["replay of the step"]
    assert wording.checks_passed(replace(report, health=())) == []
    assert "- replay of the step" in formats("report")["markdown"].render(report)
    assert 'title="Checks that passed:&#10;replay of the step"' in formats("report")["html"].render(report)


def test_a_range_above_the_time_of_its_sentence_is_explained_once_a_page():
    report = launch_bound()
    assert "may exceed that work's time" in wording.scales(report)
    assert "may exceed" not in wording.scales(replace(report, findings=()))


def test_a_range_above_its_evidence_says_why():
    report = launch_bound()
    finding = report.findings[0]
    beyond = replace(finding, evidence_us=finding.saving.high_us / 2)
    assert "of its evidence, since launches and waits" in wording.belief(beyond, report)
    assert "of its evidence" not in wording.belief(replace(finding, evidence_us=2 * finding.saving.high_us), report)


def test_a_mark_more_than_steps_is_explained():
    report = launch_bound()
    assert wording.window_basis(report).endswith("The last mark only ends the window")
    assert wording.window_basis(replace(report, window=replace(report.window, steps=1))) == "the profiler's step marks"
    assert wording.window_basis(replace(report, window=None)) == ""


def test_a_second_way_to_the_same_cuda_graphs_is_no_alternative():
    finding = replace(launch_bound().findings[0], excluded="same-graphs", alternative_to=("launch-gap",))
    assert wording.remark(finding) == "The fix of launch-gap uses CUDA graphs too: apply only one of the two."


def test_steps_that_differ_have_a_mean_and_no_length():
    report = launch_bound()
    unlike = Health("steps", "degraded", "7 whole steps, 2.65 to 303 ms: they differ", reason="beyond-threshold", measured=6.5, threshold=0.25, unit="share")
    assert not wording.step_now(report).endswith("on average")
    assert wording.step_now(replace(report, health=(unlike,))) == f"{wording.step_now(report)} on average"
