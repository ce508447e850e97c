"""Matrix products, convolutions and attention in FP32 or TF32."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.how_to_record import RECORD_SHAPES
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.op_tokens.families import Family
from advisor.report.finding import Clear
from advisor.report.numbers import counted, duration_of, percent, threshold
from advisor.report.wording.period import PER_STEP
from advisor.rules import _precision as off_tensor_cores
from advisor.rules._double import in_double
from advisor.rules._kernels import ask
from advisor.rules._phrases import a_step
from advisor.rules._precision import measured_precision
from advisor.rules.fixes import for_program
from advisor.rules.fixes.tensor_cores import in_16_bits
from advisor.views.kernel_work import InSteps, KernelWork
from advisor.views.kernels.measured import MeasuredKernels
from advisor.views.patterns.precision import WideProducts, halved
from advisor.views.replay.edits import Edits, WithDurations, WithHostTime, combine

CAST_HOST_US = cost("cast-on-host")


@rule("precision", relies_on=("kernels",), min_saving_share=0.03)
def precision(kernels: KernelWork, *, min_busy_share: float = 0.05) -> Outcome:
    """Matrix products run in more precision than they may need

    What
    GEMMs, convolutions and attention run on FP32 inputs. Either TF32 is off (the default for GEMMs), so they
    use the CUDA cores. Or they use Tensor Cores in TF32, because autocast is off.

    Why
    On an A100 or H100, Tensor Cores compute the same GEMM 7 to 15 times faster in TF32 or BF16 than CUDA cores
    in FP32. BF16 is twice as fast as TF32 and moves half the bytes. Tensor Cores never compute in FP32.

    How to fix
    Turn TF32 on; autocast gains more:

        torch.set_float32_matmul_precision("high")            # TF32 GEMMs
        torch.backends.cudnn.allow_tf32 = True                # TF32 convolutions
        with torch.autocast("cuda", torch.bfloat16):          # BF16
            loss = loss_of(model(batch))

    When to ignore
    The computation needs FP32: ill-conditioned solves, some physics and statistics. Check the results, not only
    the loss.

    How it is measured
    The rule finds FP32 and TF32 kernels by name and input types. They must take `min_busy_share` ({min_busy_share}) of GPU
    busy time. The replay gives each the larger of its FLOP time and its memory time, and adds autocast's casts.
    FP64 kernels are reported too. Savings below `min_saving_share` ({min_saving_share}) of the step are not reported.

    | Estimate | Assumption |
    |---|---|
    | `low` | TF32 only |
    | `expected` | the rate of large BF16 GEMMs, 0.3 of it if unaligned; of TF32 if that is the first fix |
    | `high` | BF16 peak rate; elementwise ops move half the bytes |

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    https://docs.pytorch.org/docs/stable/amp.html
    """
    if isinstance(kernels.of, MeasuredKernels):
        return ask(kernels.of, off_tensor_cores.QUESTION, measured_precision)
    products, double = _in_steps(kernels.of, min_busy_share), in_double(kernels.of, min_busy_share)
    if double is None:
        return products
    return [products, double] if isinstance(products, Found) else double


def _in_steps(found: InSteps, min_busy_share: float) -> Outcome:
    """Of the kernels of a step, all together."""
    work, roofline, witness = found.work, found.roofline, found.witness
    products = WideProducts.build(work, roofline)
    chosen, now, dur = products.at, products.now, products.dur_us
    share = float(dur.sum()) / work.busy_us
    quiet = f"GEMMs and convolutions in FP32 or TF32 take {percent(share, min_busy_share)} of busy time"
    if share < min_busy_share or not len(chosen):
        quiet += f" (threshold {threshold(min_busy_share)})" + (f"; the others run in {', '.join(products.others)}" if products.others else "")
        return Clear(why=quiet, reason="below-threshold", measured=share, threshold=min_busy_share, unit="share")
    device = work.device_at(chosen[0])
    on_cuda_cores = float(dur[now == "fp32"].sum()) > float(dur[now == "tf32"].sum())
    if not device.name and device.id not in roofline.peaks and on_cuda_cores and work.named(off_tensor_cores.AMPERE_ON).any():
        return _of_unknown_device(found, products, quiet)
    peaks = roofline.peaks_of(device)
    half = "bf16" if device.compute_capability >= off_tensor_cores.TF32 else "fp16"
    if device.compute_capability < off_tensor_cores.TENSOR_CORES or not peaks.flops_per_s(half):
        return Clear(why=f"{peaks.name} has no Tensor Cores for these GEMMs", reason="not-applicable")
    low = "tf32" if peaks.flops_per_s("tf32") else half
    casts = WithHostTime(chosen[products.forward], CAST_HOST_US)
    in_half = products.in_precision(half, peaks, reached=True, casts=True)
    amd = found.program.maker == "amd"  # whose matrix cores take FP32 too
    told = work.timeline.source.shapes or on_cuda_cores
    in_low = products.in_precision(low, peaks, reached=True)
    tf32_first = on_cuda_cores and low == "tf32" and products.gains_as_much(in_low, in_half)
    where = "TF32" if not on_cuda_cores else "FP32" if amd else "FP32 without Tensor Cores"
    return Found(
        title="GEMMs run in FP32 on CUDA cores" if on_cuda_cores and not amd else f"GEMMs run in {where}, not {half.upper()}",
        summary=f"{counted(work.a_step(chosen), 'GEMM or convolution', 'GEMMs and convolutions')} {PER_STEP} in {where} "
        f"{'takes' if round(work.a_step(chosen)) == 1 else 'take'} {duration_of(work.us_a_step(chosen), work.step_us)}, {share:.0%} of the GPU's busy time.",
        edits=Edits(
            products.in_precision(low, peaks, reached=True, doubted=True),
            in_low if tf32_first else combine(in_half, casts),
            combine(products.in_precision(half, peaks, reached=False), halved(work, np.flatnonzero(work.in_families(Family.ELEMENTWISE, Family.NORM)))),
        ),
        removes=f"arithmetic that Tensor Cores do faster in {'TF32' if tf32_first else '16 bits'}",
        quiet=quiet,
        evidence=witness.of_gpu(work.rows[chosen], off_tensor_cores.labels(work, roofline, chosen)),
        confidence=(0.9 if work.timeline.source.shapes else 0.7) * (1.0 if on_cuda_cores else 0.8),
        status="found" if told else "possible",
        possible_why="" if told else "small or bandwidth-limited GEMMs gain nothing from Tensor Cores, and only shapes show which those are",
        decide_with="" if told else RECORD_SHAPES.text,
        fix=for_program(
            found.program,
            "precision",
            in_16_bits(
                half,
                training=found.program.training,
                tf32=on_cuda_cores and low == "tf32",
                tf32_first=tf32_first,
                convolutions=bool((work.in_families(Family.CONV)[chosen] & (now == "fp32")).any()),
                unit="matrix cores" if amd else "Tensor Cores",
            ),
        ),
    )


def _of_unknown_device(found: InSteps, products: WideProducts, quiet: str) -> Outcome:
    """The same where the device is not named, but runs kernels that only devices with Tensor Cores for BF16 run."""
    work = found.work
    times = [
        WithDurations(products.at, np.where(products.now == "fp32", products.dur_us * ratio, products.dur_us)) for ratio in off_tensor_cores.UNKNOWN_DEVICE
    ]
    return Found(
        title="GEMMs run in FP32 on CUDA cores",
        summary=f"{a_step(work.a_step(products.at), 'GEMM', 'run')} in FP32 without Tensor Cores and take "
        f"{duration_of(work.us_a_step(products.at), work.step_us)}; the trace does not name the device.",
        edits=Edits(times[2], times[1], times[0]),
        removes="arithmetic that Tensor Cores do faster in 16 bits",
        quiet=quiet,
        evidence=found.witness.of_gpu(work.rows[products.at], [work.kernel_name(k)[:80] for k in products.at.tolist()]),
        confidence=0.7,
        fix=for_program(found.program, "precision", in_16_bits("bf16", training=found.program.training, tf32=True)),
    )
