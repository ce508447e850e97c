"""Each report concludes what it concluded. Meant to change? `python -m tests.golden`, and read the diff of facts.csv before you commit it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy
import pytest

import advisor
from advisor.errors import TraceError
from advisor.report.finding import Failed
from tests import differences as json_differences
from tests.analysed import analysed
from tests.golden.chosen import ANYWAY, conclusions, cover, read_here
from tests.golden.facts import COLUMNS, FILE, Row, concluded, differences, facts, kept, name, recordings, write
from tests.paths import ROOT, slow
from tests.reports.examples import launch_bound

ROWS = kept()
HERE = read_here(ROWS)
left_out = pytest.mark.skip(reason="beyond the cover: ADVISOR_SAMPLES=all reads every trace")


@pytest.mark.parametrize("trace", [trace if trace in HERE else pytest.param(trace, marks=left_out) for trace in ROWS])
def test_the_report_concludes_what_it_concluded(trace: str) -> None:
    changed = [*differences(ROWS[trace], facts(ROOT / trace, analysed))]
    assert not changed, f"{trace}: {'; '.join(changed)}. If that is meant: python -m tests.golden {trace}"


def test_each_recording_has_a_row_and_each_row_a_recording() -> None:
    missing, left = {name(recording) for recording in recordings()} - {*ROWS}, {*ROWS} - {name(recording) for recording in recordings()}
    assert not missing and not left, "python -m tests.golden"


def test_the_file_is_as_it_would_be_written(tmp_path: Path) -> None:
    write(ROWS.values(), tmp_path / "facts.csv")
    assert (tmp_path / "facts.csv").read_bytes() == FILE.read_bytes(), "python -m tests.golden sorts it"


def test_what_is_read_by_default_concludes_all_that_any_trace_does() -> None:
    anyway = {trace for trace in ROWS if ANYWAY.fullmatch(trace)}
    few = anyway | cover(ROWS, anyway)
    everything, covered = ({fact for trace in traces for fact in conclusions(ROWS[trace])} for traces in (ROWS, few))
    assert covered == everything and len(few) < len(ROWS) / 2


@slow
def test_the_report_is_the_same_on_an_older_processor() -> None:
    """NumPy adds in another order there: the critical path once had steps that were nothing but rounding."""
    core = importlib.import_module(f"numpy.{'core' if numpy.__version__.startswith('1.') else '_core'}._multiarray_umath")
    newer = " ".join(feature for feature in core.__cpu_dispatch__ if core.__cpu_features__[feature])
    for trace in OF_SEVERAL_STREAMS:
        code = f"import sys, advisor; sys.stdout.buffer.write(advisor.analyze({str(ROOT / trace)!r}).to_json())"
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "NPY_DISABLE_CPU_FEATURES": newer}, capture_output=True, check=True)
        here, there = (json_differences.rounded(json.loads(told)) for told in (advisor.analyze(ROOT / trace).to_json(), done.stdout))
        assert not [*json_differences.differences(here, there)]


OF_SEVERAL_STREAMS = ("samples/missed-overlap/slow.json.gz", "samples/host-bound/resized.slow.trace.zst")


# --- what a row says

REPORT = launch_bound()
"""Two findings of launch-gap among three, one check degraded, two rules skipped."""


def row(**fields: object) -> Row:
    return {"trace": "x"} | concluded(msgspec.structs.replace(REPORT, **fields))


def test_a_row_is_what_a_report_concludes() -> None:
    assert row() == {
        "trace": "x", "judged": "yes", "bottleneck": "host-bound", "step_us": "12400", "together": "43",
        "findings": "launch-gap high 33; sync-stall medium 8; launch-gap low 1",
        "skipped": "data-loading memory-layout", "checks": "profiler-overhead degraded",
    }  # fmt: skip
    assert [*row()] == [*COLUMNS]


def test_what_limits_a_finding_is_part_of_it() -> None:
    first, second, third = REPORT.findings
    limited = (
        msgspec.structs.replace(first, status="possible"),
        msgspec.structs.replace(second, folded_into="launch-gap"),
        msgspec.structs.replace(third, allowed="known"),
    )
    assert row(findings=limited)["findings"] == "launch-gap high 33 possible; sync-stall medium 8 in launch-gap; launch-gap low 1 allowed"


def test_a_rule_that_crashed_and_a_trace_that_is_refused_show() -> None:
    def refuse(_: Path) -> advisor.Report:
        raise TraceError("no")

    assert row(failed=(Failed(rule="memcpy", error="x"),))["checks"] == "profiler-overhead degraded; memcpy crashed"
    assert facts(ROOT / "a.json", refuse) == {**dict.fromkeys(COLUMNS, ""), "trace": "a.json", "judged": "refused: TraceError"}


def test_sentences_and_further_digits_are_no_facts() -> None:
    first, *others = REPORT.findings
    told = msgspec.structs.replace(first, title="Other", summary="words", saving=msgspec.structs.replace(first.saving, expected_us=4_121.0))
    head = msgspec.structs.replace(REPORT.headline, summary="said otherwise", step_us=12_411.0)
    assert row(findings=(told, *others), headline=head, advisor="9") == row()


def test_what_changed_is_told_in_words() -> None:
    first, second, third = REPORT.findings
    high = msgspec.structs.replace(second, severity="high")
    head = msgspec.structs.replace(REPORT.headline, bottleneck="launch-bound")
    assert [*differences(row(), row(findings=(high, third), headline=head, skipped=REPORT.skipped[:1], health=()))] == [
        "bottleneck host-bound → launch-bound",
        "findings: launch-gap high 33 → low 1", "findings: sync-stall medium 8 → high 8", "findings: no launch-gap #2 any more (low 1)",
        "skipped: no data-loading any more",
        "checks: no profiler-overhead any more (degraded)",
    ]  # fmt: skip
    assert [*differences(row(), row(findings=(second, first, third)))] == ["findings: now in the order sync-stall, launch-gap, launch-gap #2"]
    assert [*differences(row(findings=(first,)), row(findings=(first, second)))] == ["findings: sync-stall medium 8 is new"]


# --- which rows are held


def facts_of(trace: str, **columns: str) -> Row:
    return {**dict.fromkeys(COLUMNS, ""), "trace": trace, **columns}


def test_a_cover_takes_what_adds_most_and_nothing_that_adds_nothing() -> None:
    rows = {
        row["trace"]: row
        for row in (
            facts_of("a/1", findings="x high 40"), facts_of("a/2", findings="x high 41; y low 2 in x"),
            facts_of("a/3", findings="y low 1 in z"), facts_of("a/4", checks="steps failed"),
        )
    }  # fmt: skip
    assert cover(rows, set()) == {"a/2", "a/4"}
    assert cover(rows, {"a/2"}) == {"a/4"} and cover(rows, {"a/2", "a/4"}) == set()


@pytest.mark.parametrize(("asked", "held"), [("", 1), ("many", 2), ("all", 9)])
def test_more_is_read_where_more_is_asked_for(asked: str, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nine rows that conclude the same."""
    monkeypatch.setenv("ADVISOR_SAMPLES", asked)
    assert len(read_here({f"a/{at}": facts_of(f"a/{at}") for at in range(9)})) == held
