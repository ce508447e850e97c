"""Code is compiled again inside the steps."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import clip, overlap_with
from advisor.knowledge.op_tokens import plain
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Skipped
from advisor.report.numbers import duration
from advisor.report.wording.period import EVERY_STEP, PER_STEP, of_each_step
from advisor.rules.fixes import recompiling
from advisor.views.patterns import compiling as patterns
from advisor.views.replay.edits import Edits, WithoutOps, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.host_time import HostTime
from advisor.views.trace import compilation as compiles
from advisor.views.trace import table_filters
from advisor.views.trace.compilation import AttentionPlans
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
    logged: patterns.LoggedCompiles | None,
    *,
    min_steps_share: float = 0.5,
) -> Outcome:
    """Code is compiled again in every step

    What
    `torch.compile`, Triton or `jax.jit` compiles inside the loop, step after step. An input's shape or a Python
    value has changed, or `torch.compile` itself is called in the loop.

    Why
    A compilation takes between a tenth of a second and minutes of CPU time, without any launches. After 8
    recompilations (`recompile_limit`), Dynamo runs the function eagerly. cuDNN attention plans its kernel for
    each new size, in about 50 ms.

    How to fix
    Allow dynamic shapes, and compile once outside the loop:

        model = torch.compile(model, dynamic=True)
        torch._dynamo.mark_dynamic(x, 0)            # or only the dimension that changes

    Or pad to a few sizes. Turn a changing Python number into a tensor. `TORCH_LOGS=recompiles` names the failed
    guard, and with `--compile-log` the finding names its line. In JAX, `jax_explain_cache_misses` names the
    argument. For cuDNN attention, call `torch.backends.cuda.enable_cudnn_sdp(False)`.

    When to ignore
    The trace covers the first steps of a run with few shapes. Each is compiled once.

    How it is measured
    The rule takes compiler ranges and frames on launching threads, or the host's time around
    `cuModuleLoadData`. The replay removes that time (`low`: half). Compilation must occur in `min_steps_share`
    ({min_steps_share}) of the steps, and in two at least. Savings below `min_saving_share` ({min_saving_share}) of the step are not
    reported.

    References
    https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html
    https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html#dealing-with-recompilations
    """
    if steps.repeats and plans.sizes >= plans.steps >= max(2.0, min_steps_share * steps.steps):
        return _of_attention(timeline, steps, work, host_time, plans)
    compiling, direct = patterns.compiling_spans(timeline, host, host_time, launches, compilation.spans)
    spans = clip(compiling, steps.host_start_us, steps.host_end_us)
    if not len(spans[0]):
        return Clear(why="nothing is compiled inside the window")
    per_step = overlap_with(steps.host_edges_us[:-1], steps.host_edges_us[1:], compiling)
    compiled = int((per_step > 0).sum())
    why = compiles.why_compiled(timeline, steps, compiling)
    recurs = compiled >= max(2.0, min_steps_share * steps.steps) if steps.repeats else why.recompiled >= 2
    if not recurs:
        if steps.repeats and steps.steps == 1:
            spent = duration(float(per_step.sum()))
            return Skipped(
                why=f"{spent} of the one recorded step is compilation, which may be start-up", record_with="record three steps or more after the warm-up"
            )
        seen = f"in {compiled} of {steps.steps} steps" if steps.repeats else "in a trace without steps"
        return Clear(
            why=f"compilation takes {duration(float(per_step.sum()))} as recorded {seen}, which may be start-up; "
            f"reported from {min_steps_share:.0%} of the steps, and two"
        )
    spent = duration(host_time.spent_us(compiling))
    gone, half = host_time.cut_time(compiling), host_time.cut_time(compiling, 0.5)
    if program.framework == "jax":
        # XLA times candidates on the device as it compiles: these kernels go, and the waits for them.
        timed = table_filters.begins_inside(timeline.api_calls, compilation.compilers)[calls.rows]
        gone = combine(gone, WithoutWaits(np.flatnonzero(timed)), WithoutOps(np.flatnonzero(work.launched_inside(compilation.compilers))))
    start, end = spans
    again = [row for row, _ in logged.of("recompilation")] if logged else []
    named = f" {again[0].source.file}:{again[0].source.line} fails the guard {again[0].reason}." if again and again[0].reason else ""
    line = again[0].source if again else table_filters.line_around(timeline, host.on_threads(timeline.python_calls), float(start[0]), float(end[0]))
    return Found(
        title=f"Code is compiled again in {EVERY_STEP}",
        summary=f"Compilation takes {spent} {of_each_step(work.step_us)}, in "
        f"{f'{compiled} of {steps.steps} steps' if steps.repeats else 'the trace'}: {why.cause}.{named}",
        edits=Edits(half, gone, gone),
        removes="compilation inside the steps",
        quiet=f"compilation takes {spent} {PER_STEP}",
        evidence=folded(compiles.labels_of(timeline, spans), start, end - start, source=lambda _: line),
        confidence=0.95 if direct else 0.6,
        fix=recompiling.at_logged_lines(recompiling.compile_once(why), again),
    )


def _of_attention(timeline: Timeline, steps: Steps, work: GpuWork, host_time: HostTime, plans: AttentionPlans) -> Found:
    """Where it is not code that is compiled again, but cuDNN's attention that is planned."""
    spent = duration(host_time.spent_us(plans.spans))
    ops, gone = timeline.cpu_ops[plans.calls], host_time.cut_time(plans.spans)
    return Found(
        title=f"Attention is planned again in {EVERY_STEP}",
        summary=f"cuDNN plans kernels of attention for {spent} {of_each_step(work.step_us)}, in {plans.steps} of {steps.steps} steps: each new size needs a plan.",
        edits=Edits(host_time.cut_time(plans.spans, 0.5), gone, gone),
        removes="planning inside the steps",
        evidence=folded(
            [f"{plain(name)} {dims[:60]}" for name, dims in zip(ops["name"], ops["dims"], strict=True)],
            ops["start_us"],
            ops["dur_us"],
        ),
        confidence=0.9,
        fix=recompiling.FEW_LENGTHS,
    )
