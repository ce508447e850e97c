"""When the host compiles code, why it does so again, and when cuDNN plans its attention anew."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import msgspec
import numpy as np

from advisor.intervals import Ints, Spans, joined, overlap_with, union
from advisor.knowledge.expressions import expression
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.op_tokens import names_of
from advisor.recordings.timeline import Timeline
from advisor.report.numbers import times
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import begins_inside, matches, spans_of

# Frames in which Dynamo, Inductor or Triton compile; their run-time wrappers (`run`, `_fn`, `compile_wrapper`) are no such.
_COMPILE_FRAME = expression(
    r"torch/_dynamo/convert_frame\.py\(\d+\): "
    r"|torch/_inductor/compile_fx\.py\(\d+\): (_?compile_fx|_?fx_codegen|codegen_and_compile|fw_compiler|bw_compiler|cudagraphify)"
    r"|torch/_inductor/runtime/triton_heuristics\.py\(\d+\): (_?precompile|autotune_to_one_config|benchmark_all_configs)"
    r"|triton/compiler/compiler\.py\(\d+\): compile$|triton/runtime/autotuner\.py\(\d+\): (_bench|benchmark)"
    r"|jax/(pxla|compiler)\.py\(\d+\): (compile|backend_compile\w*|compile_or_get_cached)$"
)
# Ranges that PyTorch 2.6 and later opens around its compilation, stacks or not.
_COMPILE_RANGE = expression(r"\(dynamo_timed\)$|^(entire_frame_compile|backend_compile|inductor_compile|fx_codegen_and_compile)$")
# XLA's, in a program of JAX; and the call in which it happens, which traces and lowers before.
_XLA_RANGE = expression(r"backend_compile\w{0,40}$|PJRT_Client_Compile|PjRt\w{0,40}Client::Compile")
_JITTED = expression(r"PjitFunction\(")
_COMPILE_ID = expression(r"compile_id=\[?(\d{1,18})/(\d{1,18})|Torch-Compiled Region: (\d{1,18})/(\d{1,18})")


class Compilation(msgspec.Struct, frozen=True):
    """spans: disjoint, sorted time in which launching threads compile, by frames and ranges. compilers: of that, the compilers' own time, without tracing
    before it and the first run after it, which the same call of a jitted function includes.
    """

    spans: Spans
    compilers: Spans

    @classmethod
    def build(cls, timeline: Timeline, host: HostActivity) -> Compilation:
        tables = (
            (timeline.python_calls, _COMPILE_FRAME),
            (timeline.cpu_ops, _COMPILE_RANGE),
            (timeline.annotations, _COMPILE_RANGE),
            (timeline.annotations, _XLA_RANGE),
        )
        spans = joined(*(spans_of(f, matches(f, p) & host.on_threads(f)) for f, p in tables if len(f)))
        return cls(joined(spans, _calls_that_compile(timeline, host, spans)), spans)


def _calls_that_compile(timeline: Timeline, host: HostActivity, spans: Spans) -> Spans:
    """Calls of jitted functions that compiled before they ran."""
    ops = timeline.cpu_ops
    rows = np.flatnonzero(matches(ops, _JITTED) & host.on_threads(ops))
    start, end = ops.bounds(rows)
    compiled = overlap_with(start, end, spans) > 0
    return union(start[compiled], end[compiled])


class Recompilations(msgspec.Struct, frozen=True):
    """What the trace says of why code is compiled again."""

    recompiled: int
    """The highest recompilation number of one function, 0 if none was recorded."""
    renewed: bool
    """Whether each compilation is the first one of a new function: torch.compile itself is in the loop."""
    varying: tuple[str, str] | None
    """Dims of one op in two steps, if they differ."""
    shapes: bool
    """Whether shapes were recorded at all."""
    argument: str = ""
    """The difference between two compilations of a JAX function, in words."""

    @property
    def cause(self) -> str:
        """Why, in words."""
        if self.argument:
            return self.argument
        if self.varying:
            return f"shapes change from step to step, {self.varying[0]} to {self.varying[1]}"
        if self.renewed:
            return "torch.compile meets a new function each time"
        return f"the same function was recompiled {times(self.recompiled)}" if self.recompiled else "its cause is not recorded"


def _ids(timeline: Timeline, steps: Steps) -> list[tuple[int, int]]:
    """(function, recompilation) of each compilation or compiled region in the window, in order, each once."""
    found: dict[tuple[int, int], float] = {}
    for frame in (timeline.annotations, timeline.cpu_ops):
        rows = matches(frame, _COMPILE_ID)
        start = frame["start_us"][rows]
        for name, at in zip(frame["name"][rows], start, strict=True):
            if steps.host_start_us <= at < steps.host_end_us and (m := _COMPILE_ID.search(str(name))):
                key = (int(m[1] or m[3] or 0), int(m[2] or m[4] or 0))
                found[key] = min(float(at), found.get(key, float(at)))
    return sorted(found, key=lambda k: found[k])


def why_compiled(timeline: Timeline, steps: Steps, compiling: Spans) -> Recompilations:
    """What ranges and shapes say of the compilations in the window; `compiling` is when they ran."""
    ids = _ids(timeline, steps)
    functions = {f for f, _ in ids}
    return Recompilations(
        recompiled=max((n for _, n in ids), default=0),
        renewed=len(functions) >= max(2, steps.steps) and all(n == 0 for _, n in ids),
        varying=_varying(timeline, steps, compiling),
        shapes=timeline.source.shapes,
        argument=_argument(timeline),
    )


def _argument(timeline: Timeline) -> str:
    """The difference between two compilations of the most often compiled function with differing arguments."""
    programs = timeline.programs
    often = [module for module, _ in Counter(programs["module"]).most_common()]
    for module in often:
        taken = [_parameters(text) for text in programs["parameters"][programs["module"] == module]]
        told = (_difference(module.removeprefix("jit_"), first, second) for first, second in pairwise(taken))
        if said := next((text for text in told if text), ""):
            return said
    what = "a static argument or a number closed over changes, or the function is made anew"
    return f"{often[0].removeprefix('jit_')} gets arrays of the same shapes each time: {what}" if often else ""


def _difference(function: str, first: list[tuple[str, str]], second: list[tuple[str, str]]) -> str:
    """What two calls of a function differ in, "" where their arrays are alike."""
    if len(first) != len(second):
        return f"{function} is called with {len(first)} arrays, then with {len(second)}"
    changed = [(a, b) for a, b in zip(first, second, strict=True) if a[1] != b[1]]
    if not changed:
        return ""
    (argument, before), (_, after) = changed[0]
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"{function}'s argument {argument[:60]}{more} is {before}, then {after}"


def _parameters(text: str) -> list[tuple[str, str]]:
    """Name and array of each."""
    pairs = [part.rpartition(": ") for part in text.split("; ")] if text else []
    return [(name, array) for name, _, array in pairs]


def _varying(timeline: Timeline, steps: Steps, compiling: Spans) -> tuple[str, str] | None:
    """Dims of an op that has other ones in each step, outside compilation, in the first two steps."""
    ops = timeline.cpu_ops
    if not timeline.source.shapes or not len(ops) or steps.steps < 2:
        return None
    step = steps.of_host_time(ops["start_us"])
    dims = ops["dims"].codes.astype(np.int64)
    told = np.array([any(c.isdigit() for c in text) for text in ops["dims"].categories], bool)
    rows = np.flatnonzero((step >= 0) & (step < steps.steps) & told[dims] & ~begins_inside(ops, compiling))
    names = ops["name"].codes[rows].astype(np.int64)
    table = np.unique(np.c_[names, step[rows], dims[rows]], axis=0)
    texts = ops["dims"].categories
    for mine in np.split(table, np.flatnonzero(np.diff(table[:, 0])) + 1):  # sorted by op, then step
        edges = np.searchsorted(mine[:, 1], np.arange(steps.steps + 1))
        if len(mine) < steps.steps or (np.diff(edges) != edges[1]).any():
            continue
        sets = [set(mine[first:last, 2].tolist()) for first, last in pairwise(edges.tolist())]
        if len(set.union(*sets)) > len(sets[0]):
            first, second = min(sets[0] - sets[1], default=None), min(sets[1] - sets[0], default=None)
            if first is not None and second is not None:
                return _one_shape(texts[first], texts[second])
    return None


_SHAPE = expression(r"\[[\d, ]+\]")


def _one_shape(first: str, second: str) -> tuple[str, str]:
    """The first shape in two ops' dims that differs."""
    pairs = zip(_SHAPE.findall(first), _SHAPE.findall(second), strict=False)
    return next(((a, b) for a, b in pairs if a != b), (first[:40], second[:40]))


def labels_of(timeline: Timeline, spans: Spans) -> list[str]:
    """Each span of compilation by what is compiled in it, if that was recorded."""
    labels = ["compilation"] * len(spans[0])
    for frame in (timeline.annotations, timeline.cpu_ops):
        rows = np.flatnonzero(matches(frame, _COMPILE_ID) & begins_inside(frame, spans))
        at = np.searchsorted(spans[0], frame["start_us"][rows], side="right") - 1
        for i, row in zip(at, rows, strict=True):
            if labels[i] == "compilation" and (m := _COMPILE_ID.search(str(frame["name"][row]))):
                labels[i] = f"compilation {m[1] or m[3]}/{m[2] or m[4]} (function/recompilation)"
    return labels


_ATTENTION = names_of("attention_of_cudnn")

PLANNED_US = cost("attention-plan")


class AttentionPlans(msgspec.Struct, frozen=True):
    """spans: host time of planning calls of cuDNN's attention on launching threads. calls: their rows of `cpu_ops`, outermost calls in the window. steps: steps
    with planning. sizes: number of distinct sizes, or of calls if shapes were not recorded.
    """

    spans: Spans
    calls: Ints
    steps: int
    sizes: int

    @classmethod
    def build(cls, timeline: Timeline, host: HostActivity, steps: Steps) -> AttentionPlans:
        ops, calls = timeline.cpu_ops, timeline.api_calls
        start, dur_us = ops["start_us"], ops["dur_us"]
        chosen = matches(ops, _ATTENTION) & host.on_threads(ops) & (dur_us >= PLANNED_US)
        called_us = overlap_with(start[chosen], (start + dur_us)[chosen], spans_of(calls, host.on_threads(calls)))
        chosen[chosen] = dur_us[chosen] - called_us >= PLANNED_US
        spans = spans_of(ops, chosen)
        inside = overlap_with(steps.host_edges_us[:-1], steps.host_edges_us[1:], spans)
        outermost = np.flatnonzero(chosen & np.isin(start, spans[0]) & steps.issued_at(start))
        sizes = len(np.unique(ops["dims"].codes[outermost])) if timeline.source.shapes else len(outermost)
        return cls(spans, outermost, int((inside > 0).sum()), sizes)
