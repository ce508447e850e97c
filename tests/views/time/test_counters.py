"""Counters that were sampled as the program ran decide what bounds the step, before what names and shapes let one guess."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor import analyze, sources
from advisor.knowledge.shares import WELL_USED
from advisor.sources.kineto.counters import counters

DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"


def trace(folder: Path, **sampled: float) -> Path:
    """Ten steps of one kernel each, of a name that says nothing, and a sample of each counter every 100 µs."""
    events: list[dict[str, Any]] = []
    for i in range(10):
        at = 1000.0 * i
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}", "pid": 700, "tid": 1, "ts": at, "dur": 990},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 700, "tid": 1, "ts": at + 5, "dur": 5, "args": {"correlation": i + 1}},
            {
                "ph": "X",
                "cat": "kernel",
                "name": "cutlass_gemm_bf16",
                "pid": 0,
                "tid": 7,
                "ts": at + 20,
                "dur": 950,
                "args": {"correlation": i + 1, "device": 0, "stream": 7},
            },
        ]
    for metric, value in sampled.items():
        events += [{"ph": "C", "name": metric, "pid": 0, "ts": 100.0 * i, "args": {"value": value}} for i in range(100)]
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_samples_are_read_whichever_way_they_are_spelled() -> None:
    piece = ", ".join(
        json.dumps(event)
        for event in (
            {"ph": "C", "name": DRAM, "pid": 1, "ts": 2.5, "args": {"value": 40}},
            {"ph": "C", "name": "PM sampling", "pid": 1, "ts": 3.0, "args": {"SM Active": 12.5, TENSOR: 3, "unit": "%"}},
            {"ph": "C", "name": "a host's", "pid": 70_000, "ts": 3.0, "args": {"value": 1}},
            {"ph": "C", "name": "no number", "pid": 1, "ts": None, "args": {"value": True}},
        )
    )
    found = counters(piece.encode())
    assert list(found["value"]) == [40.0, 12.5, 3.0] and list(found["device"]) == [1, 1, 1] and list(found["start_ns"]) == [2500, 3000, 3000]
    names = found["name"]
    assert names.rows() == [DRAM, "SM Active", TENSOR]
    assert counters(b'{"ph": "X", "name": "C"}') == {} and counters(b'{"ph": "C", broken') == {}


def test_they_stand_in_the_timeline_and_the_report(tmp_path: Path) -> None:
    path = trace(tmp_path, **{DRAM: 66.5})
    timeline = sources.load(path)
    assert len(timeline.gpu_metrics) == 100 and set(timeline.gpu_metrics["value"]) == {66.5}
    assert [(row["unit"], row["mean_pct"]) for row in json.loads(analyze(path).to_json())["utilization"]] == [("DRAM", 66.5)]


@pytest.mark.parametrize(
    ("dram", "tensor", "bound"),
    [
        (80.0, 5.0, "memory-bound"),
        (20.0, 75.0, "compute-bound"),
        (100 * WELL_USED * 0.95 + 1, None, "memory-bound"),
        (100 * WELL_USED * 0.9, None, "gpu-bound"),
    ],
)
def test_what_was_counted_decides(dram: float, tensor: float | None, bound: str, tmp_path: Path) -> None:
    """Kernels run for 95 % of the step: memory at 57 % of its peak in all is at 60 % while they do."""
    sampled = {DRAM: dram} | ({} if tensor is None else {TENSOR: tensor})
    headline = analyze(trace(tmp_path, **sampled)).report.headline
    assert headline.bottleneck == bound
    assert ("Counters sampled" in headline.summary) == (bound != "gpu-bound")


def test_without_counters_nothing_is_claimed(tmp_path: Path) -> None:
    headline = analyze(trace(tmp_path)).report.headline
    assert headline.bottleneck == "gpu-bound" and "does not show whether compute or memory" in headline.summary
