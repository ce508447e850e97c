"""Recordings made by hand, one of each kind that advisor reads, and what it says of each: for a person to read in tests/reports/report/golden."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import msgspec

from advisor.compare import compare
from advisor.compare.model import Comparison
from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.knowledge.structs import replace
from advisor.recordings.kernel_profiles import KernelProfiles
from advisor.recordings.recording import Recording
from advisor.recordings.timeline import Timeline
from advisor.report.model import Kind, Report
from advisor.views.ranks.job import RankSummaries
from tests.build import Trace
from tests.kernels import kernel
from tests.memory_build import trained
from tests.views.ranks.build import rank_timeline, summary_of

STEPS = 5
GEMM = "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNN"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)"
OPS = {"aten::mm": GEMM, "aten::add": ADD}


def _analysed(kind: Kind, name: str, *parts: object) -> Report:
    return msgspec.structs.replace(run(Recording(kind, name, parts), built_in().values()), advisor="0.1.0")


def _named(timeline: Timeline, name: str) -> Timeline:
    return replace(timeline, source=replace(timeline.source, path=name))


def _small_kernels(trace: Trace, step_us: float = 400.0, kernel_us: float = 4.0) -> Trace:
    """Steps of ten ops of 36 µs on the host, each a kernel of a few on the device."""
    for step in range(STEPS):
        at = step * step_us
        trace.step(at, step_us - 1)
        for number in range(10):
            begin, (op, kernel_name) = at + 36 * number, [*OPS.items()][number % 2]
            trace.op(op, begin, 30, [[64, 64], [64, 64]], ["c10::BFloat16"] * 2).launch(begin + 20, begin + 26, begin + 26 + kernel_us, kernel_name, 5.0)
    return trace


def eager() -> Report:
    """Small kernels that the host issues one by one."""
    return _analysed("trace", "eager.json", _named(_small_kernels(Trace()).timeline(), "eager.json"))


def captured() -> Report:
    """The same kernels, a CUDA graph a step."""
    trace = Trace()
    for step in range(STEPS):
        at = 42.0 * step
        trace.step(at, 41.0)
        trace.correlation += 1
        trace.call("cudaGraphLaunch", at + 2, 10, trace.correlation)
        for number in range(10):
            trace.gpu(at + 15 + 4 * number, at + 19 + 4 * number, [*OPS.values()][number % 2], trace.correlation)
    return _analysed("trace", "captured.json", _named(trace.timeline(), "captured.json"))


def of_job() -> Report:
    """Three ranks, of which one computes three times as long before each all-reduce."""
    work = [[[300.0, 200.0]] * 4, [[900.0, 200.0]] * 4, [[300.0, 200.0]] * 4]
    return _analysed("job", "runs/ddp", RankSummaries(tuple(summary_of(rank_timeline(rank, own, work)) for rank, own in enumerate(work))))


def of_kernels() -> Report:
    """Three measured kernels: as fast as memory allows, with scattered accesses, with few warps."""
    measured = (
        kernel("copy", dram=90),
        kernel("gather", sectors=1e6, excess=8e5, dram=70, l2=90, long_scoreboard=20.0),
        kernel("scan", grid=12, registers=128, dram=5, compute=8, issue=4),
    )
    return _analysed("kernels", "kernels.ncu-rep", KernelProfiles("kernels.ncu-rep", "ncu-rep", 1, measured, {0: "NVIDIA H200"}))


def of_memory() -> Report:
    """Training whose activations hold most of the peak."""
    return _analysed("memory", "snapshot.pickle", trained(layers=8, activation=512).snapshot())


def of_jax() -> Report:
    """Jitted calls of one kernel each, which cost the host more than the device."""
    trace = Trace(recorder="jax")
    for step in range(STEPS):
        at = 600.0 * step
        trace.step(at, 599.0)
        for number in range(12):
            begin, name = at + 5 + 49 * number, ("add", "dot")[number % 2]
            trace.op(f"PjitFunction({name})", begin, 45).launch(
                begin + 30, begin + 38, begin + 42, f"loop_{name}_fusion", 6.0, "cuLaunchKernel", grid_blocks=96
            )
    return _analysed("trace", "vm.xplane.pb", _named(trace.timeline(), "vm.xplane.pb"))


def of_nsys() -> Report:
    """A program in CUDA that copies from pageable memory before each of its long kernels."""
    trace = Trace(recorder="nsys")
    for step in range(STEPS):
        at = 2_000.0 * step
        trace.note("step", at, 1_999)
        trace.copy(at + 5, 600, at + 10, at + 600, size=8 << 20)
        trace.launch(at + 620, at + 630, at + 1_600, "simulate(float*, int)", 4.0).call("cudaStreamSynchronize", at + 630, 980)
    return _analysed("trace", "report.sqlite", _named(trace.timeline(), "report.sqlite"))


def unjudged() -> Report:
    """Kernels that begin 50 µs before they are launched: the clocks of host and device do not agree."""
    trace = Trace()
    for step in range(STEPS):
        at = 100.0 + 400.0 * step
        trace.step(at, 399.0)
        for number in range(10):
            begin = at + 36 * number
            trace.op("aten::mm", begin, 30).launch(begin + 20, begin - 30, begin - 10, GEMM, 5.0)
    return _analysed("trace", "clocks.json", _named(trace.timeline(), "clocks.json"))


def of_host_alone() -> Report:
    """Ops of the host, and no device."""
    trace = Trace(devices=())
    for step in range(STEPS):
        trace.step(100.0 * step, 99.0).op("aten::mm", 100.0 * step, 60.0).op("aten::add", 100.0 * step + 60, 30.0)
    return _analysed("trace", "cpu.json", _named(trace.timeline(), "cpu.json"))


def served() -> Report:
    """A server that decodes in a graph of 16 rows, for 9 requests and then for 12, and takes in a prompt between, kernel by kernel."""
    trace, at = Trace(), 0.0
    for step, requests in enumerate((9, 9, 9, 0, 12, 12, 12)):
        cached, name = 100 * max(requests, 1), f"execute_{requests}_context_0(sq0sk0sqsq0sqsk0)_generation_{requests}"
        if requests:
            trace.note(f"{name}(sq{requests}sk{cached}sqsq{requests}sqsk{cached})", at, 90)
            trace.correlation += 1
            trace.call("cudaGraphLaunch", at + 2, 3, trace.correlation)
            for k, (kernel_name, blocks) in enumerate(
                (("vllm::rms_norm_kernel<c10::BFloat16>", 16), (GEMM, 96), ("flash_fwd_splitkv_kernel", 40), (GEMM, 96)) * 4
            ):
                trace.gpu(at + 8 + 20 * k, at + 27 + 20 * k, kernel_name, trace.correlation, grid_blocks=blocks)
        else:
            trace.note("execute_512_context_1(sq512sk512sqsq262144sqsk262144)_generation_0(sq0sk0sqsq0sqsk0)", at, 900)
            for k in range(16):
                trace.launch(at + 10 + 50 * k, at + 20 + 50 * k, at + 45 + 50 * k, GEMM, 5.0)
        at += 360.0 if requests else 960.0
        if step < 6:
            trace.call("cudaEventSynchronize", at - 200, 170)
    return _analysed("trace", "served.json", _named(trace.timeline(), "served.json"))


def comparison() -> Comparison:
    """Kernels issued one by one, against the same in a graph."""
    return compare([BY_HAND["eager"]()], [BY_HAND["captured"]()])


BY_HAND: dict[str, Callable[[], Report]] = {
    name: cache(make)
    for name, make in {
        "eager": eager, "captured": captured, "job": of_job, "kernels": of_kernels, "memory": of_memory, "jax": of_jax, "nsys": of_nsys, "unjudged": unjudged, "served": served,
        "cpu-only": of_host_alone,
    }.items()
}  # fmt: skip
