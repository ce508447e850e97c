"""What a rule is: checked when it is made; its options have ranges; what it found is graded by the engine alone."""

from typing import Annotated

import numpy as np
import pytest

from advisor.engine.page_sections import SECTIONS
from advisor.engine.rule import Found, Range, Rule, built_in, catalog, rule
from advisor.engine.run import run
from advisor.errors import RuleError, Terminated, Unavailable, UsageError
from advisor.recordings.recording import Recording
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Evidence, Fix, Saving
from advisor.views.replay.edits import CheaperDispatch, Edits, FewerLaunches, WithDurations
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.replay import Replay
from tests.build import Trace

PAGE = "Kernels are slow\n\n" + "\n".join(f"{section}\nAsked from {{max_calls}}." for section in SECTIONS)


def ruled(function, **said):
    function.__doc__ = PAGE
    return rule("acme/slow", **said)(function).advisor_rule


def steps(count=5):
    """A kernel of 4 µs every 20 µs, whose launch is the bound."""
    trace = Trace()
    for k in range(count):
        trace.step(20 * k, 19, k + 1).op("aten::mm", 20 * k, 18).launch(20 * k + 12, 20 * k + 15, 20 * k + 19, dur=4)
    return trace.timeline()


def halved(**said):
    def function(work: GpuWork, *, max_calls: int = 3):
        edits = Edits.exact(CheaperDispatch(0.5))
        fix = Fix(title="Do less", steps=("Do less.",))
        return Found(**{"summary": "It is slow.", "edits": edits, "evidence": (Evidence("mm", 12.0, 4.0),), "fix": fix, **said})

    return function


@pytest.mark.parametrize("relies_on", [("kernel",), (), "kernels", ("host", "gpu")])
def test_a_rule_relies_on_what_checks_touch(relies_on):
    with pytest.raises(RuleError, match="relies on"):
        ruled(halved(), relies_on=relies_on)


def test_numbers_of_the_page_are_the_options_defaults():
    assert "Asked from 3." in ruled(halved()).page


@pytest.mark.parametrize(
    "given", [{"a_share": 1.1}, {"a_share": -0.1}, {"a_share": float("nan")}, {"count": -1}, {"many": 0}, {"name": 3}, {"count": True}, {"other": 1}]
)
def test_an_option_that_is_unknown_out_of_range_or_of_another_type_is_refused(given):
    def function(timeline: Timeline, *, a_share: float = 0.1, count: int = 2, many: Annotated[int, Range(1)] = 4, name: str = "x"):
        return Clear(why="it looked")

    made = ruled(function)
    assert made.settled({"a_share": 1, "count": 0, "many": 1, "name": "y"}) == {"a_share": 1, "count": 0, "many": 1, "name": "y"}
    with pytest.raises(UsageError):
        made.settled(given)
    with pytest.raises(UsageError):
        run(steps(), [made], {"acme/slow": given})


def test_every_option_of_every_rule_takes_its_default_and_no_number_below_its_range():
    for item in built_in().values():
        assert item.settled({}) == item.settled(item.options)
        for name, allowed in item.ranges.items():
            with pytest.raises(UsageError, match="out of range"):
                item.settled({name: allowed.least - 1e-3})
            if np.isfinite(allowed.most):
                with pytest.raises(UsageError, match="out of range"):
                    item.settled({name: allowed.most + 1e-3})


def test_the_engine_replays_grades_and_titles():
    timeline = steps()
    report = run(timeline, [ruled(halved())])
    (found,) = report.findings
    assert (found.rule, found.id, found.title) == ("acme/slow", "acme/slow-1", "Kernels are slow")
    assert found.severity == "high" and found.saving.expected_us == pytest.approx(10, rel=0.1)
    assert found.edits[0].edit == "cheaper-dispatch" and found.confidence == 0.9
    assert report.headline.predicted_step_us.expected == pytest.approx(report.window.step_us - found.saving.expected_us)


def test_what_gains_less_than_is_asked_for_is_clear():
    made = ruled(halved(quiet="mm is launched"), min_saving_share=0.9)
    (clear,) = run(steps(), [made]).clear
    assert clear.why.startswith("mm is launched. The fix would gain 5") and (clear.reason, clear.measured, clear.threshold) == ("small-gain", 0.5, 0.9)
    assert run(steps(), [made], {"acme/slow": {"min_saving_share": 0.2}}).findings


def test_a_finding_is_no_more_severe_than_it_asks_and_may_not_count_in_the_prediction():
    report = run(steps(), [ruled(halved(at_most="low", counted=False, title="Slow", confidence=0.5))])
    (found,) = report.findings
    assert (found.severity, found.title, found.confidence) == ("low", "Slow", 0.5)
    assert report.headline.predicted_step_us.expected == report.window.step_us


@pytest.mark.parametrize(("confidence", "severity"), [(0.5, "high"), (0.49, "medium")])
def test_what_is_no_more_likely_than_not_is_not_high(confidence, severity):
    (found,) = run(steps(), [ruled(halved(confidence=confidence))]).findings
    assert (found.severity, found.confidence) == (severity, confidence)


def test_a_saving_that_is_given_is_not_replayed():
    (found,) = run(steps(), [ruled(halved(edits=None, saving=Saving(1.0, 2.0, 3.0, "bound")))]).findings
    assert found.saving.expected_us == 2.0 and not found.edits
    assert run(steps(), [ruled(halved(edits=None))]).failed


ALL = np.arange(4)
IMPOSSIBLE = {
    "no number": (Edits.exact(WithDurations(ALL, np.full(4, np.nan))), "no number"),
    "negative": (Edits.exact(WithDurations(ALL, np.full(4, -3.0))), "dur_us negative"),
    "endless": (Edits.exact(FewerLaunches(ALL, ALL[:0], np.full(4, np.inf))), "infinite"),
    "less than none": (Edits.exact(CheaperDispatch(-1.0)), "negative"),
    "longer": (Edits.exact(FewerLaunches(ALL, ALL[:0], np.full(4, 800.0))), "makes the step longer"),
    "backwards": (Edits(*map(CheaperDispatch, (0.1, 0.5, 0.9))), "the least first"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_edits_that_no_fix_can_make_are_an_error_of_the_rule(case):
    edits, said = IMPOSSIBLE[case]
    report = run(steps(), [ruled(halved(edits=edits))])
    assert not report.findings and said in report.failed[0].error


def test_a_least_fix_may_gain_more_than_the_likely_one_where_the_best_gains_as_much():
    edits = Edits(*map(CheaperDispatch, (0.4, 0.5, 0.5)))
    assert run(steps(), [ruled(halved(edits=edits))]).findings


def test_a_saving_without_end_is_none():
    with pytest.raises(ValueError, match="ordered"):
        Saving(0.0, 1.0, float("inf"), "bound")


def test_a_rule_whose_view_is_unavailable_is_skipped_and_says_how_to_record_it():
    (skipped,) = run(Trace().op("aten::mm", 0, 5).timeline(), [ruled(halved())]).skipped
    assert skipped.why == "the trace holds no GPU work" and "ProfilerActivity.CUDA" in skipped.record_with


class Missing:
    @classmethod
    def build(cls, replay: Replay) -> "Missing":
        raise Unavailable("nobody recorded it", "a flag")


def test_a_rule_may_do_without_a_view():
    def function(timeline: Timeline, missing: Missing | None):
        return Clear(why=f"{missing} was recorded")

    assert run(steps(), [ruled(function)]).clear[0].why == "None was recorded"


def test_a_rule_that_returns_something_else_has_failed():
    def function(timeline: Timeline):
        return []

    assert "returns Found" in run(steps(), [ruled(function)]).failed[0].error


class Own(BaseException):
    """What no `except Exception` catches."""


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), Own("oh no")])
def test_a_rule_that_ends_the_program_has_failed(error):
    def function(timeline: Timeline):
        raise error

    report = run(steps(), [ruled(function)])
    assert type(error).__name__ in report.failed[0].error and report.headline.judged != "yes"


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Terminated(143)])
def test_the_user_may_still_stop_a_rule(stop):
    def function(timeline: Timeline):
        raise stop

    with pytest.raises(type(stop)):
        run(steps(), [ruled(function)])


def test_several_options_stand_in_the_order_of_the_function():
    assert list(Rule("acme/slow", ruled(halved(), min_saving_share=0.1).function, min_saving_share=0.1).options) == ["max_calls", "min_saving_share"]


SIGNATURES = {
    "p": "parameter p of rule acme/slow names no view",
    'q: "Nope"': "parameter q of rule acme/slow names no view",
    "q: int": "parameter q of rule acme/slow names no view",
    "t: Timeline, **more": "parameter more of rule acme/slow names no view",
    "t: Timeline, *, k": "option k of rule acme/slow has no default",
    't: "exit(0)"': "parameter t of rule acme/slow names no view",
    't: Timeline, *, k: "Nope" = 3': "annotation of option k of rule acme/slow names no type",
}


def written(path, *functions):
    """A file with a rule of a team's for each text of a function."""
    head = "from advisor import Clear, rule\nfrom advisor.recordings.timeline import Timeline\n"
    body = "".join(f"@rule('acme/slow')\n{function}:\n    {PAGE!r}\n    return Clear(why='')\n" for function in functions)
    path.write_text(head + body)
    return path


@pytest.mark.parametrize("parameters", SIGNATURES)
def test_a_parameter_that_is_no_view_and_no_option_is_an_error_of_the_rule(tmp_path, parameters):
    path = written(tmp_path / "rules.py", f"def slow({parameters})")
    with pytest.raises(RuleError, match=SIGNATURES[parameters]):
        catalog([path])


def test_a_rule_given_by_itself_is_checked_too():
    def function(timeline, *, k: int = 3):
        return Clear(why="")

    with pytest.raises(RuleError, match="parameter timeline"):
        run(steps(), [ruled(function)])


def test_what_a_rule_is_said_to_return_need_not_be_there(tmp_path):
    assert "acme/slow" in catalog([written(tmp_path / "rules.py", "def slow(t: 'Timeline | None') -> 'Nowhere'")])


def test_two_rules_of_one_id_are_refused_and_one_file_may_be_given_twice(tmp_path):
    one = written(tmp_path / "one.py", "def slow(t: Timeline)")
    assert "acme/slow" in catalog([one, tmp_path / ".." / tmp_path.name / "one.py"])
    with pytest.raises(RuleError, match="second rule acme/slow"):
        catalog([written(tmp_path / "two.py", "def slow(t: Timeline)", "def other(t: Timeline)")])
    with pytest.raises(RuleError, match="second rule acme/slow"):
        catalog([one, written(tmp_path / "three.py", "def slow(t: Timeline)")])


def test_a_file_of_rules_that_ends_the_program_is_an_error_of_the_file(tmp_path):
    (tmp_path / "rules.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(RuleError, match="SystemExit"):
        catalog([tmp_path / "rules.py"])


def test_a_step_time_is_for_traces():
    with pytest.raises(UsageError, match="memory"):
        run(Recording("memory", "x", ()), [], step_ms=5.0)


def test_a_page_with_former_titles_is_shown_with_todays():
    def slow():
        pass

    slow.__doc__ = PAGE.replace("What\n", "What it is\n").replace("How to fix\n", "How to fix it\n")
    assert rule("team/slow")(slow).advisor_rule.page == ruled(halved()).page.replace("Asked from 3.", "Asked from {max_calls}.")
