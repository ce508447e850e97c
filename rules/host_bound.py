"""The program's own work on the host holds up the step."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.errors import Unavailable
from advisor.intervals import Ints, Spans, complement, overlap_with, subtract
from advisor.knowledge.how_to_record import RECORD_BOTH
from advisor.report.model import Clear, Code, Fix, SourceLine
from advisor.rules._phrases import milliseconds
from advisor.timeline import Timeline
from advisor.views.replay.edits import Edits
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.compilation import Compilation
from advisor.views.trace.evidence import folded
from advisor.views.trace.frames import joined, matches, spans_of
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.ops import Ops
from advisor.views.trace.source_lines import user_frame
from advisor.views.trace.steps import Steps

MOST_PAUSES = 64
"""Pauses looked at one by one, the longest first; what is left is less than the least of them each."""

HALF = 0.5
"""A frame that covers this share of a pause is what the host did in it."""

_FRAMEWORK_RANGE = re.compile(r"^Optimizer\.|^DistributedDataParallel|^## Call|^Torch-Compiled")
_BUILT_IN = re.compile(r"^<built-in (function|method) (?P<name>\w+)")
_TENSOR_OP = re.compile(r"^(aten|torchvision|torch_\w+)::")
_COLLECT = re.compile(r"<built-in (function|method) collect\b|^gc\.py|Python GC|garbage", re.IGNORECASE)
_SLEEP = re.compile(r"<built-in (function|method) sleep\b")


@dataclass(frozen=True)
class _Work:
    """One stretch of the host's own work: what it was, where, and whether that is known."""

    label: str
    source: SourceLine | None
    kind: str


@rule("host-bound", relies_on=("host",), min_saving_share=0.05)
def host_bound(
    timeline: Timeline,
    steps: Steps,
    work: GpuWork,
    host: HostActivity,
    host_time: HostTime,
    compilation: Compilation,
    *,
    min_pause_us: float = 500.0,
    min_steps_share: float = 0.5,
) -> Outcome:
    """The program's own work on the host holds up the step

    What it is
    Between launches the host does something that is neither issuing kernels nor waiting nor loading data: Python loops
    over lists, NumPy, tensor ops on CPU tensors, logging, garbage collection, `time.sleep`.

    Why it costs time
    The thread that launches kernels does that work itself. Once the GPU has finished what was queued it idles until the
    thread is back.

    How it is measured
    Pauses of at least `min_pause_us` ({min_pause_us} µs: ten times what Python takes between two ops) between ops and runtime calls
    of the threads that launch, outside the data loader, compilation, waits, allocation and the optimizer's own Python;
    and ops as long that launch nothing, which compute on the CPU. With stacks each pause has a name, and what the
    framework itself did in it is left out; without, only pauses of twice that length count and half of their time is
    taken as avoidable. The step is replayed without that time (`low`: half of it stays). Reported where it recurs in
    `min_steps_share` of the steps ({min_steps_share}) and two at least, since what happens once is start-up, and from
    `min_saving_share` of the step ({min_saving_share}: below, a pause of Python is noise).

    How to fix it
    Move the work off the thread that launches: into DataLoader workers, a background thread for logging and saving, or
    onto the GPU as tensor ops. Do it every N steps. For garbage collection, `gc.freeze()` after start-up and
    `gc.disable()` with a `gc.collect()` between epochs.

    When to ignore it
    When the work only runs in the traced program: checks, plots, the profiler's own start.

    References
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    https://docs.python.org/3/library/gc.html#gc.freeze
    """
    if not len(timeline.cpu_ops):
        raise Unavailable("no framework ops were recorded, so the host's own work cannot be told apart", RECORD_BOTH)
    if not steps.repeats:
        return Clear(why="the trace has no repeated step: what the host does once may be start-up")
    others = joined(host.sync, host.allocator, host.data_loading, host.profiler, compilation.spans)
    spans, works = _own_work(timeline, steps, host, work.ops, others, min_pause_us)
    if not len(works):
        return Clear(why=f"the host never pauses for {min_pause_us:.0f} µs for work of its own inside the window")
    per_step = overlap_with(steps.host_edges_us[:-1], steps.host_edges_us[1:], spans)
    busy = int((per_step >= min_pause_us).sum())
    if busy < max(2.0, min_steps_share * steps.steps):
        return Clear(
            why=f"the host works for itself in {busy} of {steps.steps} steps only; reported from {min_steps_share:.0%} of them, and two"
        )
    known = all(w.kind != "unknown" for w in works)
    share = 1.0 if known else 0.5
    spent = milliseconds(host_time.spent_us(spans))
    start, end = spans
    by_label = {w.label: w.source for w in works}
    labels = [w.label for w in works]
    evidence = folded(labels, start, end - start, source=lambda m: by_label[labels[int(m[0])]])
    return Found(
        summary=f"The host works {spent} of each {milliseconds(work.step_us)} step for the program itself, mostly {evidence[0].label}; "
        "it launches nothing meanwhile.",
        edits=Edits(host_time.without(spans, share / 2), host_time.without(spans, share), host_time.without(spans)),
        removes="the program's own work on the host between launches",
        quiet=f"the host works {spent} of a step of {milliseconds(work.step_us)} for itself",
        evidence=evidence,
        confidence=0.85 if known else 0.5,
        fix=_fix(max(works, key=lambda w: sum(e.dur_us for e in evidence if e.label == w.label))),
    )


def _own_work(
    timeline: Timeline, steps: Steps, host: HostActivity, ops: Ops, others: Spans, min_pause_us: float
) -> tuple[Spans, list[_Work]]:
    """Stretches of the host's own work in the window outside `others`, each with what it was; disjoint and sorted."""
    cpu, calls, notes = timeline.cpu_ops, timeline.api_calls, timeline.annotations
    issuing = joined(
        spans_of(cpu, host.on_threads(cpu)),
        spans_of(calls, host.on_threads(calls)),
        spans_of(notes, matches(notes, _FRAMEWORK_RANGE)) if len(notes) else others,
        others,
    )
    pauses = complement(issuing, steps.host_start_us, steps.host_end_us)
    named = bool(len(timeline.python_calls))
    long = pauses[1] - pauses[0] >= min_pause_us * (1.0 if named else 2.0)
    pauses = pauses[0][long], pauses[1][long]
    found: list[tuple[float, float, _Work]] = []
    longest = np.sort(np.argsort(pauses[0] - pauses[1], kind="stable")[:MOST_PAUSES])
    for start, end in zip(pauses[0][longest].tolist(), pauses[1][longest].tolist(), strict=True):
        work = _named(timeline, host, start, end) if named else _Work("work between launches", None, "unknown")
        if work:
            found.append((start, end, work))
    for row in _on_cpu(timeline, steps, host, ops, min_pause_us):
        start = float(cpu["start_us"].iloc[row])
        end = start + float(cpu["dur_us"].iloc[row])
        left = subtract((np.array([start]), np.array([end])), others)
        if float((left[1] - left[0]).sum()) >= min_pause_us:
            inner = _named(timeline, host, start, end) if named else None
            dims = str(cpu["dims"].iloc[row])
            label = f"{cpu['name'].iloc[row]} on the CPU{f' {dims[:40]}' if dims else ''}"
            found.append((start, end, _Work(label, inner.source if inner else None, "cpu-op")))
    found.sort(key=lambda f: f[0])
    return (np.array([f[0] for f in found]), np.array([f[1] for f in found])), [f[2] for f in found]


def _on_cpu(timeline: Timeline, steps: Steps, host: HostActivity, ops: Ops, min_us: float) -> Ints:
    """Rows of ops on the launching threads that take long by themselves, in op trees that make no runtime call: they
    compute on the CPU. A tree of many short ops is dispatch, however long it takes."""
    cpu = timeline.cpu_ops
    calling = np.zeros(len(cpu), bool)
    calling[ops.outermost[ops.of_call[ops.of_call >= 0]]] = True
    own = cpu["dur_us"].to_numpy().copy()
    inner = ops.parent >= 0
    np.subtract.at(own, ops.parent[inner], cpu["dur_us"].to_numpy()[inner])
    start = cpu["start_us"].to_numpy()
    inside = (start >= steps.host_start_us) & (start < steps.host_end_us)
    found: Ints = np.flatnonzero(
        ~calling[ops.outermost]
        & inside
        & matches(cpu, _TENSOR_OP)
        & (own >= np.maximum(min_us, HALF * cpu["dur_us"].to_numpy()))
        & host.on_threads(cpu)
    )
    return found


def _named(timeline: Timeline, host: HostActivity, start_us: float, end_us: float) -> _Work | None:
    """What the launching threads did in a pause, by the innermost frame that covers half of it; None for the framework."""
    calls = timeline.python_calls
    first = calls["start_us"].to_numpy()
    last = first + calls["dur_us"].to_numpy()
    covered = np.minimum(last, end_us) - np.maximum(first, start_us)
    rows = np.flatnonzero(covered >= HALF * (end_us - start_us))
    rows = rows[host.on_threads(calls.iloc[rows])]
    names = [str(n) for n in calls["name"].iloc[rows[np.argsort(calls["dur_us"].to_numpy()[rows], kind="stable")]]]
    if not names:
        return _Work("work between launches", None, "unknown")
    line = next((found for n in names if (found := user_frame(n))), None)
    inner = names[0]
    where = f" ({line.file}:{line.line})" if line else ""
    if _COLLECT.search(inner):
        return _Work(f"garbage collection{where}", line, "gc")
    if _SLEEP.search(inner):
        return _Work(f"time.sleep{where}", line, "sleep")
    frame = next((n for n in names if not n.startswith("<built-in")), inner)
    if user_frame(frame) is None or line is None:
        return None
    built_in = _BUILT_IN.match(inner)
    function = built_in["name"] if built_in else frame.rpartition(": ")[2]
    return _Work(f"{function}{where}", line, "python")


def _fix(work: _Work) -> Fix:
    url = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    if work.kind == "gc":
        return Fix(
            title="Keep garbage collection out of the step",
            steps=(
                "Call gc.freeze() after start-up, so that the model's objects are not looked at again.",
                "Disable automatic collection and collect between epochs, or every few hundred steps.",
            ),
            code=Code(
                before="for batch in loader:\n    step(batch)\n    gc.collect()",
                after="gc.collect(); gc.freeze(); gc.disable()\nfor i, batch in enumerate(loader):\n    step(batch)\n    if i % 1000 == 999:\n        gc.collect()",
            ),
            url="https://docs.python.org/3/library/gc.html#gc.freeze",
            risk="Reference cycles that hold GPU tensors live until the next collection.",
        )
    if work.kind == "sleep":
        return Fix(
            title="Do not sleep in the thread that launches",
            steps=(f"Remove the sleep in {work.label}; poll or throttle in another thread.",),
            url=url,
        )
    if work.kind == "cpu-op":
        return Fix(
            title="Do this op on the GPU, or in a DataLoader worker",
            steps=(
                f"{work.label}: move its inputs to the GPU once, or make the result where the batch is made.",
                "If the result steers Python, compute it a step ahead.",
            ),
            code=Code(before='y = torch.sort(x.cpu()).values.to("cuda")', after="y = torch.sort(x).values  # x stays on the GPU"),
            url=url,
            risk="Results of GPU and CPU kernels may differ in the last bits.",
        )
    return Fix(
        title="Take the work off the thread that launches",
        steps=(
            f"Look at {work.label}: do it in DataLoader workers, in a background thread, every N steps, or as tensor ops on the GPU.",
            "Launch the step's kernels first and do the host's work while they run.",
        ),
        code=Code(
            before="for batch in loader:\n    targets = build_targets(batch)  # Python on the main thread\n    step(batch, targets)",
            after="loader = DataLoader(dataset, collate_fn=build_batch_and_targets, num_workers=8)\nfor batch, targets in loader:\n    step(batch, targets)",
        ),
        url=url,
        risk="Work that moves to another thread must not change what the step reads.",
    )
