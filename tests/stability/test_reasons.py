"""Why findings flip: the table of reasons, and what is known of machines that are slower."""

import msgspec
import pytest

from advisor.engine.rule import catalog
from advisor.knowledge import recording_cost, shortest_kernel
from advisor.knowledge.devices import find
from advisor.knowledge.shares import NO_DIFFERENCE
from advisor.lab.stability import reasons, slower
from advisor.lab.stability.changes import CHANGES, Change
from advisor.lab.stability.held import compared
from advisor.lab.stability.reasons import Told, covered, reason_for, share, table
from advisor.views.patterns import fusion
from tests.rules.test_optimizer_foreach import loop, period
from tests.rules.test_rules import repeat, run


@pytest.fixture(scope="module")
def report():
    return run("optimizer-foreach", repeat(period(), loop()))


def moved(report, points, **changed):
    """The report with its finding's saving off by so much of the step, and the finding otherwise as said."""
    finding, us = report.findings[0], points * report.headline.step_us
    saving = msgspec.structs.replace(finding.saving, low_us=0.0, expected_us=finding.saving.expected_us - us)
    return msgspec.structs.replace(report, findings=(msgspec.structs.replace(finding, saving=saving, **changed),))


def told(base, changed):
    return Told(base.findings[0], changed.findings[0], base, changed)


def test_reasons_name_changes_and_rules_that_are_there():
    assert table() and {reason.when for reason in table()} <= {"", *reasons._WHEN}
    assert {name for reason in table() for name in reason.changes} <= {change.name for change in CHANGES}
    assert {name for reason in table() for name in reason.rules} <= {*catalog()}
    assert all(reason.why and (reason.changes or reason.when) for reason in table()), "none holds of everything"


def test_what_gains_the_same_stands_at_a_threshold(report):
    for points, near in ((0.9 * NO_DIFFERENCE, True), (1.1 * NO_DIFFERENCE, False)):
        other = moved(report, points, severity="low")
        assert bool(reason_for("durations", "optimizer-foreach", told(report, other))) == near
        assert share(report.findings[0], report) - share(other.findings[0], other) == pytest.approx(points)


def test_what_is_told_by_another_says_so_only_where_that_one_is_told(report):
    other = moved(report, 0.1, severity="low", folded_into="launch-gap")
    assert not reason_for("durations", "optimizer-foreach", told(report, other))
    above = msgspec.structs.replace(report.findings[0], rule="launch-gap")
    both = msgspec.structs.replace(other, findings=(above, *other.findings))
    assert "another finding" in reason_for("durations", "optimizer-foreach", Told(report.findings[0], both.findings[1], report, both))


def test_what_gains_the_same_and_leads_or_follows_is_covered(report):
    above = msgspec.structs.replace(report.findings[0], rule="launch-gap")
    for points, severity, is_covered in ((0.9 * NO_DIFFERENCE, "high", True), (1.1 * NO_DIFFERENCE, "high", False), (0.0, "low", False)):
        follows = moved(report, points, severity="low", folded_into="launch-gap")
        both = msgspec.structs.replace(follows, findings=(msgspec.structs.replace(above, severity=severity), *follows.findings))
        pair = Told(report.findings[0], both.findings[1], report, both)
        assert covered(pair) == covered(Told(pair.became, pair.was, both, report)) == is_covered
        made = compared("t", Change("durations", lambda trace, rng: trace), report, both)
        assert (made.covered, [flip.rule for flip in made.reasons]) == (
            int(is_covered),
            ["launch-gap"] * (severity == "high") + ["optimizer-foreach"] * (not is_covered),
        )


def test_a_reason_of_one_change_is_none_of_another(report):
    other = moved(report, 0.1, severity="low")
    assert reason_for("no-shapes", "unfused-elementwise", told(report, other)) and not reason_for("no-shapes", "sync-stall", told(report, other))
    assert not reason_for("event-order", "unfused-elementwise", told(report, other))


def test_what_is_known_of_slower_machines_holds_while_it_is_asked_for():
    each, quiet_us = recording_cost.limits().event_us, recording_cost.limits().quiet_us
    with pytest.raises(KeyError), slower.machines(2.0):
        assert recording_cost.limits().event_us == 2 * each and recording_cost.limits().quiet_us == 2 * quiet_us
        assert recording_cost.limits().max_share < 1, "no time"
        raise KeyError
    assert recording_cost.limits().event_us == each


def test_constants_in_us_are_of_slower_machines_wherever_they_are_imported():
    own, ratio, rate = shortest_kernel.SHORTEST_US, fusion.LIKELY, fusion.RANDOM_PER_S
    assert own == fusion.SHORTEST_US
    with slower.machines(2.0):
        assert shortest_kernel.SHORTEST_US == fusion.SHORTEST_US == 2 * own
        assert (ratio, rate / 2) == (fusion.LIKELY, fusion.RANDOM_PER_S), "a ratio is of every machine, and a slower one does less in a second"
    assert (own, own, rate) == (shortest_kernel.SHORTEST_US, fusion.SHORTEST_US, fusion.RANDOM_PER_S)


def test_rates_and_thresholds_are_those_of_slower_machines():
    h200 = next(peaks for peaks in slower.rates(2.0) if peaks.name == find("NVIDIA H200").name)
    assert (h200.memory_gbps, h200.fp16_tflops) == pytest.approx((find("NVIDIA H200").memory_gbps / 2, find("NVIDIA H200").fp16_tflops / 2))
    assert h200.l2_mbytes == find("NVIDIA H200").l2_mbytes
    assert slower.thresholds(2.0)["host-bound"]["min_pause_us"] == 2 * catalog()["host-bound"].options["min_pause_us"]
