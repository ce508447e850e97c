"""Norms and softmaxes that are written out where one op exists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import msgspec
import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Floats, Ints
from advisor.knowledge.measured_costs import costs
from advisor.knowledge.op_tokens import plain
from advisor.knowledge.shortest_kernel import SHORTEST_US
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import counted, duration
from advisor.views.patterns.fusion import Fusion
from advisor.views.patterns.norms import Chain, WrittenOut, tensors_of
from advisor.views.replay.edits import Edits, Fused, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace.evidence import Witness
from advisor.views.trace.shapes import Shapes

SLOWEST, LIKELY, FASTEST = costs("fused-norm")

FORWARD_PASSES, BACKWARD_PASSES = 2.0, 5.0
"""Tensors moved: forward x read and y written; backward gradient and x read and a gradient written, and both read once
more for the gradients of scale and shift."""

SHARES_A_BLOCK = 2.0
"""How many multiprocessors' share of the bandwidth a block alone reaches: half as many blocks as there are multiprocessors use all of it."""


@rule("unfused-norm", relies_on=("kernels",), min_saving_share=0.03, explains=("unfused-elementwise",))
def unfused_norm(work: GpuWork, shapes: Shapes, written: WrittenOut, fusion: Fusion, roofline: Roofline, witness: Witness) -> Outcome:
    """A norm or softmax is written out where one op exists

    What it is
    LayerNorm, RMSNorm, softmax or log-softmax as separate ops: `pow`, `mean`, `add`, `rsqrt`, `mul`; `exp`, `sum`, `div`.

    Why it costs time
    Each op reads and writes the whole tensor, though a row fits on the chip: the fused kernel reads it once and writes
    it once. In mixed precision the written-out form also works on FP32 copies of twice the size. The backward pass has
    twice as many kernels again.

    How it is measured
    Kernels that follow each other on a stream in the order of such an op: a reduction along the last dimensions, a root
    on the few reduced values (at least 16 elements a row where shapes were recorded), a product or quotient on the whole
    tensor; for softmax `exp`, `sum`, quotient. What PyTorch writes out inside one of its own ops does not count, but for `rms_norm`, which has a
    kernel where x and its weight are of one type. Kernels of the backward pass belong to it by autograd's sequence numbers. One kernel takes their place: two passes over the
    tensor forward, five backward, at the bandwidth that large copies reach, times 1.8 (`low` 4, `high` 1, and the
    pointwise work around it goes too), never less than 2 µs, and where rows are fewer than half of the multiprocessors, as the op has a block a row, at their share of it; where an RMSNorm's weight has more bytes than x the
    casts to its type and back stay (`high`: x's type is enough); without shapes as long as the chain's longest kernel. The step is replayed with it; reported from
    `min_saving_share` ({min_saving_share}). Chains without a reduction are left to unfused-elementwise.

    How to fix it
    Call `F.layer_norm`, `F.rms_norm`, `torch.softmax` or `F.cross_entropy`, or compile the module. `F.rms_norm` is one kernel from PyTorch 2.9 on, and only
    if the weight has the type of x: under autocast it stays in FP32, and has to be cast.

    When to ignore it
    When intermediate results are used elsewhere, or the formula differs from the op's: a statistic over other
    dimensions, an epsilon outside of the root. Few and long rows are no case for compiling: softmax over 64 rows of 131,072 values took 1.6 times as
    long compiled; call the op.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.rms_norm.html
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.layer_norm.html
    """
    chains = written.chains
    if not chains:
        return Clear(why="no norm and no softmax is written out: no reduction stands between such pointwise kernels")
    times = np.array([_fused_us(work, shapes, roofline, c) for c in chains])
    members = np.concatenate([c.in_its_type[0] for c in chains])
    spent, fused = duration(work.us_a_step(members)), duration(float(times[:, 1].sum()) / work.schedule.steps)
    kinds = _by_time(work, chains)
    count = work.a_step([c for c in chains if not c.backward])
    return Found(
        title=f"{kinds[0]} is written out where one op exists",
        summary=f"{counted(count, f'{_both(kinds)} a step is', f'{_both(map(_several, kinds))} a step are')} written out in "
        f"{counted(work.a_step(members), 'kernel')}, {spent} of {duration(work.step_us)}; fused they would take {fused}.",
        edits=_edits(chains, times, _around(work, fusion, roofline, members)),
        removes="the way of a tensor through memory between the kernels of one norm or softmax",
        quiet=f"{_both(kinds)} written out take {spent} a step",
        evidence=witness.of_gpu(work.rows[members], [label for c in chains for label in [_label(work, c)] * len(c.in_its_type[0])]),
        confidence=0.9 if work.timeline.source.shapes else 0.6,
        fix=_fix(kinds, [c for c in chains if c.kind == "RMSNorm" and not c.backward]),
    )


def _edits(chains: Sequence[Chain], times: Floats, around: list[tuple[Ints, float]]) -> Edits:
    """One kernel in place of each chain; at most, what stands around the chains goes with them, as where the module is compiled."""
    in_its_type, all_of_it = [c.in_its_type[0] for c in chains], [c.members for c in chains]
    low, expected, high = (Fused.chains(members, times[:, end]) for end, members in enumerate((in_its_type, in_its_type, all_of_it)))
    if not around:
        return Edits(low, expected, high)
    return Edits(low, expected, combine(high, Fused.chains([members for members, _ in around], np.array([us for _, us in around]))))


def _around(work: GpuWork, fusion: Fusion, roofline: Roofline, members: Ints) -> list[tuple[Ints, float]]:
    """The stretches that a compiler fuses which hold any of these kernels, and the least time of each one's kernel."""
    found = []
    for stretch in fusion.stretches:
        peaks = roofline.peaks.get(work.device_at(int(stretch.members[0])).id)
        rate = peaks.achievable_bytes_per_s if peaks else None
        if rate and stretch.least and np.isin(stretch.members, members).any():
            found.append((stretch.members, stretch.fused_us(rate)[2]))
    return found


def _fused_us(work: GpuWork, shapes: Shapes, roofline: Roofline, chain: Chain) -> tuple[float, float, float]:
    """Time of the one kernel at most, likely and at least; never above the chain's own."""
    dur = work.dur_us[chain.members]
    whole, longest = float(dur.sum()), float(dur.max())
    peaks = roofline.peaks.get(work.device_at(int(chain.members[0])).id)
    rate = peaks.achievable_bytes_per_s if peaks else None
    if not rate or np.isnan(chain.bytes):
        return min(1.5 * longest, whole), min(longest, whole), min(0.7 * longest, whole)
    passes, (core, own) = BACKWARD_PASSES / FORWARD_PASSES if chain.backward else 1.0, chain.in_its_type
    passes /= _bandwidth_share(work, shapes, chain)
    of_core = float(work.dur_us[core].sum())
    low, expected, high = (
        min(max(f * passes * moved / rate * 1e6, SHORTEST_US), most)
        for f, moved, most in ((SLOWEST, own, of_core), (LIKELY, own, of_core), (FASTEST, chain.bytes, whole))
    )
    return low, expected, high


def _bandwidth_share(work: GpuWork, shapes: Shapes, chain: Chain) -> float:
    """Share of the device's bandwidth that one op reaches with a block a row, 1 where rows are many or it was not recorded how many."""
    rows, multiprocessors = _rows(shapes, np.unique(work.op[chain.members]).tolist()), work.device_at(int(chain.members[0])).sm_count
    return min(SHARES_A_BLOCK * rows / multiprocessors, 1.0) if rows and multiprocessors > 0 else 1.0


def _rows(shapes: Shapes, ops: Sequence[int]) -> int:
    """Rows of a chain's tensor: values of the statistics that stand beside it, one for all of its last axes, 0 where none do. What stands beside it with
    fewer, as a scale of one value, is none."""
    rows = 0
    for op in ops:
        tensors = sorted((shape for shape, _ in shapes.inputs(op)), key=prod, reverse=True)
        for statistic in tensors[1:]:
            reduced = [one != whole for one, whole in zip(statistic, tensors[0], strict=False)]
            if len(statistic) == len(tensors[0]) and reduced and reduced[-1] and reduced == sorted(reduced):
                rows = max(rows, prod(statistic))
    return rows


def _by_time(work: GpuWork, chains: Sequence[Chain]) -> list[str]:
    """Kinds found, most time first."""
    spent: dict[str, float] = {}
    for chain in chains:
        spent[chain.kind] = spent.get(chain.kind, 0.0) + float(work.dur_us[chain.members].sum())
    return sorted(spent, key=lambda kind: -spent[kind])


def _both(kinds: Iterable[str]) -> str:
    return " and ".join(kinds)


def _several(kind: str) -> str:
    return f"{kind}{'es' if kind.endswith('x') else 's'}"


def _label(work: GpuWork, chain: Chain) -> str:
    """What it is, its ops in order and the shape of its tensor."""
    if chain.backward:
        return f"{chain.kind}, backward: {len(chain.members)} kernels"
    ops = work.op[chain.members].tolist()
    names = [plain(work.ops.name(op)) or "kernel" for op in ops]
    tensors = [shape for op in ops for shape, _ in tensors_of(work.timeline, op)]
    shape = f" {list(max(tensors, key=prod))}" if tensors else ""
    return f"{chain.kind}: {' → '.join(names)}{shape}"


_CODE = {
    "LayerNorm": Code(
        before="mean = x.mean(-1, keepdim=True)\nvar = (x - mean).pow(2).mean(-1, keepdim=True)\ny = (x - mean) / torch.sqrt(var + eps) * weight + bias",
        after="y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)",
    ),
    "RMSNorm": Code(
        before="h = x.float()\ny = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight",
        after="y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)",
    ),
    "softmax": Code(
        before="e = torch.exp(x - x.amax(-1, keepdim=True))\ny = e / e.sum(-1, keepdim=True)",
        after="y = torch.softmax(x, dim=-1)",
    ),
    "log-softmax": Code(
        before="log_p = torch.log(torch.softmax(x, -1))\nloss = -log_p.gather(-1, target[:, None]).mean()",
        after="loss = torch.nn.functional.cross_entropy(x, target)",
    ),
}
_ONE_TYPE = "y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)"
_COMPILED = "@torch.compile\ndef norm(x, weight):\n    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)"
_URL = {
    "LayerNorm": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.layer_norm.html",
    "RMSNorm": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.rms_norm.html",
    "softmax": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html",
    "log-softmax": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html",
}


def _fix(kinds: list[str], rms_norms: Sequence[Chain]) -> Fix:
    inside, mixed = bool(rms_norms) and all(c.inside for c in rms_norms), any(c.mixed for c in rms_norms)
    steps = [f"Replace the written-out {kind} by the one op." for kind in kinds if not (kind == "RMSNorm" and inside)]
    code = _CODE[kinds[0]]
    if rms_norms:
        steps.append(
            "torch.nn.functional.rms_norm is one kernel from PyTorch 2.9 on, if its weight has the type of x; else it runs these same kernels inside: "
            + ("cast the weight, or compile the module that holds it." if mixed else "update PyTorch, or compile the module that holds it.")
        )
    if kinds[0] == "RMSNorm" and inside:
        code = Code(before=code.after, after=_ONE_TYPE if mixed else _COMPILED)
    elif kinds[0] == "RMSNorm" and mixed:
        code = msgspec.structs.replace(code, after=_ONE_TYPE)
        steps.append("With a weight of more bytes than x the casts stay around the op, which is what is expected here; with the weight cast they go too.")
    steps.append("If the formula differs from the op's, put torch.compile on the function: Inductor fuses the reduction as well.")
    return Fix(
        title=f"Call the fused {kinds[0]}",
        steps=tuple(steps),
        code=code,
        url=_URL[kinds[0]],
        risk="The fused op keeps statistics in FP32 and rounds once, so the last bits differ. Check where the epsilon stands.",
    )
