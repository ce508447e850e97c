"""Ops by name: own time and that with inner ops, recursion counted once, memory by the op that asked."""

from __future__ import annotations

import pytest

from advisor.views.time.op_table import OpTable
from tests.build import Trace


def test_self_is_without_inner_ops_and_total_with_them() -> None:
    trace = Trace().op("aten::linear", 0, 100).op("aten::addmm", 10, 60).launch(20, 200, 250, "gemm").launch(80, 250, 260, "bias")
    rows = {row.name: row for row in trace.get(OpTable).rows}
    assert (rows["aten::linear"].gpu_self_us, rows["aten::linear"].gpu_total_us) == (10.0, 60.0)
    assert (rows["aten::addmm"].gpu_self_us, rows["aten::addmm"].gpu_total_us) == (50.0, 50.0)
    assert (rows["aten::linear"].host_self_us, rows["aten::linear"].host_total_us) == (40.0, 100.0)
    assert rows["aten::addmm"].share == pytest.approx(50 / 60)


def test_an_op_inside_of_itself_counts_its_total_once() -> None:
    trace = Trace().op("aten::to", 0, 100).op("aten::to", 10, 50).launch(20, 200, 230, "copy")
    (row,) = trace.get(OpTable).rows
    assert (row.calls, row.host_total_us, row.gpu_total_us, row.host_self_us) == (2, 100.0, 30.0, 100.0)


def test_memory_is_of_the_innermost_op_that_asked() -> None:
    trace = Trace().op("aten::linear", 0, 100).op("aten::empty", 10, 20).launch(40, 200, 230, "gemm")
    for at, size in ((15.0, 1_000), (18.0, -1_000), (60.0, 500)):
        trace._add("memory", pid=1, tid=1, start_us=at, bytes=size, device_type=1, device=0)
    rows = {row.name: row.allocated_bytes for row in trace.get(OpTable).rows}
    assert rows == {"aten::linear": 500, "aten::empty": 1_000}


def test_nothing_of_a_trace_without_ops() -> None:
    assert Trace().launch(0, 10, 20, "k").get(OpTable).rows == ()
