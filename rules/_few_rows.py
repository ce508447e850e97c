"""Products on few rows."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found
from advisor.errors import Unavailable
from advisor.knowledge.op_tokens.families import Family
from advisor.report.finding import Clear
from advisor.report.numbers import duration, percent, three, threshold
from advisor.report.wording.period import THE_STEP
from advisor.rules._few_requests import FEW, LIKELY, MANY
from advisor.rules._phrases import a_step
from advisor.rules.fixes.batching import batch_requests, larger_batch
from advisor.views.groups import distinct
from advisor.views.patterns.casts import Casts
from advisor.views.replay.edits import Batched, Edits
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import ADD_DEVICE, Roofline
from advisor.views.trace.arguments import Arguments
from advisor.views.trace.evidence import Witness


def of_products(
    training: bool, work: GpuWork, arguments: Arguments, roofline: Roofline, witness: Witness, casts: Casts | None,
    max_of_ridge: float, min_busy_share: float, min_step_share: float,
) -> Found | Clear:  # fmt: skip
    """Of a step that products on few rows take much of."""
    rows, dur_us = work.rows, work.dur_us
    dense, devices = work.in_families(Family.GEMM) & ~work.held_up, work.column("device")
    peaks = {number: roofline.peaks_of(work.timeline.device(number)) for number in distinct(devices[dense] if dense.any() else devices).tolist()}
    if not dense.any():
        return Clear(why="no GEMMs in the window")
    intensity = roofline.flops[rows] / np.maximum(roofline.bytes[rows], 1.0)
    precision = np.asarray(work.kernels.precision, object)[rows]
    ridge, highest = np.full((2, len(rows)), np.nan)
    for number, name in {*zip(devices[dense].tolist(), precision[dense].tolist(), strict=True)}:
        ran = dense & (devices == number) & (precision == name)
        ridge[ran] = peaks[number].ridge(name or "fp32") or np.nan
        # What runs in FP32 could run in TF32, which memory bounds up to a larger intensity.
        highest[ran] = np.fmax(ridge[ran], (peaks[number].ridge("tf32") or np.nan) if name == "fp32" else np.nan)
    unknown = dense & np.isnan(highest)
    if float(dur_us[unknown].sum()) > 0.5 * float(dur_us[dense].sum()):
        of = ", ".join(sorted({str(name) or "fp32" for name in precision[unknown]}))
        raise Unavailable(f"the GPU's peak rate in {of} is not known", ADD_DEVICE)
    starved = intensity < max_of_ridge * highest
    found = np.flatnonzero(starved)
    # What casts their weights does it once for all that share them.
    products = work.op[found[work.op[found] >= 0]]
    cast = casts.of_weights(np.r_[products, work.ops.parent[products]]) if casts else found[:0]
    cast = cast[~work.held_up[cast]]
    such = np.r_[found, cast]
    share = float(dur_us[such].sum()) / work.busy_us
    if share < min_busy_share or work.us_a_step(such) < min_step_share * work.step_us or not len(found):
        known = dense & ~np.isnan(intensity)
        typical = f", median intensity {three(float(np.median(intensity[known])))} FLOP/byte" if known.any() else ""
        of_step = f" and {threshold(min_step_share)} of {THE_STEP}" if share >= min_busy_share else ""
        return Clear(
            why=f"GEMMs far below the ridge point take {percent(share, min_busy_share)} of busy time{typical} (threshold {threshold(min_busy_share)}{of_step})"
        )
    shared = np.flatnonzero(starved | ~(dense | work.in_families(Family.ATTENTION, Family.CONV, Family.COMMUNICATION)))
    middle, limit = float(np.median(intensity[found])), float(np.nanmedian(ridge[found]))
    reached = float(np.nansum(roofline.bytes[rows[found]]) / dur_us[found].sum() / 1e3)
    ops = roofline.cost_op[rows[found]].tolist()
    # More rows than the ridge point allows cost arithmetic.
    room = limit / max(middle, 1e-9)
    together, alike = max(2, round(min(LIKELY, room))), int(room / 4)
    return Found(
        summary=f"{a_step(work.a_step(found), 'GEMM', 'do', 'does')} {three(middle)} FLOP per byte and would need {limit:.0f} to be "
        f"compute-bound. Such GEMMs{', with the casts of its weights,' * bool(len(cast))} take {share:.0%} of the GPU's busy time and read {three(reached)} GB/s.",
        edits=Edits(*(Batched(max(1.0, min(items, room * part)), shared) for items, part in ((FEW, 0.25), (LIKELY, 1.0), (MANY, 2.0)))),
        removes="reading the same weights again for every request",
        quiet=f"GEMMs far below the ridge point take {percent(share)} of busy time",
        evidence=witness.of_gpu(
            rows[found],
            [f"{work.ops.name(o)} {arguments.text(o)}: {intensity[k]:.1f} FLOP/byte" for o, k in zip(ops, found, strict=True)],
        ),
        confidence=0.75,
        per="sample" if training else "request",
        at_most="low" if training else "high",
        fix=larger_batch(together, work.step_us)
        if training
        else batch_requests(
            together,
            f"Serve several requests per step{f': up to about {alike} times as many rows take the same time' * (alike > 1)}. "
            f"A step with {together} requests takes about as long as now ({duration(work.step_us)}): throughput rises, the latency of a request stays.",
            "If a request must run alone, quantise the weights (INT8 or FP8 halve the bytes of BF16, INT4 quarters them).",
        ),
    )
