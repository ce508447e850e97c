"""Mistakes that other tools make in public, each a trace by which ours would be seen to make it.

Two of them are the reader's own tests: bytes that are no text (tests/sources/nsys/test_nsys.py) and whole graphs (the same).
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import advisor
from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.knowledge.devices import find
from advisor.knowledge.op_costs import op_cost
from advisor.knowledge.op_tokens.families import Family, family, precision
from advisor.recordings.timeline import Device
from advisor.views.time.device_time import Partition
from advisor.views.time.idle_gaps import Gaps
from advisor.views.time.kernel_table import KernelTable
from advisor.views.time.roofline import Roofline
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from tests.build import H200, Trace
from tests.paths import SHARED, needs_shared
from tests.sources.nsys.test_nsys import MEMCPY, call, export, kernel, process


def steps(count=3, period=100.0):
    trace = Trace()
    for s in range(count):
        trace.step(period * s, period - 1, s + 1)
    return trace


def test_pinned_memory_is_not_called_pageable(tmp_path):
    """nsys-ai reads nsys's memory kinds with CUPTI's numbers: 1 is pinned here, not pageable."""
    rows = [(100 * i, 100 * i + 50, 0, 7, i + 1, process(), 1 << 20, 1, kind, 2) for i, kind in enumerate([1, 1, 1, 0])]
    tables = [(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({MEMCPY})",), ("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?,?,?,?,?,?)", *rows)]
    kinds = advisor.load(export(tmp_path / "a.sqlite", *tables)).gpu_ops["src_kind"]
    assert kinds.tolist().count("pageable") == 1 and kinds.tolist().count("pinned") == 3


def test_a_device_that_copies_is_not_idle():
    """nsys-ai counts kernels alone: a run bound by copies is said to idle for 97 % of it."""
    trace = steps()
    for s in range(3):
        trace.launch(100.0 * s, 100.0 * s + 3, 100.0 * s + 5).copy(100.0 * s + 1, 1, 100.0 * s + 5, 100.0 * s + 102)
    (time,) = run(trace.timeline(), []).time
    assert (time.compute_us / time.window_us, time.exposed_copy_us / time.window_us) == (0.02, 0.97)
    assert time.idle_us / time.window_us == pytest.approx(0.01)


@pytest.mark.parametrize(
    "name", ["void cutlass::Kernel<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(P)", "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_ffma"]
)
def test_xmma_is_no_tensor_core(name):
    """nsys-ai and the TensorBoard plugin take every name with xmma or cutlass for a Tensor Core kernel."""
    assert precision(name, '["float", "float"]') == "fp32"


@pytest.mark.parametrize(("dur", "held"), [(3, False), (60, True)])
def test_a_copy_holds_the_host_where_its_call_lasts_as_long_as_the_transfer_whatever_its_name(dur, held):
    """nsys-ai's rule for synchronous copies matches cudaMemcpy2DAsync by its start; pageable cudaMemcpyAsync holds the host too."""
    host = Trace().copy(10, dur, 15, 65).launch(100, 110, 120).get(HostActivity)
    assert bool(len(host.blocking_copies)) is held


def test_kernels_shorter_than_a_microsecond_last_what_they_last(tmp_path):
    """HTA rounds starts up and ends down: such kernels last -1 µs."""
    events = [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1000.4 + i, "dur": 0.3, "args": {"device": 0, "stream": 7}} for i in range(3)]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    ops = advisor.load(tmp_path / "t.json").gpu_ops
    assert np.allclose(ops["dur_us"], 0.3) and np.allclose(ops["start_us"], [0, 1, 2])


@pytest.mark.parametrize("name", ["hipMemcpyAsync", "hipLaunchKernel", "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32"])
def test_hip_is_not_communication(name):
    """HTA takes whatever begins with hip for communication."""
    assert family(name, "", "") is not Family.COMMUNICATION


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "multimem_all_reduce_kernel<c10::BFloat16>",
        "ncclDevKernel_SendRecv",
    ],
)
def test_communication_of_every_generation(name):
    """HTA knows ncclKernel alone; HTA, TraceLens and nsys-ai miss multimem_all_reduce."""
    assert family(name, "", "") is Family.COMMUNICATION


def test_every_stream_counts():
    """HTA's queue-length counters keep the last stream's and drop the others."""
    trace = steps()
    for s in range(3):
        at = 100.0 * s
        trace.launch(at, at + 10, at + 40, stream=7).launch(at + 1, at + 60, at + 90, stream=20)
    (part,) = trace.get(Partition).devices
    assert part.busy_us == 60 * 2, "two whole steps"
    assert np.isin([7, 20], trace.timeline().gpu_ops["stream"]).all()


@pytest.mark.parametrize("name", ["dma_gather_kernel", "my_Memset_like_kernel", "SyncBatchNorm_kernel", "transposeMemcpyKernel"])
def test_a_kernel_is_what_its_category_says(name):
    """HTA drops kernels whose names hold dma, Memset or Sync from computing."""
    trace = steps()
    for s in range(3):
        trace.launch(100.0 * s, 100.0 * s + 5, 100.0 * s + 55, name=name)
    (time,) = run(trace.timeline(), []).time
    assert time.compute_us / time.window_us == pytest.approx(0.5)


def test_the_launch_in_the_first_row_is_a_launch():
    """HTA joins where the index is above 0: the first event's kernel loses its launch."""
    trace = Trace().launch(0, 3, 5)
    assert trace.get(Launches).call.tolist() == [0]


def test_an_op_that_outlives_its_parent_by_a_microsecond_is_kept():
    """TraceLens drops events that bleed out of their parent by 1 µs or more."""
    trace = steps().op("aten::outer", 0, 50).op("aten::inner", 10, 42).launch(20, 60, 70)
    ops = trace.get(Ops)
    assert len(trace.timeline().cpu_ops) == 2 and ops.name(int(ops.of_gpu[0])) == "aten::inner"


def test_devices_in_one_trace_stay_apart():
    """TraceLens lays the devices of a trace over each other: two half-busy ones seem busy throughout."""
    trace = Trace(devices=(H200, Device(1, "NVIDIA H200", 132, (9, 0), 150_109_880_320, 32)))
    for s in range(3):
        at = 100.0 * s
        trace.step(at, 99, s + 1).launch(at, at + 5, at + 55, device=0).launch(at + 1, at + 55, at + 105, device=1)
    report = run(trace.timeline(), [])
    assert len(report.time) == 2
    assert [t.compute_us / t.window_us for t in report.time] == pytest.approx([0.5, 0.5], abs=0.06)


def test_identical_kernels_are_counted_each():
    """PyTorch's profile_analysis keeps statistics in a set of records: identical launches collapse into one."""
    trace = steps()
    for s in range(3):
        for n in range(5):
            trace.launch(100.0 * s + n, 100.0 * s + 10 * n + 5, 100.0 * s + 10 * n + 10)
    (row,) = trace.get(KernelTable).rows
    assert (row.calls, row.total_us) == (10, 50)


def test_the_work_of_an_op_is_shared_among_its_kernels_not_given_to_each():
    """profile_analysis gives an op's FLOPs to every kernel of the same External id, and counts a product's bytes twice."""
    trace = steps()
    for s in range(3):
        at = 100.0 * s
        trace.op("aten::mm", at, 30, dims=[[64, 128], [128, 32]]).launch(at + 1, at + 5, at + 25, "gemm").launch(at + 2, at + 25, at + 30, "splitK")
    found = trace.get(Roofline)
    one = op_cost("aten::mm", [[64, 128], [128, 32]], ["float", "float"], [], [])
    assert one.flops == 2 * 64 * 128 * 32 and one.bytes == 4 * (64 * 128 + 128 * 32 + 64 * 32)
    assert np.nansum(found.flops) == 3 * one.flops and np.nansum(found.bytes) == 3 * one.bytes
    assert found.flops[0] == pytest.approx(0.8 * one.flops)


def test_a_kernel_without_duration_divides_nothing():
    """profile_analysis divides by the duration."""
    trace = steps()
    for s in range(3):
        trace.op("aten::mm", 100.0 * s, 30, dims=[[8, 8], [8, 8]]).launch(100.0 * s + 1, 100.0 * s + 5, 100.0 * s + 5)
    report = run(trace.timeline(), built_in().values())
    assert not report.failed and all(np.isfinite([k.tflops, k.gbps]).all() for k in report.kernels)


def test_peak_rates_are_dense_and_each_card_s_own():
    """PyTorch's device_info has the H100's sparse rate, and the L4 with the H100's bandwidth."""
    h100, l4 = find("NVIDIA H100 80GB HBM3"), find("NVIDIA L4")
    assert h100 and h100.bf16_tflops and 900 < h100.bf16_tflops < 1000
    assert l4 and l4.memory_gbps == 300 and l4.bf16_tflops == pytest.approx(121, abs=1)


def test_streams_that_overlap_use_the_device_once():
    """nsys's gpu_time_util sums streams: more than 100 % busy."""
    trace = steps()
    for s in range(3):
        at = 100.0 * s
        trace.launch(at, at + 5, at + 95, stream=7).launch(at + 1, at + 5, at + 95, stream=8)
    (time,) = run(trace.timeline(), []).time
    assert time.compute_us / time.window_us == pytest.approx(0.9)


def test_kernels_that_overlap_on_their_own_stream_are_both_kept():
    """Viewers that nest strictly drop a kernel which programmatic launch starts before the one ahead has ended."""
    trace = steps()
    for s in range(3):
        at = 100.0 * s
        trace.launch(at, at + 10, at + 50, "a").launch(at + 1, at + 48, at + 80, "b")
    (time,) = (report := run(trace.timeline(), [])).time
    assert time.compute_us / time.window_us == pytest.approx(0.7)
    assert {k.name: k.total_us for k in report.kernels} == {"a": 80, "b": 64}
    assert next(h.status for h in report.health if h.check == "stream-order") == "ok"


def test_kernels_without_ids_of_framework_ops_still_have_gaps():
    """PyTorch's validator looks kernels up by External id: where a producer writes none, it finds nothing and says all is well."""
    trace = steps()
    for s in range(3):
        at = 100.0 * s
        trace.launch(at + 40, at + 45, at + 50).launch(at + 80, at + 85, at + 90)
    gaps = trace.get(Gaps)
    assert gaps.dur_us.sum() == pytest.approx(180) and trace.get(Kernels).compute.all()


def test_whole_graphs_are_work(tmp_path):
    """nsys's rules pass over graphs that were recorded as one event: a device that runs nothing else seems idle."""
    columns = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER"
    graphs = [(f"CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({columns})",)]
    graphs += [("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?,?,?,?,?,?,?)", (1_000, 95_000, 0, 7, 3, process(), 5))]
    report = advisor.analyze(export(tmp_path / "a.sqlite", call(0, 500, 3), kernel(95_000, 100_000, 4), *graphs))
    assert report.time[0].compute_us == 99 and "launch-gap" not in [f.rule for f in report.findings]


@needs_shared
def test_time_classes_of_a_public_export():
    """One device, 1 % idle, as a tool that counts copies says; another said 97 %."""
    report = advisor.analyze(SHARED / "public" / "nsys" / "nsysai_healthy_1pct.sqlite")
    assert sum(t.idle_us for t in report.time) / sum(t.window_us for t in report.time) < 0.03
