"""A snapshot beside a timeline of the same program says why its allocator asks the driver."""

import json
from pathlib import Path

import pytest

import advisor
from advisor.errors import UsageError
from advisor.recordings.recording import Recording, with_memory
from advisor.report.finding import BytesSaved
from advisor.reports import formats
from advisor.reports.report import html
from advisor.sources import read
from advisor.views.memory.beside import MemoryBeside
from advisor.views.workspace import Workspace
from tests.paths import ROOT

TRACE = ROOT / "samples" / "allocator" / "slow.json.gz"
SNAPSHOTS = ROOT / "samples" / "memory"


def joined(snapshot: Path) -> Recording:
    return with_memory(read(TRACE), read(snapshot))


@pytest.mark.parametrize(
    ("snapshot", "why", "advice"),
    [
        ("emptied_cache.slow", "given back and asked for again 5 times (allocating.py:", "empty_cache"),
        ("growing_lengths.slow", "sizes do not come again", "expandable_segments"),
        ("grown_cache.slow", "a buffer is copied to grow", "Allocate the longest"),
        ("out_of_memory.fixed", "2 requests failed for want", "Lower the peak"),
        ("trained_well.fixed", "", ""),
    ],
)
def test_each_cause_is_told(snapshot, why, advice):
    beside = Workspace(*joined(SNAPSHOTS / f"{snapshot}.pickle.gz").parts).get(MemoryBeside)
    assert why in beside.why and advice in beside.advice and bool(why) == bool(beside.why)


def test_the_allocator_s_stalls_are_explained_and_memory_is_drawn():
    report = advisor.analyze(joined(SNAPSHOTS / "emptied_cache.slow.pickle.gz"))
    finding = next(f for f in report.findings if f.rule == "allocator")
    assert "The snapshot says why: the cache was given back" in finding.summary and "empty_cache" in finding.fix.steps[0]
    assert report.memory is not None and report.kind == "trace" and not report.failed
    assert "another run" in next(c.detail for c in report.health if c.check == "memory-joined")
    page = html.render(report)
    assert "What holds the peak" in page and 'id="timeline"' in page


@pytest.mark.parametrize("snapshot", ["decoder_activations.slow", "emptied_cache.slow", "kept_features.slow"])
def test_the_snapshot_s_own_findings_stand_beside_the_step_s_and_leave_it_as_it_is(snapshot):
    path = SNAPSHOTS / f"{snapshot}.pickle.gz"
    alone, memory, both = advisor.analyze(TRACE), advisor.analyze(read(path)), advisor.analyze(joined(path))
    freeing = [f for f in both.findings if isinstance(f.saving, BytesSaved)]
    assert [(f.id, f.saving, f.severity, f.fix) for f in freeing] == [
        (f.id, f.saving, f.severity, f.fix) for f in memory.findings if isinstance(f.saving, BytesSaved)
    ]
    assert [f.saving for f in both.findings if f not in freeing] == [f.saving for f in alone.findings]
    assert both.headline == alone.headline
    ran = [r.rule for rows in (both.clear, both.skipped, both.failed) for r in rows]
    assert len(ran) == len({*ran}) and {*ran}.isdisjoint(f.rule for f in both.findings)
    assert {"memory-activations", "memory-leak", "memory-churn"} <= {*ran} | {f.rule for f in both.findings}
    assert not [h for h in both.health if h.check == "consistency"]


def test_bytes_are_of_the_peak_in_every_format():
    report = advisor.analyze(joined(SNAPSHOTS / "decoder_activations.slow.pickle.gz"))
    assert any(f.rule == "memory-activations" for f in report.findings)
    for name in ("html", "markdown", "sarif", "junit", "gitlab"):
        assert "peak of memory" in formats()[name].render(report), name
    drawn = json.loads(formats()["perfetto"].render(report))["traceEvents"]
    assert not any("memory-" in str(event["args"]) for event in drawn if event.get("ph") == "M")


def test_only_a_timeline_and_a_snapshot_join():
    snapshot = read(SNAPSHOTS / "trained_well.fixed.pickle.gz")
    for left, right in ((snapshot, snapshot), (read(TRACE), read(TRACE))):
        with pytest.raises(UsageError, match="kind"):
            with_memory(left, right)


def test_a_snapshot_of_a_program_that_trains_says_nothing_of_one_that_does_not():
    def joins(trace, snapshot):
        both = with_memory(read(SNAPSHOTS.parent / trace), read(SNAPSHOTS / snapshot))
        return next(c for c in advisor.analyze(both).health if c.check == "memory-joined")

    assert joins("launch-gap/slow.json.gz", "adam_state.slow.pickle.gz").status == "degraded"
    assert joins("optimizer-foreach/slow.json.gz", "adam_state.slow.pickle.gz").status == "ok"
