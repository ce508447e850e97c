"""Chains of pointwise kernels that each read and write all of their tensors."""

from __future__ import annotations

import re

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Floats, Ints, union
from advisor.knowledge.kernel_names import Family
from advisor.report.model import Clear, Code, Finding, Fix, severity_of
from advisor.rules._evidence import gpu_evidence, milliseconds
from advisor.rules._needs import NO_GPU_WORK
from advisor.timeline import GpuKind, Timeline
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import Edit, Edits, Fused
from advisor.views.replay.schedule import Schedule
from advisor.views.time.roofline import Roofline
from advisor.views.time.utilization import Utilization
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.steps import Steps

_OPTIMIZER = re.compile(r"Optimizer\.|_foreach_|_fused_")
_FUNCTOR = re.compile(
    r"(?:CUDAFunctor(?:OnSelf)?_|launch_|at::native::\(anonymous namespace\)::)?(\w+?)(?:_kernel_cuda|_kernel_impl|_scalar_impl|Functor)\b"
)
LAUNCH_FLOOR_US = 2.0
"""No kernel takes less, whatever it moves."""


@rule("unfused-elementwise", relies_on=("kernels",))
def unfused_elementwise(
    timeline: Timeline,
    steps: Steps,
    ops: Ops,
    kernels: Kernels,
    roofline: Roofline,
    launches: Launches,
    replay: Replay,
    sources: Sources,
    measured: Utilization,
    *,
    min_chain: int = 2,
    min_saving_share: float = 0.03,
    min_gpu_share: float = 0.01,
) -> Outcome:
    """Chains of pointwise kernels could be one kernel

    What it is
    Several pointwise ops in a row (add, multiply, activation, cast, clamp) on tensors of one size, each a kernel of its
    own.

    Why it costs time
    Each kernel reads its whole input from device memory and writes its whole output, though the next one needs nothing
    but that. Their time is memory traffic: a chain of ten moves ten times what one fused kernel would.

    How it is measured
    Pointwise kernels that follow each other on a stream, at least `min_chain` of them (2), on as many elements where
    shapes were recorded; those of an optimizer step are left out. The fused kernel reads the chain's first inputs and
    writes its last output at the bandwidth that the device reaches (devices.toml). `low` assumes that every further
    input comes from memory too, `expected` that half do, `high` that the reductions and norms between the chains fuse as well; without shapes a fused kernel takes as
    long as the chain's longest. Sampled memory counters raise the confidence (from 50 % of peak) or lower it (below 25 %). The
    step is replayed with the chains fused; reported from `min_saving_share` (0.03), where the GPU itself gains `min_gpu_share`
    of the step (0.01): with less than that, launches are the bound, of which another rule speaks.

    How to fix it
    `torch.compile` the function or module that holds the chain: Inductor makes one Triton kernel of it, in the backward
    pass too.

    When to ignore it
    When the code runs once, when shapes change at every call, or when the intermediate results are needed elsewhere.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    """
    if not len(timeline.gpu_ops):
        return NO_GPU_WORK
    schedule = replay.recorded
    step = steps.of_host_time(launches.start_us[schedule.op_row])
    chains = _chains(timeline, ops, launches, kernels, schedule.op_row, schedule.stream, step, min_chain)
    if not chains:
        return Clear(why=f"no {min_chain} pointwise kernels of one size follow each other")
    durations = np.array([_fused_us(timeline, roofline, schedule.op_row[c], schedule.dur_us[c]) for c in chains])
    edits = Edits(
        _fuse(chains, durations[:, 2]),
        _fuse(chains, durations[:, 1]),
        _fuse(*_with_reductions(timeline, ops, launches, kernels, roofline, schedule, step)),
    )
    saving = replay.saving(edits, "memory traffic between pointwise kernels, and their launches")
    share = saving.expected_us / steps.step_us
    members = np.concatenate(chains)
    spent = float(schedule.dur_us[members].sum()) / schedule.steps
    # Where launches are the bound, fewer of them help too, but that is another finding with another fix.
    own = (spent - float(durations[:, 1].sum()) / schedule.steps) / steps.step_us
    if own < min_gpu_share:
        return Clear(
            why=f"{len(members) / schedule.steps:.0f} pointwise kernels a step could fuse, which saves {own:.1%} of the step on the GPU; "
            f"reported from {min_gpu_share:.0%}"
        )
    if share < min_saving_share:
        return Clear(
            why=f"{len(members) / schedule.steps:.0f} pointwise kernels a step could fuse; that would gain {share:.1%}, "
            f"reported from {min_saving_share:.0%}"
        )
    labels: list[str] = []
    for chain in chains:
        names = [_named(timeline, ops, int(r)) for r in schedule.op_row[chain]]
        text = " → ".join(names if len(names) <= 12 else [*names[:11], f"… {len(names) - 11} more"])
        labels.extend([text] * len(chain))
    rows = schedule.op_row[members]
    longest = max(len(c) for c in chains)
    summary = (
        f"{len(members) / schedule.steps:.0f} pointwise kernels a step stand in {len(chains) / schedule.steps:.0f} chains of up to {longest} and take "
        f"{milliseconds(spent)} of {milliseconds(steps.step_us)}; fused they would take {milliseconds(float(durations[:, 1].sum()) / schedule.steps)}."
    )
    finding = Finding(
        title="Chains of pointwise kernels could be one kernel",
        summary=summary,
        severity=severity_of(saving, steps.step_us),
        confidence=_confidence(timeline, steps, measured, int(timeline.gpu_ops["device"].to_numpy()[rows[0]])),
        saving=saving,
        evidence=gpu_evidence(timeline, rows, labels, lambda m: sources.most_common(launches.call[rows[m[:50]]])),
        fix=Fix(
            title="Compile the function that holds the chain",
            steps=(
                "Put torch.compile on the smallest function or module that holds the chain.",
                "Check with TORCH_LOGS=graph_breaks that nothing splits it (prints, .item(), unsupported calls).",
            ),
            code=Code(
                before="def activation(x, bias, residual):\n    x = x + bias\n    x = torch.nn.functional.gelu(x)\n    return x * scale + residual",
                after="@torch.compile\ndef activation(x, bias, residual):\n    x = x + bias\n    x = torch.nn.functional.gelu(x)\n    return x * scale + residual",
            ),
            url="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
            risk="Intermediate results keep more precision inside a fused kernel, so the last bits differ. The first call compiles.",
        ),
    )
    return [Found(finding, edits)]


BUSY_DRAM_PCT, IDLE_DRAM_PCT = 50.0, 25.0
"""Measured use of the memory's bandwidth that confirms that memory is the bound, and that speaks against it."""


def _confidence(timeline: Timeline, steps: Steps, measured: Utilization, device: int) -> float:
    """Higher with shapes and repeated steps; counters of the memory confirm or temper it where they were sampled."""
    confidence = (0.9 if timeline.source.shapes else 0.6) * (1.0 if steps.repeats else 0.8)
    dram = measured.dram_pct(device)
    if dram is None:
        return confidence
    return max(confidence, 0.9) if dram >= BUSY_DRAM_PCT else 0.6 * confidence if dram < IDLE_DRAM_PCT else confidence


def _named(timeline: Timeline, ops: Ops, row: int) -> str:
    """The op as the user wrote it; the functor in the kernel's name where ops were not recorded."""
    op = int(ops.of_gpu[row])
    if op >= 0:
        return ops.name(op).removeprefix("aten::")
    name = str(timeline.gpu_ops["name"].iat[row])
    functor = _FUNCTOR.search(name)
    return functor[1] if functor else name.split("<", 1)[0].rsplit("::", 1)[-1]


def _fuse(chains: list[Ints], dur_us: Floats) -> Edit:
    """Each chain becomes its first kernel, which takes that long."""
    return Fused(np.array([c[0] for c in chains]), np.concatenate([c[1:] for c in chains]), dur_us)


def _with_reductions(
    timeline: Timeline, ops: Ops, launches: Launches, kernels: Kernels, roofline: Roofline, schedule: Schedule, step: Ints
) -> tuple[list[Ints], Floats]:
    """The most a compiler fuses: pointwise runs with the reductions, norms and softmaxes in them, each at the peak
    bandwidth for its largest kernel's traffic; and how long each run then takes."""
    rows = schedule.op_row
    kernel = (timeline.gpu_ops["kind"] == GpuKind.KERNEL.value).to_numpy()[rows]
    families = (Family.ELEMENTWISE, Family.COPY, Family.REDUCTION, Family.NORM, Family.SOFTMAX)
    member = kernels.of(*families)[rows] & kernel & ~_in_optimizer(timeline, ops, launches)[rows]
    runs: list[Ints] = []
    for s in np.unique(schedule.stream):
        here = np.flatnonzero(schedule.stream == s)
        joins = member[here][1:] & member[here][:-1] & (np.diff(step[here]) == 0)
        runs += [run for run in np.split(here, np.flatnonzero(~joins) + 1) if member[run[0]] and len(run) > 1]
    peaks = roofline.peaks.get(int(timeline.gpu_ops["device"].to_numpy()[rows[0]]))
    rate = peaks.bytes_per_s / 1e6 if peaks and peaks.bytes_per_s else np.nan
    limits = [float(np.nanmax(np.r_[0.0, roofline.bytes[rows[run]] / rate])) for run in runs]
    longest = [float(schedule.dur_us[run].max()) for run in runs]
    return runs, np.maximum([min(a, b) if a > 0 else b for a, b in zip(limits, longest, strict=True)], LAUNCH_FLOOR_US)


def _chains(
    timeline: Timeline, ops: Ops, launches: Launches, kernels: Kernels, rows: Ints, stream: Ints, step: Ints, min_chain: int
) -> list[Ints]:
    """Positions of pointwise kernels that follow each other on a stream in one step, on as many elements."""
    pointwise = kernels.of(Family.ELEMENTWISE)[rows]
    casts = kernels.of(Family.COPY)[rows] & (timeline.gpu_ops["kind"] == GpuKind.KERNEL.value).to_numpy()[rows]
    member = (pointwise | casts) & ~_in_optimizer(timeline, ops, launches)[rows]
    elements = _elements(timeline, ops)[rows]
    op = ops.of_gpu[rows]
    kind = np.where(op >= 0, ops.names[op], -1) if len(ops.names) else np.full(len(op), -1)
    # Without ops, kernels are told apart by their names.
    kind = np.where(kind >= 0, kind, -1 - timeline.gpu_ops["name"].cat.codes.to_numpy()[rows].astype(np.int64))
    chains: list[Ints] = []
    for s in np.unique(stream):
        here = np.flatnonzero(stream == s)
        m, n = member[here], elements[here]
        joins = m[1:] & m[:-1] & ((n[1:] == n[:-1]) | (n[1:] < 0) | (n[:-1] < 0)) & (np.diff(step[here]) == 0)
        for run in np.split(here, np.flatnonzero(~joins) + 1):
            for chain in _without_repeats(run, kind[run]):
                if len(chain) >= min_chain and pointwise[chain].sum() >= 2 and member[chain[0]]:
                    chains += [chain]
    return chains


def _without_repeats(run: Ints, kind: Ints) -> list[Ints]:
    """A run of kernels, cut where the same sequence begins again: a loop repeats work, it does not chain it."""
    n = len(run)
    for period in range(1, n // 3 + 1):
        if (kind[period:] == kind[:-period]).all():
            return [run[i : i + period] for i in range(0, n, period)]
    return [run]


def _in_optimizer(timeline: Timeline, ops: Ops, launches: Launches) -> np.ndarray:
    """(n_gpu,) whether an op was launched inside an optimizer step."""
    notes = timeline.annotations
    found = np.zeros(len(timeline.gpu_ops), bool)
    if len(notes):
        matches = np.array([bool(_OPTIMIZER.search(n)) for n in notes["name"].cat.categories], bool)
        rows = matches[notes["name"].cat.codes.to_numpy()]
        start = notes["start_us"].to_numpy()[rows]
        spans = union(start, start + notes["dur_us"].to_numpy()[rows])
        inside = np.searchsorted(spans[0], launches.start_us, side="right") - 1
        found |= (inside >= 0) & (launches.start_us < np.r_[spans[1], 0.0][inside])
    known = ops.of_gpu >= 0
    by_name = np.array([bool(_OPTIMIZER.search(n)) for n in ops.categories], bool)
    found[known] |= by_name[ops.names[ops.of_gpu[known]]]
    return found


def _elements(timeline: Timeline, ops: Ops) -> Ints:
    """(n_gpu,) elements of the largest input of the op around each launch, -1 where shapes were not recorded."""
    dims = timeline.cpu_ops["dims"]
    by_category = np.array([_largest(text) for text in dims.cat.categories], np.int64)
    found = np.full(len(ops.of_gpu), -1, np.int64)
    known = ops.of_gpu >= 0
    found[known] = by_category[dims.cat.codes.to_numpy()[ops.of_gpu[known]]]
    return found


_LIST = re.compile(r"\[([\d,\s]*)\]")


def _largest(dims: str) -> int:
    sizes = [np.prod([int(n) for n in body.split(",")], dtype=object) for body in _LIST.findall(dims) if body.strip()]
    return int(max(sizes, default=-1))


def _fused_us(timeline: Timeline, roofline: Roofline, rows: Ints, dur_us: np.ndarray) -> tuple[float, float, float]:
    """Time of a fused kernel if no further input is read from memory, if half are, if all are; never above the chain's own."""
    whole, longest = float(dur_us.sum()), float(dur_us.max())
    peaks = roofline.peaks.get(int(timeline.gpu_ops["device"].to_numpy()[rows[0]]))
    moved = roofline.bytes[rows]
    if peaks is None or peaks.achievable_bytes_per_s is None or np.isnan(moved).any():
        return min(0.7 * longest, whole), min(longest, whole), min(1.5 * longest, whole)
    # An op on n elements moves one output and its inputs; in a chain one input is what the op before has written.
    per_tensor = float(moved.min()) / 2
    least = 2 * per_tensor
    most = float(moved.sum()) - 2 * per_tensor * (len(rows) - 1)
    most = max(most, least)
    reached, peak = peaks.achievable_bytes_per_s, peaks.bytes_per_s or peaks.achievable_bytes_per_s
    rates = (peak, reached, 0.8 * reached)
    times = [max(b / r * 1e6, LAUNCH_FLOOR_US) for b, r in zip((least, (least + most) / 2, most), rates, strict=True)]
    return min(times[0], whole), min(times[1], whole), min(times[2], whole)
