"""Proton's traces and trees: each writer's, as recorded and as built by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from advisor import analyze, sources
from advisor.errors import TraceError
from advisor.recordings.kernel_profiles import KernelProfiles
from advisor.recordings.timeline import Timeline
from advisor.sources.redact import redact
from tests.paths import ROOT
from tests.sources.proton.build import kernel, lane, node, packed, ran, scope, trace, tree

HERE = Path(__file__).parent / "recorded"
SAMPLES = ROOT / "samples" / "proton"


def timeline(data: bytes, folder: Path) -> Timeline:
    path = folder / "x.chrome_trace"
    path.write_bytes(data)
    (part,) = sources.read(path).parts
    assert isinstance(part, Timeline) and part.source.format == "proton"
    return part


def kernels(data: bytes, folder: Path) -> KernelProfiles:
    path = folder / "x.hatchet"
    path.write_bytes(data)
    (part,) = sources.read(path).parts
    assert isinstance(part, KernelProfiles) and part.format == "proton"
    return part


def test_a_trace_of_a_document_a_line_is_read_whole(tmp_path: Path) -> None:
    """Each stream has a line; the first line alone would be a trace, too."""
    lines = [
        json.dumps(
            {"displayTimeUnit": "us", "traceEvents": [{k: v for k, v in kernel("k", 10 * s, 5).items() if k != "pid"} | {"tid": s}]}, separators=(",", ":")
        )
        for s in (7, 13)
    ]
    found = timeline("\n".join(lines).encode(), tmp_path)
    assert found.gpu_ops["stream"].tolist() == [7, 13] and found.gpu_ops["start_us"].tolist() == [0.0, 60.0] and not found.source.issues


def test_a_trace_with_lanes_tells_device_stream_scopes_and_work(tmp_path: Path) -> None:
    data = trace(
        lane(1, "CPU Thread 1"),
        scope("step", 0, 30),
        kernel("a", 10, 5, "step", "inner", flops16="100.0", flops8="1", bytes="40"),
        kernel("b", 20, 2, "step", stream=9, device=1),
        kernel("a", 16, 5, "step", "inner", flops16="100.0", flops8="1", bytes="40"),
        {"cat": "flow", "ph": "s", "name": "launch->kernel", "id": 3, "pid": 0, "tid": 1, "ts": 0, "bp": "e"},
    )
    found = timeline(data, tmp_path)
    assert found.gpu_ops.rows("name", "device", "stream", "start_us") == [("a", 0, 7, 10.0), ("a", 0, 7, 16.0), ("b", 1, 9, 20.0)]
    assert found.compiled_ops.rows("name", "flops", "bytes") == [("a", 101.0, 40.0)] and found.gpu_ops["compiled"].tolist() == [0, 0, -1]
    assert found.annotations.rows("name", "tid", "dur_us") == [("step", 1, 30.0)]
    around = sorted(found.gpu_annotations.rows("name", "device", "start_us", "dur_us"))
    assert around == [("inner", 0, 10.0, 11.0), ("step", 0, 10.0, 11.0), ("step", 1, 20.0, 2.0)]


def test_metadata_reaches_the_roofline(tmp_path: Path) -> None:
    """A kernel that is said to move 4 GB in 1 ms moves 4 TB/s."""
    path = tmp_path / "x.chrome_trace"
    path.write_bytes(trace(*(kernel("scale", 2000.0 * i, 1000.0, f"step_{i}", bytes="4000000000.0", flops32="1e9") for i in range(4))))
    report = json.loads(analyze(path).to_json())
    (row,) = report["kernels"]
    assert row["name"] == "scale" and row["gbps"] == pytest.approx(4000.0)


def test_a_trace_cut_in_its_second_document_says_so(tmp_path: Path) -> None:
    found = timeline(trace(kernel("a", 1, 2), lanes=False) + trace(kernel("b", 4, 2), lanes=False)[:-30], tmp_path)
    assert len(found.gpu_ops) == 1 and found.source.cut


def test_scopes_inside_kernels_are_named() -> None:
    with pytest.raises(TraceError) as error:
        sources.read(ROOT / "tests" / "sources" / "formats" / "proton-in-kernel.chrome_trace.gz")
    assert "of kernel add its warps' time is in add and store 80%, load 20%" in error.value.message
    with pytest.raises(TraceError, match="cycles of scopes inside kernels"):
        sources.read(HERE / "intra.hatchet.gz")


def test_a_tree_is_the_same_in_json_and_in_messagepack(tmp_path: Path) -> None:
    value = tree(node("step", ran("scale", 4000, 4, bytes=8000.0, flops32=100.0), ran("mm", 9000, 2)), node("other", ran("scale", 1000, 1, bytes=2000.0)))
    one, other = kernels(json.dumps(value).encode(), tmp_path), kernels(packed(value), tmp_path)
    assert one.kernels == other.kernels
    first, second = one.kernels
    assert (first.name, first.launches, first.duration_us, first.capability) == ("mm", 2, 4.5, (9, 0))
    assert (second.name, second.launches, second.duration_us) == ("scale", 5, 1.0)
    # Bytes over time, of what a bus of 6016 bits moves at twice 3.201 GHz.
    share = second.get("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed")
    assert share == pytest.approx(100 * (10000 / 5e-6) / (2 * 6016 / 8 * 3.201e9))


def test_a_tree_of_2024_spells_its_metrics_in_another_way(tmp_path: Path) -> None:
    text = json.dumps(tree(ran("mm", 9000, 2)))
    former = text.replace('"time (ns)"', '"Time (ns)"').replace('"count"', '"Count"').replace('"device_id"', '"DeviceId"')
    (tmp_path / "now.hatchet").write_text(text)
    (tmp_path / "former.hatchet").write_text(former)
    now, then = (sources.read(tmp_path / name).parts[0].kernels for name in ("now.hatchet", "former.hatchet"))
    assert now == then and former != text


def test_the_tree_of_a_recording_says_which_kernel_is_at_the_memory_s_limit() -> None:
    report = json.loads(analyze(SAMPLES / "pointwise.fixed.hatchet").to_json())
    assert {row["name"]: row["limiter"] for row in report["kernels"]}["scale_<n:16777216>"] == "dram"
    assert [row["calls"] for row in report["kernels"]] == [4, 4, 4]


def test_a_tree_of_amd_s_gpus_is_sent_to_amd_s_tools(tmp_path: Path) -> None:
    path = tmp_path / "x.hatchet"
    path.write_bytes(json.dumps(tree(ran("k", 10, 1), devices={"HIP": {"0": {"arch": "gfx942"}}})).encode())
    with pytest.raises(TraceError) as error:
        sources.read(path)
    assert "rocprof-compute" in error.value.hint and "ncu" not in error.value.hint


def test_a_tree_as_deep_as_the_file_is_long_is_read(tmp_path: Path) -> None:
    deep = b'{"frame":{"name":"a"},"metrics":{},"children":['
    path = tmp_path / "x.hatchet"
    path.write_bytes(b"[" + b'{"children":[' * 100_000)
    with pytest.raises(TraceError):
        sources.read(path)
    path.write_bytes(b"[" + deep * 200 + json.dumps(ran("k", 10, 1)).encode() + b"]}" * 200 + b"]")
    assert len(kernels(path.read_bytes(), tmp_path).kernels) == 1


def test_a_pair_finds_the_fault_and_not_where_it_is_mended() -> None:
    slow, fixed = (analyze(SAMPLES / f"pointwise.{side}.chrome_trace.gz") for side in ("slow", "fixed"))
    assert [f.rule for f in slow.findings] == ["unfused-elementwise"] and not fixed.findings


@pytest.mark.parametrize("name", ["pointwise.slow.chrome_trace.gz", "pointwise.fixed.hatchet"])
def test_a_redacted_file_says_the_same(name: str, tmp_path: Path) -> None:
    target = tmp_path / name.removesuffix(".gz")
    redact(SAMPLES / name, target)
    before, after = (json.loads(analyze(path).to_json()) for path in (SAMPLES / name, target))
    assert [row["calls"] for row in before["kernels"]] == [row["calls"] for row in after["kernels"]]
    assert np.allclose([row["total_us"] for row in before["kernels"]], [row["total_us"] for row in after["kernels"]])
    assert [f["rule"] for f in before["findings"]] == [f["rule"] for f in after["findings"]]


def test_what_was_recorded_is_small() -> None:
    files = [*SAMPLES.iterdir(), *HERE.iterdir()]
    assert sum(path.stat().st_size for path in files) < 60_000
    assert all(b"/home" not in (gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes()) for p in files)
