"""Snapshots of a job's ranks, read as one."""

import pickle

import pytest

import advisor
from advisor.errors import TraceError
from advisor.reports import formats
from advisor.sources import read
from tests.memory_build import MIB, USER, at
from tests.paths import ROOT


def written(path, mib):
    """A snapshot whose one allocation of that size was made at line `mib` of the program."""
    size, frames = mib * MIB, at(mib, "zeros")
    event = {"addr": 1 << 40, "size": size, "stream": 0, "time_us": 1, "frames": frames}
    block = {"address": 1 << 40, "size": size, "requested_size": size, "state": "active_allocated", "frames": frames}
    segment = {"device": 3, "address": 1 << 40, "total_size": size, "stream": 0, "segment_type": "large", "blocks": [block]}
    events = [{**event, "action": "segment_alloc"}, {**event, "action": "alloc"}]
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[], [], [], events]}))


def test_the_rank_that_holds_most_is_said(tmp_path):
    for rank, mib in ((0, 100), (2, 300), (10, 100)):
        written(tmp_path / f"snapshot_rank{rank}.pickle", mib)
    (snapshot,) = read(tmp_path).parts
    assert [device.device for device in snapshot.devices] == [0, 2, 10] and snapshot.ranks
    report = advisor.analyze(tmp_path)
    assert report.headline.summary.startswith("Rank 2 of 3 holds most, 3.00 times the median.")
    assert {d.device: d.peak_allocated_bytes for d in report.memory.devices} == {0: 100 * MIB, 2: 300 * MIB, 10: 100 * MIB}
    assert report.memory.at_peak[0].source == f"{USER}:300"


@pytest.mark.parametrize(
    ("mib", "told"),
    [
        ((100, 300, 200), "Rank 1 of 3 holds most, 1.50 times the median. Only this rank was looked at; the others' peaks are 105 MB to 210 MB."),
        ((100, 300, 100), "Rank 1 of 3 holds most, 3.00 times the median. Only this rank was looked at; each of the others' peaks is 105 MB."),
        ((100, 300), "Rank 1 of 2 holds most, 1.50 times the median. Only this rank was looked at; the other's peak is 105 MB."),
        ((300, 300), "Rank 0 of 2 holds as much as any, 1.00 times the median. Only this rank was looked at; the other's peak is 315 MB."),
    ],
)
def test_that_only_the_fullest_rank_is_judged_is_said_in_every_format(tmp_path, mib, told):
    for rank, held in enumerate(mib):
        written(tmp_path / f"rank{rank}.pickle", held)
    report = advisor.analyze(tmp_path)
    assert report.headline.summary.startswith(told)
    for name in ("text", "markdown", "html"):
        assert told.partition(". ")[2][:30] in " ".join(formats()[name].render(report).split())


def test_findings_and_totals_say_rank_and_no_gpu(tmp_path):
    for rank in (1, 2):
        (tmp_path / f"rank{rank}.pickle.gz").symlink_to(ROOT / "samples" / "memory" / "kept_features.slow.pickle.gz")
    report = advisor.analyze(tmp_path)
    leak = next(f for f in report.findings if f.rule == "memory-leak")
    assert leak.ranks == (1,) and all(item.device is None and item.label.endswith(", rank 1") for item in leak.evidence)
    for name in ("html", "markdown"):
        page = formats()[name].render(report)
        assert "Rank 1: at most" in page and "1 other rank" in page and "GPU 1" not in page


def test_one_snapshot_in_a_directory_is_that_snapshot(tmp_path):
    written(tmp_path / "snapshot.pickle", 100)
    assert not read(tmp_path).parts[0].ranks


def test_what_is_no_snapshot_among_them_is_refused(tmp_path):
    written(tmp_path / "rank0.pickle", 100)
    (tmp_path / "rank1.pickle").write_bytes(pickle.dumps({"no": "segments"}))
    with pytest.raises(TraceError, match="no memory snapshot"):
        read(tmp_path)
