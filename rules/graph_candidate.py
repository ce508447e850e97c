"""Every step launches the same sequence of kernels, which a CUDA graph could replay."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Judged, Outcome, rule
from advisor.knowledge import cuda_api
from advisor.report.model import Clear, Code, Finding, Fix, Skipped
from advisor.rules._evidence import folded, milliseconds
from advisor.rules._needs import NO_GPU_WORK, RECORD_BOTH
from advisor.timeline import Timeline
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import CheaperDispatch, Edits, combine
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.steps import Steps


@rule("graph-candidate", relies_on=("host",))
def graph_candidate(
    timeline: Timeline,
    steps: Steps,
    gaps: Gaps,
    launches: Launches,
    ops: Ops,
    replay: Replay,
    sources: Sources,
    *,
    min_idle_share: float = 0.10,
    min_ops: int = 20,
    min_saving_share: float = 0.05,
) -> Outcome:
    """Every step launches the same kernels: a CUDA graph could replay them

    What it is
    The steps launch one and the same sequence of kernels on inputs of the same shapes, never wait for the GPU between
    them and allocate nothing from the driver, while the GPU waits for launches.

    Why it costs time
    Each launch costs the host some 5 to 20 µs every time, although nothing about it changes. A captured graph replays
    hundreds of kernels with one call.

    How it is measured
    Names of the launched kernels, and the recorded dims of the ops that launch them, step by step: all steps must agree.
    A step must launch `min_ops` (20: fewer are cheap to launch), wait nowhere in between (a capture would fail), and
    launch gaps must take `min_idle_share` of the window (0.10, as for launch-gap). The saving is replayed with a third of
    the cost of issuing, as for a compiled step, and at the most with one graph launch a step; reported from
    `min_saving_share` (0.05). This is a note on how the gain of launch-gap can be had without compiling; it is not
    counted again in the step predicted with every fix.

    How to fix it
    Capture the step once with `torch.cuda.graph`, copy each batch into the captured input, and replay. Where the code
    compiles, `torch.compile(mode="reduce-overhead")` does the same.

    When to ignore it
    When shapes or control flow change from step to step beyond what was traced, or memory is short: a graph keeps its own.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
    """
    if not len(timeline.gpu_ops):
        return NO_GPU_WORK
    if not (launches.call >= 0).any():
        return Skipped(why="no launch calls were recorded", record_with=RECORD_BOTH)
    share = float(gaps.causes["launch"].sum()) / (steps.end_us - steps.start_us)
    if share < min_idle_share:
        return Clear(why=f"the GPU waits for launches {share:.1%} of the window; a graph is looked for from {min_idle_share:.0%}")
    if not steps.repeats or steps.steps < 2:
        return Clear(why="the window holds no two steps to compare")
    schedule = replay.recorded
    rows = schedule.op_row
    if np.isin(launches.call[rows], launches.calls_with(cuda_api.ApiRole.GRAPH_LAUNCH)).any():
        return Clear(why="CUDA graphs are in use already")
    step = steps.of_host_time(launches.start_us[rows])
    parts = [rows[step == s] for s in range(steps.steps)]
    count = len(parts[0])
    if count < min_ops:
        return Clear(why=f"a step launches {count} GPU ops; a graph pays from {min_ops}")
    if not _same(timeline, ops, parts):
        return Clear(why="the steps launch different kernels or other shapes, so one graph cannot replay them")
    if (schedule.waits_for != -1).any():
        return Clear(
            why=f"the host waits for the GPU {(schedule.waits_for != -1).sum() / steps.steps:.1f} times a step, which no graph can hold"
        )
    allocations = np.isin(launches.roles[schedule.call_row], [list(cuda_api.ApiRole).index(cuda_api.ApiRole.ALLOCATION)])
    if allocations.any():
        return Clear(why="memory is allocated from the driver inside the steps, which no graph can hold")
    saving = replay.saving(
        Edits(CheaperDispatch(0.6), CheaperDispatch(1 / 3), CheaperDispatch(0.1)), "launching the same kernels anew"
    )
    if saving.expected_us < min_saving_share * steps.step_us:
        return Clear(
            why=f"replaying the launches would gain {saving.expected_us / steps.step_us:.1%}; reported from {min_saving_share:.0%}"
        )
    calls = launches.call[parts[0]]
    shapes = " with the same shapes" if timeline.source.shapes else ""
    finding = Finding(
        title="A CUDA graph could replay the step",
        summary=f"All {steps.steps} steps launch the same {count} GPU ops{shapes} and wait nowhere; the GPU waits for launches "
        f"{share:.0%} of each {milliseconds(steps.step_us)} step.",
        severity="info",
        confidence=0.6 if timeline.source.shapes else 0.4,
        saving=saving,
        evidence=folded(
            ["the launch sequence that repeats"] * len(calls),
            timeline.api_calls["start_us"].to_numpy()[calls],
            timeline.api_calls["dur_us"].to_numpy()[calls],
            source=lambda m: sources.most_common(calls[m[:50]]),
        ),
        fix=Fix(
            title="Capture the step once and replay it",
            steps=(
                "Make the step read from and write to tensors that stay where they are; optimizers need capturable=True.",
                "Capture it after a few warm-up runs on a side stream, then copy each batch in and replay.",
            ),
            code=Code(
                before="for x in batches:\n    out = step(x)",
                after="graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n    static_out = step(static_x)\n\n"
                "for x in batches:\n    static_x.copy_(x)\n    graph.replay()  # static_out holds the result",
            ),
            url="https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs",
            risk="Python inside the step no longer runs, shapes must stay, and the graph keeps its memory.",
        ),
    )
    # Its gain is launch-gap's: in the replay with every fix it must not count again.
    return [Judged(finding, Edits(combine(), combine(), combine()))]


def _same(timeline: Timeline, ops: Ops, parts: list[np.ndarray]) -> bool:
    """Whether all steps launch the same kernels in the same order, from ops of the same dims."""
    names = timeline.gpu_ops["name"].cat.codes.to_numpy()
    dims = timeline.cpu_ops["dims"].cat.codes.to_numpy().astype(np.int64)
    of_op = np.r_[dims, -1]  # row -1: launched outside any op
    first = parts[0]
    return all(
        len(p) == len(first)
        and bool((names[p] == names[first]).all())
        and bool((of_op[ops.of_gpu[p]] == of_op[ops.of_gpu[first]]).all())
        for p in parts[1:]
    )
