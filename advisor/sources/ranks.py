"""The ranks of a job: which files are theirs, which rank each is, and one export that holds several processes."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import ClassVar

import numpy as np

from advisor.errors import TraceError
from advisor.files import is_ours
from advisor.recordings.recording import Recording
from advisor.recordings.timeline import TABLES, Timeline
from advisor.report.model import Kind
from advisor.sources.paths import is_remote, open_binary
from advisor.sources.sniff import is_memory, source_of
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


@dataclass(frozen=True)
class RankTrace:
    """One rank's trace: where it lies, or the timeline itself where one file holds several. `named` is the rank by its name."""

    path: str
    label: str
    named: int | None = None
    timeline: Timeline | None = None
    run: str = ""
    """The run of a log of JAX that was picked, by its directory's name."""

    @property
    def host(self) -> str:
        """The machine by the file's name as torch's `tensorboard_trace_handler` gives it, "" where it has another."""
        match = _HOST_IN_NAME.fullmatch(self.label.rpartition("/")[2])
        return "" if match is None or _rank_in(match[0]) is not None else match["host"]


@dataclass(frozen=True)
class JobTraces:
    """The part that a job begins as: traces that are still to be read, in the order of their names. `notes` say what may be wrong with
    them, `chosen` what they were taken from, with which nothing is."""

    part_of: ClassVar[Kind] = "job"
    traces: tuple[RankTrace, ...]
    notes: tuple[str, ...] = ()
    chosen: str = ""


def traces_among(names: Sequence[str]) -> list[str]:
    """Which of a directory's files are traces: those with the most telling suffix that any of them has.

    Any program writes a `.json`: one that holds no events is a trace only where nothing else could be what is meant, or its name says a rank.
    A file and what packed it are one.
    """
    names = _once(names)
    plain = [n for n in names if n.endswith(_JSON) and not _named_as_settings(n)]
    found = [n for n in names if n.endswith(_TELLING)] or [n for n in names if n.endswith(_JSON) and _is_trace(n)]
    columns = [n for n in names if n.endswith(_COLUMNS)]
    exports = [n for n in names if n.endswith(_EXPORTS)] or [n for n in names if n.endswith(_PACKED_EXPORTS)]
    return sorted(found or columns or exports or ([] if snapshots_among(names) else plain), key=_natural)


def recordings_among(names: Sequence[str]) -> list[str]:
    """Which of a directory's files are recordings, of whatever kind, to be looked at one by one. What advisor wrote is none; what only fails to
    be read is one, so that it is said."""

    def recorded(name: str) -> bool:
        begin = b"" if is_remote(name) else head(name)
        if name.endswith(_JSON) and not name.endswith(_TELLING):
            return not is_ours(begin) and _is_trace(name)
        if name.endswith(_SNAPSHOTS):
            return not is_memory(begin) or _SNAPSHOT_KEYS.search(begin) is not None
        known = name.endswith((*_TELLING, *_EXPORTS, *_PACKED_EXPORTS, *_OTHERS, _COLUMNS))
        kind = _TOLD_INSIDE.get(PurePath(name.removesuffix(".gz").removesuffix(".zst")).suffix)
        return known or (kind is not None and source_of(begin) == kind)

    return sorted(filter(recorded, _once(names)), key=_natural)


def _once(names: Sequence[str]) -> list[str]:
    """Without what was packed of a file that lies there too."""
    there = {*names}
    return [n for n in names if not n.endswith(_PACKED[1:]) or n.rpartition(".")[0] not in there]


def _named_as_settings(name: str) -> bool:
    return PurePath(name).name.startswith(("manifest", "config", "meta"))


def _is_trace(name: str) -> bool:
    """Whether a file of JSON is to be taken for a trace: by the rank that its name says, else by what it holds, as models are called meta too."""
    return (_rank_in(PurePath(name).name) is not None and not _named_as_settings(name)) or not _holds_no_events(name)


def exports_left(names: Sequence[str], traces: Sequence[str]) -> list[str]:
    """Which of a directory's exports are none of the traces chosen of it, nor packed from one."""
    kept = {*traces}
    exports = (n for n in names if n.endswith(_EXPORTS + _PACKED_EXPORTS))
    return sorted((n for n in exports if not {n, n.removesuffix(".gz"), n.removesuffix(".zst")} & kept), key=_natural) if traces else []


def snapshots_among(names: Sequence[str]) -> list[str]:
    """Which of a directory's files are snapshots of memory, by their names."""
    return sorted((name for name in names if name.endswith(_SNAPSHOTS)), key=_natural)


_LARGEST_OTHER_BYTES = 1 << 20
_EVENTS = re.compile(rb'"(?:traceEvents|ph)"\s*:')
_BEFORE_EVENTS = re.compile(rb'"(?:schemaVersion|deviceProperties|displayTimeUnit|stackFrames|advisor_recording)"\s*:')
_SNAPSHOT_KEYS = re.compile(rb"segments|device_traces")


def _holds_no_events(path: str) -> bool:
    """Whether a file is JSON without events: settings, results, a saved report. What is cut off or far away may be a rank's trace, and is not
    left out unsaid; of what is large the beginning says whether events may follow."""
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
    """Of recordings of one process, one cycle of its profiler after the other, only the last: as torch's `tensorboard_trace_handler` names
    them, by host, process and time, or as advisor's `trace_handler` says inside of them and by their names. What says different ranks inside
    is of different processes all the same."""
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
    """Likewise as advisor's handler writes it; one that wrote no more than its times named its files all the same."""
    begin = b"" if is_remote(path) or not path.endswith(_JSON) else head(path)
    if match := _CYCLE_INSIDE.match(begin):
        return match["profiler"].decode(), int(match["cycle"])
    named = _CYCLE_OF_OURS.fullmatch(path) if _TIMES_OF_OURS.match(begin) else None
    return (named["process"], int(named["cycle"] or 0)) if named else None


def job_of(paths: Sequence[str], path: str, chosen: str = "", run: str = "") -> Recording:
    """The recording of a job whose traces are these files."""
    return Recording("job", path, (JobTraces(tuple(replace(trace, run=run) for trace in rank_traces(paths)), chosen=chosen),))


def rank_traces(paths: Sequence[str]) -> tuple[RankTrace, ...]:
    """Files of one job as its ranks, in their order."""
    labels = _labels(paths) if paths else []
    return tuple(RankTrace(p, label, number) for p, label, number in zip(paths, labels, _by_names(labels), strict=True))


def _labels(paths: Sequence[str]) -> list[str]:
    """Each file's name, with the directories that tell them apart where names do not."""
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
    """Each file's rank by its name; None for all where names do not tell them apart."""
    numbers = [_rank_in(label) for label in labels]
    return numbers if len(set(numbers)) == len(numbers) else [None] * len(labels)


_HEAD_BYTES = 1 << 16
_RANK_INSIDE = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,18})(?!\d)')


def holds_ranks(directory: str | os.PathLike[str]) -> bool:
    """Whether the traces in a directory, or else its snapshots of memory, are the ranks of one job, and not captures of one program: each
    says another rank, inside or by its name."""
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


def head(path: str, size: int = _HEAD_BYTES) -> bytes:
    """The first bytes of a file, unpacked; b"" of one that cannot be read."""
    try:
        with open_binary(path)[0] as file:
            return Stream(file).peek(size)
    except (OSError, TraceError):
        return b""


OF_ONE_EXPORT = "ranks of one export are numbered by the device that each process uses"


def split(timeline: Timeline) -> list[Timeline]:
    """The processes of an export, one timeline each by device, where several of them communicate; else the one given.

    Host tables go to the process whose calls launched the device's work. A process is ranked by its device.
    """
    ops, calls = timeline.gpu_ops, timeline.api_calls
    devices = np.unique(ops["device"].to_numpy())
    if len(devices) < 2 or not len(calls):
        return [timeline]
    order = np.argsort(calls["correlation"].to_numpy(), kind="stable")
    keys = calls["correlation"].to_numpy()[order]
    at = np.minimum(np.searchsorted(keys, ops["correlation"].to_numpy()), len(keys) - 1)
    launched = (keys[at] == ops["correlation"].to_numpy()) & (keys[at] >= 0)
    pid = np.where(launched, calls["pid"].to_numpy()[order][at], -1)
    talks = np.array([bool(_COMMUNICATES.search(name)) for name in ops["name"].cat.categories], bool)[ops["name"].cat.codes.to_numpy()]
    device = ops["device"].to_numpy()
    owner = {}
    for number in devices.tolist():
        here = (device == number) & (pid >= 0)
        if not here.any() or not talks[device == number].any():
            return [timeline]
        pids, counts = np.unique(pid[here], return_counts=True)
        owner[number] = int(pids[counts.argmax()])
    if len(set(owner.values())) < len(owner):
        return [timeline]
    return [_only(timeline, number, process, rank, len(owner)) for rank, (number, process) in enumerate(sorted(owner.items()))]


def _only(timeline: Timeline, device: int, process: int, rank: int, world_size: int) -> Timeline:
    tables = {}
    for name, spec in TABLES.items():
        frame = getattr(timeline, name)
        column, value = ("device", device) if name in ("gpu_ops", "gpu_annotations", "gpu_metrics", "syncs") else ("pid", process)
        kept = frame[frame[column] == value].reset_index(drop=True) if column in spec and len(frame) else frame
        tables[name] = kept
    source = replace(timeline.source, rank=rank, world_size=world_size)
    return Timeline.build(source, tuple(d for d in timeline.devices if d.id == device), timeline.base_ns, **tables)


def recording_of(timeline: Timeline, path: str) -> Recording:
    """The recording of an export: a job where several communicating processes stand in it."""
    parts = split(timeline)
    if len(parts) == 1:
        return Recording("trace", path, (timeline,))
    traces = tuple(RankTrace(path, f"device {rank}", rank, part) for rank, part in enumerate(parts))
    return Recording("job", path, (JobTraces(traces, (OF_ONE_EXPORT,)),))
