"""Matrix products, convolutions and attention in FP32 or TF32."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.demangled import plain_name
from advisor.knowledge.devices import Peaks
from advisor.knowledge.kernel_names import Family, family, tensor_core
from advisor.report.model import Clear, Code, Fix
from advisor.rules._kernels import Fine, Question, Seen, ask
from advisor.rules._phrases import milliseconds
from advisor.views.kernel_work import InSteps, KernelWork
from advisor.views.kernels.counters import fused_share, pipe_busy
from advisor.views.kernels.limits import COMPUTE, DRAM, L1, REACHED, Gain
from advisor.views.kernels.measured import MeasuredKernel, MeasuredKernels
from advisor.views.replay.edits import Edit, Edits, WithDurations, WithHostTime, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace import arguments

TENSOR_CORES, TF32 = (7, 0), (8, 0)
"""Compute capabilities from which FP16 Tensor Cores, and TF32 and BF16, exist."""
TURING = (7, 5)
"""The one compute capability of devices with Tensor Cores (T4, RTX 20) and without (GTX 16): there only a known device has them."""

EMULATED = 3.0
"""TF32 products in place of one in FP32: CUTLASS's attention on FP32 inputs (OpMultiplyAddFastF32)."""

SMALL_US, BUSY_SHARE = 20.0, 0.4
"""A product shorter than the first that works at its rate for less of its time than the second is bound by latency."""

UNALIGNED = 0.25
"""Part of the 16-bit rate that is left where a size is no multiple of 8 (gemm-alignment has the pairs): Tensor Cores load 16 bytes."""

CAST = 1.0
"""What autocast adds in the forward pass, in times of a product's own FP32 bytes: operands read in 4 bytes and written in 2."""

CAST_HOST_US = 10.0
"""What the casts of a product's operands cost the host."""

KERNEL_FLOOR_US = 2.0
"""No kernel takes less, whatever its precision."""

_MATRICES = re.compile(r"^aten::(b?mm|addmm|baddbmm|linear|matmul)$")
_EMULATED = re.compile(r"fmha_cutlass[FB]_f32")


@rule("precision", relies_on=("kernels",), min_saving_share=0.03)
def precision(kernels: KernelWork, *, min_busy_share: float = 0.05) -> Outcome:
    """Matrix products run in more precision than they may need

    What it is
    Matrix products, convolutions and attention on FP32 inputs: on the GPU's ordinary cores, because TF32 is off (the
    default for matrix products), or on Tensor Cores in TF32, because no autocast is on.

    Why it costs time
    Tensor Cores compute the same product 7 to 15 times faster in TF32 or BF16 than ordinary cores do, and in BF16 twice as
    fast as in TF32, on half the bytes. They take FP16, BF16, TF32, FP8: never FP32.

    How it is measured
    Kernels whose name and input types say FP32 without TF32 (`ffma`, `simt_sgemm`, `f32f32_f32f32_f32`; `xmma` alone says
    nothing) or TF32, that take `min_busy_share` of the time the GPU works ({min_busy_share}), on devices with Tensor Cores. Each is
    replayed at the larger of its FLOPs at the rate that large BF16 products reach and its bytes at the bandwidth reached;
    where shapes are unknown, at the ratio of the rates; at a quarter of the rate where sizes are no multiple of 8; and with
    the casts of operands that autocast adds in the forward pass, on the GPU and on the host. `low`: TF32 is turned on and nothing more, which gains nothing where
    it is on already. `high`: the BF16 peak, and pointwise ops and norms move half the bytes too. Of a kernel that was measured by
    itself the counters tell: fused multiply-adds on CUDA cores, Tensor Cores idle, and the gain is a share of its own time. Reported from
    `min_saving_share` of the step ({min_saving_share}).

    How to fix it
    `torch.set_float32_matmul_precision("high")` turns TF32 on, one line. `torch.autocast("cuda", torch.bfloat16)` halves
    the bytes too and needs no loss scaling.

    When to ignore it
    When the computation needs FP32: ill-conditioned solves, some physics and statistics. Check the result, not the loss
    alone.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    https://docs.pytorch.org/docs/stable/amp.html
    """
    if isinstance(kernels.of, MeasuredKernels):
        return ask(kernels.of, _QUESTION, _measured)
    return _in_steps(kernels.of, min_busy_share)


def _in_steps(found: InSteps, min_busy_share: float) -> Outcome:
    """Of the kernels of a step, all together."""
    work, roofline, witness = found.work, found.roofline, found.witness
    emulated = work.named(_EMULATED)
    texts = np.where(emulated, "tf32", np.asarray(work.kernels.precision, object)[work.rows])
    dense = work.of(Family.GEMM, Family.CONV, Family.ATTENTION)
    chosen = np.flatnonzero(dense & np.isin(texts, ["fp32", "tf32"]))
    share = float(work.dur_us[chosen].sum()) / work.busy_us
    quiet = f"products and convolutions in FP32 or TF32 take {share:.0%} of busy time"
    if share < min_busy_share:
        used = sorted({str(t) for t in texts[dense] if t and t not in ("fp32", "tf32")})
        return Clear(
            why=f"{quiet}, reported from {min_busy_share:.0%}" + (f"; the others run in {', '.join(used)}" if used else "")
        )
    device = work.device_at(chosen[0])
    peaks = roofline.peaks_of(device)
    half = "bf16" if device.compute_capability >= TF32 else "fp16"
    if device.compute_capability < TENSOR_CORES or not peaks.flops_per_s(half):
        return Clear(why=f"{peaks.name} has no Tensor Cores for these products")
    low = "tf32" if peaks.flops_per_s("tf32") else half
    rows, now, dur = work.rows[chosen], texts[chosen], work.dur_us[chosen]
    slow = _Products(
        chosen, dur, now, emulated[chosen], roofline.flops[rows], roofline.bytes[rows], _unaligned(work, chosen), _forward(work, chosen)
    )
    pointwise = np.flatnonzero(work.of(Family.ELEMENTWISE, Family.NORM))
    halved = WithDurations(pointwise, np.maximum(work.dur_us[pointwise] / 2, KERNEL_FLOOR_US))
    on_cuda_cores = float(dur[now == "fp32"].sum()) > float(dur[now == "tf32"].sum())
    where = "FP32 without Tensor Cores" if on_cuda_cores else "TF32"
    return Found(
        title="Matrix products run in FP32 on CUDA cores"
        if on_cuda_cores
        else f"Matrix products run in TF32, not {half.upper()}",
        summary=f"{work.a_step(chosen):.0f} products and convolutions a step run in {where} and take "
        f"{milliseconds(work.us_a_step(chosen))} of {milliseconds(work.step_us)}, {share:.0%} of the GPU's busy time.",
        edits=Edits(
            slow.in_precision(low, peaks, reached=True),
            combine(slow.in_precision(half, peaks, reached=True, casts=True), WithHostTime(chosen[_forward(work, chosen)], CAST_HOST_US)),
            combine(slow.in_precision(half, peaks, reached=False), halved),
        ),
        removes="arithmetic that Tensor Cores do faster in 16 bits",
        quiet=quiet,
        evidence=witness.of_gpu(rows, [_label(work, roofline, position) for position in chosen.tolist()]),
        confidence=(0.9 if work.timeline.source.shapes else 0.7) * (1.0 if on_cuda_cores else 0.8),
        fix=_fix(half, on_cuda_cores),
    )


_QUESTION = Question(
    "of {count} kernels no product keeps the FP32 units busy instead of the Tensor Cores (at most {0:.0%} of the time)",
    ("ComputeWorkloadAnalysis", "InstructionStats", "SpeedOfLight"),
)
_PRODUCT = re.compile(r"gemm|mat_?mul|conv|attention|attn|linear|(^|_)(b?mm|dot)(_|$|[0-9])", re.IGNORECASE)
"""Kernels of somebody's own whose name says that they multiply matrices."""

UNKNOWN_DEVICE = (1 / 16, 1 / 4)
"""FP32 over 16-bit rate, at best and likely, where the device's name was not recorded: an A100 or H100, an older GeForce."""

MIN_FUSED, MIN_FMA = 0.5, 0.2
"""A product spends most of its floating-point instructions on fused multiply-adds, and a fifth of the FP32 units' time at least:
one that does less waits for something else first."""


def _measured(kernel: MeasuredKernel) -> Seen | Fine | None:
    """Of one measured kernel: a product whose fused multiply-adds run on CUDA cores while the Tensor Cores idle."""
    profile, name = kernel.profile, kernel.profile.name
    fma, tensor = pipe_busy(profile, "fma"), pipe_busy(profile, "tensor")
    fused = fused_share(profile)
    if fma is None or fused is None or not kernel.limits.known:
        return None
    tensor = tensor or 0.0  # the details page names only the busiest unit
    named = family(name) in (Family.GEMM, Family.CONV, Family.ATTENTION) or bool(_PRODUCT.search(plain_name(name)))
    peaks = kernel.peaks
    half = "bf16" if profile.capability >= TF32 else "fp16"
    single, reduced, rate = (peaks.flops_per_s(p) if peaks else None for p in ("fp32", "tf32", half))
    without = (0, 0) < profile.capability < TENSOR_CORES or (profile.capability == TURING and peaks is None)
    if not named or tensor > 0.05 or fused < MIN_FUSED or fma < MIN_FMA or without:
        return Fine(fma if named and tensor <= 0.05 else 0.0)
    # With the same tiles the shared memory stays as busy as it is; a library's kernel changes them too.
    library = tensor_core(name, "") is False
    best, ratio = (single / rate,) * 2 if single and rate else UNKNOWN_DEVICE
    same_tiles = max(kernel.limits.busy.get(L1, 0.0) / REACHED[-1], ratio)
    worst = (single / (reduced or rate) if single and rate else ratio) if library else same_tiles
    dram = kernel.limits.busy.get(DRAM, 0.0)
    gain = Gain.of_time(max(best * kernel.limits.busy[COMPUTE], dram / 2), max(ratio, dram / 2 / REACHED[1]), worst)
    told = f"multiplies matrices in FP32 on CUDA cores, busy for {fma:.0%} of the time; the Tensor Cores idle."
    return Seen(told, gain, 0.85, _fix(half, True))


@dataclass(frozen=True)
class _Products:
    """Products (positions) that could run in fewer bits: how long each takes, its precision now, its work where known (NaN)."""

    at: Ints
    dur_us: Floats
    now: np.ndarray
    emulated: Mask
    flops: Floats
    bytes: Floats
    unaligned: Mask
    forward: Mask

    def in_precision(self, name: str, peaks: Peaks, *, reached: bool, casts: bool = False) -> Edit:
        """Each as fast as the device is in that precision: at the rates that large products reach, or at its peaks."""
        rate = (peaks.achievable_flops_per_s(name) if reached else peaks.flops_per_s(name)) or 1.0
        before = np.array([peaks.achievable_flops_per_s(str(text)) or rate for text in self.now])
        before /= np.where(self.emulated, EMULATED, 1.0)
        bandwidth = (peaks.achievable_bytes_per_s if reached else peaks.bytes_per_s) or np.inf
        aligned = np.where(self.unaligned & (name != "tf32"), UNALIGNED, 1.0)
        known = np.maximum(self.flops / (rate * aligned), (self.bytes if name == "tf32" else self.bytes / 2) / bandwidth) * 1e6
        if casts:
            known = known + np.where(self.forward, CAST * self.bytes / bandwidth * 1e6, 0.0)
        faster = np.maximum(np.where(np.isnan(known), self.dur_us * before / rate, known), KERNEL_FLOOR_US)
        # A small TF32 product spends its time starting and ending: a higher rate shortens only the part at the rate.
        at_rate = np.maximum(self.flops / before, self.bytes / bandwidth) * 1e6
        small = (self.now == "tf32") & (self.dur_us < SMALL_US) & ~(at_rate >= BUSY_SHARE * self.dur_us)
        faster = np.where(small, np.maximum(faster, self.dur_us - np.maximum(np.nan_to_num(at_rate - known), 0.0)), faster)
        return WithDurations(self.at, np.where(self.now == name, self.dur_us, faster))


def _unaligned(work: GpuWork, chosen: Ints) -> Mask:
    """(n,) whether a size of the last two axes of a product's operands is no multiple of 8; not of convolutions."""
    frame = work.timeline.cpu_ops["dims"]
    odd: dict[str, bool] = {}
    found = np.zeros(len(chosen), bool)
    for i, (position, op) in enumerate(zip(chosen.tolist(), work.op[chosen].tolist(), strict=True)):
        if op < 0 or not _MATRICES.search(work.name(position)):
            continue
        text = str(frame.iat[op])
        if text not in odd:
            matrices = [shape[-2:] for shape in arguments.numbers(text) if len(shape) >= 2 and all(isinstance(n, int) for n in shape)]
            # Rows are spaced by the last axis; of the one before only a transposed operand's are.
            odd[text] = any(n % 8 and n > 8 for shape in matrices for n in shape)
        found[i] = odd[text]
    return found


def _forward(work: GpuWork, chosen: Ints) -> Mask:
    """(n,) whether each is of the forward pass: autograd's products find their operands cast."""
    outermost = work.ops.outermost
    return np.array(
        [op < 0 or not work.ops.name(int(outermost[op])).startswith("autograd::") for op in work.op[chosen].tolist()], bool
    )


def _label(work: GpuWork, roofline: Roofline, position: int) -> str:
    op = int(roofline.cost_op[work.rows[position]])
    return f"{work.ops.name(op)} {work.timeline.cpu_ops['dims'].iat[op]}" if op >= 0 else work.kernel_name(position)[:80]


def _fix(half: str, on_cuda_cores: bool) -> Fix:
    dtype = "bfloat16" if half == "bf16" else "float16"
    steps = [
        f"Run the forward pass under torch.autocast with {dtype}"
        + ("." if half == "bf16" else " and scale the loss (torch.amp.GradScaler).")
    ]
    if half == "bf16" and on_cuda_cores:
        steps.append('Or keep FP32 storage and turn TF32 on: torch.set_float32_matmul_precision("high").')
    steps.append("Hold the result against an FP32 run before you trust it.")
    return Fix(
        title="Let Tensor Cores do the products",
        steps=tuple(steps),
        code=Code(
            before="loss = criterion(model(x), y)\\nloss.backward()",
            after=f'with torch.autocast("cuda", dtype=torch.{dtype}):\\n    loss = criterion(model(x), y)\\nloss.backward()',
        ),
        url="https://docs.pytorch.org/docs/stable/amp.html",
        risk="TF32 keeps 10 bits of mantissa, BF16 7: results differ in the third to fourth digit. Reductions stay in FP32 under autocast.",
    )
