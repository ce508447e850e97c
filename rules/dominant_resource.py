"""One resource holds most of the step: what is known of it, and what would have to be measured."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, Share, rule
from advisor.intervals import Ints, in_spans, union
from advisor.recordings.timeline import CopyKind, GpuKind
from advisor.report.finding import Clear, Saving
from advisor.report.numbers import cut, duration_of, percent
from advisor.report.wording.period import THE_STEP
from advisor.rules.fixes.resources import decide_with, measure_kernel, move_less, prefetch
from advisor.views.groups import distinct
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program
from advisor.views.trace.repeats import ONE_BY_ONE


@rule("dominant-resource", relies_on=("kernels",))
def dominant_resource(
    work: GpuWork, roofline: Roofline, witness: Witness, program: Program,
    *, min_share: Share = 0.5, near_roof_share: Share = 0.6,
) -> Outcome:  # fmt: skip
    """A single kernel or kind of copy holds most of the step

    What
    A single kernel, or copies in a single direction, take more of the step than everything else together.

    Why
    No other change can make the step much shorter. The question is how close this kernel or copy is to the
    hardware's limit.

    How to fix
    For a custom kernel, measure it and compare it with a library's (cuBLAS, cuDNN, CUB, FlashAttention):

        ncu --set full -k regex:my_kernel -c 3 python train.py

    For copies: move fewer bytes (8-bit weights), keep data on the GPU, or copy the next piece during
    computation. If managed memory migrates, prefetch it with `cudaMemPrefetchAsync`.

    When to ignore
    The program is a benchmark of this kernel or link.

    How it is measured
    The rule takes the time per kernel name and per copy direction. It reports the largest if it is `min_share`
    ({min_share}) of the step or more. The least possible time comes from the roofline, or from the link's rate. If
    `near_roof_share` ({near_roof_share}) of that rate is reached, the hardware is well used and nothing is reported. The
    saving is a bound: from zero to all time above the least.

    References
    https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html
    https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html
    """
    copies = np.flatnonzero(work.column("kind") == GpuKind.MEMCPY.value)
    kernels = np.flatnonzero(work.kernel & ~work.kernels.communication[work.rows])
    name, mine, share = max((_largest(work, copies, "copy_kind"), _largest(work, kernels, "name")), key=lambda found: found[2])
    if share < min_share:
        what = f". The largest is {cut(name, 70)} with {percent(share)}" if name else ""
        return Clear(why=f"no kernel and no kind of copy takes {min_share:.0%} of {THE_STEP}{what}")
    moved = len(copies) > 0 and mine[0] in copies
    migrating = _migrations(work, mine)
    reached = _link_share(work, roofline, mine, name) if moved else _roof_share(work, roofline, mine)
    if reached is not None and reached >= near_roof_share:
        return Clear(
            why=f"{cut(name, 70)} takes {percent(share)} of {THE_STEP} and reaches {percent(reached)} of the hardware limit",
            reason="well-used",
            measured=reached,
            unit="share",
        )
    spent = min(work.us_a_step(mine), share * work.step_us)
    most = spent * (1 - reached) if reached is not None else spent
    near = (
        f"while {migrating:,} batches of managed-memory pages migrate"
        if migrating
        else f"at {percent(reached)} of the hardware limit"
        if reached is not None
        else "at an unknown share of the hardware limit"
    )
    what = _SUBJECTS.get(name, "Copies") if moved else cut(name, 70)
    return Found(
        title=f"{_SUBJECTS.get(name, 'Copies')} take most of {THE_STEP}" if moved else f"A single kernel takes most of {THE_STEP}",
        summary=f"{what} {'take' if moved else 'takes'} {duration_of(spent, work.step_us)} ({percent(share)}), {near}.",
        saving=Saving(low_us=0.0, expected_us=0.0, high_us=most, basis="bound", removes="time above the hardware's minimum"),
        evidence=witness.of_gpu(work.rows[mine], [str(n)[:100] for n in work.column("name")[mine]]),
        status="possible",
        possible_why="a trace does not show how much of it can be saved",
        decide_with=decide_with(name, moved, program.maker),
        confidence=0.8,
        fix=prefetch() if migrating else move_less() if moved else measure_kernel(name, program.maker),
    )


_SUBJECTS = {
    CopyKind.HTOD.value: "Host-to-device copies", CopyKind.DTOH.value: "Device-to-host copies",
    CopyKind.DTOD.value: "Copies within the device", CopyKind.PTOP.value: "Copies between devices", CopyKind.HTOH.value: "Copies within the host",
    CopyKind.MIGRATION_HTOD.value: "Copies of managed memory to the device", CopyKind.MIGRATION_DTOH.value: "Copies of managed memory to the host",
}  # fmt: skip


def _largest(work: GpuWork, at: Ints, column: str) -> tuple[str, Ints, float]:
    """The value of a column that takes most time of the step, if it is, and its share."""
    if not len(at):
        return "", at, 0.0
    values = work.timeline.gpu_ops[column]
    codes = values.codes[work.rows[at]]
    spent = np.bincount(codes, weights=work.dur_us[at])
    # Of those that take as long, the first by name.
    name, best = min((str(values.categories[code]), code) for code in distinct(codes).tolist() if spent[code] == spent.max())
    share = float(spent[best]) / work.schedule.steps / work.step_us
    return name, at[codes == best], min(share, 1.0)


def _roof_share(work: GpuWork, roofline: Roofline, mine: Ints) -> float | None:
    """The least time for what these kernels do, over what they took; None if it is not known for most of them."""
    limit, dur = roofline.limit_us[work.rows[mine]], work.dur_us[mine]
    known = ~np.isnan(limit)
    if dur[known].sum() < 0.5 * dur.sum():
        return None
    return float(min(limit[known].sum() / max(dur[known].sum(), 1e-9), 1.0))


def _link_share(work: GpuWork, roofline: Roofline, mine: Ints, way: str) -> float | None:
    """The rate of these copies over that of the link, or of the memory for copies within it; None if either is not known."""
    peaks = roofline.peaks.get(int(work.column("device")[mine[0]]))
    sizes, dur = work.column("bytes")[mine], work.dur_us[mine]
    known = (sizes > 0) & (dur > 0)
    if peaks is None or dur[known].sum() < 0.5 * dur.sum():
        return None
    gbps = float(sizes[known].sum() / dur[known].sum() / 1e3)
    if way == CopyKind.DTOD.value:
        return None if peaks.memory_gbps is None else min(2 * gbps / peaks.memory_gbps, 1.0)
    if way not in (CopyKind.HTOD.value, CopyKind.DTOH.value) or peaks.host_link_gbps is None:
        return None
    return min(gbps / peaks.host_link_gbps, 1.0)


_MIGRATIONS = (CopyKind.MIGRATION_HTOD.value, CopyKind.MIGRATION_DTOH.value)


def _migrations(work: GpuWork, mine: Ints) -> int:
    """Migrations of managed memory a step that are these ops, or that run inside them; 0 if they are few."""
    frame = work.timeline.gpu_ops
    moving = frame["copy_kind"].isin(_MIGRATIONS)
    start, mine_us = frame["start_us"][moving], work.column("start_us")[mine]
    spans = union(mine_us, mine_us + work.dur_us[mine])
    a_step = round(int(in_spans(start, spans).sum()) / work.schedule.steps)
    return a_step if a_step >= ONE_BY_ONE else 0
