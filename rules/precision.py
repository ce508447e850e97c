"""Matrix products, convolutions and attention in FP32 or TF32."""

from __future__ import annotations

import re

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.kernel_names import Family
from advisor.report.model import Clear, Code, Finding, Fix, Skipped, severity_of
from advisor.rules._evidence import gpu_evidence, milliseconds
from advisor.rules._needs import NO_GPU_WORK
from advisor.timeline import Timeline
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import Edit, Edits, WithDurations, combine
from advisor.views.time.roofline import Roofline
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.steps import Steps

TENSOR_CORES, TF32 = (7, 0), (8, 0)
"""Compute capabilities from which FP16 Tensor Cores, and TF32 and BF16, exist."""

EMULATED = 3.0
"""TF32 products in place of one in FP32: CUTLASS's attention on FP32 inputs (OpMultiplyAddFastF32)."""

SMALL_US, BUSY_SHARE = 20.0, 0.4
"""A product shorter than the first that works at its rate for less of its time than the second is bound by latency."""

KERNEL_FLOOR_US = 2.0
"""No kernel takes less, whatever its precision."""


_EMULATED = re.compile(r"fmha_cutlass[FB]_f32")


@rule("precision", relies_on=("kernels",))
def precision(
    timeline: Timeline,
    steps: Steps,
    ops: Ops,
    kernels: Kernels,
    roofline: Roofline,
    launches: Launches,
    replay: Replay,
    sources: Sources,
    *,
    min_busy_share: float = 0.05,
    min_saving_share: float = 0.03,
) -> Outcome:
    """Matrix products run in more precision than they may need

    What it is
    Matrix products, convolutions and attention on FP32 inputs: on the GPU's ordinary cores, because TF32 is off (the
    default for matrix products), or on Tensor Cores in TF32, because no autocast is on.

    Why it costs time
    Tensor Cores compute the same product 7 to 15 times faster in TF32 or BF16 than ordinary cores do, and in BF16 twice as
    fast as in TF32, on half the bytes. They take FP16, BF16, TF32, FP8: never FP32.

    How it is measured
    Kernels whose name and input types say FP32 without TF32 (`ffma`, `simt_sgemm`, `f32f32_f32f32_f32`; `xmma` alone says
    nothing) or TF32, that take `min_busy_share` of the time the GPU works (0.05), on devices with Tensor Cores. Each is
    replayed at the larger of its FLOPs at the rate that large BF16 products reach and its bytes at the bandwidth reached;
    where shapes are unknown, at the ratio of the rates. `low`: TF32 is turned on and nothing more, which gains nothing where
    it is on already. `high`: the BF16 peak, and pointwise ops and norms move half the bytes too. Reported from
    `min_saving_share` of the step (0.03).

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
    if not len(timeline.gpu_ops):
        return NO_GPU_WORK
    schedule = replay.recorded
    rows = schedule.op_row
    texts = np.asarray(kernels.precision, object)[rows]
    names = timeline.gpu_ops["name"]
    emulated = np.array([bool(_EMULATED.search(name)) for name in names.cat.categories], bool)[names.cat.codes.to_numpy()[rows]]
    texts = np.where(emulated, "tf32", texts)
    dense = kernels.of(Family.GEMM, Family.CONV, Family.ATTENTION)[rows]
    chosen = np.flatnonzero(dense & np.isin(texts, ["fp32", "tf32"]))
    now = texts[chosen]
    share = float(schedule.dur_us[chosen].sum()) / max(float(schedule.dur_us.sum()), 1e-9)
    if share < min_busy_share:
        used = sorted({str(t) for t in texts[dense] if t and t not in ("fp32", "tf32")})
        return Clear(
            why=f"products and convolutions in FP32 or TF32 take {share:.0%} of busy time, reported from {min_busy_share:.0%}"
            + (f"; the others run in {', '.join(used)}" if used else "")
        )
    device = timeline.device(int(timeline.gpu_ops["device"].to_numpy()[rows[chosen[0]]]))
    peaks = roofline.peaks.get(device.id)
    if peaks is None:
        return Skipped(
            why=f"the peak rates of {device.name or 'this device'} are not known", record_with="add it to advisor/knowledge/devices.toml"
        )
    half = "bf16" if device.compute_capability >= TF32 else "fp16"
    if device.compute_capability < TENSOR_CORES or not peaks.flops_per_s(half):
        return Clear(why=f"{peaks.name} has no Tensor Cores for these products")
    low = "tf32" if peaks.flops_per_s("tf32") else half
    dur = schedule.dur_us[chosen]

    def at(name: str, reached: bool) -> Edit:
        rate = (peaks.achievable_flops_per_s(name) if reached else peaks.flops_per_s(name)) or 1.0
        before = np.array([peaks.achievable_flops_per_s(str(text)) or rate for text in now])
        before /= np.where(emulated[chosen], EMULATED, 1.0)
        flops, moved = roofline.flops[rows[chosen]], roofline.bytes[rows[chosen]]
        bandwidth = (peaks.achievable_bytes_per_s if reached else peaks.bytes_per_s) or np.inf
        known = np.maximum(flops / rate, (moved if name == "tf32" else moved / 2) / bandwidth) * 1e6
        faster = np.maximum(np.where(np.isnan(known), dur * before / rate, known), KERNEL_FLOOR_US)
        # A small TF32 product spends its time starting and ending: a higher rate shortens only the part at the rate.
        at_rate = np.maximum(flops / before, moved / bandwidth) * 1e6
        small = (now == "tf32") & (dur < SMALL_US) & ~(at_rate >= BUSY_SHARE * dur)
        faster = np.where(small, np.maximum(faster, dur - np.maximum(np.nan_to_num(at_rate - known), 0.0)), faster)
        return WithDurations(chosen, np.where(now == name, dur, faster))

    pointwise = np.flatnonzero(kernels.of(Family.ELEMENTWISE, Family.NORM)[rows])
    halved = WithDurations(pointwise, np.maximum(schedule.dur_us[pointwise] / 2, KERNEL_FLOOR_US))
    edits = Edits(at(low, True), at(half, True), combine(at(half, False), halved))
    saving = replay.saving(edits, "arithmetic that Tensor Cores do faster in 16 bits")
    if saving.expected_us < min_saving_share * steps.step_us:
        return Clear(
            why=f"products and convolutions in FP32 or TF32 take {share:.0%} of busy time, but faster ones would gain "
            f"{saving.expected_us / steps.step_us:.1%} of the step, reported from {min_saving_share:.0%}"
        )
    gpu_rows = rows[chosen]
    dims = timeline.cpu_ops["dims"]
    labels = []
    for row in gpu_rows:
        op = int(roofline.cost_op[row])
        labels.append(f"{ops.name(op)} {dims.iat[op]}" if op >= 0 else str(timeline.gpu_ops["name"].iat[int(row)])[:80])
    spent = float(dur.sum()) / schedule.steps
    on_cuda_cores = float(dur[now == "fp32"].sum()) > float(dur[now == "tf32"].sum())
    where = "FP32 without Tensor Cores" if on_cuda_cores else "TF32"
    finding = Finding(
        title="Matrix products run in FP32 on CUDA cores" if on_cuda_cores else f"Matrix products run in TF32, not {half.upper()}",
        summary=f"{len(chosen) / schedule.steps:.0f} products and convolutions a step run in {where} and take "
        f"{milliseconds(spent)} of {milliseconds(steps.step_us)}, {share:.0%} of the GPU's busy time.",
        severity=severity_of(saving, steps.step_us),
        confidence=(0.9 if timeline.source.shapes else 0.7) * (1.0 if on_cuda_cores else 0.8),
        saving=saving,
        evidence=gpu_evidence(timeline, gpu_rows, labels, lambda m: sources.most_common(launches.call[gpu_rows[m[:50]]])),
        fix=_fix(half, on_cuda_cores),
    )
    return [Found(finding, edits)]


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
