"""Graph breaks and recompilations that torch.compile logged, priced by the trace of the same program."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from advisor.errors import UsageError
from advisor.intervals import Spans, overlap_with, union
from advisor.knowledge.compile_fixes import instead_of_break, instead_of_recompilation
from advisor.knowledge.structs import replace
from advisor.recordings.compile_log import CompileId, CompileLog, CompileLogs, LoggedBreak, LoggedCompilation
from advisor.recordings.timeline import GpuKind, Timeline
from advisor.report.compile_log import CompileCost, CompileCosts
from advisor.report.finding import SourceLine
from advisor.report.numbers import counted
from advisor.views.trace.launches import Launches
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import begins_inside, matches, spans_of

_REGION = re.compile(r"^Torch-Compiled Region: (\d{1,9})/(\d{1,9})")
_GRAPH = re.compile(r"^## Call CompiledFxGraph ([0-9a-z]{1,100})")
_LOOKUP = re.compile(r"^TorchDynamo Cache Lookup")
_COMPILES = re.compile(r"^entire_frame_compile$|^_compile\.compile_inner \(dynamo_timed\)$")
_OP = re.compile(r"^(?!Torch-Compiled|TorchDynamo|Pregraph|AOTDispatcher|CompiledFunction|## |ProfilerStep)")
_OTHER_PROGRAM = "Give the log of the traced run: TORCH_TRACE=DIR python PROGRAM, with the profiler in the same run."


class _Call(msgspec.Struct, frozen=True):
    """A compiled region or a compiled graph, on a thread. id: of the region; key: of the graph, "" of a region."""

    start_us: float
    end_us: float
    id: CompileId | None
    key: str = ""


class _Priced(msgspec.Struct):
    """The spans that a compilation costs. Those of a break are alike, and their median is robust: a mean would hold each pause of the process."""

    start_us: list[float] = msgspec.field(default_factory=list)
    end_us: list[float] = msgspec.field(default_factory=list)
    called_us: list[float] = msgspec.field(default_factory=list)
    """When the graph that begins at each end returns."""

    def add(self, start_us: float, end_us: float, called_us: float = 0.0) -> None:
        self.start_us.append(start_us)
        self.end_us.append(end_us)
        self.called_us.append(called_us)

    def typical_us(self, inside: Spans | None = None) -> float:
        """The median of all spans times their number; of their parts inside other spans."""
        start, end = np.array(self.start_us), np.array(self.end_us)
        took = end - start if inside is None else overlap_with(start, end, inside)
        return float(np.median(took)) * len(took)


class CompileCostTable(msgspec.Struct, frozen=True):
    """A row a line and kind, the spans that it is priced by, and the graphs that begin behind its breaks. Raises UsageError if no log is of the traced program."""

    costs: CompileCosts
    spans: tuple[Spans, ...]
    calls: tuple[Spans, ...]

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, launches: Launches, given: CompileLogs) -> CompileCostTable:
        by_thread = _by_thread(timeline)
        log = _log_of(given, by_thread)
        found = _Costs(timeline, steps, launches, log, by_thread)
        priced = sorted((*found.breaks(), *found.recompilations()), key=lambda one: (-(one[0].us or 0.0), one[0].source.file, one[0].source.line))
        rows, spans, calls = (tuple(column) for column in zip(*priced, strict=True)) if priced else ((), (), ())
        seconds = sum(one.seconds for one in log.compilations)
        functions = len({one.compile_id[0] for one in log.compilations})
        return cls(CompileCosts(rows=rows, functions=functions, compilations=len(log.compilations), seconds=seconds), spans, calls)


class _Costs(msgspec.Struct, frozen=True):
    timeline: Timeline
    steps: Steps
    launches: Launches
    log: CompileLog
    by_thread: dict[tuple[int, int], list[_Call]]

    def breaks(self) -> Iterator[tuple[CompileCost, Spans, Spans]]:
        """Each graph break of a compilation that ran, by its line."""
        functions = {one.compile_id: one.function for one in self.log.compilations}
        by_line: dict[tuple[str, int], list[LoggedBreak]] = defaultdict(list)
        for one in self.log.breaks:
            by_line[one.file, one.line].append(one)
        priced = self._between_graphs()
        ops = self.timeline.cpu_ops
        eager, lookups = (spans_of(ops, matches(ops, pattern)) for pattern in (_OP, _LOOKUP))
        for (file, line), logged in by_line.items():
            mine = [priced[one.compile_id] for one in logged if one.compile_id in priced]
            ends = np.array([at for one in mine for at in one.end_us])
            spans = union(np.array([at for one in mine for at in one.start_us]), ends)
            calls = union(ends, np.array([at for one in mine for at in one.called_us]))
            first = logged[0]
            row = CompileCost(
                kind="graph-break",
                source=SourceLine(file=file, line=line),
                function=_source_function(functions.get(first.compile_id, "")),
                reason=first.reason,
                count_a_step=sum(len(one.start_us) for one in mine) / self.steps.steps,
                us=sum(one.typical_us() for one in mine) / self.steps.steps if mine else None,
                eager_us=sum(one.typical_us(eager) for one in mine) / self.steps.steps,
                lookup_us=sum(one.typical_us(lookups) for one in mine) / self.steps.steps,
                kernels=self._kernels(spans),
                instead=instead_of_break(first.reason),
                unpriced="" if mine else self._unpriced(logged),
            )
            yield row, spans, calls

    def recompilations(self) -> Iterator[tuple[CompileCost, Spans, Spans]]:
        """Each function that was compiled again, with its compile time inside the window."""
        by_function: dict[int, list[LoggedCompilation]] = defaultdict(list)
        for one in self.log.compilations:
            if one.compile_id[1] > 0:
                by_function[one.compile_id[0]].append(one)
        took = self._compiling()
        for again in by_function.values():
            mine = [took[one.compile_id] for one in again if one.compile_id in took]
            spans = union(np.array([at for one in mine for at in one.start_us]), np.array([at for one in mine for at in one.end_us]))
            first, reason = again[0], next((one.reason for one in again if one.reason), "")
            row = CompileCost(
                kind="recompilation",
                source=SourceLine(file=first.file, line=first.line),
                function=_source_function(first.function),
                reason=_without_source(reason),
                count_a_step=len(spans[0]) / self.steps.steps,
                us=float((spans[1] - spans[0]).sum()) / self.steps.steps,
                instead=instead_of_recompilation(reason),
            )
            yield row, spans, (np.zeros(0), np.zeros(0))

    def _unpriced(self, logged: list[LoggedBreak]) -> str:
        """Why the trace says nothing of the price of a line's breaks."""
        ran = {call.id for calls in self.by_thread.values() for call in calls}
        if all(one.eager for one in logged):
            return "Dynamo gave its function up: all of it runs eagerly"
        if not any(one.compile_id in ran for one in logged):
            return "its code did not run in the trace"
        return "no compiled graph ran both before and after it in the steps"

    def _between_graphs(self) -> dict[CompileId, _Priced]:
        """By the compilation that ends in a break, from each graph to the next. Resumed code runs inside the region of the code that broke. So a break belongs
        to the innermost region around the next graph's own. Backward graphs have no regions: they run in the reverse order of the forward graphs."""
        broken = {one.compile_id for one in self.log.breaks}
        found: dict[CompileId, _Priced] = defaultdict(_Priced)
        forward: dict[tuple[CompileId, CompileId], CompileId] = {}
        outside: list[tuple[_Call, _Call]] = []
        for calls in self.by_thread.values():
            open_regions: list[_Call] = []
            before: _Call | None = None
            for call in calls:
                while open_regions and open_regions[-1].end_us <= call.start_us:
                    open_regions.pop()
                if not call.key:
                    open_regions.append(call)
                    continue
                owner = next((one.id for one in reversed(open_regions[:-1]) if one.id in broken), None)
                if before and owner and before.start_us >= open_regions[0].start_us:
                    self._add(found[owner], before, call)
                    forward[self._id_of(before), self._id_of(call)] = owner
                elif before and not open_regions:
                    outside.append((before, call))
                before = replace(call, id=open_regions[-1].id if open_regions else None)
        for before, call in outside:
            if owner := forward.get((self._id_of(call), self._id_of(before))):
                self._add(found[owner], before, call)
        return {key: one for key, one in found.items() if one.start_us}

    def _id_of(self, graph: _Call) -> CompileId:
        """The compilation that a graph is of, as its region says; outside of regions as its key does, unless equal graphs share it."""
        of_key = self.log.graphs.get(graph.key, ())
        return graph.id or (of_key[0] if len(of_key) == 1 else (-1, -1))

    def _add(self, to: _Priced, before: _Call, call: _Call) -> None:
        if self.steps.host_start_us <= before.end_us < min(call.start_us, self.steps.host_end_us):
            to.add(before.end_us, call.start_us, call.end_us)

    def _compiling(self) -> dict[CompileId, _Priced]:
        """By compilation, its ranges inside the window. A function runs right after it has been compiled: the next region says which it was."""
        found: dict[CompileId, _Priced] = defaultdict(_Priced)
        for frame in (self.timeline.cpu_ops, self.timeline.annotations):
            for start, dur, pid, tid in frame[np.flatnonzero(matches(frame, _COMPILES))].rows("start_us", "dur_us", "pid", "tid"):
                if not self.steps.host_start_us <= start < self.steps.host_end_us:
                    continue
                calls = self.by_thread.get((pid, tid), [])
                at = bisect_left(calls, start + dur, key=lambda one: one.start_us)
                ran = next((one.id for one in calls[at:] if not one.key), None)
                if ran:
                    found[ran].add(start, start + dur)
        return found

    def _kernels(self, spans: Spans) -> int:
        calls = self.timeline.api_calls
        inside = np.r_[begins_inside(calls, spans), False]
        kernels = np.asarray(self.timeline.gpu_ops["kind"] == GpuKind.KERNEL.value)
        return int((inside[self.launches.call] & kernels).sum())


def _by_thread(timeline: Timeline) -> dict[tuple[int, int], list[_Call]]:
    """Regions and graphs of each thread, by start; of those that start together, the longer first."""
    found: dict[tuple[int, int], list[_Call]] = defaultdict(list)
    for frame in (timeline.cpu_ops, timeline.annotations):
        for pattern in (_REGION, _GRAPH):
            for name, start, dur, pid, tid in frame[np.flatnonzero(matches(frame, pattern))].rows("name", "start_us", "dur_us", "pid", "tid"):
                named = pattern.search(str(name))
                if named is None:
                    continue
                is_region = pattern is _REGION
                call = _Call(start, start + dur, (int(named[1]), int(named[2])) if is_region else None, "" if is_region else named[1])
                found[pid, tid].append(call)
    return {thread: sorted(calls, key=lambda one: (one.start_us, -one.end_us)) for thread, calls in found.items()}


def _log_of(given: CompileLogs, by_thread: dict[tuple[int, int], list[_Call]]) -> CompileLog:
    """The log of the process that was traced. Raises UsageError if none is, or several may be."""
    regions = {one.id for calls in by_thread.values() for one in calls if one.id}
    keys = {one.key for calls in by_thread.values() for one in calls if one.key}
    if not regions:
        told = "the trace holds no region that torch.compile compiled, so --compile-log says nothing about it"
        raise UsageError(told, "Record steps of the compiled program with torch.profiler, PyTorch 2.6 or newer.")
    fitting = [log for log in given.logs if _fits(log, regions, keys)]
    if not fitting:
        shown = ", ".join(f"{function}/{number}" for function, number in sorted(regions)[:3])
        told = f"{_names(given.logs)} and the trace are of different programs: the log lacks compiled regions or graphs of the trace (regions {shown})"
        raise UsageError(told, _OTHER_PROGRAM)
    if len(fitting) > 1:
        raise UsageError(f"{_names(fitting)} fit the trace equally well", "Give --compile-log the log of the traced process.")
    return fitting[0]


def _fits(log: CompileLog, regions: set[CompileId], keys: set[str]) -> bool:
    """Whether a log has all regions of a trace and, if it names graphs, any of its graphs. All programs number functions from 0."""
    named = {one.compile_id for one in log.compilations}
    return regions <= named and (not keys or not log.graphs or bool(keys & log.graphs.keys()))


def _names(logs: Sequence[CompileLog]) -> str:
    return logs[0].path + (f" and {counted(len(logs) - 1, 'other log')}" if len(logs) > 1 else "")


def _without_source(guard: str) -> str:
    """A guard without the comment that repeats its line of code."""
    return guard.partition("  #")[0].rstrip()


def _source_function(name: str) -> str:
    """The function that the code is of: `f` of `torch_dynamo_resume_in_f_at_20`."""
    resumed = re.match(r"torch_dynamo_resume_in_(.{1,300}?)_at_\d{1,9}$", name)
    return resumed[1] if resumed else name
