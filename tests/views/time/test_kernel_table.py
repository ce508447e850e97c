"""GPU ops by name: means and rates over the calls of which they are known."""

import pytest

from advisor.views.time.kernel_table import KernelTable
from tests.build import Trace


def test_calls_of_which_nothing_is_known_dilute_no_rate():
    # Of two products a step one has its shapes: 2 x 64 x 128 x 32 FLOPs in 20 µs. The other takes 60, at an occupancy of 50 %, on 66 of 132 multiprocessors.
    trace = Trace()
    for s in range(3):
        at = 100.0 * s
        trace.step(at, 99, s + 1).op("aten::mm", at, 10, dims=[[64, 128], [128, 32]]).launch(at + 1, at + 5, at + 25, "gemm")
        trace.launch(at + 12, at + 25, at + 85, "gemm", occupancy_pct=50.0, grid_blocks=66)
        trace.rows["gpu_ops"][-2]["occupancy_pct"] = float("nan")
    (row,) = trace.get(KernelTable).rows
    assert (row.calls, row.occupancy_pct, row.active_sms) == (4, 50, 0.5)
    assert row.tflops == pytest.approx(2 * 64 * 128 * 32 / 20 / 1e6) and row.gbps == pytest.approx(4 * (64 * 128 + 128 * 32 + 64 * 32) / 20 / 1e3)
