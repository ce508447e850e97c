"""JAX's memory profile: buffers by where they were made."""

import gzip

import pytest

from advisor.compare.budgets import check
from advisor.compare.memory import compare_memory
from advisor.engine.run import analyze
from advisor.errors import TraceError
from advisor.reports import formats
from advisor.sources import read
from tests.paths import ROOT

SAMPLE = ROOT / "samples" / "memory" / "jax.memory.prof"


def test_a_profile_of_jax_says_what_is_held_and_where_it_was_made():
    # Eight arrays of 2048 × 2048 float32 and their products: 8 + 8 times 16 MiB.
    report = analyze(SAMPLE)
    assert report.kind == "memory" and report.source.format == "jax-memory"
    assert report.memory.peak_allocated_bytes == 16 * (16 << 20)
    by_line: dict[str, int] = {}
    for row in report.memory.at_peak:
        by_line[row.source] = by_line.get(row.source, 0) + (row.bytes >> 20)
    assert by_line == {"extras.py:27": 128, "extras.py:28": 128}
    assert not report.failed and report.headline.judged == "partly"
    # What came and went is not known, so nobody has looked at it, nor held it against what is held.
    assert not report.clear and len(report.skipped) == 8 and "snapshot was written" in report.headline.summary
    assert [(check.check, check.status) for check in report.health] == [("memory-history", "degraded"), ("memory-stacks", "ok")]


def test_a_profile_of_jax_gives_no_reserved_bytes_and_calls_what_it_holds_no_peak():
    """It says what is allocated, 16 times 16 MiB, when it was written: neither what the allocator held beyond that nor what was held before."""
    report = analyze(SAMPLE)
    assert "268 MB allocated; " in report.headline.summary and not report.memory.segments
    for name in ("html", "markdown", "text"):
        page = formats()[name].render(report)
        assert "reserved" not in page.split("</style>")[-1].split("<script")[0] and "What holds the peak" not in page
        assert name == "text" or "Memory held when the snapshot was written" in page
    assert [verdict.status for verdict in check({"reserved_bytes": 1e12}, report)] == ["unknown"]
    assert compare_memory([report], [report]).summary == "The peak allocated is as it was."


def test_a_damaged_profile_is_said_to_be_damaged(tmp_path):
    data = gzip.decompress(SAMPLE.read_bytes())
    for end in range(20, len(data), 97):
        path = tmp_path / "memory.prof"
        path.write_bytes(data[:end])
        try:
            read(path)
        except TraceError as error:
            assert error.hint
    with pytest.raises(TraceError, match="no buffers"):
        path.write_bytes(data[:12])
        read(path)


@pytest.mark.parametrize(("label", "device"), [(b"cpu:00", None), (b"rocm:3", 3), (b"TPU_12", 12)])
def test_a_device_is_known_by_its_label_and_the_cpu_is_none(tmp_path, label, device):
    raw = gzip.decompress(SAMPLE.read_bytes())
    assert raw.count(b"cuda:0") == 1
    path = tmp_path / "memory.prof"
    path.write_bytes(raw.replace(b"cuda:0", label))
    if device is None:
        with pytest.raises(TraceError, match="ran on the CPU"):
            read(path)
    else:
        assert [d.device for d in read(path).parts[0].devices] == [device]
