"""GEMMs without Tensor Cores in separately measured kernels."""

from __future__ import annotations

from advisor.intervals import Ints
from advisor.knowledge import devices
from advisor.knowledge.demangled import plain_name
from advisor.knowledge.measured_costs import costs
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import PRODUCTS, Family, family, library_product, tensor_core
from advisor.knowledge.shares import CONSIDERABLE, MOST
from advisor.knowledge.structs import replace
from advisor.rules._kernels import Fine, Question, Seen
from advisor.rules.fixes.tensor_cores import IN_KERNEL, in_16_bits
from advisor.views.kernels import counters, limits
from advisor.views.kernels.measured import MeasuredKernel
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline

QUESTION = Question(
    "of {count} kernels no GEMM keeps the FP32 units busy instead of the Tensor Cores (at most {0:.0%} of the time)",
    ("ComputeWorkloadAnalysis", "InstructionStats", "SpeedOfLight"),
)


AMPERE_ON = names_of("ampere_or_newer")


_PRODUCT = names_of("product_by_own_name")
"""Kernels of somebody's own whose name says that they multiply matrices."""


UNKNOWN_DEVICE = costs("unknown-device")


MIN_FUSED, MIN_FMA = MOST, CONSIDERABLE
"""A product spends most of its floating-point instructions on fused multiply-adds, and a quarter of the FP32 units' time at least:
one that does less waits for something else first."""


def measured_precision(kernel: MeasuredKernel) -> Seen | Fine | None:
    """Of a measured kernel: a GEMM with fused multiply-adds on CUDA cores while the Tensor Cores idle."""
    profile, name = kernel.profile, kernel.profile.name
    fma, tensor = counters.pipe_busy(profile, "fma"), counters.pipe_busy(profile, "tensor")
    fused = counters.fused_share(profile)
    if fma is None or fused is None or not kernel.limits.known:
        return None
    tensor = tensor or 0.0  # the details page names only the busiest unit
    named = family(name) in PRODUCTS or bool(_PRODUCT.search(plain_name(name)))
    peaks = kernel.peaks
    half = "bf16" if profile.capability >= TF32 else "fp16"
    single, reduced, rate = (peaks.flops_per_s(p) if peaks else None for p in ("fp32", "tf32", half))
    without = (0, 0) < profile.capability < TENSOR_CORES or (profile.capability == TURING and peaks is None)
    if not named or tensor > 0.05 or fused < MIN_FUSED or fma < MIN_FMA or without:
        return Fine(fma if named and tensor <= 0.05 else 0.0)
    # With the same tiles the shared memory stays as busy as it is; a library's kernel changes them too.
    library = tensor_core(name, "") is False and library_product(name)
    best, ratio = (single / rate,) * 2 if single and rate else UNKNOWN_DEVICE[:2]
    same_tiles = max(kernel.limits.busy.get(limits.L1, 0.0) / limits.REACHED[-1], ratio)
    worst = (single / (reduced or rate) if single and rate else ratio) if library else same_tiles
    dram = kernel.limits.busy.get(limits.DRAM, 0.0)
    gain = limits.Gain.of_time(max(best * kernel.limits.busy[limits.COMPUTE], dram / 2), max(ratio, dram / 2 / limits.REACHED[1]), worst)
    told = f"multiplies matrices in FP32 on CUDA cores, busy for {fma:.0%} of the time; the Tensor Cores idle."
    fix = in_16_bits(half, training=False, tf32=bool(reduced), convolutions=family(name) == Family.CONV) if library else IN_KERNEL
    if library or fma >= limits.BUSY:
        return Seen(told, gain, 0.85, fix)
    # Whether all of a kernel of one's own can be written as matrix products is not known: the units explain the time for which they work.
    # Behind loads that are as fast as they get, faster arithmetic alone gains nothing.
    full = max(kernel.limits.busy.get(limits.L1, 0.0), dram) >= limits.REACHED[0]
    return Seen(told, replace(limits.in_part(gain, fma), low=0.0), 0.6, fix, "low" if full else "medium")


TENSOR_CORES, TURING, TF32 = map(devices.first_capability, ("tensor_cores", "turing", "tf32"))


def labels(work: GpuWork, roofline: Roofline, chosen: Ints) -> list[str]:
    """Of each position, the op with its shapes, or the kernel where no op is known."""
    dims = work.timeline.cpu_ops["dims"]
    shapes, codes = dims.categories.tolist(), dims.codes
    ops = zip(chosen.tolist(), roofline.cost_op[work.rows[chosen]].tolist(), strict=True)
    return [f"{work.ops.name(op)} {shapes[codes[op]]}" if op >= 0 else work.kernel_name(position)[:80] for position, op in ops]
