"""A snapshot beside a timeline of the same program says why its allocator asks the driver."""

import json
from pathlib import Path

import pytest

import advisor
from advisor.errors import UsageError
from advisor.knowledge.structs import replace
from advisor.recordings.recording import Recording, with_memory
from advisor.recordings.snapshot import SnapshotBeside
from advisor.report.finding import BytesSaved
from advisor.reports import formats
from advisor.reports.report import html
from advisor.sources import read
from advisor.views.memory.attached_snapshot import MemoryBeside
from advisor.views.memory.joined import MemoryJoined
from advisor.views.workspace import Workspace
from tests.build import Trace
from tests.memory_build import MIB, USER, Memory, at
from tests.paths import ROOT

TRACE = ROOT / "samples" / "allocator" / "slow.json.gz"
SNAPSHOTS = ROOT / "samples" / "memory"


def joined(snapshot: Path, of_one_run: bool = False) -> Recording:
    """A trace that allocates, and a snapshot that comes from another program of ours. of_one_run: as if both were recorded at one time."""
    trace, memory = read(TRACE), read(snapshot)
    if of_one_run:
        base_ns = int(max(d.events.time_us[0] for d in memory.parts[0].devices if len(d.events))) * 1000
        trace = replace(trace, parts=(replace(trace.parts[0], base_ns=base_ns),))
    return with_memory(trace, memory)


@pytest.mark.parametrize(
    ("snapshot", "why", "advice"),
    [
        ("emptied_cache.slow", "freed and allocated again 5 times (allocating.py:", "empty_cache"),
        ("growing_lengths.slow", "sizes do not repeat", "expandable_segments"),
        ("grown_cache.slow", "a buffer is copied to grow", "Allocate the longest"),
        ("out_of_memory.fixed", "2 requests ran out of memory", "Lower the peak"),
        ("trained_well.fixed", "", ""),
    ],
)
def test_each_cause_is_told(snapshot, why, advice):
    beside = Workspace(*joined(SNAPSHOTS / f"{snapshot}.pickle.gz").parts).get(MemoryBeside)
    assert why in beside.why and advice in beside.advice and bool(why) == bool(beside.why)


def test_the_allocator_s_stalls_are_explained_and_memory_is_drawn():
    report = advisor.analyze(joined(SNAPSHOTS / "emptied_cache.slow.pickle.gz"))
    finding = next(f for f in report.findings if f.rule == "allocator")
    assert "The snapshot says why: the cache was freed" in finding.summary and "empty_cache" in finding.fix.steps[0]
    assert report.memory is not None and report.kind == "trace" and not report.failed
    assert "another run" in next(c.detail for c in report.health if c.check == "memory-joined")
    page = html.render(report)
    assert "What holds the peak" in page and 'id="timeline"' in page


@pytest.mark.parametrize("snapshot", ["decoder_activations.slow", "emptied_cache.slow", "kept_features.slow"])
def test_the_snapshot_s_own_findings_stand_beside_the_step_s_and_leave_it_as_it_is(snapshot):
    path = SNAPSHOTS / f"{snapshot}.pickle.gz"
    alone, memory, both = advisor.analyze(TRACE), advisor.analyze(read(path)), advisor.analyze(joined(path, of_one_run=True))
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
    report = advisor.analyze(joined(SNAPSHOTS / "decoder_activations.slow.pickle.gz", of_one_run=True))
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


def test_a_snapshot_of_another_program_is_refused_and_what_was_looked_for_said():
    def analysed(trace, snapshot):
        return advisor.analyze(with_memory(read(SNAPSHOTS.parent / trace), read(SNAPSHOTS / snapshot)))

    with pytest.raises(UsageError, match=r"of another program: of the sizes of tensors at its peak the trace has 0%; the snapshot shows training"):
        analysed("launch-gap/slow.json.gz", "adam_state.slow.pickle.gz")


@pytest.mark.parametrize(("shared", "file", "strangers"), [(3, "a.py", False), (0, USER, False), (0, "a.py", True)])
def test_sizes_or_files_in_common_make_one_program(shared, file, strangers):
    sizes, memory, trace = (3, 5, 7), Memory(), Trace()
    for mib in sizes:
        memory.alloc(mib, at(4))
    for i, mib in enumerate((*sizes[:shared], 11, 13, 15)):
        trace.launch(10 * i, 10 * i + 5, 10 * i + 9).op("aten::relu", 10 * i, 9, dims=[[mib * MIB // 4]])
    trace.python(f"{file}(3): forward", 0, 90)
    joined = Workspace(trace.timeline(), SnapshotBeside(memory.snapshot())).get(MemoryJoined)
    assert joined.strangers == strangers
