"""Makes self-consistent traces of any size: a training loop as Kineto or Nsight Systems would record it.

    python -m tests.benchmarks.generate trace.json --mb 100 [--layout kineto|compact|indented] [--stacks] [--no-shapes] [--names N]
    python -m tests.benchmarks.generate trace.json.gz --mb 100
    python -m tests.benchmarks.generate export.sqlite --kernels 1000000

The host runs ahead of the GPU: a step launches its forward ops on the main thread, its backward ops on autograd's, then
the optimizer, and ends with a copy of the loss that it waits for. Each op holds an inner op, that one the runtime call,
and the kernel starts after its launch and after the kernel before it. Times vary by a fixed seed; the file is the same
for the same arguments.
"""

from __future__ import annotations

import argparse
import gzip
import random
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import IO

from tests.benchmarks.layouts import SEPARATORS, Constant, Writer

PID, MAIN, AUTOGRAD, STREAM = 4321, 4321, 4402, 7
BASE_NS = 4_346_342_828_849_119
LAYERS = 24

Shape = tuple[int, ...]
_ACTIVATION: Shape = (16, 512, 1024)

# Outer op, inner op, kernel, its time in ns, shapes of the inputs.
FORWARD: tuple[tuple[str, str, str, int, tuple[Shape, ...]], ...] = (
    ("aten::layer_norm", "aten::native_layer_norm",
     "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float, float const*, "
     "float const*, float const*, float*, float*, float*)", 22_000, (_ACTIVATION, (1024,), (1024,))),
    ("aten::linear", "aten::addmm", "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_bias_execute",
     160_000, ((4096,), (8192, 1024), (1024, 4096))),
    ("aten::gelu", "aten::gelu",
     "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
     "at::native::GeluType)::{lambda()#2}, std::array<char*, 2ul> >(int, at::native::GeluCUDAKernelImpl, std::array<char*, 2ul>)",
     70_000, ((16, 512, 4096),)),
    ("aten::linear", "aten::addmm", "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x32_warpgroupsize1x1x1_bias_execute",
     150_000, ((1024,), (8192, 4096), (4096, 1024))),
    ("aten::add", "aten::add",
     "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, "
     "at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)", 30_000, (_ACTIVATION, _ACTIVATION)),
)  # fmt: skip


# For each layer; launched once the loss is known, so that the GPU waits for each launch.
OPTIMIZER = 4
_UPDATE = FORWARD[4][2].replace("add<float>", "addcdiv<float>")


def _strides(shape: Shape) -> Shape:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


class Trace:
    """Writes the steps of the loop as events; `clock` is the host's time and `free` when the GPU ends what it was given."""

    def __init__(self, layout: str, stacks: bool, shapes: bool, names: int) -> None:
        self.write = Writer(layout)
        self.stacks, self.shapes, self.names = stacks, shapes, names
        self.random = random.Random(7)
        self.clock = self.free = BASE_NS
        self.correlation = self.external = self.sequence = self.frame = self.named = 0
        self.count = 0

    def _distinct(self, name: str) -> str:
        """One of `names` spellings of a name, where that many were asked for."""
        if not self.names:
            return name
        self.named = (self.named + 1) % self.names
        return f"{name}_{self.named}"

    def _python(self, name: str, start: int, end: int, parent: int | None) -> tuple[int, str]:
        self.frame += 1
        ids = {"Python parent id": parent, "Python id": self.frame, "Ev Idx": self.frame}
        return self.frame, self.write.event("python_function", name, PID, MAIN, start, end - start, ids)

    def launch(self, call: str, name: str, start: int, gpu_ns: int, tid: int, constant: Constant, cat: str = "kernel") -> Iterator[str]:
        """A runtime call at `start`, what it runs on the GPU and the arrow between; the clock ends after the call."""
        self.correlation += 1
        host_ns = 3_000 + self.random.randrange(1_500)
        ids = {"External id": self.external, "cbid": 211, "correlation": self.correlation}
        yield self.write.event("cuda_runtime", call, PID, tid, start, host_ns, ids)
        yield self.write.flow("s", self.correlation, PID, tid, start)
        begin = max(self.free + 900, start + host_ns + 1_200)
        self.free = begin + gpu_ns + self.random.randrange(gpu_ns // 20 + 1)
        ids = {"External id": self.external, "device": 0, "context": 1, "stream": STREAM, "correlation": self.correlation}
        yield self.write.event(cat, name, 0, STREAM, begin, self.free - begin, ids, constant)
        yield self.write.flow("f", self.correlation, 0, STREAM, begin)
        self.clock = start + host_ns

    def op(
        self, outer: str, inner: str, kernel: str, gpu_ns: int, shapes: tuple[Shape, ...], sequence: int, backward: bool, parent: int | None
    ) -> Iterator[str]:
        """An op, the op in it and the kernel that it launches; with stacks, the Python around the forward ones."""
        tid = AUTOGRAD if backward else MAIN
        start = self.clock + 1_000 + self.random.randrange(2_000)
        own, self.external = self.external + 1, self.external + 2
        threads = 1 if (self.correlation * 7919) % 2 else 2
        grid: Constant = (
            ("registers per thread", 32), ("shared memory", 1024), ("blocks per SM", 7.757576), ("warps per SM", 31.030303),
            ("grid", (1024, threads, 1)), ("block", (128, 1, 1)), ("est. achieved occupancy %", 48),
        )  # fmt: skip
        body = list(self.launch("cudaLaunchKernel", self._distinct(kernel), start + 2_500, gpu_ns, tid, grid))
        end = self.clock + 800
        ids = {"External id": own, "Record function id": 0, "Sequence number": sequence, "Fwd thread id": int(backward), "Ev Idx": own}
        inputs: Constant = ()
        if self.shapes:
            inputs = (
                ("Concrete Inputs", ("",) * len(shapes)), ("Input type", ("float",) * len(shapes)),
                ("Input Strides", tuple(_strides(shape) for shape in shapes)), ("Input Dims", shapes),
            )  # fmt: skip
        yield self.write.event("cpu_op", self._distinct(outer), PID, tid, start, end + 700 - start, ids, inputs)
        ids = {**ids, "External id": own + 1, "Ev Idx": own + 1}
        yield self.write.event("cpu_op", self._distinct(inner), PID, tid, start + 900, end - start - 900, ids, inputs)
        yield from body
        if self.stacks and not backward:
            module, frame = self._python("nn.Module: Block_0", start - 600, end + 1_300, parent)
            yield frame
            module, frame = self._python(f"model.py({30 + len(shapes)}): forward", start - 400, end + 1_100, module)
            yield frame
            yield self._python(f"<built-in function {inner.removeprefix('aten::')}>", start - 200, end + 900, module)[1]
        self.clock = end + 1_500

    def step(self, number: int) -> Iterator[str]:
        begin = self.clock
        loop = None
        if self.stacks:
            self.frame += 1
            loop = self.frame
        for _ in range(LAYERS):
            for op in FORWARD:
                yield from self.op(*op, self.sequence, False, loop)
                self.sequence += 1
        sequence = self.sequence
        for _ in range(LAYERS):
            for _, inner, kernel, gpu_ns, shapes in reversed(FORWARD):
                backward = inner.removeprefix("aten::").title().replace("_", "") + "Backward0"
                name = f"autograd::engine::evaluate_function: {backward}"
                sequence -= 1
                yield from self.op(name, backward, kernel, 2 * gpu_ns, shapes, sequence, True, None)
        yield from self._loss()
        for _ in range(LAYERS * OPTIMIZER):
            yield from self.op("aten::addcdiv_", "aten::addcdiv_", _UPDATE, 2_500, ((1024, 1024),) * 3, -1, False, loop)
        end = self.clock + 5_000
        ids = {"External id": self.external, "Record function id": 0, "Ev Idx": self.external}
        yield self.write.event("user_annotation", f"ProfilerStep#{number}", PID, MAIN, begin, end - begin, ids)
        if loop is not None:
            ids = {"Python parent id": None, "Python id": loop, "Ev Idx": loop}
            yield self.write.event("python_function", "train.py(57): train_step", PID, MAIN, begin + 1, end - begin - 2, ids)
        self.clock = end + 2_000

    def _loss(self) -> Iterator[str]:
        """loss.item(): a copy to the host and the wait for it."""
        self.external += 2
        start = self.clock + 2_000
        memory: Constant = (("bytes", 4), ("memory bandwidth (GB/s)", 0.003))
        body = list(self.launch("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", start + 2_000, 1_300, MAIN, memory, "gpu_memcpy"))
        self.correlation += 1
        wait = self.clock + 1_000
        self.clock = max(self.free + 1_500, wait + 1_500)
        ids = {"External id": self.external, "cbid": 131, "correlation": self.correlation}
        body.append(self.write.event("cuda_runtime", "cudaStreamSynchronize", PID, MAIN, wait, self.clock - wait, ids))
        for i, name in enumerate(("aten::item", "aten::_local_scalar_dense")):
            ids = {"External id": self.external - 1 + i, "Record function id": 0, "Ev Idx": self.external - 1 + i}
            yield self.write.event("cpu_op", name, PID, MAIN, start + 500 * i, self.clock + 1_000 - start - 800 * i, ids)
        yield from body
        self.clock += 2_000


HEADER = (
    '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {\n      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320,\n'
    '      "computeMajor": 9, "computeMinor": 0, "warpSize": 32, "numSms": 132\n    }\n  ],\n  "record_shapes": 1, "with_stack": 1,\n'
    '  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},\n'
    '  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": [\n'
)


def _opened(path: Path) -> IO[str]:
    return gzip.open(path, "wt", compresslevel=4) if path.suffix == ".gz" else path.open("w")


def kineto(path: Path, size: int, layout: str = "kineto", stacks: bool = False, shapes: bool = True, names: int = 0) -> int:
    """Write a trace of at least `size` bytes, in whole steps and at least six of them. Returns the number of events."""
    trace = Trace(layout, stacks, shapes, names)
    separator = SEPARATORS[layout]
    events = written = number = 0
    with _opened(path) as file:
        file.write(HEADER if layout == "kineto" else "{" + HEADER.split("{", 1)[1].replace("\n", " "))
        while written < size or number < 6:
            lines = list(trace.step(number))
            text = separator.join(lines)
            file.write((separator if number else "") + text)
            events, written, number = events + len(lines), written + len(text), number + 1
        file.write('\n  ],\n  "traceName": "generated.json"\n}\n')
    return events


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--mb", type=float, default=100.0, help="size of a Kineto trace, uncompressed")
    parser.add_argument("--layout", choices=list(SEPARATORS), default="kineto")
    parser.add_argument("--stacks", action="store_true", help="record Python frames")
    parser.add_argument("--no-shapes", action="store_true", help="leave the shapes of inputs out")
    parser.add_argument("--names", type=int, default=0, help="that many distinct names of ops and kernels")
    parser.add_argument("--kernels", type=int, default=100_000, help="size of an nsys export (.sqlite)")
    args = parser.parse_args()
    if args.path.suffix == ".sqlite":
        from tests.benchmarks.nsys_export import generate

        generate(args.path, args.kernels)
    else:
        kineto(args.path, int(args.mb * 1e6), args.layout, args.stacks, not args.no_shapes, args.names)
    print(f"{args.path}: {args.path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
