"""The device waits for the host to issue the next kernel."""

from __future__ import annotations

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.shares import SEVERAL
from advisor.knowledge.structs import replace
from advisor.report.finding import LOW_SHARE, Clear, Fix
from advisor.report.numbers import counted, duration, percent, threshold
from advisor.report.wording.period import IN_STEP, PER_STEP, THE_STEP, of_each_step
from advisor.rules.fixes import for_program, known_fix, of_server
from advisor.rules.fixes.compiling import WORTH_COMPILING, compiling
from advisor.rules.fixes.written_out import spelt
from advisor.views.patterns.graph_capture import Capturable
from advisor.views.patterns.launch_gaps import LaunchGaps
from advisor.views.patterns.optimizer import OptimizerStep
from advisor.views.patterns.recurrent_cells import RecurrentLoop
from advisor.views.patterns.served_work import ServedWork
from advisor.views.trace.program import Program
from advisor.views.trace.spellings import Spellings
from advisor.views.trace.steps import Steps


@rule("launch-gap", relies_on=("host",), min_saving_share=0.03, explains=("unfused-elementwise",))
def launch_gap(
    gaps: LaunchGaps,
    program: Program,
    optimizer: OptimizerStep,
    spellings: Spellings,
    capturable: Capturable,
    recurrent: RecurrentLoop,
    steps: Steps,
    served: ServedWork | None,
    *,
    min_idle_share: float = 0.10,
) -> Outcome:
    """Kernels wait to be launched

    What
    The GPU finishes each kernel before the host has launched the next. It idles between kernels although the
    program has more work. The step takes as long as Python and the framework need for their launches.

    Why
    Launching an eager PyTorch op takes 5 to 20 µs of CPU time, whatever its size. Shorter kernels end before
    the next arrives, so a faster GPU would not help.

    How to fix
    Compile the model. For inference, also use CUDA graphs; for training, also use a fused optimizer:

        model = torch.compile(model, mode="reduce-overhead")      # inference
        model = torch.compile(model)                              # training
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    A larger batch gives each launch more work. In JAX, put `jax.jit` around the whole step.

    When to ignore
    The traced batch is smaller than in production, or compilation time is not acceptable. CUDA graphs may gain
    nothing with data-dependent shapes.

    How it is measured
    A launch gap is GPU idle time before a kernel that was launched too late, while the host was launching ops.
    The rule reports `min_idle_share` ({min_idle_share}) of the step or more, without profiler overhead. The saving is a
    replay of the compiled step. Savings below `min_saving_share` ({min_saving_share}) are not reported.

    | Assumption | Value |
    |---|---|
    | CUDA graph (inference) | 10 µs per launch, 0.6 µs between nodes |
    | Compiled training | elementwise ops and norms fuse, fused optimizer, 2.5 µs more per launch |
    | Each compiled region | 500 µs; a new region at each graph break |
    | Already compiled | a third of today's launch cost |
    | `low`, training and compiled code | no gain in some cases |

    References
    https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/
    """
    if served and served.known:
        return Clear(why="graph-coverage covers the launches of a server")
    share, most = gaps.share, gaps.most_share
    if most < min_idle_share or not len(gaps.at):
        return Clear(why=f"the GPU waits for launches {percent(share, min_idle_share)} of {THE_STEP} (threshold {threshold(min_idle_share)})")
    if (replayed := gaps.replayed_share) > 0.5:
        return Clear(why=f"{percent(replayed)} of the GPU's work already runs in CUDA graphs. Gaps inside a graph come from profiling its nodes")
    if program.framework == "jax" and gaps.jitted_calls_a_step < SEVERAL:
        return Clear(why=f"the GPU waits for launches {percent(share)} of {THE_STEP}, but no second jitted call launches work {IN_STEP}")
    pauses_us, unsure = gaps.pauses_us, share < min_idle_share
    lost_us = gaps.waiting_a_step_us + pauses_us
    if unsure:
        lost_us += gaps.unseen_us
    only_capture = gaps.only_capture(WORTH_COMPILING)
    return Found(
        title="The GPU waits for the host to launch kernels",
        summary=f"{counted(gaps.ops_a_step, 'GPU op')} {PER_STEP}; their median time is {duration(gaps.median_us)}. The GPU waits {duration(gaps.waiting_a_step_us)} "
        f"{of_each_step(gaps.work.step_us)} ({share:.0%}{f', or {most:.0%} at the least profiler overhead' if unsure else ''}) for the next launch"
        + (f". Host pauses between launches take {duration(pauses_us)} more." if pauses_us >= LOW_SHARE * gaps.work.step_us else "."),
        edits=gaps.capturing if only_capture else gaps.compiling,
        removes="kernel launch overhead",
        at_most_us=lost_us,
        quiet=f"the GPU waits for launches {percent(share)} of {THE_STEP}",
        evidence=gaps.evidence,
        # Of 29 loops that wait 25 gained 3 % or more, 21 half of what is expected; of 127 other programs 114 and 101.
        confidence=0.7 if capturable.in_passes else 0.9,
        # Which calls belong to one step, to be jitted as one, is not known where none repeats.
        status="possible" if unsure else "found",
        at_most="low" if gaps.only_first_pass else "medium" if program.framework == "jax" and not steps.repeats else "high",
        fix=(of_server(program) or for_program(program, "launch-gap", known_fix("pytorch", "capture")))
        if only_capture
        else _fix(program, optimizer, capturable, spellings, recurrent),
    )


def _fix(program: Program, optimizer: OptimizerStep, capturable: Capturable, spellings: Spellings, recurrent: RecurrentLoop) -> Fix:
    ways = ("cell",) if recurrent.cells else ("grows",)
    seen = replace(spellings, cells=recurrent.cells)
    # A cache at its full length has one size.
    capturable = replace(capturable, resized=capturable.resized and not seen.grows)
    return of_server(program) or spelt(for_program(program, "launch-gap", compiling(program, optimizer, capturable)), seen, *ways)
