"""Which call launched which GPU op. `tests/views/test_views.py` has graphs, the first row and merged ranks in their plain form."""

import numpy as np
import pytest

from advisor.knowledge.cuda_api import ApiRole
from advisor.views.trace.launches import Launches
from tests.build import Trace


def names(trace):
    """For each GPU op in order of start: the call that launched it, by name and start."""
    timeline, launches = trace.timeline(), trace.get(Launches)
    calls = timeline.api_calls
    return [(calls["name"][c], calls["start_us"][c]) if c >= 0 else None for c in launches.call]


def test_a_kernel_belongs_to_the_call_with_its_correlation_in_whatever_order():
    trace = Trace().gpu(30, 40, correlation=2).gpu(10, 20, correlation=1)
    trace.call("cudaLaunchKernel", 5, 1, 2).call("cudaLaunchKernel", 1, 1, 1)
    assert names(trace) == [("cudaLaunchKernel", 1), ("cudaLaunchKernel", 5)]
    assert trace.get(Launches).start_us.tolist() == [1, 5]


def test_one_graph_launch_many_kernels_on_many_streams_and_their_copies():
    trace = Trace().call("cudaGraphLaunch", 3, 2, 77)
    for k in range(200):
        trace.gpu(10 + k, 11 + k, correlation=77, stream=7 + k % 3)
    trace.gpu(300, 310, "Memcpy DtoD", correlation=77, kind="memcpy")
    launches = trace.get(Launches)
    assert (launches.call == 0).all() and (launches.start_us == 3).all() and launches.ambiguous == 0


def test_two_replays_of_one_graph_are_told_apart():
    trace = Trace()
    for replay in range(3):
        trace.call("cudaGraphLaunch", 100 * replay, 5, replay)
        for k in range(4):
            trace.gpu(100 * replay + 10 + k, 100 * replay + 11 + k, f"node{k}", correlation=replay)
    assert trace.get(Launches).start_us.tolist() == [0] * 4 + [100] * 4 + [200] * 4


def test_the_driver_call_inside_a_runtime_call_is_the_same_launch():
    trace = Trace().call("cudaLaunchKernelExC", 10, 8, 5).call("cuLaunchKernelEx", 12, 4, 5).gpu(20, 30, correlation=5)
    assert names(trace) == [("cuLaunchKernelEx", 12)] and trace.get(Launches).ambiguous == 0


def test_merged_ranks_reuse_ids_and_each_kernel_keeps_its_own_launch():
    trace = Trace()
    for rank in range(2):
        for k in range(3):
            at = 50 * k + 1000 * rank
            trace.call("cudaLaunchKernel", at, 2, k, tid=10 + rank).gpu(at + 5, at + 20, correlation=k, device=rank)
    launches = trace.get(Launches)
    assert launches.start_us.tolist() == [0, 50, 100, 1000, 1050, 1100]
    # The ops of the second rank come after both calls; all six share an id.
    assert launches.ambiguous == 6


@pytest.mark.parametrize("correlation", [-1, 12345])
def test_an_op_without_a_recorded_launch_has_none(correlation):
    trace = Trace().call("cudaStreamIsCapturing", 0, 1, -1).call("cudaLaunchKernel", 2, 1, 1).gpu(5, 9, correlation=1)
    trace.gpu(20, 30, correlation=correlation)
    launches = trace.get(Launches)
    assert launches.call.tolist() == [1, -1] and np.isnan(launches.start_us).tolist() == [False, True]


def test_without_calls_nothing_is_linked():
    launches = Trace().gpu(0, 5, correlation=3).get(Launches)
    assert launches.call.tolist() == [-1] and np.isnan(launches.start_us).all() and launches.ambiguous == 0


def test_ids_need_be_neither_small_nor_dense():
    # HIP stream and correlation ids exceed 32 bits in some producers' files; Cuspy's flows begin at 2^40.
    big = 1 << 45
    trace = Trace().call("hipLaunchKernel", 0, 1, big).call("hipLaunchKernel", 10, 1, 3).gpu(5, 9, correlation=big).gpu(15, 19, correlation=3)
    assert trace.get(Launches).call.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("cudaLaunchKernel", ApiRole.LAUNCH), ("cudaLaunchKernel_v7000", ApiRole.LAUNCH), ("cudaLaunchKernel_ptsz", ApiRole.LAUNCH),
        ("cudaLaunchKernelExC_v11060", ApiRole.LAUNCH), ("cuLaunchKernel", ApiRole.LAUNCH), ("cuLaunchKernelEx", ApiRole.LAUNCH),
        ("cudaLaunchCooperativeKernel", ApiRole.LAUNCH), ("hipLaunchKernel", ApiRole.LAUNCH), ("hipExtLaunchKernel", ApiRole.LAUNCH),
        ("hipModuleLaunchKernel", ApiRole.LAUNCH), ("hipExtModuleLaunchKernel", ApiRole.LAUNCH),
        ("cudaGraphLaunch_v10000", ApiRole.GRAPH_LAUNCH), ("cuGraphLaunch", ApiRole.GRAPH_LAUNCH), ("hipGraphLaunch", ApiRole.GRAPH_LAUNCH),
        ("cudaMemcpyAsync", ApiRole.COPY), ("cudaMemcpy2DAsync", ApiRole.COPY), ("hipMemcpyWithStream", ApiRole.COPY),
        ("cuMemcpyHtoDAsync_v2", ApiRole.COPY), ("cudaMemsetAsync", ApiRole.MEMSET), ("cuMemsetD32Async", ApiRole.MEMSET),
        ("cudaStreamSynchronize_ptsz", ApiRole.SYNC), ("cuCtxSynchronize", ApiRole.SYNC), ("hipEventSynchronize", ApiRole.SYNC),
        ("cudaEventQuery", ApiRole.EVENT), ("cudaStreamWaitEvent", ApiRole.EVENT), ("cudaEventRecord", ApiRole.EVENT),
        ("cudaMallocAsync", ApiRole.ALLOCATION), ("cudaFree", ApiRole.ALLOCATION), ("cudaHostAlloc", ApiRole.ALLOCATION),
        ("cudaGetDevice", ApiRole.OTHER), ("cudaStreamIsCapturing", ApiRole.OTHER), ("cudaMemPrefetchAsync", ApiRole.OTHER),
        ("cudaGraphInstantiate", ApiRole.OTHER), ("cudaFuncGetAttributes", ApiRole.OTHER), ("cudaOccupancyMaxActiveBlocksPerMultiprocessor", ApiRole.OTHER),
    ],
)  # fmt: skip
def test_the_role_of_a_call(name, role):
    trace = Trace().call(name, 0, 1)
    assert trace.get(Launches).calls_with(role).tolist() == [0]
