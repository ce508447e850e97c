"""Norms and softmaxes that are written out where one op exists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.op_tokens import plain
from advisor.report.finding import Clear
from advisor.report.numbers import counted, duration, duration_of
from advisor.report.wording.period import PER_STEP
from advisor.rules.fixes.norms import call_the_norm
from advisor.views.patterns.fusion import Fusion
from advisor.views.patterns.norms import Chain, WrittenOut, as_one_kernel, fused_us, in_the_way, tensors_of
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace.evidence import Witness
from advisor.views.trace.shapes import Shapes


@rule("unfused-norm", relies_on=("kernels",), min_saving_share=0.03, explains=("unfused-elementwise",))
def unfused_norm(work: GpuWork, shapes: Shapes, written: WrittenOut, fusion: Fusion, roofline: Roofline, witness: Witness) -> Outcome:
    """A norm or softmax runs as separate kernels

    What
    LayerNorm, RMSNorm, softmax or log-softmax is computed from separate ops: `pow`, `mean`, `rsqrt`, `mul`, or
    `exp`, `sum`, `div`.

    Why
    Each op reads and writes the whole tensor. The fused kernel reads and writes it once. In mixed precision,
    the separate ops also work on FP32 copies of twice the size. The backward pass has twice as many kernels.

    How to fix
    Call the op, or compile the module:

        y = F.layer_norm(x, x.shape[-1:], weight, bias)
        y = F.rms_norm(x, x.shape[-1:], weight.to(x.dtype))
        loss = F.cross_entropy(logits, targets)

    `F.rms_norm` is a single kernel since PyTorch 2.9, if the weight has the type of x.

    When to ignore
    Intermediate results are used elsewhere, or the formula differs: other dimensions, an epsilon outside the
    root.

    How it is measured
    The rule finds kernels in the order of such an op: a reduction over the last dimensions, a root, and a
    scaling. Backward kernels belong to it by autograd's sequence numbers. Savings below `min_saving_share`
    ({min_saving_share}) of the step are not reported.

    | The fused kernel | Value |
    |---|---|
    | passes over the tensor | 2 forward, 5 backward |
    | time over copy time: `low` / `expected` / `high` | 4 / 1.8 / 1 |
    | least time | 2 µs |
    | no shapes | the chain's longest kernel |

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.rms_norm.html
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.layer_norm.html
    """
    chains = written.chains
    if not chains:
        return Clear(why="no norm or softmax runs as separate elementwise and reduction kernels")
    times = np.array([fused_us(work, shapes, roofline, c) for c in chains])
    members = np.concatenate([c.in_its_type[0] for c in chains])
    spent, fused = duration(work.us_a_step(members)), duration(float(times[:, 1].sum()) / work.schedule.steps)
    kinds = _by_time(work, chains)
    count = work.a_step([c for c in chains if not c.backward])
    return Found(
        title=f"{kinds[0]} runs as separate kernels",
        summary=f"{counted(count, f'{_joined_names(kinds)} {PER_STEP} runs', f'{_joined_names(map(_several, kinds))} {PER_STEP} run')} as "
        f"{counted(work.a_step(members), 'kernel')}, {duration_of(work.us_a_step(members), work.step_us)}; fused they would take {fused}.",
        edits=as_one_kernel(chains, times, in_the_way(work, fusion, roofline, members)),
        removes="memory traffic between the kernels of a norm or softmax",
        quiet=f"{_joined_names(kinds)} as separate kernels take {spent} {PER_STEP}",
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


def _joined_names(kinds: Iterable[str]) -> str:
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
