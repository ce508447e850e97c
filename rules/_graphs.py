"""A graph beside what compiling gains, and graphs of parts of a step."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found
from advisor.knowledge.op_tokens.families import PRODUCTS
from advisor.knowledge.shares import SEVERAL
from advisor.report.finding import HIGH_SHARE, LOW_SHARE, Fix, Severity
from advisor.report.numbers import counted, percent
from advisor.report.wording.period import A_STEP, THE_STEP, of_each_step
from advisor.rules.fixes.capturing import DECIDE, EACH, KEEP, MASK, PARTS, SEND, capturing, compiling_first
from advisor.rules.fixes.compiling import WORTH_COMPILING
from advisor.views.patterns.compiled_step import CompiledStep
from advisor.views.patterns.graph_capture import BRANCHING, SIZED, Capturable, Part
from advisor.views.patterns.optimizer import OptimizerStep
from advisor.views.patterns.recurrent_cells import RecurrentLoop
from advisor.views.replay.edits import GRAPH_LAUNCH_US, GRAPH_NODE_GAP_US, AsGraph, Edit, Edits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.replay import Replay
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.evidence import Witness
from advisor.views.trace.launches import Launches
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps

SEVERAL_CALLS = SEVERAL
"""Calls of JAX a step that launch something: with fewer the step is one executable."""


WHOLE = AsGraph(GRAPH_LAUNCH_US, GRAPH_NODE_GAP_US)
"""A step as a single graph."""


def of_training(program: Program) -> bool:
    """Whether a compiler gets the model of a step only, and leaves the rest to the host."""
    return program.training and program.framework == "torch" and not (program.compiles_whole or program.compiled)


def severity_cap(program: Program, compiled: CompiledStep | None, recurrent: RecurrentLoop | None, replay: Replay, graph: Edit) -> Severity:
    """A note, but where launch-gap's fix of a training step is another and far from what a graph gains."""
    if compiled is None or recurrent is None or not of_training(program):
        return "info"
    other = recurrent.edit if recurrent.cells else compiled.edit
    if not recurrent.cells and replay.share(replay.corrected, other) < WORTH_COMPILING:
        return "info"
    return "medium" if replay.expected_share(graph) - replay.expected_share(other) >= HIGH_SHARE else "info"


def cause_of(work: GpuWork, program: Program) -> str:
    """Whether a program of JAX launches a step's work by several calls, each an executable of its own: one of CUDA graphs holds no more than one of those."""
    launching = work.op[work.kernel & (work.op >= 0)]
    calls = len(np.unique(work.ops.outermost[launching])) / work.schedule.steps
    return "several-calls" if program.framework == "jax" and calls >= SEVERAL_CALLS else ""


def in_parts(parts: list[Part], loop: bool, differ: bool, program: Program, work: GpuWork, witness: Witness, launches: Launches, idle: str) -> Found:
    """A graph of each part between two waits; parts: most kernels first; idle: the end of the summary; loop: whether the first is the body of a loop, and nearly all of the step."""
    rows = np.concatenate([part.rows for part in parts])
    largest = f"{parts[0].kernels} kernels with the same shapes"
    alike = (
        f"The host waits for the GPU between {counted(parts[0].times, 'pass', 'passes')} that launch the same {largest}"
        if loop
        else f"{'The steps differ' if differ else 'The steps wait for the GPU'}, but not in {'a part' if len(parts) == 1 else counted(len(parts), 'part')} between waits with {percent(len(rows) / np.count_nonzero(work.kernel))} of their kernels"
        f"{', the largest' if len(parts) > 1 else ','} of {largest}{f', {parts[0].times:.0f} times {A_STEP}' if parts[0].times > 1 else ''}"
    )
    graphs = AsGraph(GRAPH_LAUNCH_US, GRAPH_NODE_GAP_US, np.unique(np.concatenate([part.calls for part in parts])))
    title, first = ("Capture a pass and replay it", EACH) if loop else ("Capture the identical parts and replay them", PARTS)
    return Found(
        title=f"A CUDA graph could replay {'each pass' if loop else f'a part of {THE_STEP}' if len(parts) == 1 else f'parts of {THE_STEP}'}",
        summary=f"{alike}. {idle}.",
        edits=Edits(combine(), graphs, graphs),
        removes="launching the same kernels again",
        quiet="CUDA graphs could replay the launches between waits",
        evidence=witness.of_calls(launches.call[rows], ["repeating launch sequence"] * len(rows)),
        confidence=0.5,
        at_most="info",
        counted=False,
        instead_of=("launch-gap",),
        cause=cause_of(work, program),
        fix=capturing(program, title, first),
    )


def fix_of(program: Program, update: OptimizerStep, capturable: Capturable, work: GpuWork) -> Fix:
    """For a whole step: a compiler captures the model of a training step; another step is captured by hand."""
    before = {
        DECIDE: capturable.why_not == BRANCHING,
        MASK: len(capturable.masks) > 0,
        KEEP: reads_a_step(capturable, work) > 0,
        SEND: len(capturable.sent) > 0,
    }
    first = [change for change, needed in before.items() if needed]
    return compiling_first(update, *first) if of_training(program) else capturing(program, None, *first)


def idle_between(share: float, gaps: Gaps, work: GpuWork, steps: Steps) -> str:
    """The idle time that a graph shortens, as a sentence: between kernels, and in the host's pauses between launches if steps repeat."""
    pauses = gaps.share("host") if steps.repeats and steps.steps > 1 else 0.0
    more = f", and host pauses between launches take {percent(pauses)} more" if pauses >= LOW_SHARE else ""
    return f"The GPU idles between kernels {percent(share)} {of_each_step(work.step_us)}{more}"


def products_share(work: GpuWork) -> float:
    """Of the step, what products take."""
    return work.us_a_step(np.flatnonzero(work.in_families(*PRODUCTS))) / work.step_us


def reads_a_step(capturable: Capturable, work: GpuWork) -> float:
    """Of the waits that could go, those that read a value."""
    return work.a_step(capturable.removable) - work.a_step(capturable.sent) - work.a_step(capturable.masks)


def told(capturable: Capturable, work: GpuWork, steps: Steps) -> tuple[str, str]:
    """What all steps launch and wait for in between, and without what a graph could replay them."""
    count, masks, waits = len(capturable.first), len(capturable.masks) > 0, capturable.removable
    sends, asks, reads = len(capturable.sent) > 0, work.a_step(capturable.masks), reads_a_step(capturable, work)
    waiting = {
        f"need {counted(asks, 'data-dependent size')}": masks,
        f"copy {counted(reads, 'value')} to the host": reads > 0,
        "wait for host-to-device copies": sends,
    }
    *some, last = (what for what, there in waiting.items() if there) if len(waits) else ("never wait",)
    between = f"{', '.join(some)} and {last} in between" if some else f"{last} in between"
    missing = ["needed no data-dependent shapes"] * masks + ["copied no values to the host"] * (reads > 0)
    without = f" if it {' and '.join(missing)}" if missing else " if it copied nothing to the GPU in between" if sends else ""
    decides = {BRANCHING: "branches on tensor values", SIZED: "mask sizes"}.get(capturable.why_not)
    every = "Both" if steps.steps <= 2 else f"All {steps.steps}"
    alike = (
        f"{every} steps launch nearly the same {count:,} GPU ops and differ by what {decides} decide; they"
        if decides
        else f"{every} steps launch the same {count:,} GPU ops{' with the same shapes' if work.timeline.source.shapes else ''} and"
    )
    return f"{alike} {between}", without
