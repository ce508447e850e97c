"""The device waits for the host to issue the next kernel."""

from __future__ import annotations

from dataclasses import replace

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.shares import HARDLY_ANY
from advisor.report.finding import Clear, Fix
from advisor.report.numbers import counted, duration, percent
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

FEWEST_JITTED = 1.5
"""Jitted calls a step: with fewer there is nothing to put together."""


@rule("launch-gap", relies_on=("host",), min_saving_share=0.03)
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

    What it is
    The GPU finishes each kernel before the host has launched the next one, so it idles between kernels although the
    program has more work for it. The step takes as long as Python and the framework need to issue its kernels.

    Why it costs time
    Issuing one eager PyTorch op takes the host some 5 to 20 µs, whatever its size. A kernel that runs for less than that
    is over before the next one arrives: a faster GPU would not make the step any faster.

    How it is measured
    Every gap in the busiest device's work inside the window ends with an op. If that op was launched after the gap began,
    the gap is the host's. The part of it in which the host was issuing ops (not waiting for the GPU, loading data,
    allocating, or in a pause of its own longer than 50 µs) is a launch gap. The rule looks further where launch gaps
    take `min_idle_share` of the step without a profiler ({min_idle_share}: below that, the queue still runs ahead most of the
    time), with the host as slow as recording leaves open. The saving is a replay of the step with fewer launches: for inference pointwise work and norms fuse, and one CUDA graph
    holds the rest (10 µs to launch, 0.6 µs between nodes). For training what compiling does: pointwise work and norms fuse, the
    optimizer becomes a fused one, the kernels left are launched at today's cost and 2.5 µs each, and each compiled part costs
    500 µs, a new one wherever the forward pass reads a value or branches on one of the host's, as where layers are dropped at random, counted where eight launches fuse in it; a third of today's cost where they are compiled already (`low`: nothing,
    as two of three measured models gained; `high`: one graph for the whole step). Inference whose sizes change from step to step is compiled without a graph
    (`high`: with one). Where compiling would gain under 3 % but the steps
    could be captured, capturing them is the fix (`low`: nothing). In both, where 64 kernels or fewer stand between two waits eight
    times a step or more, which hold a fifth of all, what of such a pass one module launches, or how many passes can be run at once, is not known: a third
    of the cost of issuing stays (`low`: all of it), and all of that of ops that launch 16 kernels or more by themselves. A loop over nothing but a recurrent cell,
    and products of its state that no cell takes in, becomes one call of the library: two launches of 10 µs a pass, forward and backward, and half of the cell's kernels' time. A saving under `min_saving_share`
    ({min_saving_share}) is not reported. Gradients that torch.func takes inside a function that vmap maps, or torch.autograd.grad hands back, with no optimizer, are compiled with it, as inference. The profiler's own cost is taken off the host's time before the replay.

    How to fix it
    For inference compile into graphs: `torch.compile(model, mode="reduce-overhead")` fuses kernels and replays them from CUDA graphs.
    For training, compile the model and use a fused optimizer: that alone is what is saved here. Where the host is the bound compiling alone is often no cure: of ten such steps
    nine took 0.96 to 1.68 of the time, one 0.78, and five with a fused optimizer 0.46 to 1.36, longest where a small model is called in each turn of a loop. Where the
    model is called once and shapes are fixed, `mode="reduce-overhead"` took 0.16 to 0.35 (that loop 1.05); captured whole with
    `torch.cuda.CUDAGraph` five took 0.08 to 0.22 (graph-candidate says what that gains). Otherwise give each launch more work: a larger batch. A program of JAX
    that dispatches op by op or layer by layer: `jax.jit` around the whole step, replayed here as one graph without JAX's own
    Python between its ops; a program that makes fewer than 1.5 jitted calls a step has nothing left to put together, and is not
    reported.

    When to ignore it
    When the traced batch is smaller than what runs in production, or when latency of a single tiny request is what you
    measure and compilation time cannot be paid. With data-dependent shapes CUDA graphs re-record and may gain nothing. Compiled kernels can be
    slower than the library's: steps of small batched products took twice the time, softmax over 64 rows of 131,072 values 1.6 times.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/
    """
    if served and served.known:
        return Clear(why="graph-coverage speaks of what a server's steps launch")
    share, most = gaps.share, gaps.most_share
    if most < min_idle_share or not len(gaps.at):
        return Clear(why=f"the GPU waits for launches {percent(share)} of the step; it would be reported from {min_idle_share:.0%}")
    if (replayed := gaps.replayed_share) > 0.5:
        return Clear(why=f"{percent(replayed)} of the GPU's work is replayed from CUDA graphs already; gaps inside a replay come from recording its nodes")
    if program.framework == "jax" and gaps.jitted_calls_a_step < FEWEST_JITTED:
        return Clear(why=f"the GPU waits for launches {percent(share)} of the step, but no second jitted call is seen to launch work in a step")
    pauses_us, unsure = gaps.pauses_us, share < min_idle_share
    lost_us = gaps.waiting_a_step_us + pauses_us
    if unsure:
        lost_us += gaps.unseen_us
    only_capture = gaps.only_capture(WORTH_COMPILING)
    return Found(
        title="The GPU waits for the host to launch kernels",
        summary=f"{counted(gaps.ops_a_step, 'GPU op')} a step, with a median of {duration(gaps.median_us)}; the GPU waits {duration(gaps.waiting_a_step_us)} "
        f"of each {duration(gaps.work.step_us)} step ({share:.0%}{f', or {most:.0%} where recording cost the host least' if unsure else ''}) for the host to issue the next one"
        + (f", and {duration(pauses_us)} more in pauses of the host between launches." if pauses_us >= HARDLY_ANY * lost_us else "."),
        edits=gaps.capturing if only_capture else gaps.compiling,
        removes="the host's cost of issuing kernels one by one",
        at_most_us=lost_us,
        quiet=f"the GPU waits for launches {percent(share)} of the step",
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
    ways = ("cell",) if recurrent.cells else ("sliced", "grows", "grows_values")
    seen = replace(spellings, cells=recurrent.cells)
    # A cache at its full length has one size.
    capturable = replace(capturable, resized=capturable.resized and not (seen.grows or seen.grows_values))
    return of_server(program) or spelt(for_program(program, "launch-gap", compiling(program, optimizer, capturable)), seen, *ways)
