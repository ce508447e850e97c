"""Chains of pointwise kernels that each read and write all of their tensors."""

from __future__ import annotations

import re

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.kernel_names import Family
from advisor.report.model import Clear, Code, Fix
from advisor.rules._phrases import milliseconds
from advisor.views.replay.edits import Edits, Fused
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.time.utilization import Utilization
from advisor.views.trace.evidence import Witness
from advisor.views.trace.frames import matches, spans_of
from advisor.views.trace.steps import Steps

_OPTIMIZER = re.compile(r"Optimizer\.|_foreach_|_fused_")
_FUNCTOR = re.compile(
    r"(?:CUDAFunctor(?:OnSelf)?_|launch_|at::native::\(anonymous namespace\)::)?(\w+?)(?:_kernel_cuda|_kernel_impl|_scalar_impl|Functor)\b"
)
LAUNCH_FLOOR_US = 2.0
"""No kernel takes less, whatever it moves."""


@rule("unfused-elementwise", relies_on=("kernels",), min_saving_share=0.03)
def unfused_elementwise(
    steps: Steps,
    work: GpuWork,
    roofline: Roofline,
    measured: Utilization,
    witness: Witness,
    *,
    min_chain: int = 2,
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
    Pointwise kernels that follow each other on a stream, at least `min_chain` of them ({min_chain}), on as many elements where
    shapes were recorded; those of an optimizer step are left out. The fused kernel reads the chain's first inputs and
    writes its last output at the bandwidth that the device reaches (devices.toml). `low` assumes that every further
    input comes from memory too, `expected` that half do, `high` that the reductions and norms between the chains fuse as
    well; without shapes a fused kernel takes as long as the chain's longest. Sampled memory counters raise the confidence (from 50 % of peak) or lower it (below 25 %). The
    step is replayed with the chains fused; reported from `min_saving_share` ({min_saving_share}), where the GPU itself gains `min_gpu_share`
    of the step ({min_gpu_share}): with less than that, launches are the bound, of which another rule speaks.

    How to fix it
    `torch.compile` the function or module that holds the chain: Inductor makes one Triton kernel of it, in the backward
    pass too.

    When to ignore it
    When the code runs once, when shapes change at every call, or when the intermediate results are needed elsewhere.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    """
    left_out = _in_optimizer(work)
    chains = _chains(work, left_out, min_chain)
    if not chains:
        return Clear(why=f"no {min_chain} pointwise kernels of one size follow each other")
    durations = np.array([_fused_us(work, roofline, chain) for chain in chains])
    members = np.concatenate(chains)
    spent, fused = work.us_a_step(members), float(durations[:, 1].sum()) / work.schedule.steps
    count = f"{work.a_step(members):.0f} pointwise kernels a step"
    # Where launches are the bound, fewer of them help too, but that is another finding with another fix.
    own = (spent - fused) / steps.step_us
    if own < min_gpu_share:
        return Clear(why=f"{count} could fuse, which saves {own:.1%} of the step on the GPU; reported from {min_gpu_share:.0%}")
    return Found(
        summary=f"{count} stand in {work.a_step(chains):.0f} chains of up to {max(len(c) for c in chains)} and take "
        f"{milliseconds(spent)} of {milliseconds(steps.step_us)}; fused they would take {milliseconds(fused)}.",
        edits=Edits(
            Fused.chains(chains, durations[:, 2]),
            Fused.chains(chains, durations[:, 1]),
            Fused.chains(*_with_reductions(work, roofline, left_out)),
        ),
        removes="memory traffic between pointwise kernels, and their launches",
        quiet=f"{count} could fuse",
        evidence=witness.of_gpu(work.rows[members], [label for c in chains for label in [_label(work, c)] * len(c)]),
        confidence=_confidence(work, measured, work.device_at(members[0]).id),
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


BUSY_DRAM_PCT, IDLE_DRAM_PCT = 50.0, 25.0
"""Measured use of the memory's bandwidth that confirms that memory is the bound, and that speaks against it."""


def _confidence(work: GpuWork, measured: Utilization, device: int) -> float:
    """Higher with shapes; counters of the memory confirm or temper it where they were sampled."""
    confidence = 0.9 if work.timeline.source.shapes else 0.6
    dram = measured.dram_pct(device)
    if dram is None:
        return confidence
    return max(confidence, 0.9) if dram >= BUSY_DRAM_PCT else 0.6 * confidence if dram < IDLE_DRAM_PCT else confidence


def _label(work: GpuWork, chain: Ints) -> str:
    """The ops of a chain in order, as the user wrote them; the functors in the kernels' names where ops were not recorded."""
    names = [_named(work, position) for position in chain]
    return " → ".join(names if len(names) <= 12 else [*names[:11], f"… {len(names) - 11} more"])


def _named(work: GpuWork, position: int) -> str:
    if work.op[position] >= 0:
        return work.name(position).removeprefix("aten::")
    name = work.kernel_name(position)
    functor = _FUNCTOR.search(name)
    return functor[1] if functor else name.split("<", 1)[0].rsplit("::", 1)[-1]


def _runs(work: GpuWork, joins: Mask, elements: Ints | None = None) -> list[Ints]:
    """Positions that follow each other on a stream in one step, and where elements are given on as many of them."""
    found: list[Ints] = []
    for stream in np.unique(work.schedule.stream):
        here = np.flatnonzero(work.schedule.stream == stream)
        together = joins[here][1:] & joins[here][:-1] & (np.diff(work.step[here]) == 0)
        if elements is not None:
            n = elements[here]
            together &= (n[1:] == n[:-1]) | (n[1:] < 0) | (n[:-1] < 0)
        found += [run for run in np.split(here, np.flatnonzero(~together) + 1) if joins[run[0]]]
    return found


def _with_reductions(work: GpuWork, roofline: Roofline, left_out: Mask) -> tuple[list[Ints], Floats]:
    """The most a compiler fuses: pointwise runs with the reductions, norms and softmaxes in them, each at the peak
    bandwidth for its largest kernel's traffic; and how long each run then takes."""
    families = (Family.ELEMENTWISE, Family.COPY, Family.REDUCTION, Family.NORM, Family.SOFTMAX)
    runs = [run for run in _runs(work, work.of(*families) & work.kernel & ~left_out) if len(run) > 1]
    peaks = roofline.peaks.get(work.device_at(0).id)
    rate = peaks.bytes_per_s / 1e6 if peaks and peaks.bytes_per_s else np.nan
    limits = [float(np.nanmax(np.r_[0.0, roofline.bytes[work.rows[run]] / rate])) for run in runs]
    longest = [float(work.dur_us[run].max()) for run in runs]
    return runs, np.maximum([min(a, b) if a > 0 else b for a, b in zip(limits, longest, strict=True)], LAUNCH_FLOOR_US)


def _chains(work: GpuWork, left_out: Mask, min_chain: int) -> list[Ints]:
    """Positions of pointwise kernels that follow each other on a stream in one step, on as many elements."""
    pointwise = work.of(Family.ELEMENTWISE)
    member = (pointwise | (work.of(Family.COPY) & work.kernel)) & ~left_out
    kind = np.where(work.op >= 0, work.ops.names[work.op], -1) if len(work.ops.names) else np.full(len(work.op), -1)
    # Without ops, kernels are told apart by their names.
    kind = np.where(kind >= 0, kind, -1 - work.timeline.gpu_ops["name"].cat.codes.to_numpy()[work.rows].astype(np.int64))
    runs = _runs(work, member, _elements(work))
    parts = [chain for run in runs for chain in _without_repeats(run, kind[run])]
    return [chain for chain in parts if len(chain) >= min_chain and pointwise[chain].sum() >= 2]


def _without_repeats(run: Ints, kind: Ints) -> list[Ints]:
    """A run of kernels, cut where the same sequence begins again: a loop repeats work, it does not chain it."""
    n = len(run)
    for period in range(1, n // 3 + 1):
        if (kind[period:] == kind[:-period]).all():
            return [run[i : i + period] for i in range(0, n, period)]
    return [run]


def _in_optimizer(work: GpuWork) -> Mask:
    """(n,) whether an op was launched inside an optimizer step."""
    notes = work.timeline.annotations
    return work.launched_by(_OPTIMIZER.search) | work.launched_inside(spans_of(notes, matches(notes, _OPTIMIZER)))


def _elements(work: GpuWork) -> Ints:
    """(n,) elements of the largest input of the op around each launch, -1 where shapes were not recorded."""
    dims = work.timeline.cpu_ops["dims"]
    by_category = np.array([*(_largest(text) for text in dims.cat.categories), -1], np.int64)
    codes = np.r_[dims.cat.codes.to_numpy(), -1]
    found: Ints = by_category[codes[np.where(work.op >= 0, work.op, -1)]]
    return found


_LIST = re.compile(r"\[([\d,\s]*)\]")


def _largest(dims: str) -> int:
    sizes = [np.prod([int(n) for n in body.split(",")], dtype=object) for body in _LIST.findall(dims) if body.strip()]
    return int(max(sizes, default=-1))


def _fused_us(work: GpuWork, roofline: Roofline, chain: Ints) -> tuple[float, float, float]:
    """Time of a fused kernel if no further input is read from memory, if half are, if all are; never above the chain's own."""
    rows, dur_us = work.rows[chain], work.dur_us[chain]
    whole, longest = float(dur_us.sum()), float(dur_us.max())
    peaks = roofline.peaks.get(work.device_at(chain[0]).id)
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
