"""Kernels with one fault each and their twins, run and timed on a GPU.

    python samples/kernels/pairs.py --times times.json                 medians of runs without a profiler, in µs
    ncu --profile-from-start off … python samples/kernels/pairs.py     each kernel once, for Nsight Compute
    python samples/kernels/pairs.py --trace timeline.json.gz           three steps of all of them, under torch.profiler

`--only NAME,NAME` runs some. The kernels are in pairs.cu (compiled by NVRTC), in Triton below, and cuBLAS's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import torch
import triton
import triton.language as tl

SOURCE = Path(__file__).with_name("pairs.cu")
Run = Callable[[], Any]
REPEATS = 15


class Pair(NamedTuple):
    """A fault, and the kernels that have it and have it not."""

    fault: str
    slow: Run
    fixed: Run


@triton.jit
def triton_strided_kernel(x, out, n, stride: tl.constexpr, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + i, tl.load(x + i * stride) * 2.0)


@triton.jit
def triton_contiguous_kernel(x, out, n, stride: tl.constexpr, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + i, tl.load(x + i) * 2.0)


@triton.jit
def triton_rows_few_kernel(x, out, columns, block: tl.constexpr):
    total = tl.zeros((block,), tl.float32)
    for first in range(0, columns, block):
        total += tl.load(x + tl.program_id(0).to(tl.int64) * columns + first + tl.arange(0, block))
    tl.atomic_add(out + tl.program_id(0) % 8, tl.sum(total))


@triton.jit
def triton_rows_split_kernel(x, out, columns, block: tl.constexpr):
    total = tl.zeros((block,), tl.float32)
    for first in range(0, columns, block):
        total += tl.load(x + tl.program_id(0).to(tl.int64) * columns + first + tl.arange(0, block))
    tl.atomic_add(out + tl.program_id(0) % 8, tl.sum(total))


@triton.jit
def triton_dot_fp32_kernel(a, b, c, n, tile: tl.constexpr, depth: tl.constexpr):
    rows, columns, k = tl.program_id(0) * tile + tl.arange(0, tile), tl.program_id(1) * tile + tl.arange(0, tile), tl.arange(0, depth)
    total = tl.zeros((tile, tile), tl.float32)
    for first in range(0, n, depth):
        total += tl.dot(
            tl.load(a + rows[:, None] * n + first + k[None, :]), tl.load(b + (first + k)[:, None] * n + columns[None, :]), input_precision="ieee"
        )
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def triton_dot_tf32_kernel(a, b, c, n, tile: tl.constexpr, depth: tl.constexpr):
    rows, columns, k = tl.program_id(0) * tile + tl.arange(0, tile), tl.program_id(1) * tile + tl.arange(0, tile), tl.arange(0, depth)
    total = tl.zeros((tile, tile), tl.float32)
    for first in range(0, n, depth):
        total += tl.dot(
            tl.load(a + rows[:, None] * n + first + k[None, :]), tl.load(b + (first + k)[:, None] * n + columns[None, :]), input_precision="tf32"
        )
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def triton_count_each_kernel(kind, bins, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.atomic_add(bins + tl.load(kind + i) * 0, tl.load(kind + i))


@triton.jit
def triton_count_block_kernel(kind, bins, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.atomic_add(bins, tl.sum(tl.load(kind + i)))


def pairs() -> dict[str, Callable[[], Pair]]:
    """Every pair by name, its arrays made when it is asked for."""
    module = cupy.RawModule(code=SOURCE.read_text(), options=("-std=c++17", "-lineinfo"))
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count

    def launch(name: str, blocks: int | tuple[int, int], threads: int | tuple[int, int], *arguments: Any, shared: int = 0) -> Run:
        kernel = module.get_function(name)
        if shared > 48 << 10:
            kernel.max_dynamic_shared_size_bytes = shared
        grid = blocks if isinstance(blocks, tuple) else (blocks,)
        block = threads if isinstance(threads, tuple) else (threads,)
        given = tuple(cupy.int32(a) if isinstance(a, int) else a for a in arguments)
        return lambda: kernel(grid, block, given, shared_mem=shared)

    def both(fault: str, name: str, blocks: Any, threads: Any, *arguments: Any, shared: tuple[int, int] = (0, 0)) -> Pair:
        return Pair(
            fault,
            launch(f"{name}_slow", blocks, threads, *arguments, shared=shared[0]),
            launch(f"{name}_fixed", blocks, threads, *arguments, shared=shared[1]),
        )

    def rand(n: int) -> cupy.ndarray:
        return cupy.random.random(n, dtype=cupy.float32)

    def ints(n: int, top: int) -> cupy.ndarray:
        return cupy.random.randint(0, top, n).astype(cupy.int32)

    def empty(n: int, dtype: Any = cupy.float32) -> cupy.ndarray:
        return cupy.zeros(n, dtype)

    def particle_mass() -> Pair:
        n = 1 << 24
        p, out = rand(8 * n), empty(n)
        return Pair(
            "uncoalesced-access",
            launch("particle_mass_slow", n // 256, 256, p, out, n),
            launch("particle_mass_fixed", n // 256, 256, p[:n], p[n : 2 * n], out, n),
        )

    def row_norm() -> Pair:
        rows, columns = 1 << 17, 512
        a, out = rand(rows * columns), empty(rows)
        return Pair(
            "uncoalesced-access",
            launch("row_norm_slow", rows // 256, 256, a, out, rows, columns),
            launch("row_norm_fixed", rows // 8, 256, a, out, rows, columns),
        )

    def transpose_store() -> Pair:
        n = 8192
        return both("uncoalesced-access", "transpose_store", (n // 32, n // 32), (32, 8), rand(n * n), empty(n * n), n)

    def block_scan() -> Pair:
        n = 1 << 25
        return both("bank-conflicts", "block_scan", n // 1024, 512, rand(n), empty(n))

    def shared_softmax() -> Pair:
        n = 1 << 25
        return both("bank-conflicts", "shared_softmax", n // 4096, 64, rand(n), empty(n), shared=(64 * 64 * 4, 64 * 65 * 4))

    def table_gather() -> Pair:
        n = 1 << 22
        index, threads = cupy.random.permutation(n).astype(cupy.int32), 1 << 22
        return both(
            "low-occupancy", "table_gather", threads // 256, 256, index, rand(n), empty(threads), n, 16, shared=(200 << 10, 1 << 10)
        )

    def bands() -> Pair:
        n = 1 << 22
        return both("", "bands", n // 256, 256, rand(8 * n), empty(n), n)

    def smooth() -> Pair:
        n = 1 << 26
        return both("low-occupancy", "smooth", n // 4096, 128, rand(n), empty(n), shared=(100 << 10, 16 << 10))

    def kinds() -> Pair:
        n = 1 << 25
        kind, x, out = ints(n, 4), rand(n), empty(n)
        return Pair(
            "divergence",
            launch("kinds_slow", n // 256, 256, kind, x, out, n),
            launch("kinds_fixed", n // 256, 256, cupy.sort(kind), x, out, n),
        )

    def ragged() -> Pair:
        n = 1 << 24
        count, x, out = (cupy.random.random(n) ** 3 * 256).astype(cupy.int32), rand(n), empty(n)
        return Pair(
            "divergence",
            launch("ragged_slow", n // 256, 256, count, x, out, n),
            launch("ragged_fixed", n // 256, 256, cupy.sort(count), x, out, n),
        )

    def histogram() -> Pair:
        n = 1 << 24
        return both("atomic-contention", "histogram", multiprocessors * 8, 256, ints(n, 16), empty(16, cupy.uint32), n)

    def compact() -> Pair:
        n = 1 << 14
        return both("atomic-contention", "compact", n // 256, 256, rand(n), empty(1 << 20), empty(1, cupy.int32), n)

    def gelu() -> Pair:
        n = 1 << 25
        return both("fp64", "gelu", n // 256, 256, rand(n), empty(n), n)

    def polynomial() -> Pair:
        n = 1 << 25
        return both("fp64", "polynomial", n // 256, 256, rand(n), empty(n), n)

    def sum_few() -> Pair:
        n = 1 << 24
        x, out = rand(4 * n), empty(1)
        return Pair(
            "small-grid",
            launch("sum_few_slow", 16, 1024, x, out, n),
            launch("sum_few_fixed", multiprocessors * 2, 1024, x, out, n),
        )

    def local_sort() -> Pair:
        n = 1 << 20
        return both("local-memory", "local_sort", n // 256, 256, rand(32 * n), empty(n), n)

    def spilled_mix() -> Pair:
        n = 1 << 19
        x, out = rand(64 * n), empty(64 * n)
        return Pair(
            "local-memory",
            launch("spilled_mix_slow", n // 1024, 1024, x, out, n, 16),
            launch("spilled_mix_fixed", n // 256, 256, x, out, n, 16),
        )

    def column_sum() -> Pair:
        n, blocks = 1 << 26, multiprocessors * 5
        return both("latency-bound", "column_sum", blocks, 256, rand(n), empty(blocks * 256), n, blocks * 256)

    def list_walk() -> Pair:
        lists = 1 << 16
        nodes = lists * 32
        following = cupy.concatenate([cupy.random.permutation(lists) + lists * ((step + 1) % 32) for step in range(32)]).astype(cupy.int32)
        return both("latency-bound", "list_walk", multiprocessors * 5, 256, following, rand(nodes * 32), empty(lists * 32), lists, 32)

    def tiled_gemm() -> Pair:
        n = 2048
        a, b = torch.rand(n, n, device="cuda"), torch.rand(n, n, device="cuda")
        c, x, y = torch.empty(n, n, device="cuda"), a.half(), b.half()
        slow = launch("tiled_gemm_slow", (n // 64, n // 64), 256, *(cupy.asarray(t) for t in (a, b, c)), n)
        return Pair("precision", slow, lambda: x @ y)

    def cublas() -> Pair:
        n = 4096
        a, b = torch.rand(n, n, device="cuda"), torch.rand(n, n, device="cuda")
        x, y = a.bfloat16(), b.bfloat16()
        return Pair("precision", lambda: a @ b, lambda: x @ y)

    def triton_strided() -> Pair:
        n = 1 << 23
        x, out = torch.rand(n * 8, device="cuda"), torch.empty(n, device="cuda")
        return Pair(
            "uncoalesced-access",
            lambda: triton_strided_kernel[(n // 1024,)](x, out, n, 8, 1024),
            lambda: triton_contiguous_kernel[(n // 1024,)](x, out, n, 8, 1024),
        )

    def triton_rows() -> Pair:
        n = 1 << 25
        x, out = torch.rand(n, device="cuda"), torch.zeros(8, device="cuda")
        return Pair(
            "small-grid",
            lambda: triton_rows_few_kernel[(8,)](x, out, n // 8, 1024),
            lambda: triton_rows_split_kernel[(2048,)](x, out, n // 2048, 1024),
        )

    def triton_dot() -> Pair:
        n = 2048
        a, b, c = (torch.rand(n, n, device="cuda") for _ in range(3))
        return Pair(
            "precision",
            lambda: triton_dot_fp32_kernel[(n // 64, n // 64)](a, b, c, n, 64, 32),
            lambda: triton_dot_tf32_kernel[(n // 64, n // 64)](a, b, c, n, 64, 32),
        )

    def triton_count() -> Pair:
        n = 1 << 22
        kind, bins = torch.randint(0, 2, (n,), device="cuda", dtype=torch.int32), torch.zeros(4, device="cuda", dtype=torch.int32)
        return Pair(
            "atomic-contention",
            lambda: triton_count_each_kernel[(n // 1024,)](kind, bins, n, 1024),
            lambda: triton_count_block_kernel[(n // 1024,)](kind, bins, n, 1024),
        )

    made = (
        particle_mass, row_norm, transpose_store, block_scan, shared_softmax, table_gather, smooth, bands, kinds, ragged, histogram, compact,
        gelu, polynomial, sum_few, local_sort, spilled_mix, column_sum, list_walk, tiled_gemm, cublas,
        triton_strided, triton_rows, triton_dot, triton_count,
    )  # fmt: skip
    return {make.__name__: make for make in made}


def median_us(run: Run) -> float:
    """Median over runs of the time between two events around one launch, each after a flush of the L2 cache."""
    flush = torch.empty(1 << 26, device="cuda")
    times = []
    for _ in range(REPEATS + 3):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(50_000)  # so that the launch is not part of the time
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000)
    return statistics.median(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--times", type=Path)
    parser.add_argument("--trace", type=Path)
    arguments = parser.parse_args()
    cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream).use()
    torch.backends.cuda.matmul.allow_tf32 = False
    wanted = [name for name in arguments.only.split(",") if name]
    ready: dict[str, Pair] = {}
    for name, make in pairs().items():
        if wanted and name not in wanted:
            continue
        try:
            pair = make()
            pair.slow(), pair.fixed()
            torch.cuda.synchronize()
            ready[name] = pair
        except Exception:  # one pair that does not compile must not cost the others
            traceback.print_exc()
    if arguments.times:
        times = {
            name: {"fault": p.fault, "slow_us": median_us(p.slow), "fixed_us": median_us(p.fixed)} for name, p in ready.items()
        }
        arguments.times.write_text(json.dumps(times, indent=1))
    elif arguments.trace:
        timeline(ready, arguments.trace)
    else:
        torch.cuda.profiler.start()
        for name, pair in ready.items():
            print(name, flush=True)
            pair.slow(), pair.fixed()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def timeline(ready: dict[str, Pair], path: Path) -> None:
    """Three steps, in which each kernel runs once."""
    from torch.profiler import ProfilerActivity, profile, schedule

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule=schedule(wait=1, warmup=1, active=3)) as recorder:
        for _ in range(5):
            for pair in ready.values():
                pair.slow(), pair.fixed()
            torch.cuda.synchronize()
            recorder.step()
    recorder.export_chrome_trace(str(path))


if __name__ == "__main__":
    main()
