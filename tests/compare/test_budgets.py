"""Limits of a team: kept, crossed, or not to be told, each at both sides of its threshold."""

import re
import sys

import msgspec
import pytest

from advisor.compare import compare
from advisor.compare.budgets import EXAMPLE, check, check_all, parse
from advisor.errors import UsageError
from advisor.report.memory import TracedMemory
from advisor.report.numbers import percent, points
from advisor.report.step import Work
from tests.compare.test_compare import changed, noisy, sample
from tests.paths import ROOT
from tests.reports.examples import healthy, launch_bound

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RULES = ("launch-gap", "sync-stall", "memcpy")


def status(budgets, report, against=None):
    return {v.budget: v.status for v in check(budgets, report, against)}


@pytest.mark.parametrize(("limit", "said"), [(12.0, "kept"), (11.999, "crossed")])
def test_the_step_time(limit, said):
    report = launch_bound()
    report = msgspec.structs.replace(report, headline=msgspec.structs.replace(report.headline, step_us=12_000.0))
    assert status({"step_ms": limit}, report) == {"step_ms": said}


def test_shares_are_of_all_devices():
    report = launch_bound()
    idle = sum(t.idle_us for t in report.time) / sum(t.window_us for t in report.time)
    assert status({"idle_share": idle + 1e-9}, report) == {"idle_share": "kept"}
    (verdict,) = check({"idle_share": idle / 2}, report)
    assert verdict.status == "crossed" and f"{points(idle / 2)} over the limit of {percent(idle / 2)}" in verdict.detail


def test_shares_are_of_the_step_as_it_runs_when_nobody_records():
    """The window is 37.23 ms, 20.4 of them idle; recording made 12 of both, and the device's other times are what they were."""
    report = launch_bound()
    (time,) = report.time
    added = msgspec.structs.replace(time, idle=msgspec.structs.replace(time.idle, profiler=13_000.0, launch=420.0))
    window = msgspec.structs.replace(report.window, recording_us=4_000.0)
    report = msgspec.structs.replace(report, window=window, time=(added,))
    assert [v.detail for v in check({"idle_share": 0, "exposed_copy_share": 0}, report)] == [
        "33% of the step, 33 percentage points over the limit of 0%",  # 8.4 of 25.23 ms
        "2.5% of the step, 2.5 percentage points over the limit of 0%",  # 0.62 of 25.23 ms
    ]
    less = msgspec.structs.replace(report, time=(time,))  # of which the profiler's part is none
    assert status({"idle_share": 20_400 / 37_230}, less) == {"idle_share": "kept"}


@pytest.mark.parametrize(
    ("budget", "of", "said"),
    [
        ({"kernel_count": 800}, {"kernels": 12_345.6}, "12,346 kernels a step, 11,546 kernels over the limit of 800 kernels"),
        ({"kernel_ms": 2}, {"kernel_us": 5_000_000.0}, "5.00 s a step, 5.00 s over the limit of 2.00 ms"),
        ({"kernel_count": 1}, {"kernels": 1.0}, "1 kernel a step, 1 kernel allowed"),
    ],
)
def test_values_are_written_as_people_read_them(budget, of, said):
    (verdict,) = check(budget, msgspec.structs.replace(launch_bound(), work=Work(**of)))
    assert verdict.detail == said


def test_kernels_a_step():
    report = msgspec.structs.replace(launch_bound(), work=Work(kernels=500, kernel_us=900))
    assert status({"kernel_count": 500, "kernel_ms": 0.8}, report) == {"kernel_count": "kept", "kernel_ms": "crossed"}


def test_what_the_trace_cannot_tell_does_not_pass():
    report = msgspec.structs.replace(launch_bound(), devices=(), time=())
    verdicts = check({"idle_share": 0.5, "kernel_count": 10}, report)
    assert [(v.status, v.passes) for v in verdicts] == [("unknown", False)] * 2


def test_findings_by_severity_count_worse_ones_too():
    report = launch_bound()
    high = sum(f.severity == "high" for f in report.findings)
    medium = sum(f.severity in ("high", "medium") for f in report.findings)
    assert high and status({"findings": {"high": high, "medium": medium}}, report) == {"findings.high": "kept", "findings.medium": "kept"}
    assert status({"findings": {"high": high - 1}}, report) == {"findings.high": "crossed"}
    allowed = msgspec.structs.replace(report, findings=tuple(msgspec.structs.replace(f, allowed="why") for f in report.findings))
    assert status({"findings": {"high": 0}}, allowed) == {"findings.high": "kept"}, "the team lives with these"


def test_findings_of_a_rule_by_number_and_by_worst_severity():
    report = launch_bound()
    finding = report.findings[0]
    assert status({"findings": {finding.rule: 0}}, report) == {f"findings.{finding.rule}": "crossed"}
    assert status({"findings": {finding.rule: finding.severity}}, report) == {f"findings.{finding.rule}": "kept"}
    assert status({"findings": {finding.rule: "info"}}, report) == {f"findings.{finding.rule}": "crossed"}


def test_a_rule_that_could_not_look_is_not_good_news():
    report = healthy()
    if not report.skipped:
        pytest.fail("the example has no skipped rule")
    rule = report.skipped[0].rule
    (verdict,) = check({"findings": {rule: 0}}, report)
    assert verdict.status == "unknown" and report.skipped[0].why in verdict.detail


def against(factor, captures, spread=0.002):
    report = sample("low-arithmetic-intensity/slow.json.gz")
    after = changed(report, gemm=factor)
    if captures == 1:
        return compare([report], [after])
    return compare([noisy(report, n, spread) for n in range(captures)], [noisy(after, 50 + n, spread) for n in range(captures)])


@pytest.mark.parametrize(
    ("comparison", "said"),
    [
        (None, "not checked"),
        (against(1.0, 1), "kept"),
        (against(1.01, 1), "kept"),
        (against(1.2, 1), "crossed"),
        (against(1.2, 5), "crossed"),
        (against(1.05, 5, spread=0.5), "kept"),
        (against(0.5, 1), "kept"),
    ],
)
def test_a_regression_against_a_baseline(comparison, said):
    assert status({"regression_percent": 3}, launch_bound(), comparison) == {"regression_percent": said}


def test_a_change_is_written_as_everywhere_and_how_far_it_is_over_in_points():
    (slower,), (faster,) = (check({"regression_percent": 3}, launch_bound(), against(factor, 1)) for factor in (1.2, 0.5))
    assert re.fullmatch(r"the step changed by \+\d+%, [\d.]+ percentage points over the limit of 3%; a side of fewer .*", slower.detail)
    assert re.fullmatch(r"the step changed by −\d+%, 3% allowed", faster.detail)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "sets no budgets"),
        ({"steps_ms": 3}, "no budget 'steps_ms'"),
        ({"step_ms": "3"}, "no limit"),
        ({"step_ms": -1}, "no limit"),
        ({"step_ms": True}, "no limit"),
        ({"step_ms": float("nan")}, "no limit"),
        ({"step_ms": float("inf")}, "no limit"),
        ({"idle_share": 10}, "no share"),
        ({"wait_share": 1.001}, "no share"),
        ({"findings": 3}, "no table"),
        ({"findings": {}}, "an empty table"),
        ({"findings": {"no-such-rule": 0}}, "no severity and no rule"),
        ({"findings": {"high": "low"}}, "no limit"),
        ({"findings": {"launch-gap": "awful"}}, "no limit"),
    ],
)
def test_what_is_no_budget_is_refused(table, message):
    with pytest.raises(UsageError, match=message):
        parse(table, RULES, "pyproject.toml")


def test_all_kinds_of_budgets_are_read():
    table = {"step_ms": 25.0, "idle_share": 1, "regression_percent": 0, "findings": {"high": 0, "sync-stall": 2, "launch-gap": "low"}}
    assert parse(table, RULES, "pyproject.toml") == table


def test_the_budgets_in_the_documentation_are_budgets():
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)
    (table,) = [tomllib.loads(block)["tool"]["advisor"]["budgets"] for block in blocks]
    assert parse(table, RULES, "docs/ci.md") == table and len(table) >= 8
    assert parse(tomllib.loads(EXAMPLE)["tool"]["advisor"]["budgets"], RULES, "the example")


def test_peaks_of_memory_have_budgets_that_a_trace_cannot_tell():
    from advisor.engine.run import run
    from advisor.recordings.recording import Recording
    from tests.memory_build import trained

    memory = run(Recording("memory", "s", (trained().snapshot(),)), [])
    peak = memory.memory.peak_allocated_bytes
    kept, crossed, unknown = check({"peak_bytes": peak, "reserved_bytes": 1, "step_ms": 5}, memory)
    assert (kept.status, crossed.status, unknown.status) == ("kept", "crossed", "unknown")


def test_peaks_of_memory_are_of_a_trace_too_where_its_events_say_them():
    report = msgspec.structs.replace(launch_bound(), traced_memory=(TracedMemory(0, 500, None), TracedMemory(1, 700, None)))
    assert status({"peak_bytes": 700, "reserved_bytes": 1}, report) == {"peak_bytes": "kept", "reserved_bytes": "unknown"}
    assert status({"peak_bytes": 699}, report) == {"peak_bytes": "crossed"}


def test_a_rule_that_was_not_run_keeps_no_budget():
    report = launch_bound()
    absent = {"findings": {"memory-leak": 0}}
    assert status(absent, report) == {"findings.memory-leak": "unknown"}


def test_each_of_several_captures_has_to_keep_a_budget():
    fast, slow = sorted((launch_bound(), healthy()), key=lambda report: report.step_us)
    for reports in ({"slow": slow, "fast": fast}, {"fast": fast, "slow": slow}):
        (verdict,) = check_all({"step_ms": (fast.step_us + slow.step_us) / 2e3}, reports)
        assert verdict.status == "crossed" and verdict.detail.endswith("(slow, the worst of 2 captures)")


def test_the_worst_of_several_captures_is_the_one_that_is_told_whether_they_cross_or_keep_a_budget():
    report = launch_bound()
    steps = {f"{ms}.json": msgspec.structs.replace(report, headline=msgspec.structs.replace(report.headline, step_us=1e3 * ms)) for ms in (2, 6, 3)}
    for limit, said in ((1, "crossed"), (10, "kept")):
        (verdict,) = check_all({"step_ms": limit}, steps)
        assert verdict.status == said and verdict.detail.startswith("6.00 ms, ") and verdict.detail.endswith(" (6.json, the worst of 3 captures)")
    (alike,) = check_all({"regression_percent": 3}, steps, against(1.2, 3))
    assert "captures)" not in alike.detail, "that is of all of them together"
