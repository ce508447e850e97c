"""Kernels that leave most of the device's multiprocessors without a block."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from advisor.engine.rule import Judged, Outcome, rule
from advisor.intervals import Floats, Ints, overlap_with, union
from advisor.knowledge.kernel_names import Family
from advisor.report.model import Clear, Code, Finding, Fix, Skipped, severity_of
from advisor.rules._evidence import a_step, gpu_evidence, milliseconds
from advisor.rules._needs import NO_GPU_WORK, RECORD_BOTH
from advisor.timeline import GpuKind, Timeline
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import Edit, Edits, WithDurations
from advisor.views.time.roofline import Roofline
from advisor.views.trace.gpu_kernels import FAMILIES, Kernels
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.steps import Steps

SM_REGISTERS, SM_THREADS, SM_SHARED = 65536, 2048, 228 * 1024
"""What a multiprocessor holds from compute capability 9.0 on."""

SM_OTHER = {
    (7, 0): (2048, 96 * 1024), (7, 5): (1024, 64 * 1024), (8, 0): (2048, 164 * 1024), (8, 6): (1536, 100 * 1024),
    (8, 9): (1536, 100 * 1024), (12, 0): (1536, 100 * 1024),
}  # fmt: skip
"""Threads and shared memory where they differ: CUDA C++ Programming Guide, compute capabilities."""

SECOND_PASS_US = 5.0
"""Work split over more blocks needs its parts put together: a second short kernel and the gap before it."""

LIKELY_RATE, LEAST_RATE = 0.5, 0.25
"""Share of the limit by traffic or FLOPs that the split kernel reaches: two passes over the data instead of one, four."""

UNKNOWN_FILL = 0.5
"""Where the limit is not known: no more than half of the kernel's time is taken for idle multiprocessors."""

_BY_DESIGN = re.compile(
    r"nvjet|stream_?k|split_?k|persist|cooperative|splitkv|flash_fwd_split|num_splits|sm90_xmma|warpspecialized|device_kernel"
    r"|rnn|lstm|gru_|ctc|spin|sleep|barrier|signal|wait|multi_tensor_apply",
    re.IGNORECASE,
)
"""Few blocks on purpose: persistent and split kernels, recurrences, waits, optimizers (a block a chunk of the parameters)."""

_SPLITTABLE = (
    Family.GEMM, Family.ATTENTION, Family.NORM, Family.SOFTMAX, Family.REDUCTION, Family.SORT_SCAN, Family.CONV, Family.EMBEDDING,
)  # fmt: skip
"""Families whose work is known to divide over more blocks. Others may be serial: they count where their limit is known."""

_EQUAL_BLOCKS = (Family.GEMM, Family.ATTENTION, Family.CONV)
"""Families whose blocks take about as long as each other, so that a last wave of few costs as much as a full one."""


@dataclass(frozen=True)
class _Small:
    """Kernels (positions), the share of the device's block places that they fill, and whether their limit is known."""

    at: Ints
    fill: Floats
    tail: np.ndarray
    """(n,) a last wave of few blocks, not a grid of few."""


@rule("small-grid", relies_on=("kernels",))
def small_grid(
    timeline: Timeline,
    steps: Steps,
    ops: Ops,
    kernels: Kernels,
    roofline: Roofline,
    launches: Launches,
    replay: Replay,
    sources: Sources,
    *,
    max_fill: float = 0.5,
    min_kernel_us: float = 20.0,
    max_limit_share: float = 0.5,
    min_saving_share: float = 0.03,
) -> Outcome:
    """Kernels run on few of the device's multiprocessors

    What it is
    A kernel with fewer blocks than the device has multiprocessors: a softmax or running sum of a few long rows (a block a
    row), a reduction into a few values, a product with few tiles. Or one whose last wave holds but a few blocks.

    Why it costs time
    A block runs on one multiprocessor, and one of 132 reaches a hundredth of the bandwidth. Blocks come in waves of
    multiprocessors × blocks that fit on each, and a wave of few takes nearly as long as a full one: on an H200 attention
    over 16 heads (0.97 waves) takes 103 µs, over 17 (1.03 waves) 161.

    How it is measured
    The recorded grid against the device's multiprocessors: kernels that fill at most `max_fill` of them (0.5: filling gains
    twofold at the least), or products, convolutions and attention whose waves fill at most half-way between that and all
    of the next whole number (0.75: 1.03 of 2, 2.06 of 3). They take at least `min_kernel_us` (20 µs: shorter ones are
    bound by their launch and by latency) and, where shapes were recorded, reach at most `max_limit_share` of what their
    FLOPs and bytes allow (0.5); where that is unknown only families that are known to divide count, at a lower confidence.
    Left out: persistent, split-K and split-KV kernels, recurrences and optimizers, whose few blocks are meant, and kernels
    that share the device with others for half of their time. Replayed at the time that a full device would need, not less
    than twice the limit (`low`: half full or four times the limit, `high`: the limit) and 5 µs to join the parts; a tail
    at half of what it costs. Reported from `min_saving_share` of the step (0.03).

    How to fix it
    Give the device more rows at once, or divide each row: partial results of some hundred parts, then one of those.
    `torch.compile` divides long rows by itself: on an H200 a softmax of 8 × 4 M went from 1.07 to 0.09 ms, a running sum of
    4 × 2 M from 3.2 to 0.08, the kernels of the backward pass of a LayerNorm of 50 k × 512 from 0.28 to 0.05. Products:
    split-K (`max-autotune`); attention of few queries: split-KV; own kernels: one more grid axis.

    When to ignore it
    When the work is serial, when other streams or processes fill the device meanwhile, or where a few µs of latency is
    all that counts.

    References
    https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background/index.html#gpu-execution
    https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html#wave-quant
    """
    if not len(timeline.gpu_ops):
        return NO_GPU_WORK
    schedule = replay.recorded
    rows = schedule.op_row
    frame = timeline.gpu_ops
    blocks = frame["grid_blocks"].to_numpy()[rows]
    device = frame["device"].to_numpy()[rows]
    sms = np.array([timeline.device(int(d)).sm_count for d in device.tolist()])
    if not (sms > 0).any():
        return Skipped(why="the trace does not say how many multiprocessors the device has", record_with=RECORD_BOTH)
    if not (blocks > 0).any():
        return Skipped(why="the kernels' grids were not recorded", record_with=RECORD_BOTH)
    limit = roofline.limit_us[rows]
    reached = limit / np.maximum(schedule.dur_us, 1e-9)
    meant = np.array([bool(_BY_DESIGN.search(n)) for n in frame["name"].cat.categories], bool)[
        frame["name"].cat.codes.to_numpy()[rows]
    ]
    eligible = (frame["kind"] == GpuKind.KERNEL.value).to_numpy()[rows] & (blocks > 0) & (sms > 0)
    eligible &= ~meant & ~kernels.of(Family.COMMUNICATION, Family.OPTIMIZER)[rows] & (schedule.dur_us >= min_kernel_us)
    eligible &= np.where(np.isnan(limit), kernels.of(*_SPLITTABLE)[rows], reached <= max_limit_share)
    fill = blocks / np.maximum(sms, 1)
    waves = _waves(timeline, rows, blocks, sms)
    whole = waves / np.ceil(np.maximum(waves, 1))
    tail = eligible & kernels.of(*_EQUAL_BLOCKS)[rows] & ~np.isnan(limit) & (waves > 1) & (whole <= 0.5 + max_fill / 2)
    few = eligible & (fill <= max_fill)
    at = np.flatnonzero(few | tail)
    at = at[~_shared(timeline, rows[at])]
    busy = max(float(schedule.dur_us.sum()), 1e-9)
    if not len(at):
        return Clear(
            why=f"no kernel of {min_kernel_us:.0f} µs or more runs on {max_fill:.0%} of the multiprocessors or fewer, short of its limit"
        )
    small = _Small(at, np.where(few, fill, whole)[at], ~few[at])
    edits = _edits(small, limit[at], schedule.dur_us[at])
    saving = replay.saving(edits, "multiprocessors without a block")
    share = float(schedule.dur_us[at].sum()) / busy
    if saving.expected_us < min_saving_share * steps.step_us:
        return Clear(
            why=f"kernels on few multiprocessors take {share:.1%} of busy time; on all of them they would gain "
            f"{saving.expected_us / steps.step_us:.1%} of the step, reported from {min_saving_share:.0%}"
        )
    gpu_rows = rows[at]
    labels = [
        _label(timeline, ops, int(rows[p]), int(sms[p]), float(waves[p]), bool(t)) for p, t in zip(at, small.tail, strict=True)
    ]
    worst = int(at[np.argmax(schedule.dur_us[at])])
    families = np.asarray([FAMILIES[f] for f in kernels.family[rows[at]].tolist()], object)
    spent = {f: float(schedule.dur_us[at[families == f]].sum()) for f in dict.fromkeys(families.tolist())}
    known = float(schedule.dur_us[at[~np.isnan(limit[at])]].sum()) / float(schedule.dur_us[at].sum())
    typical = (
        f"{int(blocks[worst])} blocks for {int(sms[worst])} multiprocessors"
        if few[worst]
        else f"{waves[worst]:.2f} waves of blocks, which take as long as {int(np.ceil(waves[worst]))}"
    )
    finding = Finding(
        title="Kernels run on few of the device's multiprocessors",
        summary=f"{a_step(len(at) / schedule.steps, 'kernel', 'leave')} most of the device idle (the longest: {typical}), for "
        f"{milliseconds(float(schedule.dur_us[at].sum()) / schedule.steps)} of {milliseconds(steps.step_us)}.",
        severity=severity_of(saving, steps.step_us),
        confidence=(0.4 + 0.45 * known) * (1.0 if steps.repeats else 0.8),
        saving=saving,
        evidence=gpu_evidence(timeline, gpu_rows, labels, lambda m: sources.most_common(launches.call[gpu_rows[m[:50]]])),
        fix=_fix(max(spent, key=lambda f: spent[f]), bool(small.tail[int(np.argmax(schedule.dur_us[at]))])),
    )
    return [Judged(finding, edits)]


def _waves(timeline: Timeline, rows: Ints, blocks: Ints, sms: Ints) -> Floats:
    """Blocks over the places for them on the whole device: as many blocks fit on a multiprocessor as its registers, threads
    and shared memory hold. NaN where a kernel's were not recorded. Profilers' own occupancy is 0 for kernels with much
    shared memory."""
    frame = timeline.gpu_ops
    device = frame["device"].to_numpy()[rows]
    threads, registers, shared = (frame[c].to_numpy()[rows] for c in ("block_threads", "registers", "shared_bytes"))
    waves = np.full(len(rows), np.nan)
    for d in np.unique(device).tolist():
        capability = timeline.device(d).compute_capability
        mine = (device == d) & (threads > 0) & (registers > 0) & (shared >= 0)
        if timeline.device(d).warp_size != 32 or not mine.any():
            continue
        most_threads, most_shared = SM_OTHER.get(capability, (SM_THREADS, SM_SHARED))
        warps = -(-threads[mine] // 32)
        by_registers = SM_REGISTERS // (-(-registers[mine] // 8) * 8 * 32 * warps)
        fits = np.minimum.reduce([most_threads // (32 * warps), by_registers, most_shared // (shared[mine] + 1024)])
        waves[mine] = blocks[mine] / np.maximum(sms[mine] * np.maximum(fits, 1), 1)
    return waves


def _shared(timeline: Timeline, rows: Ints) -> np.ndarray:
    """(n,) whether kernels (rows of `gpu_ops`) run beside others of the same device for half of their time."""
    frame = timeline.gpu_ops
    start = frame["start_us"].to_numpy()
    end = start + frame["dur_us"].to_numpy()
    device, stream = frame["device"].to_numpy(), frame["stream"].to_numpy()
    kernel = (frame["kind"] == GpuKind.KERNEL.value).to_numpy()
    found = np.zeros(len(rows), bool)
    for d, s in {(int(device[r]), int(stream[r])) for r in rows}:
        mine = (device[rows] == d) & (stream[rows] == s)
        others = kernel & (device == d) & (stream != s)
        spans = union(start[others], end[others])
        covered = overlap_with(start[rows[mine]], end[rows[mine]], spans)
        found[mine] = covered >= 0.5 * (end - start)[rows[mine]]
    return found


def _edits(small: _Small, limit_us: Floats, dur_us: Floats) -> Edits:
    known, unknown = np.nan_to_num(limit_us), np.isnan(limit_us)

    def to(fill: Floats, rate: float, tail: float) -> Edit:
        full = np.maximum(dur_us * np.where(unknown, np.maximum(fill, UNKNOWN_FILL), fill), known / rate) + SECOND_PASS_US
        without_tail = np.maximum(dur_us * (1 - tail * (1 - small.fill)), known)
        return WithDurations(small.at, np.where(small.tail, without_tail, full))

    return Edits(
        to(np.minimum(2 * small.fill, 1.0), LEAST_RATE, 0.0),
        to(small.fill, LIKELY_RATE, 0.5),
        to(small.fill, 1.0, 1.0),
    )


def _label(timeline: Timeline, ops: Ops, row: int, sms: int, waves: float, tail: bool) -> str:
    frame = timeline.gpu_ops
    op, name = int(ops.of_gpu[row]), str(frame["name"].iat[row])
    what = (
        f"{ops.name(op)} {timeline.cpu_ops['dims'].iat[op]}".strip()
        if op >= 0
        else name.removeprefix("void ").split("<", 1)[0][:80]
    )
    blocks = int(frame["grid_blocks"].to_numpy()[row])
    return (
        f"{what}: {waves:.2f} waves ({blocks} blocks)"
        if tail
        else f"{what}: {blocks} block{'s' * (blocks != 1)} on {sms} multiprocessors"
    )


_ROWS = Code(
    before="weights = torch.softmax(scores, -1)  # few long rows: a block each",
    after="weights = torch.compile(torch.softmax)(scores, -1)  # divides long rows",
)
_SCAN = Code(
    before="sums = x.cumsum(-1)  # few long rows: a block each",
    after="sums = torch.compile(torch.cumsum)(x, -1)  # divides long rows\n# or by hand\n"
    "parts = x.unflatten(-1, (1024, -1)).cumsum(-1)\nlast = parts[..., -1]\n"
    "sums = (parts + (last.cumsum(-1) - last)[..., None]).flatten(-2)",
)
_PRODUCT = Code(
    before="model = torch.compile(model)",
    after='model = torch.compile(model, mode="max-autotune")  # tries split-K among others',
)
_BATCH = Code(before="for x in inputs:\n    out = model(x[None])", after="out = model(torch.stack(inputs))")
_STEPS = {
    Family.GEMM: "Divide the inner dimension over blocks (split-K, stream-K): max-autotune tries it, cuBLAS chooses it by size.",
    Family.ATTENTION: "Few queries on a long cache: use a kernel that splits the keys (flash-decoding, FlashInfer).",
    Family.SORT_SCAN: "Divide each row: torch.compile does for running sums, or take those of some hundred parts and then over the parts.",
    Family.NORM: "torch.compile the norm with what surrounds it: Inductor divides reductions over more blocks, in the backward pass too.",
    Family.SOFTMAX: "Divide each row: torch.compile does, or take the log-sum-exp of some hundred parts and then of those.",
    Family.REDUCTION: "Divide each row: torch.compile does, or reduce some hundred parts and then those.",
    Family.CONV: "A larger batch, or channels_last, which has more tiles to divide.",
}


def _fix(family: Family, tail: bool) -> Fix:
    if tail:
        steps: tuple[str, ...] = (
            "Choose the batch, or the sequence, so that the blocks fill whole waves: a little less or more of it may cost nothing.",
            "Or let max-autotune choose another tile, or split-K and stream-K, which have no tail.",
        )
        return Fix(
            title="Fill the last wave",
            steps=steps,
            code=_PRODUCT,
            url="https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html#wave-quant",
            risk="Another batch size changes training: adapt the learning rate.",
        )
    steps = (
        _STEPS.get(
            family, "Divide the work along one more axis, so that the grid has at least as many blocks as multiprocessors."
        ),
    )
    rows = {Family.SOFTMAX: _ROWS, Family.REDUCTION: _ROWS, Family.NORM: _ROWS, Family.SORT_SCAN: _SCAN, Family.GEMM: _PRODUCT}
    return Fix(
        title="Divide the work over the whole device",
        steps=(*steps, "Or give the kernel more rows at once: batch what the program does one after the other."),
        code=rows.get(family, _BATCH),
        url="https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background/index.html#gpu-execution",
        risk="Partial results are added in another order: the last bits differ.",
    )
