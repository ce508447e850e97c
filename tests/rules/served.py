"""Steps of a server by hand: marked, of kernels that a graph launches or the host one by one."""

from __future__ import annotations

from tests.build import Trace

GEMM, NORM, ATTENTION = "nvjet_tst_64x16_64x16_4x1_v_bz_TNT", "vllm::rms_norm_kernel<c10::BFloat16>", "flash_fwd_splitkv_kernel"
LAYER = ((NORM, 1.0), (GEMM, 1.0), (ATTENTION, 1.0), (GEMM, 1.0))
"""Kernels of a layer, and how much longer than others each is."""


def served(
    mark, steps=5, layers=5, graph=False, pieces=False, kernel_us=3.0, issue_us=12.0, rows=16, period_us=400.0, gap_us=0.0, trace=None, at=0.0, wait=False
):
    """mark: the range's name. graph: one launches all; pieces: one a layer, attention apart. gap_us: that the host spends between two steps; wait: it waits there
    for the step before. rows: blocks of the norms in a graph."""
    trace = trace or Trace()
    for step in range(steps):
        begin = at + step * period_us
        host = device = begin
        for layer in range(layers):
            for name, longer in LAYER:
                alone = not graph or (pieces and name == ATTENTION)
                first = alone or (layer == 0 and name == NORM) or (pieces and name in (NORM, GEMM) and trace.rows["gpu_ops"][-1]["name"] == ATTENTION)
                if first:
                    trace.correlation += 1
                    trace.op("aten::mm", host, issue_us - 1).call("cudaLaunchKernel" if alone else "cudaGraphLaunch", host + issue_us - 5, 4, trace.correlation)
                    host += issue_us
                device = max(device, host)
                trace.gpu(device, device + kernel_us * longer, name, trace.correlation, grid_blocks=rows if name == NORM else 96)
                device += kernel_us * longer
        trace.note(mark(step) if callable(mark) else mark, begin, host - begin + 1)
        if wait:
            trace.call("cudaEventSynchronize", host + 2, max(device - host - 2, 1.0))
        if gap_us:
            trace.python("scheduler.py(10): get_next_batch_to_run", max(host, device) + 5, gap_us)
    return trace
