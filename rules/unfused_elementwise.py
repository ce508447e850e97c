"""Chains of pointwise kernels that each read and write all of their tensors."""

from __future__ import annotations

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.op_tokens import names_of
from advisor.report.finding import Clear
from advisor.report.numbers import counted, duration, percent
from advisor.rules._chains import chain_label, largest_kind, named, told_of_chains
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
    """Chains of pointwise kernels could be one kernel

    What it is
    Several pointwise ops in a row (add, multiply, activation, cast, clamp) on tensors of one size, each a kernel of its
    own.

    Why it costs time
    Each kernel reads its whole input from device memory and writes its whole output, though the next one needs nothing
    but that. Their time is memory traffic: a chain of ten moves ten times what one fused kernel would.

    How it is measured
    Kernels that follow each other on a stream: pointwise, casts, copies, random numbers, reductions, norms and softmaxes, at
    least `min_chain` pointwise ones or norms among them ({min_chain}), or one and casts of as many elements, or what is fetched or added by index for it; or, where nothing is computed, what joins tensors and what then moves them; those of an optimizer step are left out. A compiler makes one
    kernel of them that reads what they did not make themselves and writes the last result: by the recorded shapes, each
    size once, and half of the further operands of that size; what a norm over the batch and a softmax over long rows need is read
    twice, where nothing is trained by the softmax alone; random numbers at the rate at which they can be made. Its time is 1.5
    times these bytes at the bandwidth that the device reaches (devices.toml). `low`: 2.5 times, every operand from memory, and
    150 µs for the host where each chain is a compiled function by itself; `expected` is the whole model compiled: gathers and scatters beside the chains take what their bytes need (as long as now where shapes do not tell) and at most half, pointwise work next to them goes, what interpolates moves its bytes, attention
    whose spelling Inductor knows is one kernel with its products, other products off
    alignment take half, images stay in channels_last (of a training step where Inductor would choose so; in FP32 nothing but their turning goes), and a compiled training step
    costs the host 500 µs and 2.5 a kernel; `high`: the same, no operand twice, and copies beside take half too. Without shapes a
    fused kernel takes as long as the chain's longest (`low` 2.5 times, `high` 0.5). Sampled memory counters raise the
    confidence (from 50 % of peak) or lower it (below 25 %). The step is replayed with it, which gains no more than the kernels lose
    and what the device was seen to wait for their launches (in a first pass nothing of that); a recording of fewer than 12 GPU ops that do not repeat is not looked at; reported from `min_saving_share`
    ({min_saving_share}), where the GPU itself gains `min_gpu_share` of the step ({min_gpu_share}): with less than that, launches
    are the bound, of which another rule speaks.

    How to fix it
    `torch.compile` the model, or the functions and modules that hold the chains: Inductor makes one Triton kernel of each, in the backward
    pass too. The saving is that of all; one function gains its share, and where several kinds of chains are told, the summary
    says what the largest is worth.

    When to ignore it
    When cumprod is trained through: compiled, its gradient goes over the factors one by one, and a step of 6.6 ms took 40. When launches are the bound: guards and wrappers of a compiled training step can cost the host more than fewer launches save. Where long rows stand in
    a chain, measure: softmax over 64 rows of 131,072 values took 1.6 times as long compiled. When the code runs once, when shapes change at every call, or when the intermediate results are needed elsewhere.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    """
    if not steps.repeats and len(work.rows) < FEWEST_OPS:
        return Clear(
            why=f"{counted(len(work.rows), 'GPU op')} that {'do not repeat are' if len(work.rows) > 1 else 'does not repeat is'} a start, not a program"
        )
    chains = fused.of(min_chain)
    if chains is None:
        return Clear(why=f"no {min_chain} pointwise kernels of one size follow each other")
    members = chains.members
    spent, left = work.us_a_step(members), float(chains.durations_us[:, 1].sum()) / work.schedule.steps
    count = f"{counted(work.a_step(members), 'pointwise kernel')} a step"
    # Where launches are the bound, fewer of them help too, but that is another finding with another fix.
    passed, beside_us = fused.passed, fused.beside_us
    own = (spent - left + beside_us * bool(len(passed))) / work.step_us
    if own < min_gpu_share:
        return Clear(why=f"{count} could fuse, which saves {percent(own)} of the step on the GPU; reported from {min_gpu_share:.0%}")
    edits, waiting_us, saved_us = fused.edits(chains), fused.waiting_us(chains), chains.saved_us(work)
    kinds = [tuple(named(work, position) for position in chain) for chain in chains.at]
    of_losses_us = saved_us[[any(_LOSS.search(name) for name in kind) for kind in kinds]].sum()
    return Found(
        summary=f"{count} stand in {counted(work.a_step(chains.at), 'chain')} of up to {max(len(c) for c in chains.at)} and take "
        f"{duration(spent)} of {duration(work.step_us)}; fused they would take {duration(left)}, with "
        f"{counted(work.a_step(members) - work.a_step(chains.at), 'launch', 'launches')} fewer."
        + largest_kind(kinds, saved_us)
        + told_of_chains(work, spent, fused.in_attention(chains), passed, beside_us, bool(fused.attention.by_compiler.any())),
        edits=edits,
        removes="memory traffic between pointwise kernels, and their launches",
        at_most_us=max(gpu_us_removed(work.schedule, edit) for edit in edits) + waiting_us,
        likely_at_most_us=gpu_us_removed(work.schedule, edits.expected) + waiting_us,
        quiet=f"{count} could fuse",
        evidence=witness.of_gpu(work.rows[members], [chain_label(kind) for kind in kinds for _ in kind]),
        confidence=fused.confidence(chains),
        fix=spelt(for_program(program, "unfused-elementwise", _FIX), spellings, "picked", leads=2 * of_losses_us > saved_us.sum()),
    )


_FIX = known_fix("pytorch", "compile-chains")
