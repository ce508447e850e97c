"""Code is compiled again inside the steps."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import clip, overlap_with
from advisor.knowledge.op_tokens import plain
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear
from advisor.report.numbers import duration
from advisor.rules.fixes import recompiling
from advisor.views.patterns.compiling import compiling_spans
from advisor.views.replay.edits import Edits, WithoutOps, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.host_time import HostTime
from advisor.views.trace import compilation as compiles
from advisor.views.trace import table_filters
from advisor.views.trace.attention_plans import AttentionPlans
from advisor.views.trace.evidence import folded
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps


@rule("recompilation", relies_on=("host",), min_saving_share=0.03)
def recompilation(
    timeline: Timeline,
    steps: Steps,
    work: GpuWork,
    host: HostActivity,
    host_time: HostTime,
    launches: Launches,
    compilation: compiles.Compilation,
    calls: HostCalls,
    program: Program,
    plans: AttentionPlans,
    *,
    min_steps_share: float = 0.5,
) -> Outcome:
    """Code is compiled again in every step

    What it is
    `torch.compile` (Dynamo, Inductor) or Triton compiles inside the loop, step after step: an input's shape or a Python
    value that the compiled code was specialised on has changed, or `torch.compile` itself is called in the loop.

    Why it costs time
    One compilation takes from a tenth of a second to minutes of host time, in which nothing is launched. After
    `recompile_limit` (8) of them Dynamo gives up and runs the function eagerly. cuDNN's attention, which
    `scaled_dot_product_attention` prefers on H100s, H200s and B200s in 16 bits, plans its kernel for each size it meets, for some 50 ms.

    How it is measured
    The union of the compilers' ranges and Python frames on the threads that launch GPU work; where neither was recorded,
    the host's time around calls that load a new GPU module (`cuModuleLoadData`). The step is replayed without that time
    (`low`: half of it stays). Compiling once is start-up, so the rule asks for compilation in `min_steps_share` of the
    steps ({min_steps_share}) and in two of them at least; in a trace without steps for three compilations of one function. Reported
    from `min_saving_share` of the step ({min_saving_share}). So is cuDNN's attention where calls of other sizes in each step take the host 5 ms and more,
    beside waits for room in a queue: with a plan they take 0.05 to 1. Shapes are said to vary where an op outside compilation has other dims in
    each step; without recorded shapes nothing is said of them.

    How to fix it
    Where shapes vary: `torch.compile(model, dynamic=True)`, or `torch._dynamo.mark_dynamic(x, dim)` for the one dimension
    that does, or pad to a few sizes. Where a Python number varies (a step counter that a module keeps; with `dynamic=False` an argument too): make it a tensor.
    Call `torch.compile` once, outside the loop. `TORCH_LOGS=recompiles` names the guard that failed. In JAX a new shape or
    static value compiles again: pad to a few sizes, pass numbers as arrays; `jax_explain_cache_misses` names the argument. Where attention is
    planned again: pad to a few lengths, or `torch.backends.cuda.enable_cudnn_sdp(False)`.

    When to ignore it
    When the trace covers the first steps of a run and the set of shapes is small: each is compiled once.

    References
    https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html
    https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html#dealing-with-recompilations
    """
    if steps.repeats and plans.sizes >= plans.steps >= max(2.0, min_steps_share * steps.steps):
        return _of_attention(timeline, steps, work, host_time, plans)
    compiling, direct = compiling_spans(timeline, host, host_time, launches, compilation.spans)
    spans = clip(compiling, steps.host_start_us, steps.host_end_us)
    if not len(spans[0]):
        return Clear(why="nothing is compiled inside the window")
    per_step = overlap_with(steps.host_edges_us[:-1], steps.host_edges_us[1:], compiling)
    compiled = int((per_step > 0).sum())
    why = compiles.why_compiled(timeline, steps, compiling)
    recurs = compiled >= max(2.0, min_steps_share * steps.steps) if steps.repeats else why.recompiled >= 2
    if not recurs:
        seen = f"in {compiled} of {steps.steps} steps" if steps.repeats else "in a trace without steps"
        return Clear(
            why=f"compilation takes {duration(float(per_step.sum()))} as recorded {seen}, which may be start-up; "
            f"reported from {min_steps_share:.0%} of the steps, and two"
        )
    spent = duration(host_time.spent_us(compiling))
    gone, half = host_time.without(compiling), host_time.without(compiling, 0.5)
    if program.framework == "jax":
        # XLA times candidates on the device as it compiles: these kernels go, and the waits for them.
        timed = table_filters.begins_inside(timeline.api_calls, compilation.compilers)[calls.rows]
        gone = combine(gone, WithoutWaits(np.flatnonzero(timed)), WithoutOps(np.flatnonzero(work.launched_inside(compilation.compilers))))
    start, end = spans
    line = table_filters.line_around(timeline, host.on_threads(timeline.python_calls), float(start[0]), float(end[0]))
    return Found(
        title="Code is compiled again in every step",
        summary=f"Compilation takes {spent} of each {duration(work.step_us)} step, in "
        f"{f'{compiled} of {steps.steps} steps' if steps.repeats else 'the trace'}: {why.cause}.",
        edits=Edits(half, gone, gone),
        removes="compilation inside the steps",
        quiet=f"compilation takes {spent} a step",
        evidence=folded(compiles.labels_of(timeline, spans), start, end - start, source=lambda _: line),
        confidence=0.95 if direct else 0.6,
        fix=recompiling.compile_once_in_jax(why.argument) if program.framework == "jax" else recompiling.compile_once(why),
    )


def _of_attention(timeline: Timeline, steps: Steps, work: GpuWork, host_time: HostTime, plans: AttentionPlans) -> Found:
    """Where it is not code that is compiled again, but cuDNN's attention that is planned."""
    spent = duration(host_time.spent_us(plans.spans))
    ops, gone = timeline.cpu_ops.iloc[plans.calls], host_time.without(plans.spans)
    return Found(
        title="Attention is planned again in every step",
        summary=f"cuDNN plans kernels of attention for {spent} of each {duration(work.step_us)} step, in {plans.steps} of {steps.steps} steps: each size that it has not met has one.",
        edits=Edits(host_time.without(plans.spans, 0.5), gone, gone),
        removes="planning inside the steps",
        evidence=folded(
            [f"{plain(name)} {dims[:60]}" for name, dims in zip(ops["name"], ops["dims"], strict=True)],
            ops["start_us"].to_numpy(),
            ops["dur_us"].to_numpy(),
        ),
        confidence=0.9,
        fix=recompiling.FEW_LENGTHS,
    )
