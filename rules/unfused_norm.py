"""Norms and softmaxes that are written out where one op exists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.op_tokens import plain
from advisor.report.finding import Clear
from advisor.report.numbers import counted, duration
from advisor.rules.fixes.norms import call_the_norm
from advisor.views.patterns.fusion import Fusion
from advisor.views.patterns.norms import Chain, WrittenOut, tensors_of
from advisor.views.patterns.norms_as_one import as_one_kernel, fused_us, in_the_way
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace.evidence import Witness
from advisor.views.trace.shapes import Shapes


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
    times = np.array([fused_us(work, shapes, roofline, c) for c in chains])
    members = np.concatenate([c.in_its_type[0] for c in chains])
    spent, fused = duration(work.us_a_step(members)), duration(float(times[:, 1].sum()) / work.schedule.steps)
    kinds = _by_time(work, chains)
    count = work.a_step([c for c in chains if not c.backward])
    return Found(
        title=f"{kinds[0]} is written out where one op exists",
        summary=f"{counted(count, f'{_both(kinds)} a step is', f'{_both(map(_several, kinds))} a step are')} written out in "
        f"{counted(work.a_step(members), 'kernel')}, {spent} of {duration(work.step_us)}; fused they would take {fused}.",
        edits=as_one_kernel(chains, times, in_the_way(work, fusion, roofline, members)),
        removes="the way of a tensor through memory between the kernels of one norm or softmax",
        quiet=f"{_both(kinds)} written out take {spent} a step",
        evidence=witness.of_gpu(work.rows[members], [label for c in chains for label in [_label(work, shapes, c)] * len(c.in_its_type[0])]),
        confidence=0.9 if work.timeline.source.shapes else 0.6,
        fix=call_the_norm(kinds, [c for c in chains if c.kind == "RMSNorm" and not c.backward]),
    )


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


def _label(work: GpuWork, recorded: Shapes, chain: Chain) -> str:
    """What it is, its ops in order and the shape of its tensor."""
    if chain.backward:
        return f"{chain.kind}, backward: {len(chain.members)} kernels"
    ops = work.op[chain.members].tolist()
    names = [plain(work.ops.name(op)) or "kernel" for op in ops]
    tensors = [shape for op in ops for shape, _ in tensors_of(recorded, op)]
    shape = f" {list(max(tensors, key=prod))}" if tensors else ""
    return f"{chain.kind}: {' → '.join(names)}{shape}"
