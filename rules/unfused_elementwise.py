"""Chains of elementwise kernels that each read and write all of their tensors."""

from __future__ import annotations

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.op_tokens import names_of
from advisor.report.finding import Clear
from advisor.report.numbers import counted, duration, duration_of, percent, threshold
from advisor.report.wording.period import PER_STEP, THE_STEP
from advisor.rules._chains import chain_label, kinds_of, largest_kind, told_of_chains
from advisor.rules.fixes import for_program, known_fix
from advisor.rules.fixes.written_out import spelt
from advisor.views.health.steps import FEWEST_OPS
from advisor.views.patterns.fused_chains import FusedChains
from advisor.views.replay.edits import gpu_us_removed
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program
from advisor.views.trace.spellings import Spellings
from advisor.views.trace.steps import Steps

_LOSS = names_of("softmax_of_loss")


@rule("unfused-elementwise", relies_on=("kernels",), min_saving_share=0.03)
def unfused_elementwise(
    work: GpuWork,
    steps: Steps,
    fused: FusedChains,
    witness: Witness,
    program: Program,
    spellings: Spellings,
    *,
    min_chain: int = 2,
    min_gpu_share: float = 0.01,
) -> Outcome:
    """Chains of elementwise kernels could be fused

    What
    Several elementwise ops in a row (add, multiply, activation, cast) work on tensors of the same size, each in
    its own kernel.

    Why
    Each kernel reads its whole input from memory and writes its whole output, although only the next kernel
    needs it. A chain of ten moves ten times the data of a fused kernel.

    How to fix
    Compile the model, or the functions with the chains:

        model = torch.compile(model)

    Inductor makes a single Triton kernel of each chain, in the backward pass too. The saving is for all chains.
    The summary names the largest kind of chain.

    When to ignore
    The code runs once, shapes change in every call, or intermediate results are used elsewhere. A backward pass
    through cumprod can be slower compiled. So can softmax over few long rows: measure it.

    How it is measured
    A chain has `min_chain` ({min_chain}) elementwise ops or norms or more, in sequence on a stream. Casts, copies,
    reductions and softmaxes join it; the optimizer does not. The GPU must gain `min_gpu_share` ({min_gpu_share}) of the
    step. Savings below `min_saving_share` ({min_saving_share}) are not reported.

    | Estimate | A fused chain takes |
    |---|---|
    | `low` | 2.5 times its memory time, and 150 µs of CPU time |
    | `expected` | 1.5 times, in a compiled model |
    | `high` | the same, no operand read twice |
    | no shapes | its longest kernel (`low` 2.5 times, `high` 0.5) |

    References
    https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    """
    if not steps.repeats and len(work.rows) < FEWEST_OPS:
        return Clear(
            why=f"{counted(len(work.rows), 'GPU op')} that {'do not repeat are' if len(work.rows) > 1 else 'does not repeat is'} start-up, not a program"
        )
    chains = fused.chains_of(min_chain)
    if chains is None:
        return Clear(why=f"no {min_chain} elementwise kernels of the same size run in sequence")
    members = chains.members
    spent, left = work.us_a_step(members), float(chains.durations_us[:, 1].sum()) / work.schedule.steps
    count = f"{counted(work.a_step(members), 'elementwise kernel')} {PER_STEP}"
    # Where launches are the bound, fewer of them help too, but that is another finding with another fix.
    passed, beside_us = fused.passed, fused.other_saving_us
    own = (spent - left + beside_us * bool(len(passed))) / work.step_us
    if own < min_gpu_share:
        return Clear(why=f"{count} could fuse, which saves {percent(own, min_gpu_share)} of {THE_STEP} on the GPU (threshold {threshold(min_gpu_share)})")
    edits, saved_us = fused.edits(chains), chains.saved_us(work)
    kinds = kinds_of(work, chains.at)
    of_losses = {kind for kind in {*kinds} if any(map(_LOSS.search, kind))}
    of_losses_us = saved_us[[kind in of_losses for kind in kinds]].sum()
    return Found(
        summary=f"{count} form {counted(work.a_step(chains.at), 'chain')} (up to {max(len(c) for c in chains.at)} kernels long). They take "
        f"{duration_of(spent, work.step_us)}; fused they would take {duration(left)}, with "
        f"{counted(work.a_step(members) - work.a_step(chains.at), 'launch', 'launches')} fewer."
        + largest_kind(kinds, saved_us)
        + told_of_chains(work, spent, fused.in_attention(chains), passed, beside_us),
        edits=edits,
        removes="memory traffic between elementwise kernels, and their launches",
        at_most_us=max(gpu_us_removed(work.schedule, edit) for edit in edits) + fused.waiting_us(fused.sped_up(chains)),
        likely_at_most_us=gpu_us_removed(work.schedule, edits.expected) + fused.waiting_us(members),
        quiet=f"{count} could fuse",
        evidence=witness.of_gpu(work.rows[members], [label for kind in kinds for label in [chain_label(kind)] * len(kind)]),
        confidence=fused.confidence(chains),
        fix=spelt(for_program(program, "unfused-elementwise", _FIX), spellings, "picked", leads=2 * of_losses_us > saved_us.sum()),
    )


_FIX = known_fix("pytorch", "compile-chains")
