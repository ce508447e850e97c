"""Code is compiled again inside the steps."""

from __future__ import annotations

import re

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Floats, Spans, clip, joined, overlap_with
from advisor.knowledge import cuda_api
from advisor.knowledge.op_tokens import plain
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import duration
from advisor.rules.fixes import known_fix
from advisor.views.replay.edits import Edits, WithoutOps, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.attention_plans import AttentionPlans
from advisor.views.trace.compilation import Compilation, Recompilations, labels_of, why_compiled
from advisor.views.trace.evidence import folded
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import begins_inside, line_around, matches, spans_of

_LOADS = re.compile(r"^cu(Module|Library)LoadData")

DEFAULT_LIMIT = 8
"""After this many recompilations of one function Dynamo gives up and runs it eagerly (torch._dynamo.config.recompile_limit)."""


@rule("recompilation", relies_on=("host",), min_saving_share=0.03)
def recompilation(
    timeline: Timeline,
    steps: Steps,
    work: GpuWork,
    host: HostActivity,
    host_time: HostTime,
    launches: Launches,
    compilation: Compilation,
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
    compiling, direct = _compiling(timeline, host, host_time, launches, compilation.spans)
    spans = clip(compiling, steps.host_start_us, steps.host_end_us)
    if not len(spans[0]):
        return Clear(why="nothing is compiled inside the window")
    per_step = overlap_with(steps.host_edges_us[:-1], steps.host_edges_us[1:], compiling)
    compiled = int((per_step > 0).sum())
    why = why_compiled(timeline, steps, compiling)
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
        timed = begins_inside(timeline.api_calls, compilation.compilers)[calls.rows]
        gone = combine(gone, WithoutWaits(np.flatnonzero(timed)), WithoutOps(np.flatnonzero(work.launched_inside(compilation.compilers))))
    start, end = spans
    line = line_around(timeline, host.on_threads(timeline.python_calls), float(start[0]), float(end[0]))
    return Found(
        title="Code is compiled again in every step",
        summary=f"Compilation takes {spent} of each {duration(work.step_us)} step, in "
        f"{f'{compiled} of {steps.steps} steps' if steps.repeats else 'the trace'}: {why.cause}.",
        edits=Edits(half, gone, gone),
        removes="compilation inside the steps",
        quiet=f"compilation takes {spent} a step",
        evidence=folded(labels_of(timeline, spans), start, end - start, source=lambda _: line),
        confidence=0.95 if direct else 0.6,
        fix=_fix_of_jax(why.argument) if program.framework == "jax" else _fix(why),
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
        fix=_FEW_LENGTHS,
    )


def _compiling(timeline: Timeline, host: HostActivity, host_time: HostTime, launches: Launches, told: Spans) -> tuple[Spans, bool]:
    """Host time in which code is compiled, and whether the trace says so directly."""
    if len(told[0]):
        return told, True
    calls = timeline.api_calls
    loads = matches(calls, _LOADS) & host.on_threads(calls) & (launches.roles == list(cuda_api.ApiRole).index(cuda_api.ApiRole.OTHER))
    if not loads.any():
        return told, False
    # The new module was compiled in the pause that ends with loading it.
    holding = overlap_with(host_time.spans.start_us, host_time.spans.end_us, spans_of(calls, loads)) > 0
    return joined((host_time.spans.start_us[holding], host_time.spans.end_us[holding])), False


def _dimension(varying: tuple[str, str]) -> tuple[int, Floats] | None:
    """The one dimension in which two shapes differ, and its sizes."""
    a, b = (np.array([int(n) for n in text.strip("[]").split(",")], float) for text in varying)
    if len(a) != len(b) or (a != b).sum() != 1:
        return None
    at = int(np.argmax(a != b))
    return at, np.array([a[at], b[at]])


_FEW_LENGTHS = known_fix("pytorch", "few-lengths")


def _fix_of_jax(changed: str) -> Fix:
    return Fix(
        title="Let jax.jit see the same shapes and static values in each step",
        steps=(
            *((f"In this profile {changed}.",) if changed else ()),
            "Set jax.config.update('jax_explain_cache_misses', True): it names the argument that changed.",
            "If a shape changes: pad to a few sizes and mask, so that each size compiles once.",
            "If a static argument or a closed-over Python number changes: pass it as an array. Keep static_argnums for what rarely changes.",
            "If the jitted function is made anew in the loop (a lambda, a partial): make it once, before the loop.",
        ),
        code=Code(
            before="for x in batches:  # a new length each step\n    y = f(x)",
            after="for x in batches:\n    n = next(s for s in (128, 256, 512) if s >= x.shape[0])  # a few sizes\n"
            "    y = f(np.pad(x, ((0, n - x.shape[0]), (0, 0))))  # on the host: jnp.pad compiles for each length",
        ),
        url="https://docs.jax.dev/en/latest/jit-compilation.html#jit-and-caching",
        risk="Padding computes on rows that are thrown away; mask them where they would change the result.",
    )


def _fix(why: Recompilations) -> Fix:
    url = "https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html"
    logs = "Run with TORCH_LOGS=recompiles: it names the guard that failed."
    if why.renewed:
        return Fix(
            title="Call torch.compile once, outside the loop",
            steps=(
                "Compile the function before the loop and keep the result: code made anew (exec, generated source) or torch._dynamo.reset() compiles again.",
                logs,
            ),
            code=Code(
                before="for batch in loader:\n    f = torch.compile(make_step(config))  # a function made anew\n    f(batch)",
                after="f = torch.compile(make_step(config))\nfor batch in loader:\n    f(batch)",
            ),
            url=url,
            risk="Results stay as they are.",
        )
    if why.varying:
        dimension = _dimension(why.varying) if all(v.startswith("[") for v in why.varying) else None
        marked = f"torch._dynamo.mark_dynamic(x, {dimension[0]})" if dimension else "torch._dynamo.mark_dynamic(x, dim)"
        return Fix(
            title="Compile once for all sizes",
            steps=(
                f"Compile with dynamic=True, or call {marked} on the input before the first call.",
                "Or pad inputs to a few sizes: each bucket compiles once and keeps fast static code.",
                logs,
            ),
            code=Code(
                before="model = torch.compile(model, dynamic=False)\nfor x in batches:  # a new shape each step\n    model(x)",
                after=f"model = torch.compile(model, dynamic=True)  # or, before the first call: {marked}\nfor x in batches:\n    model(x)",
            ),
            url=url,
            risk="Code for any size may be a few percent slower than code for one, and CUDA graphs need a recording for each size.",
        )
    same = ("Shapes do not change in the trace, so a Python value does: turn numbers that change each step into tensors.",)
    either = ("Record with record_shapes=True; only if shapes change, compile with dynamic=True or pad to buckets.",)
    limit = (
        (f"{why.recompiled} recompilations of one function are above the default recompile_limit ({DEFAULT_LIMIT}): somebody raised it.",)
        if why.recompiled > DEFAULT_LIMIT
        else ()
    )
    return Fix(
        title="Find the guard that fails, and keep it from changing",
        steps=(logs, *(same if why.shapes else either), *limit),
        code=Code(
            before="class Loss(nn.Module):\n    def forward(self, x):\n        self.step += 1  # an int of a module: each value compiles again\n        return x * self.step",
            after='# in __init__: self.register_buffer("step", torch.zeros(()))\nclass Loss(nn.Module):\n    def forward(self, x):\n        self.step.add_(1)\n        return x * self.step',
        ),
        url=url,
        risk="Results stay as they are; a tensor on the GPU cannot steer Python branches.",
    )
