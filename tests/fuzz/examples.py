"""Small recordings of each format, hand made: what the inputs are made from. A few milliseconds hold a bit of everything."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
import tempfile
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from advisor.recordings.timeline import Timeline
from advisor.sources import kineto as kineto_source
from advisor.sources.protobuf import fields
from advisor.sources.stream import Stream
from tests import kernels, memory_build
from tests.build import Trace
from tests.paths import ROOT
from tests.sources.jax.test_jax import COPY, KERNEL, PlaneOf, field, five_events
from tests.sources.jax.test_programs import BF16, DOT, FRAMES, STEP, computation, instruction, module, shape
from tests.sources.kineto.layouts import EVENTS, METADATA, x
from tests.sources.ncu.test_tables import DETAILS, GERMAN, OLD, RAW, SUMMARY
from tests.sources.proton import build as proton
from tests.sources.proton.build import kernel, scope
from tests.sources.rocprof import build as rocprof


def training(steps: int = 4) -> dict[str, Any]:
    """Kineto: each step loads, copies, runs ops with shapes and stacks, reads a value back, reduces and updates."""
    events: list[dict[str, Any]] = [{"name": "thread_name", "ph": "M", "ts": 0, "pid": 7, "tid": 8, "args": {"name": "thread 8 (python)"}}]
    correlation = 0
    for i in range(steps):
        at, gpu = 1000.0 * i, 1000.0 * i + 60
        events += [
            x("user_annotation", f"ProfilerStep#{i}", at, 990), x("python_function", "train.py(9): step", at + 1, 980, Python_id=3 * i + 1),
            x("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 2, 40),
        ]  # fmt: skip
        for k, (op, name, width) in enumerate(
            (
                ("aten::mm", "ampere_sgemm_128x64_nn", 200),
                ("aten::add", "void at::native::vectorized_elementwise_kernel<4>", 9),
                ("aten::mul", "triton_poi_fused_mul_0", 7),
                ("aten::_softmax", "softmax_warp_forward", 30),
            )
        ):
            correlation += 1
            start = at + 50 + 20 * k
            events += [
                {**x("cpu_op", op, start, 15), "args": {"External id": correlation, "Sequence number": correlation, "Input Dims": [[64, 512], [512, 511]], "Input type": ["float", "float"], "Input Strides": [[512, 1], [511, 1]], "Concrete Inputs": ["", ""], "Call stack": "train.py(9): step;torch/nn/modules/module.py(5): _call_impl"}},
                x("cuda_runtime", "cudaLaunchKernel", start + 5, 4, correlation=correlation, External_id=correlation),
                {**x("kernel", name, gpu, width, 0, 7), "args": {"device": 0, "stream": 7, "correlation": correlation, "External id": correlation, "grid": [8, 2, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 1024, "est. achieved occupancy %": 40}},
            ]  # fmt: skip
            gpu += width + 3
        correlation += 3
        events += [
            x("cuda_runtime", "cudaMemcpyAsync", at + 200, 150, correlation=correlation - 2),
            {**x("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", gpu, 5, 0, 7), "args": {"device": 0, "stream": 7, "correlation": correlation - 2, "bytes": 4, "memory bandwidth (GB/s)": 0.1}},
            x("cuda_runtime", "cudaStreamSynchronize", at + 351, 20, correlation=correlation - 1),
            {**x("cuda_sync", "Stream Sync", at + 351, 20, 0, 7), "args": {"cuda_sync_kind": "Stream Sync", "stream": 7, "correlation": correlation - 1, "device": 0}},
            {**x("cpu_op", "record_param_comms", at + 400, 20), "args": {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 4096, "Out msg nelems": 4096, "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}},
            x("cuda_runtime", "cudaLaunchKernelExC", at + 405, 9, correlation=correlation),
            {**x("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", gpu + 50, 60, 0, 20), "args": {"device": 0, "stream": 20, "correlation": correlation, "Collective name": "allreduce", "In msg nelems": 4096, "Out msg nelems": 4096, "Group size": 2, "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "grid": [16, 1, 1], "block": [512, 1, 1]}},
            x("user_annotation", "Optimizer.step#AdamW.step", at + 500, 200),
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 8, "ts": at + 60, "args": {"Total Reserved": 1 << 21, "Total Allocated": 1 << 20, "Bytes": 4096, "Device Id": 0, "Device Type": 1, "Addr": 140320923857408}},
        ]  # fmt: skip
    return {**deepcopy(METADATA), "record_shapes": 1, "traceEvents": events}


def kineto() -> list[dict[str, Any]]:
    # Changed in place by the fuzzer: the layouts' own tests read the same events.
    return deepcopy([{**METADATA, "traceEvents": EVENTS}, {"schemaVersion": 1, "traceEvents": EVENTS}, training(1)])


def jax_chrome() -> list[dict[str, Any]]:
    named = [{"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}} for pid, name in ((1, "/device:GPU:0"), (701, "/host:CPU"))] + [
        {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
        for pid, tid, name in ((1, 14, "Stream #14(Compute)"), (701, 5, "python3"))
    ]
    events = [
        event
        for i in range(3)
        for event in (
            {"ph": "X", "pid": 701, "tid": 5, "ts": 100.0 * i, "dur": 95.0, "name": "train", "args": {"step_num": str(i)}},
            {"ph": "X", "pid": 701, "tid": 5, "ts": 100.0 * i + 5, "dur": 60.0, "name": "$mine.py:12 step"},
            {"ph": "X", "pid": 701, "tid": 5, "ts": 100.0 * i + 6, "dur": 9.0, "name": "PjitFunction(step)"},
            {"ph": "X", "pid": 701, "tid": 5, "ts": 100.0 * i + 8, "dur": 5.0, "name": "cuLaunchKernel", "args": {"correlation_id": str(i + 1)}},
            {
                "ph": "X",
                "pid": 1,
                "tid": 14,
                "ts": 100.0 * i + 20,
                "dur": 31.0,
                "name": "gemm_fusion",
                "args": {**{k: str(v) for k, v in KERNEL.items()}, "correlation_id": str(i + 1)},
            },
            {"ph": "X", "pid": 1, "tid": 14, "ts": 100.0 * i + 55, "dur": 3.0, "name": "MemcpyD2H", "args": {k: str(v) for k, v in COPY.items()}},
        )
    ]
    return [{"displayTimeUnit": "ns", "traceEvents": named + events}]


COMPILED = {"hlo_module": "jit_step", "program_id": 9, "hlo_op": "gemm_fusion_dot.7", "name": "jit(step)/mlp/dot_general"}


def xplane() -> list[bytes]:
    gpu, host = PlaneOf("/device:GPU:0"), PlaneOf("/host:CPU")
    gpu.line(
        14,
        "Stream #14(Compute)",
        1000,
        *(("gemm_fusion", 5000 * i + 500, 3000, {**KERNEL, **COMPILED, "correlation_id": i}) for i in range(4)),
        ("MemcpyD2H", 19_000, 100, COPY),
    )
    host.line(
        5,
        "python3",
        1000,
        *(
            (name, 5000 * i + 10 * j, 4900 - 20 * j, stats)
            for i in range(4)
            for j, (name, stats) in enumerate(
                (("train", {"step_num": i}), ("$mine.py:12 step", {}), ("PjitFunction(step)", {}), ("cuLaunchKernel", {"correlation_id": i}))
            )
        ),
    )
    return [five_events(), tpu(), gpu.bytes() + host.bytes() + compiled() + PlaneOf("Task Environment").bytes()]


def compiled() -> bytes:
    """The plane of what XLA compiled: a fusion with a product in it, an all-reduce, a library's call."""
    settings = json.dumps({"gemm_backend_config": {"dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"]}, "epilogue": "DEFAULT"}})
    call = instruction(6, "custom-call.1", "custom-call", shape(BF16, 8, 4), operands=(1, 2), more=field(28, "__cublas$gemm") + field(43, settings))
    made = [field(2, value) for number, value in fields(memoryview(STEP)) if number == 2][:3]
    made.append(instruction(5, "all-reduce.1", "all-reduce", shape(BF16, 8, 4), operands=(4,), more=field(49, field(1, bytes([0, 1, 2])))))
    step = computation(1, 5, *made, call)
    return PlaneOf("/host:metadata").says("jit_step(9)", **{"Hlo Proto": bytes(module(step, DOT, frames=FRAMES))}).bytes()


def tpu() -> bytes:
    """A TPU's core that runs a program three times."""
    ops = [("%fusion.1 = f32[8] fusion(%p)", 10_000 * i, 5_000, {}) for i in range(3)] + [("infeed.2", 26_000, 1_000, {})]
    plane = PlaneOf("/device:TPU:0").is_a(device_type_string="TPU v6 Lite", peak_teraflops_per_second=100)
    plane.line(2, "XLA Modules", 0, *(("jit_step(9)", 10_000 * i, 6_000, {}) for i in range(3))).line(3, "XLA Ops", 0, *ops)
    said = {"hlo_category": "loop fusion", "model_flops": 10**9, "bytes_accessed": 10**6, "tf_op": "jit(step)/mul:", "source": "/home/me/model.py:3"}
    return plane.says("%fusion.1 = f32[8] fusion(%p)", **said).bytes()


NSYS = """
CREATE TABLE StringIds (id INTEGER, value TEXT);
INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel_v7000'), (3, 'cudaMemcpyAsync_v3020'), (4, 'cudaStreamSynchronize_v3020'), (5, 'step');
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER, shortName INTEGER, registersPerThread INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER,
    blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
    bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, syncType INTEGER);
CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER, globalPid INTEGER, deviceId INTEGER, address INTEGER, bytes INTEGER, memoryOperationType INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER);
CREATE TABLE PROFILER_OVERHEAD (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER);
CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value REAL);
CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, metricId INTEGER, metricName TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, smCount INTEGER, computeMajor INTEGER, computeMinor INTEGER, totalMemory INTEGER, threadsPerWarp INTEGER);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER, numMultiprocessors INTEGER);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER, name TEXT, label TEXT);
INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 132, 9, 0, 150109880320, 32);
INSERT INTO TARGET_INFO_GPU_METRICS VALUES (256, 1, 'SMs Active');
INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 77, 132);
INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1790857026000000000);
INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2025.3'), ('EXPORT_SCHEMA_VERSION', '3.20.2');
INSERT INTO ENUM_CUDA_MEM_KIND VALUES (0, 'A', 'Pageable'), (1, 'B', 'Pinned'), (2, 'C', 'Device');
INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (10, 281476268588032, 0, 4096, 512, 0), (99000, 281476268588032, 0, 4096, 512, 1);
INSERT INTO OSRT_API VALUES (500, 900, 281476268588037, 5);
INSERT INTO PROFILER_OVERHEAD VALUES (1, 300, 281476268588037, 5);
INSERT INTO GPU_METRICS VALUES (100, 256, 1, 50), (200, 256, 1, 60);
"""


def proton_trace() -> dict[str, Any]:
    """A trace of Proton with lanes: scopes, kernels on two streams, and metadata of one."""
    events = (scope("step", 0, 30), kernel("a", 10, 5, "step", "inner", flops16="100.0", bytes="40"), kernel("b", 20, 2, "step", stream=9))
    made: dict[str, Any] = json.loads(proton.trace(*events))
    return made


def proton_tree() -> list[Any]:
    """A tree of Proton: two kernels below a scope, one of them also elsewhere."""
    return proton.tree(proton.node("step", proton.ran("a", 4000, 4, bytes=8000.0, flops32=100.0), proton.ran("b", 9000, 2)), proton.ran("a", 1000, 1))


@cache
def _small() -> Timeline:
    """Two launches, a copy and a range, as rocprof would have recorded them."""
    text = json.dumps({"traceEvents": [
        x("user_annotation", "step", 0, 90),
        x("cuda_runtime", "cudaLaunchKernel", 1, 5, correlation=1), x("cuda_runtime", "cudaMemcpyAsync", 10, 5, correlation=2),
        x("kernel", "void at::native::add<float>", 20, 9, correlation=1, device=0, stream=7, grid=[4, 1, 1], block=[64, 1, 1]),
        x("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 40, 9, correlation=2, device=0, stream=7, bytes=64),
    ]})  # fmt: skip
    return kineto_source.read(Stream(io.BytesIO(text.encode())), "x")


@cache
def rocpd() -> bytes:
    """A database of rocprofv3."""
    with tempfile.TemporaryDirectory() as folder:
        rocprof.rocpd(_small(), Path(folder) / "x.db")
        return (Path(folder) / "x.db").read_bytes()


@cache
def rpd() -> bytes:
    """A database of rocmProfileData."""
    with tempfile.TemporaryDirectory() as folder:
        rocprof.rpd(_small(), Path(folder) / "x.db")
        return (Path(folder) / "x.db").read_bytes()


def rocprof_json() -> dict[str, Any]:
    """What rocprofv3 writes as JSON."""
    return rocprof.sdk_json(_small())


def flight() -> dict[str, Any]:
    """A dump of a flight recorder: one collective that is through, one that is not, a message."""
    frame = {"name": "step", "filename": "/home/user/train.py", "line": 12}

    def entry(name: str, number: int, state: str, **more: Any) -> dict[str, Any]:
        said = {"collective_seq_id": number, "p2p_seq_id": 0, "process_group": ["0", "default_pg"], "profiling_name": name, "state": state, "frames": [frame]}
        return {**said, "input_sizes": [[4, 8]], "input_dtypes": ["Float"], "retired": False, "is_p2p": False, **more}

    entries = [
        entry("nccl:all_reduce", 1, "completed", duration_ms=1.5),
        entry("nccl:all_reduce", 2, "started"),
        entry("nccl:send 0->1", 0, "scheduled", is_p2p=True, p2p_seq_id=3),
    ]
    return {"version": "2.10", "entries": entries, "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}}


@cache
def nsys() -> bytes:
    """An export with every table that is read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.sqlite"
        db = sqlite3.connect(path)
        db.execute("PRAGMA page_size = 512")  # as many pages as that gives: a changed byte hits something else each time
        db.executescript(NSYS)
        process, thread = 281476268588032, 281476268588037
        for i in range(4):
            at, n = 100_000 * i, 3 * i
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, 'train_step', ?, NULL)", (at, at + 95_000, thread))
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, 'aten::mm, seq = 12, sizes = [[8, 4], [4, 2]]', ?, NULL)", (at + 10, at + 50_000, thread))
            for k, (call, name) in enumerate(((1000, 2), (20_000, 3), (40_000, 4))):
                db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,?)", (at + call, at + call + 4000, thread, n + k, name))
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,0,1,7,?,?,1,1,32,4,2,1,128,1,1,0,1024,NULL)", (at + 8000, at + 30_000, n, process))
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,0,7,?,?,4096,1,0,2)", (at + 31_000, at + 33_000, n + 1, process))
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES (?,?,0,7,?,?,3)", (at + 40_000, at + 44_000, n + 2, process))
        db.commit()
        db.close()
        return path.read_bytes()


def ncu_report() -> bytes:
    return kernels.plain_report()


def ncu_pages() -> list[str]:
    return [RAW, DETAILS, OLD, SUMMARY, GERMAN]


def snapshot() -> dict[str, Any]:
    """Memory of three steps of training, small enough to change everywhere."""
    return memory_build.trained(steps=2, layers=2).value(backend="native")  # type: ignore[no-any-return]


def snapshot_bytes(protocol: int = 4) -> bytes:
    return pickle.dumps(snapshot(), protocol)


def memory_profile() -> bytes:
    return gzip.decompress(data) if (data := (ROOT / "samples" / "memory" / "jax.memory.prof").read_bytes()).startswith(b"\x1f\x8b") else data


@cache
def saved_reports() -> tuple[bytes, ...]:
    """Reports of each kind, as they are saved."""
    from advisor.engine.rule import catalog
    from advisor.engine.run import run
    from advisor.recordings.recording import Recording
    from advisor.reports import formats
    from advisor.sources.memory.snapshot import from_value
    from tests.reports.examples import EXAMPLES

    rules = list(catalog().values())
    made = [formats()["json"].render(example()).encode() for example in EXAMPLES.values()]
    made.append(run(Recording("memory", "m", (from_value(snapshot(), "m", 1),)), rules).to_json())
    from advisor.recordings.kernel_profiles import KernelProfiles

    profiles = KernelProfiles("k.ncu-rep", "ncu-rep", 1, (kernels.kernel("a"), kernels.kernel("b", dram=10)), {0: "NVIDIA H200"})
    made.append(run(Recording("kernels", "k", (profiles,)), rules).to_json())
    return tuple(made)


def settings() -> dict[str, Any]:
    """Every setting there is, each rule with its options."""
    from advisor.engine.rule import catalog

    return {
        "disable": ["memcpy"], "allow": {"sync-stall": "why"}, "options": {rule.id: dict(rule.options) for rule in catalog().values() if rule.options},
        "budgets": {"step_ms": 25.0, "idle_share": 0.1, "findings": {"high": 0, "launch-gap": "low"}, "regression_percent": 5},
    }  # fmt: skip


@cache
def rank_summaries() -> tuple[bytes, ...]:
    from advisor.engine.reduce import Judging, summarize
    from advisor.sources import load
    from advisor.sources.ranks import RankTrace

    made = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(2):
            path = Path(folder) / f"rank{rank}.json"
            path.write_text(json.dumps({**training(3), "distributedInfo": {"rank": rank, "world_size": 2}}))
            made.append(summarize(RankTrace(str(path), path.name, rank, load(path)), Judging()).summary)
    return tuple(made)


def built() -> Trace:
    """A timeline of a few lines."""
    trace = Trace()
    for i in range(3):
        trace.step(100 * i, 95, i + 1).op("aten::mm", 100 * i + 2, 20, [[8, 8], [8, 8]]).launch(100 * i + 5, 100 * i + 10, 100 * i + 60)
    return trace


_AT = {"frame_id": 0, "frame_compile_id": 0, "attempt": 0}
COMPILE_LOG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"str": ["/home/me/train.py", 1]}, ""),
    ({"dynamo_start": {"stack": [{"line": 1, "name": "<module>", "filename": 1}, {"line": 18, "name": "f", "filename": 1}]}, **_AT}, ""),
    (
        {"artifact": {"name": "dynamo_graph_break_reason"}, **_AT},
        "Graph break in user code at /a/train.py:20\nGraph Break Reason: Unsupported x\n  Explanation: y",
    ),
    ({"artifact": {"name": "recompile_reasons"}, **_AT, "frame_compile_id": 1}, '["0/0: size mismatch at index 0", "more"]'),
    ({"artifact": {"name": "fx_graph_cache_miss"}, **_AT}, '{"key": "fabcdefghijklmnop", "rest": 1}'),
    ({"compilation_metrics": {"co_name": "f", "entire_frame_compile_time_s": 2.5}, **_AT}, ""),
)
"""Records of torch.compile's structured log, each with its payload."""
