"""Steps of an inference server that launch kernels one by one, where a graph would replay them."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, Share, rule
from advisor.knowledge.op_tokens.families import Family
from advisor.report.finding import Clear
from advisor.report.numbers import counted, percent
from advisor.report.wording.period import A_STEP, THE_STEP, of_each_step
from advisor.rules._collectives import WAITING, transfer_us
from advisor.rules.fixes.serving import GENERATES, graphs_of
from advisor.views.patterns.served_work import ServedWork
from advisor.views.replay.edits import GRAPH_LAUNCH_US, GRAPH_NODE_GAP_US, AsGraph, CheaperDispatch, Edits, WithDurations, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.host_time import HostTime
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.evidence import Witness
from advisor.views.trace.serving import ServedPhase


@rule("graph-coverage", relies_on=("host",), min_saving_share=0.03, explains=("launch-gap",))
def graph_coverage(
    served: ServedWork,
    work: GpuWork,
    calls: HostCalls,
    gaps: Gaps,
    host_time: HostTime,
    witness: Witness,
    *,
    max_coverage: Share = 0.9,
    min_launches: float = 8.0,
    min_idle_share: Share = 0.05,
) -> Outcome:
    """A server's steps launch kernels separately

    What
    An inference server captures CUDA graphs for some batch sizes. A step of another size, or of a phase without
    graphs, launches each kernel separately. The log does not mention it.

    Why
    A decode step of a large model launches hundreds of short kernels. Each costs 5 to 20 µs of CPU time; a
    graph of all of them costs 10 µs.

    How to fix
    Capture the batch sizes that occur in production:

        vllm serve MODEL --max-cudagraph-capture-size 1024
        python -m sglang.launch_server --model MODEL --cuda-graph-max-bs-decode 512

    TensorRT-LLM has `cuda_graph_config`. By default, vLLM captures min(2 * max_num_seqs, 512) tokens, so longer
    prompts run eagerly.

    When to ignore
    The batch was large only during recording, or the KV cache needs the graphs' memory.

    How it is measured
    The server's marks give the phase and the requests of each step. Coverage is the share of GPU time that
    graphs launch. The rule reports coverage below `max_coverage` ({max_coverage}). A step must launch `min_launches` ({min_launches})
    single kernels, and the GPU must wait for the host for `min_idle_share` ({min_idle_share}) of the step. The replay puts
    the step's launches into a graph. Savings below `min_saving_share` ({min_saving_share}) of the step are not reported.

    References
    https://docs.vllm.ai/en/latest/design/cuda_graphs.html
    https://docs.sglang.ai/advanced_features/server_arguments.html
    """
    if not served.known:
        return Clear(why="no inference server's steps are marked with their phase and CUDA graphs")
    gpu_us = sum(step.gpu_us for step in served.steps)
    coverage = sum(step.graph_us for step in served.steps) / gpu_us if gpu_us > 0 else 1.0
    told = f"{percent(coverage)} of the device's time in {served.phase} steps is launched by graphs"
    eager = len(served.eager) / max(len(served.steps), 1)
    if coverage >= max_coverage or eager < min_launches:
        return Clear(why=f"{told}, and {A_STEP} launches {counted(eager, 'single kernel')}")
    waits = sum(gaps.share(cause) for cause in ("launch", "host", "dependency"))
    if waits < min_idle_share:
        return Clear(why=f"{told}, and the device waits for the host {percent(waits)} of {THE_STEP}")
    worst = [phase for phase in served.phases if not phase.graph_coverage >= max_coverage]
    pieces = all(phase.graph_launches > 1 for phase in worst)
    batch = _batch(worst)
    fix = graphs_of(served.engine, served.phase, _rows(served.phase, worst), sorted(_captured(served)), pieces)
    if fix is None:
        return Clear(why=f"{told}; the option of {served.engine} that captures the rest is unknown")
    rows = calls.rows[served.eager]
    return Found(
        title=f"{percent(1 - coverage)} of the {served.phase} steps' GPU time is launched kernel by kernel",
        summary=f"A {served.phase} step of {batch} launches {counted(len(served.graphs) / len(served.steps), 'graph')} and {counted(eager, 'single kernel')}. {told}, and the "
        f"device waits for the host {percent(waits)} {of_each_step(work.step_us)}.",
        edits=_edits(served, work, calls, host_time),
        removes="separate kernel launches of a server's steps",
        quiet=told,
        evidence=witness.of_calls(rows, [f"launched by itself in a {served.phase} step"] * len(rows)),
        confidence=0.9 if served.phase in GENERATES else 0.6,
        fix=fix,
    )


def _edits(served: ServedWork, work: GpuWork, calls: HostCalls, host_time: HostTime) -> Edits:
    launching = np.union1d(served.eager, served.graphs)
    collectives = np.flatnonzero(work.kernels.communication[work.rows])
    on_time = WithDurations(collectives, transfer_us(work, collectives, WAITING))
    whole = combine(AsGraph(GRAPH_LAUNCH_US, GRAPH_NODE_GAP_US, launching), host_time.cut_time(served.forward), on_time)
    if served.phase in GENERATES:
        return Edits(AsGraph(GRAPH_LAUNCH_US, GRAPH_NODE_GAP_US, launching), whole, whole)
    others = np.setdiff1d(np.arange(len(calls.rows)), launching)
    attention = np.flatnonzero(calls.launching(work.in_families(Family.ATTENTION)))
    behind = launching[np.minimum(np.searchsorted(launching, attention, side="right"), len(launching) - 1)]
    return Edits(combine(), CheaperDispatch(0.0, np.unique(np.r_[others, attention, behind])), whole)


def _batch(worst: list[ServedPhase]) -> str:
    """The requests of steps, in words."""
    sizes = sorted({phase.requests for phase in worst})
    return counted(sizes[0], "request") if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,} requests"


def _rows(phase: str, worst: list[ServedPhase]) -> int:
    """What a graph of the largest step is captured for."""
    return int(max(one.requests if phase in GENERATES else max(one.query_tokens, one.requests) for one in worst))


def _captured(served: ServedWork) -> set[int]:
    """Sizes at which graphs of the phase were seen to hold whole steps, anywhere in the recording."""
    of_phase = [step for step in (*served.steps, *served.elsewhere) if step.mark.phase == served.phase and step.graph_us > step.eager_us]
    return {step.padded_to if step.padded_to >= 0 else step.mark.requests for step in of_phase}
