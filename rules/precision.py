"""Matrix products, convolutions and attention in FP32 or TF32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Ints
from advisor.knowledge.demangled import plain_name
from advisor.knowledge.how_to_record import RECORD_SHAPES
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import PRODUCTS, Family, family, library_product, tensor_core
from advisor.report.finding import Clear
from advisor.report.numbers import counted, duration, percent
from advisor.rules._kernels import Fine, Question, Seen, ask
from advisor.rules._phrases import a_step
from advisor.rules.fixes import for_program, known_fix
from advisor.rules.fixes.tensor_cores import IN_KERNEL, in_16_bits
from advisor.views.kernel_work import InSteps, KernelWork
from advisor.views.kernels.counters import fused_share, pipe_busy
from advisor.views.kernels.limits import BUSY, COMPUTE, DRAM, L1, REACHED, Gain, in_part
from advisor.views.kernels.measured import MeasuredKernel, MeasuredKernels
from advisor.views.patterns.activations import activations, halved
from advisor.views.patterns.precision import DoubleWork, WideProducts
from advisor.views.replay.edits import Edits, WithDurations, WithHostTime, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline

TENSOR_CORES, TF32 = (7, 0), (8, 0)
"""Compute capabilities from which FP16 Tensor Cores, and TF32 and BF16, exist."""
TURING = (7, 5)
"""The one compute capability of devices with Tensor Cores (T4, RTX 20) and without (GTX 16): there only a known device has them."""

CAST_HOST_US = cost("cast-on-host")


@rule("precision", relies_on=("kernels",), min_saving_share=0.03)
def precision(kernels: KernelWork, *, min_busy_share: float = 0.05) -> Outcome:
    """Matrix products run in more precision than they may need

    What it is
    Matrix products, convolutions and attention on FP32 inputs: on the GPU's ordinary cores, because TF32 is off (the
    default for matrix products), or on Tensor Cores in TF32, because no autocast is on.

    Why it costs time
    Tensor Cores compute the same product 7 to 15 times faster in TF32 or BF16 than ordinary cores do on an A100 or H100 (2 to 4 times in BF16
    on most others), and in BF16 twice as fast as in TF32, on half the bytes. They take FP16, BF16, TF32, FP8: never FP32.

    How it is measured
    Kernels whose name and input types say FP32 without TF32 (`ffma`, `simt_sgemm`, `f32f32_f32f32_f32`; `xmma` alone says
    nothing) or TF32, that take `min_busy_share` of the time the GPU works ({min_busy_share}; runs of 20 times their usual length left out), on devices with Tensor Cores. Each is
    replayed at the larger of its FLOPs at the rate that large BF16 products reach and its bytes at the bandwidth reached;
    where shapes are unknown, at the ratio of the rates (from TF32 then possible only; from FP32 on a device that is not named a
    quarter, `low` half, `high` a sixteenth); at 0.3 of the rate where sizes are no multiple of 16 bytes, 0.13 where odd in 16
    bits; and with the casts of operands that autocast adds in the forward pass, on the GPU and on the host; what works on nothing but what a matrix
    product has just made, as a layer's activation does, moves half the bytes. `low`: TF32 is turned on and nothing more, which gains nothing where it is
    on already, and half of the gain in rate where shapes are unknown. `high`: the BF16 peak, and all pointwise ops and norms move half the bytes. Convolutions on CUDA cores beside others in TF32 keep their time but for `high`: the library was free to take Tensor Cores; so do PyTorch's own depthwise ones in BF16, and long ones in groups in TF32 (over 4096 products a place, as wav2vec's), which would leave them in 16 bits. Of a kernel that was measured by itself the counters tell: fused multiply-adds on CUDA cores, Tensor Cores
    idle, and the gain is a share of its own time; of a kernel of one's own that keeps them busy for less than 0.6, of the time for which it does. What works on
    FP64 and takes `min_busy_share` is replayed without half of its bytes at the bandwidth reached (where these are not known, in three
    quarters of its time; products at the rate of FP32; `low`: nothing, `high`: half, products at TF32's rate): medium at most, and only
    possible where nothing is trained. Reported from `min_saving_share` of the step ({min_saving_share}).

    How to fix it
    `torch.set_float32_matmul_precision("high")` turns TF32 on for products, `torch.backends.cudnn.allow_tf32 = True` for convolutions, where it is on unless somebody turned it off. `torch.autocast("cuda", torch.bfloat16)` halves the bytes too and needs no loss scaling.

    When to ignore it
    When the computation needs FP32: ill-conditioned solves, some physics and statistics. Check the result, not the loss alone.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    https://docs.pytorch.org/docs/stable/amp.html
    """
    if isinstance(kernels.of, MeasuredKernels):
        return ask(kernels.of, _QUESTION, _measured)
    products, double = _in_steps(kernels.of, min_busy_share), _in_double(kernels.of, min_busy_share)
    if double is None:
        return products
    return [products, double] if isinstance(products, Found) else double


def _in_steps(found: InSteps, min_busy_share: float) -> Outcome:
    """Of the kernels of a step, all together."""
    work, roofline, witness = found.work, found.roofline, found.witness
    products = WideProducts.build(work, roofline)
    chosen, now, dur = products.at, products.now, products.dur_us
    share = float(dur.sum()) / work.busy_us
    quiet = f"products and convolutions in FP32 or TF32 take {percent(share)} of busy time"
    if share < min_busy_share or not len(chosen):
        others = f"; the others run in {', '.join(products.others)}" if products.others else ""
        return Clear(why=f"{quiet}, reported from {min_busy_share:.0%}{others}")
    device = work.device_at(chosen[0])
    on_cuda_cores = float(dur[now == "fp32"].sum()) > float(dur[now == "tf32"].sum())
    if not device.name and device.id not in roofline.peaks and on_cuda_cores and work.named(_AMPERE_ON).any():
        return _of_unknown_device(found, products, quiet)
    peaks = roofline.peaks_of(device)
    half = "bf16" if device.compute_capability >= TF32 else "fp16"
    if device.compute_capability < TENSOR_CORES or not peaks.flops_per_s(half):
        return Clear(why=f"{peaks.name} has no Tensor Cores for these products")
    low = "tf32" if peaks.flops_per_s("tf32") else half
    pointwise, made = np.flatnonzero(work.of(Family.ELEMENTWISE, Family.NORM)), activations(work, found.shapes, chosen)
    casts = WithHostTime(chosen[products.forward], CAST_HOST_US)
    amd = found.program.maker == "amd"  # whose matrix cores take FP32 too
    told = work.timeline.source.shapes or on_cuda_cores
    where = "TF32" if not on_cuda_cores else "FP32" if amd else "FP32 without Tensor Cores"
    return Found(
        title="Matrix products run in FP32 on CUDA cores" if on_cuda_cores and not amd else f"Matrix products run in {where}, not {half.upper()}",
        summary=f"{counted(work.a_step(chosen), 'product or convolution', 'products and convolutions')} a step in {where} "
        f"{'takes' if round(work.a_step(chosen)) == 1 else 'take'} {duration(work.us_a_step(chosen))} of {duration(work.step_us)}, {share:.0%} of the GPU's busy time.",
        edits=Edits(
            products.in_precision(low, peaks, reached=True, doubted=True),
            combine(products.in_precision(half, peaks, reached=True, casts=True), halved(work, made), casts),
            combine(products.in_precision(half, peaks, reached=False), halved(work, pointwise)),
        ),
        removes="arithmetic that Tensor Cores do faster in 16 bits",
        quiet=quiet,
        evidence=witness.of_gpu(work.rows[chosen], _labels(work, roofline, chosen)),
        confidence=(0.9 if work.timeline.source.shapes else 0.7) * (1.0 if on_cuda_cores else 0.8),
        status="found" if told else "possible",
        possible_why="" if told else "products that are small or read much gain nothing from a faster unit, and only shapes tell which these are",
        decide_with="" if told else RECORD_SHAPES,
        fix=for_program(
            found.program,
            "precision",
            in_16_bits(
                half,
                training=found.program.training,
                tf32=on_cuda_cores and low == "tf32",
                convolutions=bool((work.of(Family.CONV)[chosen] & (now == "fp32")).any()),
                in_groups=bool(products.in_groups.any()),
                unit="matrix cores" if amd else "Tensor Cores",
            ),
        ),
    )


def _in_double(found: InSteps, min_busy_share: float) -> Found | None:
    """What works on FP64, if that takes enough: arrays of NumPy are FP64 where nothing else is said, and so are the tensors made of them."""
    work, double = found.work, DoubleWork.build(found.work, found.roofline, found.program.framework == "jax")
    share = float(work.dur_us[double.at].sum()) / max(work.busy_us, 1e-9)
    if share < min_busy_share or not len(double.at):
        return None
    # jax_enable_x64 makes every array FP64 that has no type of its own, in the whole process: nobody chose it for this kernel.
    chosen = not found.program.training and found.program.framework != "jax"
    took = f"{a_step(work.a_step(double.at), 'kernel', 'work')} on FP64, for {duration(work.us_a_step(double.at))} of {duration(work.step_us)}"
    return Found(
        title="The program computes in double precision",
        summary=f"{took}, {share:.0%} of the GPU's busy time.",
        edits=Edits(combine(), double.likely, double.best),
        removes="half of the bytes, and arithmetic at the rate of FP64",
        quiet=took,
        evidence=found.witness.of_gpu(work.rows[double.at], _labels(work, found.roofline, double.at)),
        confidence=0.85,
        at_most="medium",  # some training needs it: forces, equations of physics
        status="possible" if chosen else "found",
        possible_why="whether seven digits are enough for what it computes is not in a trace" if chosen else "",
        decide_with="run it once in FP32 and hold the results against each other" if chosen else "",
        cause="fp64",
        fix=for_program(found.program, "fp64", _SINGLE),
    )


def _of_unknown_device(found: InSteps, products: WideProducts, quiet: str) -> Outcome:
    """The same where the device is not named, but runs kernels that only devices with Tensor Cores for BF16 run."""
    work = found.work
    times = [WithDurations(products.at, np.where(products.now == "fp32", products.dur_us * ratio, products.dur_us)) for ratio in UNKNOWN_DEVICE]
    return Found(
        title="Matrix products run in FP32 on CUDA cores",
        summary=f"{a_step(work.a_step(products.at), 'product', 'run')} in FP32 without Tensor Cores and take "
        f"{duration(work.us_a_step(products.at))} of {duration(work.step_us)}; which device it is was not recorded.",
        edits=Edits(times[2], times[1], times[0]),
        removes="arithmetic that Tensor Cores do faster in 16 bits",
        quiet=quiet,
        evidence=found.witness.of_gpu(work.rows[products.at], [work.kernel_name(k)[:80] for k in products.at.tolist()]),
        confidence=0.7,
        fix=for_program(found.program, "precision", in_16_bits("bf16", training=found.program.training, tf32=True)),
    )


_QUESTION = Question(
    "of {count} kernels no product keeps the FP32 units busy instead of the Tensor Cores (at most {0:.0%} of the time)",
    ("ComputeWorkloadAnalysis", "InstructionStats", "SpeedOfLight"),
)
_AMPERE_ON = names_of("ampere_or_newer")
_PRODUCT = names_of("product_by_own_name")
"""Kernels of somebody's own whose name says that they multiply matrices."""

UNKNOWN_DEVICE = (1 / 16, 1 / 4, 1 / 2)
"""FP32 over 16-bit rate, at best, likely and at worst, where the device's name was not recorded: an A100 or H100, an L4, a GeForce."""

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
    same_tiles = max(kernel.limits.busy.get(L1, 0.0) / REACHED[-1], ratio)
    worst = (single / (reduced or rate) if single and rate else ratio) if library else same_tiles
    dram = kernel.limits.busy.get(DRAM, 0.0)
    gain = Gain.of_time(max(best * kernel.limits.busy[COMPUTE], dram / 2), max(ratio, dram / 2 / REACHED[1]), worst)
    told = f"multiplies matrices in FP32 on CUDA cores, busy for {fma:.0%} of the time; the Tensor Cores idle."
    fix = in_16_bits(half, training=False, tf32=bool(reduced), convolutions=family(name) == Family.CONV) if library else IN_KERNEL
    if library or fma >= BUSY:
        return Seen(told, gain, 0.85, fix)
    # Whether all of a kernel of one's own can be written as matrix products is not known: the units explain the time for which they work.
    # Behind loads that are as fast as they get, faster arithmetic alone gains nothing.
    full = max(kernel.limits.busy.get(L1, 0.0), dram) >= REACHED[0]
    return Seen(told, replace(in_part(gain, fma), low=0.0), 0.6, fix, "low" if full else "medium")


def _labels(work: GpuWork, roofline: Roofline, chosen: Ints) -> list[str]:
    """Of each position, the op with its shapes, or the kernel where no op is known."""
    dims = work.timeline.cpu_ops["dims"].cat
    shapes, codes = dims.categories.to_list(), dims.codes.to_numpy()
    ops = zip(chosen.tolist(), roofline.cost_op[work.rows[chosen]].tolist(), strict=True)
    return [f"{work.ops.name(op)} {shapes[codes[op]]}" if op >= 0 else work.kernel_name(position)[:80] for position, op in ops]


_SINGLE = known_fix("pytorch", "single-precision")
