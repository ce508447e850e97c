"""Every step launches the same sequence of kernels, which a CUDA graph could replay."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge import shares
from advisor.report.finding import Clear
from advisor.report.numbers import counted, percent, threshold
from advisor.report.wording.period import A_STEP, THE_STEP
from advisor.rules import _graphs as graphs
from advisor.views.patterns import graph_capture
from advisor.views.patterns.compiled_step import CompiledStep
from advisor.views.patterns.optimizer import OptimizerStep
from advisor.views.patterns.recurrent_cells import RecurrentLoop
from advisor.views.patterns.served_work import ServedWork
from advisor.views.replay.edits import CheaperDispatch, Edits, WithoutWaits, combine
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
"""Of a step: a mask that picks a tenth of the rows makes them ten times as large if it picks none."""


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
    update: OptimizerStep,
    *,
    min_idle_share: float = 0.05,
    min_ops: int = 20,
) -> Outcome:
    """Every step launches the same kernels: a CUDA graph could replay them

    What
    The steps, or parts of them, launch the same kernels on the same shapes. Between the first kernel and the
    last, the host never waits for the GPU, or only for values, copies or sizes that can move. No memory is
    allocated or freed.

    Why
    Each launch costs 5 to 20 µs of CPU time, although nothing about it changes. A CUDA graph replays hundreds
    of kernels with a single call.

    How to fix
    In training, let the compiler capture forward and backward, and use a fused optimizer:

        model = torch.compile(model, mode="reduce-overhead")

    Elsewhere, or if the model is called in a loop, capture the step once and replay it for each batch:

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            static_out = model(static_in)
        for batch in batches:
            static_in.copy_(batch)
            graph.replay()

    When to ignore
    Shapes or control flow change beyond the traced steps, or memory is short: a graph keeps its own.

    How it is measured
    The rule compares kernel names and recorded shapes of all steps. A step needs `min_ops` ({min_ops}) launches or
    more, and the GPU must idle between kernels for `min_idle_share` ({min_idle_share}) of the step. The replay uses a single
    graph launch (10 µs, and 0.6 µs between nodes). Waits that can move are removed first. Savings below
    `min_saving_share` ({min_saving_share}) of the step are not reported. Severity is `info`, since this is an alternative to
    `launch-gap`'s fix. The combined estimate uses the faster of the two.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
    """
    if served and served.known:
        return Clear(why="graph-coverage covers the launches of a server")
    share = gaps.share("launch") + gaps.share("dependency")
    if share < min_idle_share:
        return Clear(why=f"the GPU idles between kernels {percent(share, min_idle_share)} of {THE_STEP} (threshold {threshold(min_idle_share)})")
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
            return graphs.in_parts(parts, loop, differ, program, work, witness, launches, graphs.idle_between(share, gaps, work, steps))
        if not masks:
            return Clear(why=capturable.why_not)
        if (products := graphs.products_share(work)) > FEW_PRODUCTS:
            return Clear(why=f"{capturable.why_not}. GEMMs take {percent(products)} of {THE_STEP}; without masks they may cost as much as the launches")
    if count < min_ops:
        return Clear(why=f"{A_STEP} launches {counted(count, 'GPU op')} (threshold {min_ops})")
    graph = combine(*([WithoutWaits(waits)] if len(waits) else []), graphs.WHOLE)
    steps_launch, without = graphs.told(capturable, work, steps)
    return Found(
        title=f"A CUDA graph could replay {THE_STEP}{without}",
        summary=f"{steps_launch}. {graphs.idle_between(share, gaps, work, steps)}.",
        edits=Edits(combine() if len(waits) else CheaperDispatch(0.6), graph, graph),
        removes="launching the same kernels again",
        quiet=f"a CUDA graph could replay {THE_STEP}",
        evidence=witness.of_calls(launches.call[capturable.first], ["repeating launch sequence"] * count),
        confidence=0.6 if shapes and not masks else 0.4,
        at_most="info" if len(waits) else graphs.severity_cap(program, compiled, recurrent, replay, graph),
        counted=False,  # its gain is launch-gap's
        instead_of=("launch-gap",),
        cause=graphs.cause_of(work, program),
        fix=graphs.fix_of(program, update, capturable, work),
    )
