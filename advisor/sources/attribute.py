"""Two traces of the same program: the times of the light trace, with shapes, frames and memory of the deep trace.

Both have the same ops and calls of the host, step by step. So each is found in the other by its position among the
events of its thread. Between two matches, time is interpolated: frames of the deep trace are moved to the light trace's clock."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.shares import VIRTUALLY_ALL
from advisor.knowledge.structs import replace
from advisor.recordings.columns import Categorical, Table, concatenated
from advisor.recordings.timeline import TABLES, ReadIssue, Timeline, table

_STEP = re.compile(r"ProfilerStep\s*#?\s*\d+$")
_CARRIED = ("dims", "types", "strides", "concrete", "kernel_file", "call_stack", "module")

MATCHED_ENOUGH = VIRTUALLY_ALL
"""Of a light trace's ops. With fewer matches, its steps and the deep steps did different work."""

COMPARED = 4000
"""Longer stretches that differ are left unmatched: comparing them takes quadratic time."""


class _Events(msgspec.Struct, frozen=True):
    """Ops and runtime calls together, by start. row: in their table. op: whether it is an op. code: of the name, alike in both traces."""

    start_us: Floats
    end_us: Floats
    thread: Ints
    code: Ints
    row: Ints
    op: np.ndarray

    def in_step(self, step: tuple[float, float], thread: int) -> Ints:
        """Rows of a thread that began in a step."""
        first, last = np.searchsorted(self.start_us, step)
        return first + np.flatnonzero(self.thread[first:last] == thread)


def attributed(light: Timeline, deep: Timeline) -> Timeline:
    """The light timeline with the deep timeline's data of the same steps; unchanged if either has no marked steps."""
    steps, deep_steps = _steps(light), _steps(deep)
    if not steps or not deep_steps:
        return _noted(light, "neither shapes nor lines could be taken from the deep trace: no steps are marked")
    threads = {thread: i for i, thread in enumerate(sorted(_threads(light) | _threads(deep)))}
    codes: dict[str, int] = {}
    ours, theirs = _events(light, threads, codes), _events(deep, threads, codes)
    found = np.full(len(light.cpu_ops), -1, np.int64)
    frames: list[Table] = []
    memory: list[Table] = []
    for number, step in enumerate(steps):
        other = _alike(ours, theirs, step, deep_steps)
        for thread, i in threads.items():
            mine, yours = ours.in_step(step, i), theirs.in_step(other, i)
            a, b = _aligned(ours.code[mine], theirs.code[yours])
            mine, yours = mine[a], yours[b]
            ops = ours.op[mine]
            found[ours.row[mine[ops]]] = theirs.row[yours[ops]]
            clock = _clock(ours, theirs, mine, yours, step, other)
            frames.append(_laid(deep.python_calls, thread, other, clock, number))
            memory.append(_laid(deep.memory, thread, other, clock, number))
    inside = np.zeros(len(found), bool)
    starts = light.cpu_ops["start_us"]
    for start, end in steps:
        inside |= (starts >= start) & (starts < end)
    share = float((found[inside] >= 0).mean()) if inside.any() else 1.0
    tables = {name: getattr(light, name) for name in TABLES}
    tables |= {"cpu_ops": _carried(light.cpu_ops, deep.cpu_ops, found), "python_calls": _joined("python_calls", frames), "memory": _joined("memory", memory)}
    source = replace(
        light.source, shapes=deep.source.shapes, stacks=deep.source.stacks, memory=deep.source.memory, borrowed=True,
        bytes=light.source.bytes + deep.source.bytes, events=light.source.events + deep.source.events,
    )  # fmt: skip
    made = Timeline.build(source, light.devices, light.base_ns, **tables)
    if share < MATCHED_ENOUGH:
        return _noted(made, f"only {share:.0%} of the ops were found again in the deep trace: the others have neither shapes nor lines")
    return made


def _noted(timeline: Timeline, detail: str) -> Timeline:
    issues = (*timeline.source.issues, ReadIssue("attribution", detail))
    return replace(timeline, source=replace(timeline.source, issues=issues))


def _steps(timeline: Timeline) -> list[tuple[float, float]]:
    notes = timeline.annotations
    chosen = notes[np.array([bool(_STEP.match(name)) for name in notes["name"].categories], bool)[notes["name"].codes]] if len(notes) else notes
    return [(float(start), float(start + dur)) for start, dur in zip(chosen["start_us"], chosen["dur_us"], strict=True)]


def _threads(timeline: Timeline) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for frame in (timeline.cpu_ops, timeline.api_calls, timeline.python_calls):
        found |= set(frame.rows("pid", "tid"))
    return found


def _events(timeline: Timeline, threads: dict[tuple[int, int], int], codes: dict[str, int]) -> _Events:
    parts = []
    for kind, frame in (("op", timeline.cpu_ops), ("call", timeline.api_calls)):
        names = np.array([codes.setdefault(f"{kind} {name}", len(codes)) for name in frame["name"].categories], np.int64)
        pairs = zip(frame["pid"].tolist(), frame["tid"].tolist(), strict=True)
        parts.append((
            frame["start_us"], frame["start_us"] + frame["dur_us"],
            np.fromiter((threads[pair] for pair in pairs), np.int64, len(frame)),
            names[frame["name"].codes], np.arange(len(frame)), np.full(len(frame), kind == "op"),
        ))  # fmt: skip
    start, end, thread, code, row, op = (np.concatenate(column) for column in zip(*parts, strict=True))
    # Of two that begin together the longer is around the other.
    order = np.lexsort((-end, start))
    return _Events(*(column[order] for column in (start, end, thread, code, row, op)))


def _alike(ours: _Events, theirs: _Events, step: tuple[float, float], others: list[tuple[float, float]]) -> tuple[float, float]:
    """The deep step with the same events, thread by thread; else the step with the nearest number of events."""

    def difference(other: tuple[float, float]) -> tuple[bool, int]:
        mine, yours = slice(*np.searchsorted(ours.start_us, step)), slice(*np.searchsorted(theirs.start_us, other))
        count = (mine.stop - mine.start) - (yours.stop - yours.start)
        same = not count and bool((np.sort(ours.code[mine]) == np.sort(theirs.code[yours])).all())
        return not same, abs(int(count))

    return min(others, key=difference)


def _aligned(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Positions in `a` and `b` of their common elements, in order: a common head, a common tail, and matches between them."""
    n = min(len(a), len(b))
    head = int(np.argmin(np.r_[a[:n] == b[:n], False]))
    tail = int(np.argmin(np.r_[a[::-1][: n - head] == b[::-1][: n - head], False]))
    pairs = [(np.arange(head), np.arange(head))]
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    if len(middle_a) and len(middle_b) and max(len(middle_a), len(middle_b)) <= COMPARED:
        blocks = SequenceMatcher(None, middle_a.tolist(), middle_b.tolist(), autojunk=False).get_matching_blocks()
        pairs += [(head + block.a + np.arange(block.size), head + block.b + np.arange(block.size)) for block in blocks]
    pairs.append((len(a) - tail + np.arange(tail), len(b) - tail + np.arange(tail)))
    return np.concatenate([p for p, _ in pairs]), np.concatenate([q for _, q in pairs])


def _clock(ours: _Events, theirs: _Events, mine: Ints, yours: Ints, step: tuple[float, float], other: tuple[float, float]) -> tuple[Floats, Floats]:
    """Moments of the deep step and the same moments of the light step, both never decreasing."""
    deep = np.r_[other, theirs.start_us[yours], np.minimum(theirs.end_us[yours], other[1])]
    light = np.r_[step, ours.start_us[mine], np.minimum(ours.end_us[mine], step[1])]
    order = np.lexsort((light, deep))
    return deep[order], np.maximum.accumulate(light[order])


def _laid(frame: Table, thread: tuple[int, int], step: tuple[float, float], clock: tuple[Floats, Floats], number: int) -> Table:
    """A thread's rows in the deep step, cut to it, on the light step's clock. Ids are valid within this step only."""
    start = frame["start_us"]
    end = start + frame["dur_us"] if "dur_us" in frame else start
    chosen = (frame["pid"] == thread[0]) & (frame["tid"] == thread[1]) & (start < step[1]) & (end >= step[0])
    if "dur_us" not in frame:
        chosen &= start >= step[0]
    rows = frame[chosen]
    moved = np.interp(np.maximum(start[chosen], step[0]), *clock)
    columns = {"start_us": moved}
    if "dur_us" in frame:
        columns["dur_us"] = np.interp(np.minimum(end[chosen], step[1]), *clock) - moved
    if "python_id" in frame and len(frame):
        ids = int(frame["python_id"].max()) + 1
        for column in ("python_id", "parent_id"):
            known = rows[column]
            columns[column] = np.where(known >= 0, known + number * ids, known)
    return rows.with_columns(**columns)


def _joined(name: str, parts: list[Table]) -> Table:
    """The parts as a single table. They are cut from the same table, and so have the same categories."""
    some = [part for part in parts if len(part)]
    return concatenated(some) if some else table(name, {})


def _carried(ours: Table, theirs: Table, found: Ints) -> Table:
    """Our ops with what only the deep trace recorded of them."""

    def columns() -> Iterator[tuple[str, Categorical]]:
        for name in _CARRIED:
            texts = theirs[name].categories.tolist()
            texts += [] if "" in texts else [""]
            nothing = texts.index("")
            yield name, Categorical(np.where(found >= 0, theirs[name].codes[found] if len(theirs) else nothing, nothing), texts)

    return ours.with_columns(**dict(columns()))
