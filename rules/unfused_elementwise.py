"""Chains of pointwise kernels that each read and write all of their tensors."""

from __future__ import annotations

import re
from math import prod

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.kernel_names import Family
from advisor.knowledge.shortest_kernel import SHORTEST_US
from advisor.report.model import Clear, Code, Fix
from advisor.rules._phrases import counted, milliseconds
from advisor.rules._ways import for_program, spelt
from advisor.views.replay.compiled_step import CompiledStep
from advisor.views.replay.edits import Edits, Fused, WithDurations, WithHostTime, combine
from advisor.views.replay.fusion import FUSED, Fusion, in_optimizer, runs
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.time.utilization import Utilization
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program
from advisor.views.trace.spellings import Spellings

_FUNCTOR = re.compile(
    r"(?:CUDAFunctor(?:OnSelf)?_|launch_|at::native::\(anonymous namespace\)::)?(\w+?)(?:_kernel_cuda|_kernel_impl|_scalar_impl|Functor)\b"
)
COMPILED_CALL_US = 150.0
"""What calling one small compiled function costs the host, guards and autograd's part among it: 300 to 400 µs forward and
backward, measured where each function holds one chain. Compiled in one graph, chains cost next to nothing."""

BY_LONGEST = (1.5, 0.8, 0.4)
"""Time of a stretch's kernel over that of its longest one, at most, likely and at least, where no shapes tell its bytes: 0.3 to 1.2 in
nine public models whose shapes do."""

_UNALIGNED = re.compile(r"align[124](?!\d)")
"""In the names of CUTLASS kernels: elements that are loaded at once."""


@rule("unfused-elementwise", relies_on=("kernels",), min_saving_share=0.03)
def unfused_elementwise(
    work: GpuWork,
    roofline: Roofline,
    fusion: Fusion,
    measured: Utilization,
    compiled: CompiledStep | None,
    witness: Witness,
    program: Program,
    spellings: Spellings,
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
    Kernels that follow each other on a stream: pointwise, casts, copies, random numbers, reductions, norms and softmaxes, at
    least `min_chain` pointwise ones or norms among them ({min_chain}); those of an optimizer step are left out. A compiler makes one
    kernel of them that reads what they did not make themselves and writes the last result: by the recorded shapes, each
    size once, and half of the further operands of that size; a norm over the batch and a softmax over long rows read
    twice; random numbers at the rate at which they can be made. Its time is 1.5 times these bytes at the bandwidth that the
    device reaches (devices.toml). `low`: 2.5 times, every operand from memory, and 150 µs for the host where each chain is a compiled function by itself; `high`: no operand twice, and
    gathers, copies and products off alignment beside them take half, as where a whole model is compiled. A compiled training step costs the
    host 1 ms beside. Without shapes a fused kernel takes 0.8 times as long as the chain's longest (`low` 1.5, `high` 0.4). Sampled memory counters raise the confidence
    (from 50 % of peak) or lower it (below 25 %). The step is replayed with it; reported from `min_saving_share`
    ({min_saving_share}), where the GPU itself gains `min_gpu_share` of the step ({min_gpu_share}): with less than that, launches are the
    bound, of which another rule speaks.

    How to fix it
    `torch.compile` the function or module that holds the chain: Inductor makes one Triton kernel of it, in the backward
    pass too.

    When to ignore it
    When the code runs once, when shapes change at every call, or when the intermediate results are needed elsewhere.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    """
    chains, durations = (_by_shapes if work.timeline.source.shapes else _by_order)(work, fusion, roofline, min_chain)
    if not chains:
        return Clear(why=f"no {min_chain} pointwise kernels of one size follow each other")
    members = np.concatenate(chains)
    spent, fused = work.us_a_step(members), float(durations[:, 1].sum()) / work.schedule.steps
    count = f"{work.a_step(members):.0f} pointwise kernels a step"
    # Where launches are the bound, fewer of them help too, but that is another finding with another fix.
    own = (spent - fused) / work.step_us
    if own < min_gpu_share:
        return Clear(why=f"{count} could fuse, which saves {own:.1%} of the step on the GPU; reported from {min_gpu_share:.0%}")
    beside = _beside(work, members)
    return Found(
        summary=f"{count} stand in {counted(work.a_step(chains), 'chain')} of up to {max(len(c) for c in chains)} and take "
        f"{milliseconds(spent)} of {milliseconds(work.step_us)}; fused they would take {milliseconds(fused)}.",
        edits=Edits(
            combine(Fused.chains(chains, durations[:, 0]), WithHostTime(np.array([chain[0] for chain in chains]), COMPILED_CALL_US)),
            combine(Fused.chains(chains, durations[:, 1]), compiled.overhead if compiled else combine()),
            combine(Fused.chains(chains, durations[:, 2]), WithDurations(beside, work.dur_us[beside] / 2)),
        ),
        removes="memory traffic between pointwise kernels, and their launches",
        quiet=f"{count} could fuse",
        evidence=witness.of_gpu(work.rows[members], [label for c in chains for label in [_label(work, c)] * len(c)]),
        confidence=_confidence(work, measured, work.device_at(members[0]).id),
        fix=spelt(for_program(program, "unfused-elementwise", _FIX), spellings, "cell", "picked"),
    )


_FIX = Fix(
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
)


def _beside(work: GpuWork, members: Ints) -> Ints:
    """What else a compiler changes where the whole model is compiled: gathers, scatters, copies, single pointwise kernels, products on rows
    that are not aligned, which it pads."""
    found = work.of(*FUSED, Family.EMBEDDING, Family.LAYOUT) | (work.of(Family.GEMM) & work.named(_UNALIGNED))
    found &= work.kernel & ~in_optimizer(work)
    found[members] = False
    return np.flatnonzero(found)


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


def _by_shapes(work: GpuWork, fusion: Fusion, roofline: Roofline, min_chain: int) -> tuple[list[Ints], Floats]:
    """The stretches that a compiler fuses, and the time of each one's kernel: at most, likely, at least."""
    counted = work.of(Family.ELEMENTWISE, Family.NORM, Family.SOFTMAX)
    kind = _kinds(work)
    chosen, times = [], []
    for stretch in fusion.stretches:
        at = stretch.members
        peaks = roofline.peaks.get(work.device_at(int(at[0])).id)
        rate = peaks.achievable_bytes_per_s if peaks else None
        if counted[stretch.full].sum() < min_chain or len(_without_repeats(at, kind[at])) > 1 or not rate or not stretch.least:
            continue
        chosen.append(at)
        times.append(stretch.fused_us(rate, float(work.dur_us[at].sum())))
    return (chosen, np.array(times)) if chosen else _by_order(work, fusion, roofline, min_chain)


def _by_order(work: GpuWork, fusion: Fusion, roofline: Roofline, min_chain: int) -> tuple[list[Ints], Floats]:
    """The same stretches where no shapes say more, and pointwise kernels in a row that are none: as long as their longest kernel tells."""
    counted, kind = work.of(Family.ELEMENTWISE, Family.NORM, Family.SOFTMAX), _kinds(work)
    chosen = [
        stretch.members
        for stretch in fusion.stretches
        if not stretch.least and counted[stretch.members].sum() >= min_chain and len(_without_repeats(stretch.members, kind[stretch.members])) == 1
    ]
    left_out = in_optimizer(work)
    left_out[np.concatenate([*chosen, kind[:0]])] = True
    longest = np.outer([work.dur_us[at].max() for at in chosen], BY_LONGEST)
    whole = np.array([work.dur_us[at].sum() for at in chosen])
    chains = _chains(work, left_out, min_chain)
    times = [_fused_us(work, roofline, chain)[::-1] for chain in chains]
    return chosen + chains, np.r_[np.minimum(longest, whole[:, None]).reshape(-1, 3), np.reshape(times, (-1, 3))]


def _kinds(work: GpuWork) -> Ints:
    """(n,) the op that launched each, or where none was recorded the kernel's name, as numbers."""
    kind = np.where(work.op >= 0, work.ops.names[work.op], -1) if len(work.ops.names) else np.full(len(work.op), -1)
    codes = work.timeline.gpu_ops["name"].cat.codes.to_numpy()[work.rows].astype(np.int64)
    found: Ints = np.where(kind >= 0, kind, -1 - codes)
    return found


def _chains(work: GpuWork, left_out: Mask, min_chain: int) -> list[Ints]:
    """Positions of pointwise kernels that follow each other on a stream in one step, on as many elements."""
    pointwise = work.of(Family.ELEMENTWISE)
    member = (pointwise | (work.of(Family.COPY) & work.kernel)) & ~left_out
    kind = _kinds(work)
    parts = [chain for run in runs(work, member, _elements(work)) for chain in _without_repeats(run, kind[run])]
    return [chain for chain in parts if len(chain) >= min_chain and pointwise[chain].sum() >= 2]


def _without_repeats(run: Ints, kind: Ints) -> list[Ints]:
    """A run of kernels, cut where the same sequence begins again: a loop repeats work, it does not chain it."""
    n = len(run)
    for period in range(1, n // 3 + 1):
        if (kind[period:] == kind[:-period]).all():
            return [run[i : i + period] for i in range(0, n, period)]
    return [run]


def _elements(work: GpuWork) -> Ints:
    """(n,) elements of the largest input of the op around each launch, -1 where shapes were not recorded."""
    dims = work.timeline.cpu_ops["dims"]
    by_category = np.array([*(_largest(text) for text in dims.cat.categories), -1], np.int64)
    codes = np.r_[dims.cat.codes.to_numpy(), -1]
    found: Ints = by_category[codes[np.where(work.op >= 0, work.op, -1)]]
    return found


_LIST = re.compile(r"\[([\d,\s]*)\]")


def _largest(dims: str) -> int:
    shapes = (body.split(",") for body in _LIST.findall(dims) if body.strip())
    # No tensor has more elements than a machine word counts: what claims to is no shape.
    sizes = [prod(int(n) for n in shape) for shape in shapes if all(0 < len(n.strip()) < 19 for n in shape)]
    return max((size for size in sizes if size < 1 << 62), default=-1)


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
    times = [max(b / r * 1e6, SHORTEST_US) for b, r in zip((least, (least + most) / 2, most), rates, strict=True)]
    return min(times[0], whole), min(times[1], whole), min(times[2], whole)
