"""Every step launches the same sequence of kernels, which a CUDA graph could replay."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge import shares
from advisor.report.finding import Clear
from advisor.report.numbers import counted, duration, percent
from advisor.rules import _graphs as graphs
from advisor.rules.fixes import capturing
from advisor.views.patterns import graph_capture
from advisor.views.patterns.compiled_step import CompiledStep
from advisor.views.patterns.recurrent_cells import RecurrentLoop
from advisor.views.patterns.served_work import ServedWork
from advisor.views.replay.edits import GRAPH_LAUNCH_US, GRAPH_NODE_GAP_US, AsGraph, CheaperDispatch, Edits, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.replay import Replay
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.evidence import Witness
from advisor.views.trace.launches import Launches
from advisor.views.trace.program import Program
from advisor.views.trace.repeats import FEWEST_REPEATS
from advisor.views.trace.steps import Steps

ALIKE_PASSES = 0.8
"""Of a step's kernels, those in passes that are alike: the first pass of a loop may set something up, and be one of eight."""


FEW_PRODUCTS = shares.LITTLE
"""Of a step: a mask that picks one row in ten makes them ten times as large where it picks none."""


@rule("graph-candidate", relies_on=("host",), min_saving_share=0.03)
def graph_candidate(
    steps: Steps,
    work: GpuWork,
    gaps: Gaps,
    launches: Launches,
    capturable: graph_capture.Capturable,
    program: Program,
    witness: Witness,
    compiled: CompiledStep | None,
    recurrent: RecurrentLoop | None,
    replay: Replay,
    served: ServedWork | None,
    *,
    min_idle_share: float = 0.05,
    min_ops: int = 20,
) -> Outcome:
    """Every step launches the same kernels: a CUDA graph could replay them

    What it is
    The steps, or parts of them, launch one and the same sequence of kernels on inputs of the same shapes, never wait for the GPU between
    their first kernel and their last, or only to read values or to send what the host has, or to ask for the size of a mask, and neither give memory back to the driver
    nor take some from it in every step, while the GPU waits for launches.

    Why it costs time
    Each launch costs the host some 5 to 20 µs every time, although nothing about it changes. A captured graph replays
    hundreds of kernels with one call.

    How it is measured
    Names of the launched kernels, and the recorded dims of the ops that launch them, step by step: all steps must agree, but for what is said below.
    A step must launch `min_ops` ({min_ops}: fewer are cheap to launch), wait nowhere in between (a capture would fail; sending the input and reading the result stay outside), and
    the device must idle between kernels, for launches or for a queued op to start, `min_idle_share` of the step ({min_idle_share}: seven programs
    whose kernels queued up and left 5.5 to 8 % between them gained 4 to 7). Where all that it waits for between is
    values that are read (`item`, a tensor as a condition, a copy of 4 kB or less to the host), or what the host sends (before it has read any, as it can be sent
    before the first kernel; later 4 kB or less, as a constant, or what an op makes of nothing, as `torch.eye`), these have to go first, and the saving is that of both. It is replayed
    with one graph launch a step, or one a pass where the waits stand between three or more passes a step that launch the same kernels on the same
    shapes, as where words or samples are made one by one. Where steps differ, what stands between two waits and is the same in each of them, `min_ops` kernels or more, is a
    graph of its own if half of the kernels are in such parts; where steps are alike and wait for a size, or for more than values, one such part with half of the kernels, launched before the step's first size is asked for.
    Steps that differ in no more than a tenth of their launches, and wait for conditions on tensors and for other values alone, are one graph without these (`low`: six tenths of the cost of issuing; with reads, in passes or in parts, nothing).
    So are steps that ask for the sizes of masks besides (`x[mask]`, `nonzero`), alike or not in the shapes that follow, where no part is graph enough and products take no more than a tenth of the step, as they grow with the rows. The saving is that of what was recorded, replayed without these waits (six programs gained 21 to 90 %, each within 8 points of what is told;
    what the further rows cost is not in it). Reported from
    `min_saving_share` ({min_saving_share}). This is a note on how the gain of launch-gap can be had without compiling, but for a training step that can
    be captured as it is: compiling leaves most launches to its host, and where a graph gains a fifth of the step more than that, it is told as
    a fix of its own (14 such were measured: told 66 to 90 %, they gained 51 to 92). The step
    predicted with every fix has the one of the two that makes it shorter.

    How to fix it
    Capture the step once with `torch.cuda.graph`, copy each batch into the captured input, and replay. Where inference
    compiles, `torch.compile(mode="reduce-overhead")` does the same. In training it leaves guards, wrappers and the optimizer to the host: of six host-bound
    steps four took 0.16 to 0.35 of the time so, two 0.87 and 1.05; captured whole, five took 0.08 to 0.22.

    When to ignore it
    When shapes or control flow change from step to step beyond what was traced, or memory is short: a graph keeps its own.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
    """
    if served and served.known:
        return Clear(why="graph-coverage speaks of what a server's steps launch")
    share = gaps.share("launch") + gaps.share("dependency")
    if share < min_idle_share:
        return Clear(why=f"the GPU idles between kernels {percent(share)} of the step; a graph is looked for from {min_idle_share:.0%}")
    count = len(capturable.first)
    # Without shapes a cache that grows looks like a state that does not.
    parts = [part for part in capturable.parts if work.timeline.source.shapes and part.kernels >= min_ops]
    loop = bool(parts) and parts[0].times >= FEWEST_REPEATS and len(parts[0].rows) >= ALIKE_PASSES * int(np.count_nonzero(work.kernel))
    shapes, waits, masks = work.timeline.source.shapes, capturable.removable, len(capturable.masks) > 0
    if capturable.why_not and (loop or masks or not len(waits)):
        differ = capturable.why_not in (graph_capture.DIFFERENT, graph_capture.SIZED)
        # Passes whose shapes grow are as many graphs as passes: of steps that are alike one part must do.
        parts = parts if differ or loop else parts[:1]
        if loop or (parts and sum(len(part.rows) for part in parts) >= shares.MOST * np.count_nonzero(work.kernel)):
            return graphs.in_parts(parts, loop, differ, program, work, witness, launches, share)
        if not masks:
            return Clear(why=capturable.why_not)
        if (products := graphs.products_share(work)) > FEW_PRODUCTS:
            return Clear(
                why=f"{capturable.why_not}; products take {percent(products)} of the step, and on all rows instead of those that a mask picks they may take as long as the launches"
            )
    if count < min_ops:
        return Clear(why=f"a step launches {counted(count, 'GPU op')}; a graph pays from {min_ops}")
    before_all = (capturing.FIRST,) if graphs.of_training(program) else ()
    graph = combine(*([WithoutWaits(waits)] if len(waits) else []), AsGraph(GRAPH_LAUNCH_US, GRAPH_NODE_GAP_US))
    steps_launch, without = graphs.told(capturable, work, steps)
    reads, sends = graphs.reads_a_step(capturable, work) > 0, len(capturable.sent) > 0
    before = {capturing.DECIDE: capturable.why_not == graph_capture.BRANCHING, capturing.MASK: masks, capturing.KEEP: reads, capturing.SEND: sends}
    return Found(
        title=f"A CUDA graph could replay the step{without}",
        summary=f"{steps_launch}; the GPU idles between kernels {share:.0%} of each {duration(work.step_us)} step.",
        edits=Edits(combine() if len(waits) else CheaperDispatch(0.6), graph, graph),
        removes="launching the same kernels anew",
        quiet="a graph could replay the step's launches",
        evidence=witness.of_calls(launches.call[capturable.first], ["the launch sequence that repeats"] * count),
        confidence=0.6 if shapes and not masks else 0.4,
        at_most="info" if len(waits) else graphs.at_most(program, compiled, recurrent, replay, graph),
        counted=False,  # its gain is launch-gap's
        instead_of=("launch-gap",),
        cause=graphs.cause_of(work, program),
        fix=capturing.capturing(program, None, *before_all, *(what for what, there in before.items() if there)),
    )
