"""A snapshot beside a timeline of the same program says why its allocator asks the driver."""

from pathlib import Path

import pytest

import advisor
from advisor.errors import UsageError
from advisor.recording import Recording, with_memory
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


def test_only_a_timeline_and_a_snapshot_join():
    snapshot = read(SNAPSHOTS / "trained_well.fixed.pickle.gz")
    for left, right in ((snapshot, snapshot), (read(TRACE), read(TRACE))):
        with pytest.raises(UsageError, match="kind"):
            with_memory(left, right)
