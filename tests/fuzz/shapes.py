"""Recordings of one shape each, as long as one likes: what nests, repeats, shares or differs without end, where programs seldom do.

A shape makes `n` of what it is about; its size grows in proportion to `n`. Names and times are plain: only the shape is odd.
"""

from __future__ import annotations

import json
import pickle
import sqlite3
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from tests import kernels
from tests.benchmarks.nsys_export import SCHEMA
from tests.sources.jax.test_jax import PlaneOf, field, varint
from tests.sources.jax.test_programs import BF16, computation, module

Event = dict[str, Any]
GPU, STREAM, PID, TID = 0, 7, 100, 100
DEVICE = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132, "totalGlobalMem": 10**11, "warpSize": 32}
STEP_US = 1e7
"""Longer than anything in one."""


class Kineto:
    """Events of a trace of torch.profiler. A clock that the host and the device share goes on by what is added."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 0.0
        self.ids = count(1)

    def add(self, cat: str, name: str, start: float, dur: float, tid: int = TID, pid: int = PID, **args: object) -> None:
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": dur, **({"args": args} if args else {})})

    def launch(self, name: str = "k", *, tid: int = TID, stream: int = STREAM, device: int = GPU, dur: float = 3.0, **more: object) -> None:
        """A call that launches, and its kernel right behind it."""
        number = next(self.ids)
        self.add("cuda_runtime", "cudaLaunchKernel", self.now, 2, tid, correlation=number, **more)
        self.add("kernel", name, self.now + 4, dur, stream, device, device=device, stream=stream, correlation=number, grid=[8, 1, 1], block=[128, 1, 1])
        self.now += 10

    def text(self) -> bytes:
        return json.dumps({"schemaVersion": 1, "deviceProperties": [DEVICE], "traceEvents": self.events}, separators=(",", ":")).encode()


def nested(cat: str, name: Callable[[int], str], launches: int = 0, ids: bool = False) -> Callable[[int], bytes]:
    """Ranges inside each other, `n` deep; `launches` of them launch a kernel right after they begin, from the outermost on in even steps; the innermost always does."""

    def make(n: int) -> bytes:
        made = Kineto()
        width = 20.0 * n
        for level in range(n):
            said = {"Python id": level + 1, "Python parent id": level or -1} if ids else {}
            made.add(cat, name(level), made.now, 2 * width - 2 * made.now, **said)
            made.now += 1
            if launches and level % max(n // launches, 1) == 0:
                made.launch()
        made.launch()
        return made.text()

    return make


def frames_that_end(n: int) -> bytes:
    """Frames `n` deep that have all returned, then launches."""
    made = Kineto()
    made.add("python_function", "train.py(1): main", 0, 100.0 * n, **{"Python id": 1, "Python parent id": -1})
    for level in range(1, n):
        made.add(
            "python_function", f"torch/nn/modules/module.py({level}): f", level, 3.0 * n - 2 * level, **{"Python id": level + 1, "Python parent id": level}
        )
    made.now = 4.0 * n
    for _ in range(n // 3):
        made.add("cuda_runtime", "cudaStreamSynchronize", made.now, 8)
        made.launch()
    return made.text()


def frames_in_a_ring(n: int) -> bytes:
    made = Kineto()
    for i in range(n):
        made.add("python_function", f"torch/x.py({i}): f", i, 10 * n, **{"Python id": i + 1, "Python parent id": (i + 1) % n + 1})
    made.now = n
    for _ in range(n // 3):
        made.launch()
    return made.text()


def each(**how: Callable[[int], Any]) -> Callable[[int], bytes]:
    """`n` launches, each with what is given of its number."""

    def make(n: int) -> bytes:
        made = Kineto()
        for i in range(n):
            made.launch(**{key: value(i) for key, value in how.items()})
        return made.text()

    return make


def side_by_side(n: int) -> bytes:
    """A stream a kernel, all at once."""
    made = Kineto()
    for i in range(n):
        made.launch(stream=STREAM + i, dur=10.0 * n)
    return made.text()


def one_correlation(n: int) -> bytes:
    made = Kineto()
    for i in range(n):
        made.add("cuda_runtime", "cudaLaunchKernel", 10.0 * i, 2, correlation=1)
        made.add("kernel", "k", 10.0 * i + 4, 3, STREAM, GPU, device=GPU, stream=STREAM, correlation=1)
    return made.text()


def one_sequence(n: int) -> bytes:
    """Forward and backward ops that all bear one number."""
    made = Kineto()
    for _i in range(n):
        made.add("cpu_op", "aten::mul", made.now, 9, **{"Sequence number": 5, "External id": 1})
        made.launch("vectorized_elementwise_kernel<4>")
    for _i in range(n):
        made.add(
            "cpu_op", "autograd::engine::evaluate_function: MulBackward0", made.now, 9, TID + 1, **{"Sequence number": 5, "Fwd thread id": 1, "External id": 1}
        )
        made.launch("vectorized_elementwise_kernel<4>", tid=TID + 1)
    return made.text()


def events_and_waits(n: int) -> bytes:
    """Streams that wait for each other's events, pair by pair."""
    made = Kineto()
    for i in range(n):
        for name in ("cudaEventRecord", "cudaStreamWaitEvent"):
            made.add("cuda_runtime", name, made.now, 1, correlation=next(made.ids))
            made.now += 2
        made.launch(stream=STREAM + i % 2, dur=300)
    return made.text()


def waits_for_itself(n: int) -> bytes:
    """Sync events that each wait for the next, and the last for the first."""
    made = Kineto()
    for i in range(n):
        made.add(
            "cuda_sync",
            "Stream Wait Event",
            made.now,
            1,
            STREAM,
            GPU,
            device=GPU,
            stream=STREAM,
            correlation=i + 1,
            wait_on_stream=STREAM,
            wait_on_cuda_event_record_corr_id=(i + 1) % n + 1,
        )
        made.launch()
    return made.text()


def one_graph(n: int) -> bytes:
    """A graph of `n` kernels."""
    made = Kineto()
    made.add("cuda_runtime", "cudaGraphLaunch", 0, 5, correlation=1)
    for i in range(n):
        made.add("kernel", f"k{i % 5}", 10.0 + 4 * i, 3, STREAM, GPU, device=GPU, stream=STREAM, correlation=1, **{"graph id": 3, "graph node id": i})
    return made.text()


def allocations(n: int) -> bytes:
    made = Kineto()
    for i in range(n):
        made.add("cpu_op", "aten::empty", made.now, 9)
        made.events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": PID,
                "tid": TID,
                "ts": made.now + 1,
                "args": {"Total Reserved": 1 << 30, "Total Allocated": 512 * i, "Bytes": 512, "Device Id": 0, "Device Type": 1, "Addr": 512 * i},
            }
        )
        made.launch()
    return made.text()


def stacks_as_text(n: int) -> bytes:
    made = Kineto()
    for i in range(n):
        made.add("cpu_op", "aten::mm", made.now, 9, **{"Call stack": ";".join(f"model{i}.py({k}): f" for k in range(30))})
        made.launch()
    return made.text()


def collectives(n: int) -> bytes:
    """A group of ranks for each collective."""
    made = Kineto()
    for i in range(n):
        said = {
            "Collective name": "allreduce",
            "In msg nelems": 4096,
            "Out msg nelems": 4096,
            "Group size": 2,
            "dtype": "Float",
            "Process Group Name": str(i),
            "Process Group Ranks": f"[0, {i}]",
        }
        number = next(made.ids)
        made.add("cuda_runtime", "cudaLaunchKernelExC", made.now, 2, correlation=number)
        made.add("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", made.now + 4, 30, 20, GPU, device=GPU, stream=20, correlation=number, **said)
        made.launch()
    return made.text()


def open_and_close(n: int) -> bytes:
    """Ranges that all begin before any ends."""
    made = Kineto()
    for i in range(n):
        made.events.append({"ph": "B", "cat": "cpu_op", "name": f"r{i % 9}", "pid": PID, "tid": TID, "ts": float(i)})
    made.now = n
    made.launch()
    for i in range(n):
        made.events.append({"ph": "E", "cat": "cpu_op", "pid": PID, "tid": TID, "ts": made.now + i})
    return made.text()


def calls_in_calls(n: int) -> bytes:
    """Runtime calls inside each other."""
    made = Kineto()
    for level in range(n):
        made.add("cuda_runtime", "cudaLaunchKernel", level, 30.0 * n - 2 * level, correlation=next(made.ids))
    made.now = n
    made.add("cpu_op", "aten::mm", 0, 40.0 * n)
    made.launch()
    return made.text()


def one_moment(n: int) -> bytes:
    """All at one time, for no time."""
    made = Kineto()
    for _ in range(n):
        made.now = 5.0
        made.add("cpu_op", "aten::mm", 5, 0)
        made.launch(dur=0)
    return made.text()


def staggered(n: int) -> bytes:
    """Ops of which each outlives the one around it."""
    made = Kineto()
    for i in range(n):
        made.add("cpu_op", f"aten::op{i % 5}", 3.0 * i, 3.0 * n)
    made.now = 3.0 * n
    made.launch()
    return made.text()


def shapes_of_all_sizes(n: int) -> bytes:
    made = Kineto()
    for i in range(n):
        made.add("cpu_op", "aten::mm", made.now, 9, **{"Input Dims": [[i, 64], [64, i]], "Input type": ["float", "float"]})
        made.launch(f"ampere_sgemm_{i}x64_nn")
    return made.text()


def nested_shapes(n: int) -> bytes:
    made = Kineto()
    made.add("cpu_op", "aten::mm", made.now, 9, **{"Input Dims": "nested"})
    made.launch()
    return made.text().replace(b'"nested"', b"[" * n + b"]" * n)


def one_name(part: str) -> Callable[[int], bytes]:
    """A kernel whose name is `part` again and again."""

    def make(n: int) -> bytes:
        made = Kineto()
        for _ in range(3):
            made.launch(part * (n // 3))
        return made.text()

    return make


# --- JAX ------------------------------------------------------------------------------------------------------------------


def jax_chrome(n: int) -> bytes:
    """A thread an event."""
    events: list[Event] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "/host:CPU"}},
    ]
    for i in range(n):
        events += [
            {"ph": "M", "pid": 1, "tid": i, "name": "thread_name", "args": {"name": f"Stream #{i}(Compute)"}},
            {
                "ph": "X",
                "pid": 1,
                "tid": i,
                "ts": 10.0 * i,
                "dur": 5,
                "name": "fusion",
                "args": {"correlation_id": str(i), "hlo_op": "fusion", "hlo_module": "jit_step"},
            },
        ]
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}).encode()


def _xplane(program: bytes, names: list[str]) -> bytes:
    gpu = PlaneOf("/device:GPU:0")
    gpu.line(
        14,
        "Stream #14(Compute)",
        0,
        *((name, 1000 * i, 500, {"correlation_id": i, "hlo_op": name, "hlo_module": "jit_step", "program_id": 9}) for i, name in enumerate(names)),
    )
    host = PlaneOf("/host:CPU").line(5, "python3", 0, *((name, 1000 * i - 300, 100, {"correlation_id": i}) for i, name in enumerate(names)))
    return bytes(PlaneOf("/host:metadata").says("jit_step(9)", **{"Hlo Proto": program}).bytes() + gpu.bytes() + host.bytes())


def _instruction(number: int, name: str, opcode: str, operands: list[int] = (), called: list[int] = (), frame: int = 0) -> bytes:
    array = field(2, BF16) + field(3, b"\x40\x40")
    body = field(1, name) + field(2, opcode) + field(3, array) + (field(7, field(15, frame)) if frame else b"") + field(35, number)
    body += field(36, b"".join(map(varint, operands))) if operands else b""
    body += field(38, b"".join(map(varint, called))) if called else b""
    return bytes(field(2, body))


def hlo_of_itself(n: int) -> bytes:
    """Fusions that all call one computation of as many instructions, each of which takes the one before, the first the last."""
    body = computation(2, n, *(_instruction(i + 1, f"p{i}", "bitcast", [i or n]) for i in range(n)))
    entry = computation(1, 1, *(_instruction(i + 1, f"fusion.{i}", "fusion", [i or n], [2, 1]) for i in range(n)))
    return _xplane(bytes(module(entry, body)), [f"fusion.{i}" for i in range(n)])


def hlo_bitcasts(n: int) -> bytes:
    """A parameter that bitcasts take, which all take each other."""
    some = 40
    body = computation(
        2, n, _instruction(1, "p", "parameter"), *(_instruction(i + 2, f"b{i}", "bitcast", [1, *(2 + (i + k) % n for k in range(some))]) for i in range(n))
    )
    entry = computation(1, 1, _instruction(1, "fusion.0", "fusion", [], [2]))
    return _xplane(bytes(module(entry, body)), ["fusion.0"])


def hlo_frames(n: int) -> bytes:
    """Frames of libraries, each called by the next, and as many instructions."""
    frames = field(1, "/usr/lib/python3.11/site-packages/flax/linen.py") + field(3, field(1, 1) + field(3, 900))
    frames += b"".join(field(4, field(1, 1) + field(2, i + 2)) for i in range(n - 1)) + field(4, field(1, 1) + field(2, 1))
    entry = computation(1, 1, *(_instruction(i + 1, f"add.{i}", "add", frame=i + 1) for i in range(n)))
    return _xplane(bytes(module(entry, frames=frames)), [f"add.{i}" for i in range(n)])


def hlo_tuples(n: int) -> bytes:
    """A tuple of a tuple of …"""
    array = field(2, BF16)
    for _ in range(n // 4):
        array = field(4, array) if len(array) < 1 << 20 else array
    body = field(2, field(1, "add.0") + field(2, "add") + field(3, array) + field(35, 1))
    return _xplane(bytes(module(computation(1, 1, body))), ["add.0"])


def planes(n: int) -> bytes:
    """A plane a kernel."""
    return b"".join(PlaneOf(f"/device:GPU:{i}").line(14, "Stream #14(Compute)", 0, ("fusion", 1000 * i, 500, {"correlation_id": i})).bytes() for i in range(n))


def lines(n: int) -> bytes:
    """Threads of JAX whose frames nest as deep as there are."""
    host = PlaneOf("/host:CPU").line(5, "python3", 0, *((f"$m.py:{i} f", i, 4 * n - 2 * i, {}) for i in range(n)))
    return bytes(
        host.bytes()
        + PlaneOf("/device:GPU:0").line(14, "Stream #14(Compute)", 0, *(("fusion", n + 10 * i, 5, {"correlation_id": i}) for i in range(9))).bytes()
    )


# --- nsys -----------------------------------------------------------------------------------------------------------------


def nsys(fill: Callable[[sqlite3.Connection, int], None]) -> Callable[[int], bytes]:
    def make(n: int) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "export.sqlite"
            db = sqlite3.connect(path)
            db.executescript(SCHEMA)
            db.executemany("INSERT INTO StringIds VALUES (?,?)", [(1, "gemm"), (2, "cudaLaunchKernel_v7000")])
            fill(db, n)
            db.commit()
            db.close()
            return path.read_bytes()

    return make


_TID = 1 << 48 | 77 << 24 | 78


def _nsys_kernel(db: sqlite3.Connection, i: int, at: int, process: int = 77, stream: int = 7, device: int = 0) -> None:
    where = 1 << 48 | process << 24
    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,2)", (at, at + 2000, where | 78, i))
    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,1,?,?,?,1,1,8,1,1,128,1,1)", (at + 4000, at + 7000, device, stream, i, where))


def nvtx(db: sqlite3.Connection, n: int) -> None:
    """Ranges in ranges, each of which launches."""
    for i in range(n):
        db.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,59,?,?,NULL)", (10_000 * i, 30_000 * n - 10_000 * i, f"aten::op{i % 7}, seq = {i}", _TID))
        _nsys_kernel(db, i, 10_000 * i + 10)


def nsys_processes(db: sqlite3.Connection, n: int) -> None:
    for i in range(n):
        _nsys_kernel(db, i, 10_000 * i, process=i % 1000 + 1, stream=i % 60, device=i % 8)


def nsys_streams(db: sqlite3.Connection, n: int) -> None:
    for i in range(n):
        _nsys_kernel(db, i, 10_000 * i, stream=i)


# --- memory ---------------------------------------------------------------------------------------------------------------


def _segment(i: int, blocks: list[Any], size: int = 1 << 21, device: int = 0) -> dict[str, Any]:
    return {
        "device": device,
        "address": 1 << 40 | i << 22,
        "total_size": size,
        "stream": i % 3,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": blocks,
    }


def _block(size: int, frames: Any) -> dict[str, Any]:
    return {"size": size, "requested_size": size, "state": "active_allocated", "frames": frames}


def _frames(n: int, kind: int = 0) -> list[dict[str, Any]]:
    return [{"name": f"f{kind}", "filename": f"model{kind}.py", "line": k + 1} for k in range(n)]


def segments(n: int) -> bytes:
    return pickle.dumps({"segments": [_segment(i, [_block(1 << 21, _frames(2, i))]) for i in range(n)], "device_traces": [[]]}, 4)


def pieces(n: int) -> bytes:
    """A segment of `n` blocks of a stack each."""
    return pickle.dumps({"segments": [_segment(0, [_block(512, _frames(2, i)) for i in range(n)], 512 * n)], "device_traces": [[]]}, 4)


def deep_stacks(n: int) -> bytes:
    """Stacks of a thousand frames."""
    return pickle.dumps({"segments": [_segment(i, [_block(1 << 21, _frames(1000, i))]) for i in range(max(n // 1000, 1))], "device_traces": [[]]}, 4)


def _event(action: str, i: int, address: int, size: int = 512, frames: Any = ()) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 10 * i, "frames": list(frames)}


def all_alive(n: int) -> bytes:
    """Allocations of which none is given back until all are there, then in the same order."""
    frames = [_frames(3, k) for k in range(50)]
    events = [_event("segment_alloc", 0, 1 << 40, 512 * n)]
    events += [_event("alloc", i, (1 << 40) + 512 * i, frames=frames[i % 50]) for i in range(n)]
    for i in range(n):
        events += [_event(action, n + i, (1 << 40) + 512 * i, frames=frames[i % 50]) for action in ("free_requested", "free_completed")]
    block = {"size": 512 * n, "requested_size": 0, "state": "inactive", "frames": []}
    return pickle.dumps({"segments": [_segment(0, [block], 512 * n)], "device_traces": [events]}, 4)


def many_devices(n: int) -> bytes:
    return pickle.dumps(
        {"segments": [_segment(i, [_block(1 << 21, _frames(2))], device=i % 4000) for i in range(n)], "device_traces": [[] for _ in range(min(n, 4000))]}, 4
    )


def pprof(n: int) -> bytes:
    """A profile of `n` samples that all have one stack as deep as half of it."""
    texts = ["", "allocations", "count", "space", "bytes", "device", "cuda:0", "f", "m.py"]
    deep = n
    made = b"".join(
        field(2, b"".join(field(1, k + 1) for k in range(i, i + 20)) + field(2, 1) + field(2, 4096) + field(3, field(1, 5) + field(2, 6)))
        for i in range(n - 20)
    )
    made += b"".join(field(4, field(1, k + 1) + field(4, field(1, 1) + field(2, k))) for k in range(deep))
    return bytes(made + field(5, field(1, 1) + field(2, 7) + field(4, 8)) + b"".join(field(6, t) for t in texts))


# --- Nsight Compute -------------------------------------------------------------------------------------------------------


def ncu_kernels(n: int) -> bytes:
    results = [kernels.result(f"k{i}", {0: kernels.field(3, 5000.0), 1: kernels.field(3, 12.5), 2: kernels.field(1, "NVIDIA H200")}) for i in range(n)]
    return kernels.report(kernels.block(session=kernels.SESSION), kernels.block(results, kernels.NAMES_HELD))


def ncu_metrics(n: int) -> bytes:
    names = [*kernels.NAMES_HELD, *(f"metric__{i}.sum" for i in range(n))]
    return kernels.report(
        kernels.block(session=kernels.SESSION),
        kernels.block([kernels.result("k", {0: kernels.field(3, 5e3), **{i: kernels.field(3, 1.0) for i in range(3, n)}})], names),
    )


def _library(level: int) -> str:
    return f"torch/nn/modules/module.py({level % 900}): _call_impl"


SHAPES: dict[str, Callable[[int], bytes]] = {
    "modules in modules": nested("python_function", lambda i: f"nn.Module: Block_{i}"),
    "modules that each launch": nested("python_function", lambda i: f"nn.Module: Block_{i}", launches=10**9),
    "modules that each launch, with ids": nested("python_function", lambda i: f"nn.Module: Block_{i}", launches=10**9, ids=True),
    "frames of libraries": nested("python_function", _library, launches=10**9, ids=True),
    "frames of the program": nested("python_function", lambda i: f"train.py({i}): f", launches=10**9, ids=True),
    "frames that have returned": frames_that_end,
    "frames in a ring": frames_in_a_ring,
    "ops in ops": nested("cpu_op", lambda i: f"aten::op{i}", launches=10**9),
    "ops in ops of one name": nested("cpu_op", lambda i: "aten::mm", launches=10**9),
    "ops in ops, one kernel": nested("cpu_op", lambda i: f"aten::op{i % 5}"),
    "casts in casts": nested("cpu_op", lambda i: ("aten::to", "aten::_to_copy", "aten::copy_")[i % 3], launches=10**9),
    "ranges in ranges": nested("user_annotation", lambda i: f"layer {i}", launches=10**9),
    "calls in calls": calls_in_calls,
    "ranges that begin before any ends": open_and_close,
    "ops that outlive each other": staggered,
    "a stream a kernel": each(stream=lambda i: STREAM + i),
    "a stream a kernel, all at once": side_by_side,
    "a device a kernel": each(device=lambda i: i),
    "a thread a launch": each(tid=lambda i: TID + i),
    "a name a kernel": each(name=lambda i: f"void kernel_{i}<float>(float*)"),
    "one correlation": one_correlation,
    "one sequence number": one_sequence,
    "events and waits": events_and_waits,
    "waits in a ring": waits_for_itself,
    "one graph": one_graph,
    "allocations in ops": allocations,
    "stacks as text": stacks_as_text,
    "a group a collective": collectives,
    "one moment": one_moment,
    "a shape an op": shapes_of_all_sizes,
    "lists in a shape": nested_shapes,
    "a name of brackets": one_name("<("),
    "a name of templates": one_name("at::native::f<"),
    "JAX: a thread an event": jax_chrome,
    "JAX: computations that call each other": hlo_of_itself,
    "JAX: bitcasts of each other": hlo_bitcasts,
    "JAX: frames of libraries": hlo_frames,
    "JAX: tuples in tuples": hlo_tuples,
    "JAX: a plane a kernel": planes,
    "JAX: frames in frames": lines,
    "nsys: ranges in ranges": nsys(nvtx),
    "nsys: a thousand processes": nsys(nsys_processes),
    "nsys: a stream a kernel": nsys(nsys_streams),
    "memory: segments": segments,
    "memory: pieces of one segment": pieces,
    "memory: deep stacks": deep_stacks,
    "memory: all alive": all_alive,
    "memory: devices": many_devices,
    "memory profile of JAX": pprof,
    "Nsight Compute: kernels": ncu_kernels,
    "Nsight Compute: metrics": ncu_metrics,
}
