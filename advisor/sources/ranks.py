"""The ranks of a job: their files, the rank of each, and exports with several processes."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import ClassVar

import msgspec
import numpy as np

from advisor.errors import TraceError
from advisor.files import is_ours
from advisor.knowledge.formats import HEAD_BYTES
from advisor.knowledge.shares import HARDLY_ANY, MOST, VIRTUALLY_ALL
from advisor.knowledge.structs import replace
from advisor.recordings.columns import Table
from advisor.recordings.recording import Recording
from advisor.recordings.timeline import TABLES, ReadIssue, Timeline
from advisor.report.model import Kind
from advisor.report.numbers import counted
from advisor.sources.captures import is_capture
from advisor.sources.paths import is_remote, open_binary
from advisor.sources.sniff import is_memory, source_of
from advisor.sources.stages import by_coordinates, by_process, without_wholes
from advisor.sources.stream import Stream

_PACKED = ("", ".gz", ".zst")
_TELLING, _JSON, _SNAPSHOTS = (tuple(f"{suffix}{packed}" for packed in _PACKED) for suffix in (".pt.trace.json", ".json", ".pickle"))
_EXPORTS, _PACKED_EXPORTS = (".sqlite",), (".sqlite.gz", ".sqlite.zst")
_COLUMNS = ".trace.zst"
"""What `advisor convert` writes."""
_OTHERS = tuple(f"{suffix}{packed}" for suffix in (".ncu-rep", ".xplane.pb") for packed in _PACKED)
_TOLD_INSIDE = {".csv": "ncu", ".prof": "memory"}
"""What other programs write too: which source has to know it for a recording."""

_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,18})(?!\d)", re.IGNORECASE)
_PROCESS_IN_NAME = re.compile(r"(?:worker|gpu|proc(?:ess)?)[-_.]?(\d{1,18})(?!\d)", re.IGNORECASE)
_MACHINE_IN_NAME = re.compile(
    r"[^/]+(?<!worker)(?<!gpu)(?<!proc)(?<!process)_\d+\.\d{13,}\.pt\.trace\.json(?:\.gz|\.zst)?|[^/]+\.xplane\.pb(?:\.gz)?|[^/]+_[A-Z][a-z]{2}(?:_\d{2}){4}\.pickle(?:\.gz)?"
)
"""Files that torch's trace handler, JAX and the recipe for memory snapshots name by their machine, which may be called gpu0423 or worker-3."""
_NUMBER_IN_NAME = re.compile(r"(\d+)")
_HOST_IN_NAME = re.compile(r"(?P<host>[^/]+)_\d+\.(?:\d+\.)?pt\.trace\.json(?:\.gz|\.zst)?")
_CYCLE_IN_NAME = re.compile(r"(?P<process>.*_\d+)\.(?P<time>\d{10,})\.pt\.trace\.json(?:\.gz|\.zst)?")
_CYCLE_OF_OURS = re.compile(r"(?P<process>(?:.*/)?trace)(?:-(?P<cycle>\d{1,18}))?\.json(?:\.gz)?")
_CYCLE_INSIDE = re.compile(rb'\{"advisor_recording": \{"profiler": "(?P<profiler>[0-9a-f]{16})", "cycle": (?P<cycle>\d{1,18}),')
_TIMES_OF_OURS = re.compile(rb'\{"advisor_recording": \{"unprofiled_step_us": \[[^\]]*\], "warmup_step_us":')
_COMMUNICATES = re.compile(r"nccl|rccl|oneccl", re.IGNORECASE)


class RankTrace(msgspec.Struct, frozen=True):
    """A rank's trace: its path, or the timeline itself if a file has several. `named` is the rank by its name."""

    path: str
    label: str
    named: int | None = None
    timeline: Timeline | None = None
    stages: tuple[str, ...] = ()
    """Further traces of the same process, each of another stage."""
    run: str = ""
    """The run of a log of JAX that was picked, by its directory's name."""

    @property
    def host(self) -> str:
        """The machine by the file's name as torch's `tensorboard_trace_handler` gives it, "" if it has another."""
        match = _HOST_IN_NAME.fullmatch(self.label.rpartition("/")[2])
        return "" if match is None or _rank_in(match[0]) is not None else match["host"]


class JobTraces(msgspec.Struct, frozen=True):
    """The initial part of a job: unread traces, ordered by name. `notes` are warnings about
    them. `chosen` describes the files that they were chosen from; it is no warning."""

    part_of: ClassVar[Kind] = "job"
    traces: tuple[RankTrace, ...]
    notes: tuple[str, ...] = ()
    chosen: str = ""


def traces_among(names: Sequence[str]) -> list[str]:
    """The traces among a directory's files: those with the most specific suffix among them.

    Any program writes a `.json`: a file without events is a trace only if nothing else could be, or if its name has a rank.
    A file and its packed copy count once."""
    names = _without_byproducts(_without_packed_copies(names))
    plain = [n for n in names if n.endswith(_JSON) and not _named_as_settings(n)]
    found = [n for n in names if n.endswith(_TELLING)] or [n for n in names if n.endswith(_JSON) and _is_trace(n)]
    columns = [n for n in names if n.endswith(_COLUMNS)]
    exports = [n for n in names if n.endswith(_EXPORTS)] or [n for n in names if n.endswith(_PACKED_EXPORTS)]
    return sorted(found or columns or exports or ([] if snapshots_among(names) else plain), key=_natural)


def recordings_among(names: Sequence[str]) -> list[str]:
    """The recordings among a directory's files, of any kind, to be analyzed separately. Files of advisor are none. An unreadable file
    counts, so that it is reported."""

    def recorded(name: str) -> bool:
        begin = b"" if is_remote(name) else head(name)
        if name.endswith(_JSON) and not name.endswith(_TELLING):
            return not is_ours(begin) and _is_trace(name)
        if name.endswith(_SNAPSHOTS):
            return not is_memory(begin) or _SNAPSHOT_KEYS.search(begin) is not None
        known = name.endswith((*_TELLING, *_EXPORTS, *_PACKED_EXPORTS, *_OTHERS, _COLUMNS))
        kind = _TOLD_INSIDE.get(PurePath(name.removesuffix(".gz").removesuffix(".zst")).suffix)
        return known or (kind is not None and source_of(begin) == kind)

    return sorted(filter(recorded, _without_byproducts(_without_packed_copies(names))), key=_natural)


def _without_byproducts(names: list[str]) -> list[str]:
    """Files without a server's additional traces: of its graphs' captures, of its front end, and the merge of all ranks. All files if there is nothing else."""
    return without_wholes([n for n in names if not is_capture(n)] or names)


def _without_packed_copies(names: Sequence[str]) -> list[str]:
    """Files without packed copies of other files."""
    there = {*names}
    return [n for n in names if not n.endswith(_PACKED[1:]) or n.rpartition(".")[0] not in there]


def _named_as_settings(name: str) -> bool:
    return PurePath(name).name.startswith(("manifest", "config", "meta"))


def _is_trace(name: str) -> bool:
    """Whether a JSON file may be a trace: by the rank in its name, else by its content, as models are called meta too."""
    return (_rank_in(PurePath(name).name) is not None and not _named_as_settings(name)) or not _holds_no_events(name)


def others_left(names: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """A directory's recordings that are neither chosen nor packed from a chosen file."""
    kept, names = {*chosen}, _without_byproducts(list(names))
    return recordings_among([n for n in names if not {n, n.removesuffix(".gz"), n.removesuffix(".zst")} & kept]) if chosen else []


def timelines_among(names: Sequence[str]) -> list[str]:
    """Recordings of a program's run over time, by their names: not measured kernels, nor memory."""
    return [name for name in names if name.endswith((*_JSON, *_EXPORTS, *_PACKED_EXPORTS, *_OTHERS)) and ".ncu-rep" not in name]


def snapshots_among(names: Sequence[str]) -> list[str]:
    """Which of a directory's files are snapshots of memory, by their names."""
    return sorted((name for name in names if name.endswith(_SNAPSHOTS)), key=_natural)


_LARGEST_OTHER_BYTES = 1 << 20  # a file of settings or a log beside traces is smaller
_EVENTS = re.compile(rb'"(?:traceEvents|ph)"\s*:')
_BEFORE_EVENTS = re.compile(rb'"(?:schemaVersion|deviceProperties|displayTimeUnit|stackFrames|advisor_recording)"\s*:')
_SNAPSHOT_KEYS = re.compile(rb"segments|device_traces")


def _holds_no_events(path: str) -> bool:
    """Whether a file is JSON without events: settings, results, a saved report. A truncated or remote file may be a rank's trace, and is not
    left out silently. The beginning of a large file shows whether events may follow."""
    text = b"" if is_remote(path) and not _named_as_settings(path) else head(path, _LARGEST_OTHER_BYTES)
    if _EVENTS.search(text):
        return False
    if len(text) == _LARGEST_OTHER_BYTES:
        return text.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")) and b"\0" not in text and not _BEFORE_EVENTS.search(text)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def latest_among(traces: Sequence[str]) -> list[str]:
    """Only the last of a process's recordings, which are successive cycles of its profiler. Torch's `tensorboard_trace_handler` names them by host, process and
    time. Advisor's `trace_handler` marks them inside and by their names. Files with different ranks inside are of different processes in any case."""
    cycles = {path: cycle for path in traces if (cycle := _cycle_by_name(path) or _cycle_inside(path))}
    several = {process for process, count in Counter(process for process, _ in cycles.values()).items() if count > 1}
    latest: dict[tuple[str, int | None], str] = {}
    for path, (process, _) in sorted(cycles.items(), key=lambda item: item[1][1]):
        if process in several:
            latest[process, _rank_inside(path)] = path
    kept = {*latest.values()}
    return [path for path in traces if path in kept or path not in cycles or cycles[path][0] not in several]


def _cycle_by_name(path: str) -> tuple[str, int] | None:
    """The process of a recording and which of its cycles it is, as torch's handler names it."""
    match = _CYCLE_IN_NAME.fullmatch(path)
    return (match["process"], int(match["time"])) if match else None


def _cycle_inside(path: str) -> tuple[str, int] | None:
    """The same for advisor's handler, which also names its files so if it wrote only times."""
    begin = b"" if is_remote(path) or not path.endswith(_JSON) else head(path)
    if match := _CYCLE_INSIDE.match(begin):
        return match["profiler"].decode(), int(match["cycle"])
    named = _CYCLE_OF_OURS.fullmatch(path) if _TIMES_OF_OURS.match(begin) else None
    return (named["process"], int(named["cycle"] or 0)) if named else None


def job_of(paths: Sequence[str], path: str, chosen: str = "", run: str = "") -> Recording:
    """The recording of a job with these files as its traces."""
    return Recording("job", path, (JobTraces(tuple(replace(trace, run=run) for trace in rank_traces(paths)), chosen=chosen),))


def rank_traces(paths: Sequence[str]) -> tuple[RankTrace, ...]:
    """Files of a job as its ranks, in order."""
    several = by_process(paths)
    labels = _labels([one[0] for one in several]) if paths else []
    return tuple(RankTrace(one[0], label, number, stages=one[1:]) for one, label, number in zip(several, labels, _by_names(labels), strict=True))


def _labels(paths: Sequence[str]) -> list[str]:
    """Each file's name, with the directories that distinguish equal names."""
    parts, labels = [PurePath(p).parts for p in paths], list(paths)
    for kept in range(1, max(len(p) for p in parts) + 1):
        labels = ["/".join(p[-kept:]) for p in parts]
        if len(set(labels)) == len(labels):
            break
    return labels


def _natural(name: str) -> list[tuple[int, str]]:
    """rank10 after rank9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBER_IN_NAME.split(name)]


def _rank_in(label: str) -> int | None:
    """The rank that a file's name says, or its directories; what only a machine's name says is none."""
    directory, _, name = label.rpartition("/")
    match = _RANK_IN_NAME.search(label) or _PROCESS_IN_NAME.search(directory if _MACHINE_IN_NAME.fullmatch(name) else label)
    return int(match[1]) if match else None


def _by_names(labels: Sequence[str]) -> list[int | None]:
    """Each file's rank by its name; None for all if the names do not distinguish them."""
    numbers = [_rank_in(label) for label in labels]
    if labels and not any(number is not None for number in numbers):
        numbers = list(by_coordinates(labels))
    return numbers if len(set(numbers)) == len(numbers) else [None] * len(labels)


_RANK_INSIDE = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,18})(?!\d)')


def holds_ranks(directory: str | os.PathLike[str]) -> bool:
    """Whether the traces in a directory, or else its snapshots of memory, are the ranks of a job: each has another rank, inside or by its name.
    Otherwise they are captures of the same program."""
    with os.scandir(directory) as entries:
        names = sorted(entry.path for entry in entries if entry.is_file())
    traces = latest_among(traces_among(names)) or snapshots_among(names)
    if len(traces) < 2:
        return False
    inside = [_rank_inside(path) for path in traces]
    told = inside if all(rank is not None for rank in inside) else _by_names([PurePath(path).name for path in traces])
    return None not in told and len(set(told)) == len(told)


def _rank_inside(path: str) -> int | None:
    """The rank that the head of a Kineto trace says."""
    match = None if is_remote(path) else _RANK_INSIDE.search(head(path))
    return int(match[1]) if match else None


def head(path: str, size: int = HEAD_BYTES) -> bytes:
    """The first bytes of a file, unpacked; b"" if it cannot be read."""
    try:
        with open_binary(path)[0] as file:
            return Stream(file).peek(size)
    except (OSError, TraceError):
        return b""


OF_ONE_FILE = "ranks of one file are numbered by the names that it gives their processes"


def of_one_file(ranks: Mapping[str, Timeline], path: str) -> Recording:
    """The job with ranks that were merged into a file, by the name of each: the number in it, or its position."""
    names = sorted(ranks, key=_natural)
    found = [_NUMBER_IN_NAME.findall(name) for name in names]
    told = [int(numbers[0]) if len(numbers) == 1 else -1 for numbers in found]
    numbers = told if len({*told}) == len(told) and min(told) >= 0 else [*range(len(names))]
    events = sum(ranks[name].source.events for name in names)
    traces = []
    for name, number in zip(names, numbers, strict=True):
        source = ranks[name].source
        share = source.bytes * source.events // max(events, 1)
        traces.append(RankTrace(path, name, number, replace(ranks[name], source=replace(source, rank=number, bytes=share))))
    notes = () if numbers is told else (OF_ONE_FILE,)
    return Recording("job", path, (JobTraces(tuple(traces), notes, f"{counted(len(names), 'rank')} of the same job were merged in the file"),))


OF_ONE_EXPORT = "ranks of one file are numbered by the device that each process uses"


def split(timeline: Timeline) -> list[Timeline]:
    """The processes of a recording, with a timeline each by device, if several of them communicate; else the given timeline.

    Host tables go to the process with the calls that launched the device's work. A process is ranked by its device."""
    ops = timeline.gpu_ops
    if (ops["device"] == ops["device"][:1]).all():
        return [timeline]
    owner = _owners(timeline)
    if len(owner) < 2 or {*ops["device"][ops["name"].matching(_COMMUNICATES.search)].tolist()} != {*owner}:
        return [timeline]
    return [_only_rank(timeline, number, process, rank, len(owner)) for rank, (number, process) in enumerate(sorted(owner.items()))]


LAUNCHED = MOST
"""Of a device's ops: what launched fewer is not the process that works on it."""

CAUSAL = VIRTUALLY_ALL
"""Of the ops that two processes may have launched, by their ids: the launching process made its calls before nearly all of them began."""


REPEATED = 0.01
"""Share of a recording's GPU ops. A profiler never assigns an id twice; damaged records repeat fewer."""


def repeats_ids(timeline: Timeline) -> bool:
    """Whether calls of several processes share the ids that tie GPU work to its launch: then recordings were merged."""
    calls = np.unique(np.c_[timeline.api_calls["correlation"], timeline.api_calls["pid"]], axis=0)
    ids, times = np.unique(calls[:, 0], return_counts=True)
    shared = np.isin(timeline.gpu_ops["correlation"], ids[(times > 1) & (ids >= 0)])
    return int(shared.sum()) > REPEATED * len(shared)


def _owners(timeline: Timeline) -> dict[int, int]:
    """The process that works on each device; {} unless each has its own."""
    ops, calls = timeline.gpu_ops, timeline.api_calls
    device, tied = ops["device"], ops["correlation"] >= 0
    may: dict[int, set[int]] = {number: set() for number in np.unique(device).tolist()}
    early: dict[int, set[int]] = {number: set() for number in may}
    for process in np.unique(calls["pid"]).tolist():
        of = calls.select("correlation", "start_us")[calls["pid"] == process].sorted_by("correlation")
        keys, start = of["correlation"], of["start_us"]
        at = np.minimum(np.searchsorted(keys, ops["correlation"]), len(keys) - 1)
        launched = tied & (keys[at] == ops["correlation"])
        before = launched & (start[at] <= ops["start_us"])
        for number in may:
            here = tied & (device == number)
            if launched[here].sum() > LAUNCHED * max(here.sum(), 1):
                may[number].add(process)
                if before[here].sum() >= CAUSAL * launched[here].sum():
                    early[number].add(process)
    # Of ranks in step the one that is ahead may have launched the work of all, by time: its own device is told first, by the others.
    may = {number: found if len(found) < 2 else early[number] for number, found in may.items()}
    owner: dict[int, int] = {}
    while told := {number: next(iter(left)) for number, found in may.items() if number not in owner and len(left := found - {*owner.values()}) == 1}:
        owner |= told
    return owner if len({*owner.values()}) == len(may) else {}


def _only_rank(timeline: Timeline, device: int, process: int, rank: int, world_size: int) -> Timeline:
    tables = {}
    for name, spec in TABLES.items():
        frame = getattr(timeline, name)
        column, value = ("device", device) if name in ("gpu_ops", "gpu_annotations", "gpu_metrics", "syncs") else ("pid", process)
        tables[name] = frame[frame[column] == value] if column in spec and len(frame) else frame
    whole = timeline.source
    source = replace(whole, rank=rank, world_size=world_size, bytes=whole.bytes // world_size, events=whole.events // world_size)
    return Timeline.build(source, tuple(d for d in timeline.devices if d.id == device), timeline.base_ns, **tables)


def each_timeline(recording: Recording, change: Callable[[Timeline], Timeline]) -> Recording:
    """The recording with every timeline changed, including those of ranks in the same file."""

    def changed(part: object) -> object:
        if isinstance(part, JobTraces):
            return replace(part, traces=tuple(replace(one, timeline=one.timeline and change(one.timeline)) for one in part.traces))
        return change(part) if isinstance(part, Timeline) else part

    return replace(recording, parts=tuple(map(changed, recording.parts)))


def recording_of(timeline: Timeline, path: str) -> Recording:
    """The recording of an export, or of recordings merged in a file: a job if it has several communicating processes."""
    parts = split(timeline)
    if len(parts) == 1:
        return Recording("trace", path, (timeline,))
    traces = tuple(RankTrace(path, f"device {rank}", rank, part) for rank, part in enumerate(parts))
    return Recording("job", path, (JobTraces(traces, (OF_ONE_EXPORT,)),))


OTHERS = HARDLY_ANY
"""Of the time of an export's GPU ops: what other processes ran for less is no second program."""


def of_busiest_process(timeline: Timeline) -> Timeline:
    """Among processes that do not communicate, the process with the most device time, and the left out processes. A step belongs to a single process,
    without work of others."""
    ops, calls = timeline.gpu_ops, timeline.api_calls.select("pid", "correlation")
    if not len(ops) or (calls["pid"] == calls["pid"][:1]).all():
        return timeline
    calls = calls[calls["correlation"] >= 0]
    pids, of_call = np.unique(calls["pid"], return_inverse=True)
    if len(pids) < 2:
        return timeline
    order = np.argsort(calls["correlation"], kind="stable")
    keys, owners = calls["correlation"][order], of_call[order]

    def owner(rows: Table) -> np.ndarray:
        at = np.minimum(np.searchsorted(keys, rows["correlation"]), len(keys) - 1)
        return np.where(keys[at] == rows["correlation"], owners[at], -1)

    of_op, us = owner(ops), ops["dur_us"]
    each = np.bincount(of_op[of_op >= 0], weights=us[of_op >= 0], minlength=len(pids))
    main, left = int(each.argmax()), np.flatnonzero(each >= OTHERS * us.sum())
    if len(left) < 2:
        return timeline
    tables = {}
    for name, spec in TABLES.items():
        frame = getattr(timeline, name)
        if "pid" in spec:
            frame = frame[frame["pid"] == pids[main]]
        elif "correlation" in spec:
            frame = frame[np.isin(owner(frame), (main, -1))]
        tables[name] = frame
    told = f"of {len(left)} processes that do not communicate, {pids[main]} was read, whose work takes {each[main] / us.sum():.0%} of the GPU ops' time; the others not"
    issue = ReadIssue("one-process", told, "ok")
    return Timeline.build(replace(timeline.source, issues=(*timeline.source.issues, issue)), timeline.devices, timeline.base_ns, **tables)
