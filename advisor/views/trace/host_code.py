"""CPU code of the program on launching threads, which neither launches nor waits, and its source if stacks show it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Spans, complement, joined, length, overlap_with, subtract
from advisor.knowledge.counts import EXAMINED
from advisor.knowledge.expressions import expression
from advisor.knowledge.op_tokens import has_token, names_of
from advisor.knowledge.shares import FAR_APART, MOST, NEARLY_ALL, VIRTUALLY_ALL
from advisor.recordings.timeline import Timeline
from advisor.report.finding import SourceLine
from advisor.report.numbers import NAMED
from advisor.views.groups import distinct
from advisor.views.trace.arguments import largest
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.ops import Ops
from advisor.views.trace.program import Program
from advisor.views.trace.source_lines import user_frame
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches, spans_of

MOST_PAUSES = EXAMINED
"""Pauses that are examined individually, longest first; each of the rest is shorter."""

MOST_UNNAMED = 1024
"""Likewise of those without stacks, where less is looked at."""

UNNAMED_FACTOR = FAR_APART
"""A pause that nothing names must be this many times as long to count: Python between two ops may be long now and then."""

_FRAMEWORK_RANGE = names_of("framework_range")
"""Ranges in which all is the framework's own; that of a wrapped model's forward pass holds the model's."""
_STEP = names_of("profiler_step")
_GENERATED = names_of("generated_call")
"""The range in which code that a compiler generated launches one kernel after the other."""
_AROUND_GENERATED = names_of("around_generated_call")
_NUMBER = expression(r"(?<![A-Za-z])\d+")
_BUILT_IN = expression(r"^<built-in (function|method) (?P<name>\w+)")
_TENSOR_OP = names_of("tensor_op")
# What changes how a tensor is seen, asks something of it, or makes one without writing to it.
_WRITES_NOTHING = names_of("write_nothing")
_BACKWARD = "the backward pass"
_WRITTEN = ((names_of("autograd_engine"), _BACKWARD), (names_of("to_numpy"), ".numpy() or .tolist()"), (names_of("lift_fresh"), "a tensor of an array"))
"""Ops that represent what nobody wrote as such."""
_COLLECT = expression(r"<built-in (function|method) collect\b|^gc\.py|Python GC|garbage", re.IGNORECASE)
_SLEEP = expression(r"<built-in (function|method) sleep\b")


class OwnWork(msgspec.Struct, frozen=True):
    """A span of CPU code: description, place, and whether that is known."""

    label: str
    source: SourceLine | None
    kind: str


def own_work(
    timeline: Timeline, steps: Steps, host: HostActivity, ops: Ops, program: Program, others: Spans, min_pause_us: float
) -> tuple[Spans, list[OwnWork]]:
    """Stretches of the host's own work in the window outside `others`, each with what it was; disjoint and sorted."""
    cpu, calls, notes = timeline.cpu_ops, timeline.api_calls, timeline.annotations
    issuing = joined(
        spans_of(cpu, host.on_threads(cpu)),
        spans_of(calls, host.on_threads(calls)),
        spans_of(notes, matches(notes, _FRAMEWORK_RANGE)) if len(notes) else others,
        others,
    )
    pauses = complement(issuing, steps.host_start_us, steps.host_end_us)
    named = names_pauses(timeline, host)
    long = pauses[1] - pauses[0] >= min_pause_us * (1.0 if named else UNNAMED_FACTOR)
    pauses = pauses[0][long], pauses[1][long]
    found: list[tuple[float, float, OwnWork]] = []
    longest = np.sort(np.argsort(pauses[0] - pauses[1], kind="stable")[: MOST_PAUSES if named else MOST_UNNAMED])
    outer = np.flatnonzero((ops.parent < 0) & host.on_threads(cpu))
    for start, end in zip(pauses[0][longest].tolist(), pauses[1][longest].tolist(), strict=True):
        work = _named(timeline, host, start, end) if named else _in_range(timeline, host, steps, outer, program, start, end)
        if work:
            found.append((start, end, work))
    computing = _on_cpu(timeline, steps, host, ops, min_pause_us)
    # All count; to name one takes a look at every frame.
    longest_ops = set(computing[np.argsort(-cpu["dur_us"][computing], kind="stable")[:MOST_PAUSES]].tolist())
    for row in computing:
        start = float(cpu["start_us"][row])
        end = start + float(cpu["dur_us"][row])
        if length(subtract((np.array([start]), np.array([end])), others)) >= min_pause_us:
            inner = _named(timeline, host, start, end) if named and int(row) in longest_ops else None
            shape = largest(str(cpu["dims"][row]))
            label = f"{cpu['name'][row]} on the CPU{f', {shape}' if shape else ''}"
            found.append((start, end, OwnWork(label, inner.source if inner else None, "cpu-op")))
    found += _of_tensors(timeline, steps, host, ops, others, min_pause_us)
    found += _in_generated(timeline, steps, host, others, UNNAMED_FACTOR * min_pause_us)
    found.sort(key=lambda f: (f[0], -f[1]))
    # An op that computes may hold another that does.
    until = np.maximum.accumulate([f[1] for f in found])
    found = [f for i, f in enumerate(found) if not i or f[0] >= until[i - 1]]
    return (np.array([f[0] for f in found]), np.array([f[1] for f in found])), [f[2] for f in found]


def names_pauses(timeline: Timeline, host: HostActivity) -> bool:
    """Whether the frames of the threads that launch were recorded: those of others name no pause of theirs."""
    return bool(host.on_threads(timeline.python_calls).any())


def surrounding_pauses(timeline: Timeline, steps: Steps, host: HostActivity, ops: Ops, launched: Ints, others: Spans, pauses: Spans) -> Spans:
    """Of the time between two ops that launch something (`launched`: rows of their calls; `others` left out) what such pauses take half of: the
    shorter pauses in it and the ops that compute on the CPU belong to the same work. Disjoint and sorted, as the pauses are, which are all in it."""
    calls, within = timeline.api_calls, ops.of_call[launched]
    launches = launched[host.on_threads(calls)[launched]]
    issuing = joined(spans_of(calls, launches), spans_of(timeline.cpu_ops, distinct(ops.outermost[within[within >= 0]])), others)
    between = complement(issuing, steps.host_start_us, steps.host_end_us)
    own = overlap_with(*between, pauses) >= MOST * (between[1] - between[0])
    return joined((between[0][own], between[1][own]), pauses)


def _in_range(timeline: Timeline, host: HostActivity, steps: Steps, outer: Ints, program: Program, start_us: float, end_us: float) -> OwnWork | None:
    """CPU code in a pause without stacks. It is named by the innermost range that holds half of it and is no whole step, else by the ops around it (`outer`:
    rows of outermost ops on launching threads). None if the framework may run between these, or if no ops were recorded and it may wait for a batch.
    """
    seen = len(timeline.cpu_ops) > 0
    if not seen and (blocked := _blocked_in(timeline, host, start_us, end_us)):
        return OwnWork(f"blocked in {blocked}", None, "unknown")
    notes = timeline.annotations
    start, dur = notes["start_us"], notes["dur_us"]
    covered = np.minimum(start + dur, end_us) - np.maximum(start, start_us)
    rows = np.flatnonzero((covered >= MOST * (end_us - start_us)) & (dur < WHOLE * steps.step_us) & host.on_threads(notes) & ~matches(notes, _STEP))
    if not len(rows):
        label = _pause_by_neighbours(timeline, outer, end_us) if seen or program.framework == "cuda" else ""
        return OwnWork(label, None, "unknown") if label else None
    name = _NUMBER.sub("#", str(notes["name"][rows[np.argmin(dur[rows])]]))
    return OwnWork(f"host code in {name}", None, "unknown")


def _pause_by_neighbours(timeline: Timeline, outer: Ints, end_us: float) -> str:
    """A pause that ends here, by the outermost ops of the launching threads before and behind it; "" if it is the framework's own."""
    names = timeline.cpu_ops["name"]
    behind = int(np.searchsorted(timeline.cpu_ops["start_us"][outer], end_us))
    before, after = (_as_written(str(names[outer[at]])) if 0 <= at < len(outer) else "" for at in (behind - 1, behind))
    # clip_grad_norm_ launches that first. Before, it gathers all gradients, in Python.
    if before == _BACKWARD and has_token(after, "foreach_norm"):
        return ""
    if before and before == after:
        return f"host code within {before}" if before == _BACKWARD else f"host code between two calls of {before}"
    if before and after:
        return f"host code between {before} and {after}"
    return f"host code before {after}" if after else f"host code after {before}" if before else "host code between launches"


def _as_written(op: str) -> str:
    """An op as its author knows it."""
    return next((written for pattern, written in _WRITTEN if pattern.match(op)), op)


def _blocked_in(timeline: Timeline, host: HostActivity, start_us: float, end_us: float) -> str:
    """The call of the operating system that holds half of a pause, "" if none does: the host waits there, and works for nobody."""
    least = MOST * (end_us - start_us)
    # Of very many calls few are as long.
    calls = timeline.os_calls[timeline.os_calls["dur_us"] >= least]
    start = calls["start_us"]
    covered = np.minimum(start + calls["dur_us"], end_us) - np.maximum(start, start_us)
    rows = np.flatnonzero((covered >= least) & host.on_threads(calls))
    return str(calls["name"][rows[np.argmax(covered[rows])]]) if len(rows) else ""


WHOLE = VIRTUALLY_ALL
"""A range that lasts for as much of a step names the step, and no part of it."""


def _in_generated(timeline: Timeline, steps: Steps, host: HostActivity, others: Spans, min_us: float) -> list[tuple[float, float, OwnWork]]:
    """Pauses between two launches of the same call of generated code, which only launches: the time goes to the code that launches the next kernel,
    mostly a kernel of the program.
    """
    cpu, calls, notes = timeline.cpu_ops, timeline.api_calls, timeline.annotations
    ranges = joined(spans_of(notes, matches(notes, _GENERATED)), spans_of(cpu, matches(cpu, _GENERATED)))
    if not len(ranges[0]):
        return []
    launched = spans_of(calls, host.on_threads(calls))
    ops = host.on_threads(cpu) & ~matches(cpu, _AROUND_GENERATED)
    pauses = complement(
        joined(launched, spans_of(cpu, ops), others), max(float(ranges[0][0]), steps.host_start_us), min(float(ranges[1][-1]), steps.host_end_us)
    )
    start, end = cpu["start_us"], cpu["start_us"] + cpu["dur_us"]
    found = []
    longest = np.sort(np.argsort(pauses[0] - pauses[1], kind="stable")[:MOST_PAUSES])
    longest = longest[(pauses[1] - pauses[0])[longest] >= min_us]
    for begin, until in zip(*(edge[longest].tolist() for edge in pauses), strict=True):
        inside = int(np.searchsorted(ranges[0], begin, side="right")) - 1
        between = inside >= 0 and until < ranges[1][inside] and (launched[1] > ranges[0][inside])[: int(np.searchsorted(launched[0], begin))].any()
        if between:
            at = np.flatnonzero(ops & (start <= until + CLOSE_US) & (end > until))
            name = str(cpu["name"][at[-1]]) if len(at) else "a kernel"
            found.append((begin, until, OwnWork(f"host code before {name} in compiled code", None, "generated")))
    return found


CLOSE_US = 5.0
"""An op that begins so soon after a pause ends it."""


def _on_cpu(timeline: Timeline, steps: Steps, host: HostActivity, ops: Ops, min_us: float) -> Ints:
    """Rows of ops on the launching threads that take long by themselves, in op trees that make no runtime call: they
    compute on the CPU. Many short ones are `_of_tensors`'s, if they compute, and dispatch, however long they take, if they do not."""
    cpu = timeline.cpu_ops
    calling = np.zeros(len(cpu), bool)
    calling[ops.outermost[ops.of_call[ops.of_call >= 0]]] = True
    own = cpu["dur_us"].copy()
    inner = ops.parent >= 0
    np.subtract.at(own, ops.parent[inner], cpu["dur_us"][inner])
    start = cpu["start_us"]
    inside = steps.issued_at(start)
    found: Ints = np.flatnonzero(
        ~calling[ops.outermost] & inside & matches(cpu, _TENSOR_OP) & (own >= np.maximum(min_us, MOST * cpu["dur_us"])) & host.on_threads(cpu)
    )
    return found


def _of_tensors(timeline: Timeline, steps: Steps, host: HostActivity, ops: Ops, others: Spans, min_us: float) -> list[tuple[float, float, OwnWork]]:
    """Times between two ops that launch something in which ops too short to count by themselves compute on the CPU for so long, and op trees take
    half: batches that are put together tensor by tensor."""
    cpu = timeline.cpu_ops
    start, dur = cpu["start_us"], cpu["dur_us"]
    calling, here = np.zeros(len(cpu), bool), host.on_threads(cpu) & steps.issued_at(start)
    calling[ops.outermost[ops.of_call[ops.of_call >= 0]]] = True
    leaf = np.ones(len(cpu), bool)
    leaf[ops.parent[ops.parent >= 0]] = False
    computing = here & leaf & ~calling[ops.outermost] & (dur < min_us) & matches(cpu, _TENSOR_OP) & ~matches(cpu, _WRITES_NOTHING)
    if dur[computing].sum() < min_us or not calling.any():
        return []
    calls = spans_of(timeline.api_calls, host.on_threads(timeline.api_calls))
    between = complement(joined(spans_of(cpu, calling), calls, others), steps.host_start_us, steps.host_end_us)
    in_trees = overlap_with(*between, spans_of(cpu, here & ~calling & (ops.parent < 0)))
    long = (overlap_with(*between, spans_of(cpu, computing)) >= min_us) & (in_trees >= MOST * (between[1] - between[0]))
    found, rows = [], np.flatnonzero(computing)
    names, codes = cpu["name"], cpu["name"].codes
    rows = rows[np.argsort(start[rows], kind="stable")]
    trees = np.flatnonzero(here & ~calling & (ops.parent < 0) & matches(cpu, _TENSOR_OP))
    trees = trees[np.argsort(start[trees], kind="stable")]
    edges = np.searchsorted(start[rows], (between[0][long], between[1][long]))
    busy = edges[0] < edges[1]
    long, edges = np.flatnonzero(long)[busy], edges[:, busy]
    for begin, until, first, last in zip(between[0][long].tolist(), between[1][long].tolist(), *edges.tolist(), strict=True):
        tree = trees[slice(*np.searchsorted(start[trees], (begin, until)))]
        if (dur[tree] >= min_us).any():
            work = OwnWork(f"tensor ops on the CPU: {', '.join(_longest(list(names.categories), codes[tree], dur[tree]))}", None, "prepared")
        else:
            work = OwnWork(f"short tensor ops on the CPU, most of them {names.categories[int(np.bincount(codes[rows[first:last]]).argmax())]}", None, "cpu-ops")
        found.append((begin, until, work))
    return found


MOST_OF_THE_TIME, MOST_NAMED = NEARLY_ALL, NAMED - 1
"""Ops are named until they hold this share of the time, and no more than so many: a label has to fit a line."""


def _longest(names: Sequence[str], codes: Ints, dur_us: Floats) -> list[str]:
    """Names of the ops with most of the time, sorted by name, so slightly different steps count as the same kind."""
    total = np.bincount(codes, dur_us, minlength=len(names))
    order = np.argsort(-total, kind="stable")
    enough = int(np.searchsorted(np.cumsum(total[order]), MOST_OF_THE_TIME * total.sum())) + 1
    return sorted(names[code] for code in order[: min(enough, MOST_NAMED)])


def _named(timeline: Timeline, host: HostActivity, start_us: float, end_us: float) -> OwnWork | None:
    """What the launching threads did in a pause, by the innermost frame that covers half of it; None for the framework."""
    calls = timeline.python_calls
    first, last = calls.bounds()
    covered = np.minimum(last, end_us) - np.maximum(first, start_us)
    rows = np.flatnonzero(covered >= MOST * (end_us - start_us))
    rows = rows[host.on_threads(calls[rows])]
    names = [str(n) for n in calls["name"][rows[np.argsort(calls["dur_us"][rows], kind="stable")]]]
    if not names:
        return OwnWork("host code between launches", None, "unknown")
    line = next((found for n in names if (found := user_frame(n))), None)
    inner = names[0]
    where = f" ({line.file}:{line.line})" if line else ""
    if _COLLECT.search(inner):
        return OwnWork(f"garbage collection{where}", line, "gc")
    if _SLEEP.search(inner):
        return OwnWork(f"time.sleep{where}", line, "sleep")
    frame = next((n for n in names if not n.startswith("<built-in")), inner)
    if user_frame(frame) is None or line is None:
        return None
    built_in = _BUILT_IN.match(inner)
    function = built_in["name"] if built_in else frame.rpartition(": ")[2]
    return OwnWork(f"{function}{where}", line, "python")
