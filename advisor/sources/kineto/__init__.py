"""Reads the Chrome trace that torch.profiler (Kineto) writes into a Timeline.

What writes it: libkineto/src/output_json.cpp of github.com/pytorch/kineto.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import msgspec
import numpy as np

from advisor.errors import TraceError
from advisor.intervals import PIECE_ROWS
from advisor.knowledge import formats
from advisor.knowledge.op_tokens import split_overload
from advisor.knowledge.structs import replace
from advisor.recordings.columns import Categorical, Table, chosen, concatenated, distinct, of_type
from advisor.recordings.recording import Recording
from advisor.recordings.timeline import TABLES, Device, LeftOut, ReadIssue, Source, Timeline, empty_column, table
from advisor.report.numbers import counted
from advisor.sources.kineto import native
from advisor.sources.kineto.chunks import CHUNK_BYTES, Text
from advisor.sources.kineto.columns import DURATION, START, Merger, Microseconds, categorical, integer
from advisor.sources.kineto.events import Event
from advisor.sources.kineto.fields import LASTING
from advisor.sources.kineto.helper import Helper
from advisor.sources.kineto.numerals import without_no_numbers
from advisor.sources.kineto.threads import Threads
from advisor.sources.kineto.transpose import Piece, decode_piece, of_decoded, transpose
from advisor.sources.limits import MOST_LEFT_OUT
from advisor.sources.measured import frameworks_of, step_times
from advisor.sources.opened import Opened
from advisor.sources.ranks import of_one_file, recording_of, repeats_ids
from advisor.sources.sniff import NoTrace, looked_at, refuse_known, refused
from advisor.sources.stream import Stream
from advisor.sources.time_issues import time_issues

_HOW_TO_RECORD = (
    "Record with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) around a few steps, "
    "then prof.export_chrome_trace('trace.json.gz')."
)

# Versions only: the rest of the metadata may name people, hosts and paths.
_VERSIONS = (
    "schemaVersion", "cuda_runtime_version", "cuda_driver_version", "cupti_version", "hip_runtime_version",
    "hip_driver_version", "roctracer_version", "rocprofiler-sdk_version", "vllm_version",
)  # fmt: skip

# Before torch 1.11 the ranges that the framework names were ops.
_ANNOTATION = re.compile(r"ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(step|zero_grad)#")

_JSON_COLUMNS = ("dims", "types", "strides", "concrete")


# Twice as much where most of the time for a piece is that of handing on its columns.
_CHUNK_BYTES = CHUNK_BYTES if native.DECODER is None else CHUNK_BYTES * 3 // 2

HELPED_FROM_BYTES = 100 << 20
"""A helper takes as long to start as some 50 MB take to read."""
THREADED_FROM_BYTES = HELPED_FROM_BYTES // 4
"""From 12 to 25 MB, threads take as long as they save."""
HELPED_AFTER = 3
"""So many pieces more than the decoder in C took: it needs no help, and most traces have some odd event."""


def record(opened: Opened) -> Recording:
    """The recording of a trace."""
    refuse_known(opened)
    head = opened.stream.peek(formats.HEAD_BYTES)
    try:
        ranks = read_ranks(opened.stream, opened.path, processes=opened.processes)
    except NoTrace as error:
        raise looked_at(error, head, opened.path) from None
    if len(ranks) > 1:
        return of_one_file(ranks, opened.path)
    (one,) = ranks.values()
    if len(distinct(one.api_calls["pid"])) < 2:
        return Recording("trace", opened.path, (one,))
    made = recording_of(one, opened.path)
    return made if made.kind == "job" or not repeats_ids(one) else Recording("trace", opened.path, (_merged(one),))


def read(stream: Stream, path: str, chunk_bytes: int = _CHUNK_BYTES, processes: int = 1, helped_from: int = HELPED_FROM_BYTES) -> Timeline:
    """The trace of a process; arguments and errors as for `read_ranks`, and TraceError if several ranks were merged in the file."""
    ranks = read_ranks(stream, path, chunk_bytes, processes, helped_from)
    if len(ranks) > 1:
        raise TraceError(f"the file is a merge of {len(ranks)} ranks ({', '.join(list(ranks)[:4])})", "It is a job: give it to advisor analyze.")
    return next(iter(ranks.values()))


def read_ranks(stream: Stream, path: str, chunk_bytes: int = _CHUNK_BYTES, processes: int = 1, helped_from: int = HELPED_FROM_BYTES) -> dict[str, Timeline]:
    """Read a trace: a single timeline, or a timeline per rank if the names of processes show several.

    `chunk_bytes` of text are decoded at a time, in up to `processes` threads if the text is large enough. With two or more, another process decodes
    some of them if the decoder in C does not handle most of it and the text has at least `helped_from` bytes.

    Faults of the file that leave something to read become a ReadIssue. Raises TraceError if the text is
    no trace or holds nothing to analyze."""
    text = Text(stream.read, chunk_bytes)
    if not text.found:
        raise _no_events(text.header, stream)
    collected = _Collected()
    exact = False
    slow = 0  # pieces that the decoder in C did not take, less those that it took

    def decode(piece: bytes) -> Piece:
        return decode_piece(piece, exact)

    def finish(piece: bytes, decoded: native.Decoded | None) -> Piece:
        return of_decoded(piece, decoded, exact)

    with Helper() as helper, Threads(native.decode, finish) as threads:
        for piece in text.decoded(decode, threads, helper):
            exact = helper.exact = piece.exact
            collected.add(piece)
            slow += 1 if not piece.native else -1
            if exact or slow > HELPED_AFTER:  # they would decode for nothing
                threads.close()
            elif piece.native and processes > 1 and stream.expected >= min(helped_from, THREADED_FROM_BYTES):
                threads.start(processes - 1)
            if processes > 1 and slow > HELPED_AFTER and stream.expected >= helped_from:
                helper.start()
    issues = [*_file_issues(text, stream, collected.events), *time_issues(collected.bad_times, collected.bad_durations)]
    metadata, complete = _metadata(text)
    if not complete:
        issues.append(ReadIssue("complete-file", "the metadata around the events cannot be read"))
    issues = [*_joined(issues), *_further_documents(text)]
    whole = [name for name, rank in collected.ranks.items() if rank.whole]
    if len(whole) > 1 and not collected.tables.keys() & {"gpu_ops", *_OF_HOSTS}:
        issues += _left_ranks(collected.ranks.keys() - {*whole})
        return {name.strip("[]"): _timeline(collected.ranks[name], metadata, tuple(issues), path, stream.total) for name in whole}
    if whole:
        issues += _merged_ranks(collected.ranks.keys())
    collected.absorb()
    return {"": _timeline(collected, metadata, tuple(issues), path, stream.total)}


class _Collected(msgspec.Struct):
    """All pieces of a file, merged."""

    tables: dict[str, Merger] = msgspec.field(default_factory=dict)
    events: int = 0
    categories: Counter[str] = msgspec.field(default_factory=Counter)
    left_out: dict[tuple[str, str], tuple[int, int]] = msgspec.field(default_factory=dict)
    ranks: dict[str, _Collected] = msgspec.field(default_factory=dict)
    """Events of the ranks that names of processes show."""
    bad_durations: int = 0
    bad_times: int = 0
    _open: dict[tuple[Any, Any], list[tuple[int, Event]]] = msgspec.field(default_factory=dict)

    def add(self, piece: Piece) -> None:
        self.events += piece.events
        self.categories += piece.categories
        for rank, part in piece.ranks.items():
            self.ranks.setdefault(rank, _Collected()).add(part)
        for key, (events, ns) in piece.left_out.items():
            before = self.left_out.get(key, (0, 0))
            self.left_out[key] = before[0] + events, before[1] + ns
        self.bad_durations += piece.bad_durations
        self.bad_times += piece.bad_times
        for name, columns in piece.tables.items():
            self.tables.setdefault(name, Merger()).add(columns)
        if piece.ranges:
            spans = transpose(self._pair(piece.ranges))
            spans.events = 0
            self.add(spans)

    @property
    def whole(self) -> bool:
        """Whether it has both sides of a rank, unlike groups of processes that are named by their kind."""
        return "gpu_ops" in self.tables and bool(self.tables.keys() & {*_OF_HOSTS})

    def absorb(self) -> None:
        """Treat events of all ranks as events without a rank."""
        for rank in self.ranks.values():
            self.categories += rank.categories
            for key, (events, ns) in rank.left_out.items():
                before = self.left_out.get(key, (0, 0))
                self.left_out[key] = before[0] + events, before[1] + ns
            for name, merger in rank.tables.items():
                self.tables.setdefault(name, Merger()).absorb(merger)
        self.ranks = {}

    def _pair(self, ranges: list[tuple[int, Event]]) -> list[Event]:
        """Join begin and end events of a thread, innermost first, into spans."""
        spans = []
        for time, event in ranges:
            stack = self._open.setdefault((event.pid, event.tid), [])
            if event.ph == "B":
                stack.append((time, event))
            elif stack:
                start, begin = stack.pop()
                begin.ph, begin.ts, begin.dur = "X", _as_written(start), _as_written(time - start)
                spans.append(begin)
        return spans


def _as_written(ns: int) -> Microseconds:
    return Microseconds(f"{ns}e-3")


def _no_events(header: bytes, stream: Stream) -> NoTrace:
    """Describe a file without a list of events."""
    ends = f" ({stream.truncated})" if stream.truncated else ""
    try:
        whole = json.loads(header, strict=False)
    except (ValueError, RecursionError) as error:
        if not header.lstrip().startswith(b"{"):
            return NoTrace(f"the file is not JSON: it starts with {header.lstrip()[:24]!r}{ends}", _HOW_TO_RECORD)
        if members := _members_of_a_line(header):
            return NoTrace(f"the file holds an object of JSON a line, but no profiler trace: the first object's members are {members}", _HOW_TO_RECORD)
        position = f"; as JSON it breaks at {error}" if isinstance(error, json.JSONDecodeError) else ""
        return NoTrace(
            f"the file has no list of events (`traceEvents`) in its first {len(header):,} bytes{ends}{position}",
            "It was cut off before its events, or it is no profiler trace. " + _HOW_TO_RECORD,
        )
    if isinstance(whole, dict) and "traceEvents" in whole:
        kind = type(whole["traceEvents"]).__name__
        return NoTrace(f"the file's `traceEvents` is not a list of events ({kind})", _HOW_TO_RECORD)
    keys = ", ".join(list(whole)[:6]) if isinstance(whole, dict) else ""
    what = f"an object with the members {keys}" if keys else "an empty object" if whole == {} else f"a single {type(whole).__name__}"
    return NoTrace(f"the file is JSON but no profiler trace: {what}, without `traceEvents`", _HOW_TO_RECORD)


def _members_of_a_line(header: bytes) -> str:
    """The members of the first of several lines that hold an object each; "" if the file is none of such lines."""
    first, second = [*header.strip().splitlines(), b"", b""][:2]
    try:
        one = json.loads(first, strict=False)
    except (ValueError, RecursionError):
        return ""
    return ", ".join(list(one)[:6]) if second.lstrip().startswith(b"{") and isinstance(one, dict) else ""


def _file_issues(text: Text, stream: Stream, events: int) -> list[ReadIssue]:
    """What kept the file from being read whole."""
    found, lost = [], stream.truncated or stream.trailing
    if lost and not text.whole:
        found.append(f"{lost}; read {counted(events, 'event')}, whole up to byte {text.end:,} of the uncompressed text")
    elif not text.whole:
        found.append(f"the file ends at byte {stream.total:,}, before its list of events does; read {counted(events, 'event')}, whole up to byte {text.end:,}")
    elif lost:
        found.append(lost)
    if text.bad:
        found.append(f"left out {counted(text.bad, 'event')} of invalid JSON, the first at byte {text.first_bad:,}")
    return [ReadIssue("complete-file", detail, cut=not text.whole) for detail in found]


def _further_documents(text: Text) -> list[ReadIssue]:
    """Text after the document, as in files with several recordings in a row."""
    if text.bare:
        rest = text.trailer
    else:
        whole = (text.header + b"]" + text.trailer).decode("utf-8", "replace")
        try:
            _, end = json.JSONDecoder(strict=False).raw_decode(whole.lstrip())
        except (ValueError, RecursionError):
            return []
        rest = whole.lstrip()[end:].encode()
    rest = rest.strip(b" \t\r\n\0,")
    if not text.closed or not rest:
        return []
    what = "another recording" if rest.startswith((b"{", b"[")) else "something else"
    return [ReadIssue("one-document", f"the file goes on after its first document, with {what}, of which nothing was read", "failed")]


def _merged_ranks(ranks: Collection[str]) -> list[ReadIssue]:
    """The names of processes show several ranks, and some work belongs to none: then nothing separates their ids of calls and threads."""
    if len(ranks) < 2:
        return []
    shown = ", ".join(sorted(ranks)[:4]) + (" and more" if len(ranks) > 4 else "")
    return [ReadIssue("one-rank", f"the file is a merge of {len(ranks)} ranks ({shown}), and it does not separate their launches and kernels", "failed")]


def _merged(timeline: Timeline) -> Timeline:
    """The timeline with a note on its processes' ids: recordings of several were merged, and their devices cannot be assigned."""
    processes = sorted({*timeline.api_calls["pid"].tolist()})
    told = f"the file is a merge of recordings of {len(processes)} processes ({', '.join(map(str, processes[:4]))}), whose launches share their ids"
    issue = ReadIssue("one-rank", f"{told}: which of them works on which device cannot be told", "failed")
    return replace(timeline, source=replace(timeline.source, issues=(*timeline.source.issues, issue)))


def _left_ranks(ranks: Collection[str]) -> list[ReadIssue]:
    """The ranks of a merge that are left out."""
    if not ranks:
        return []
    shown = ", ".join(sorted(ranks)[:4]) + (" and more" if len(ranks) > 4 else "")
    return [ReadIssue("complete-file", f"of {counted(len(ranks), 'rank')} of the file ({shown}) no calls, or no GPU work, was recorded: left out")]


def _joined(issues: list[ReadIssue]) -> tuple[ReadIssue, ...]:
    """An issue for each check."""
    checks = dict.fromkeys(issue.check for issue in issues)
    return tuple(
        ReadIssue(
            check,
            "; ".join(issue.detail for issue in issues if issue.check == check),
            events=sum(issue.events for issue in issues if issue.check == check),
            cut=any(issue.cut for issue in issues if issue.check == check),
        )
        for check in checks
    )


def _metadata(text: Text) -> tuple[dict[str, Any], bool]:
    """The top-level members around the events, and whether all of them could be read."""
    if text.bare:
        return {}, True
    trailer = text.trailer if text.closed else b"}"
    for whole, complete in ((text.header + b"]" + trailer, True), (text.header + b"]}", False), (b'{"":[]' + trailer, False)):
        try:
            found = json.loads(without_no_numbers(whole).decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found, complete
    return {}, False


def _timeline(collected: _Collected, metadata: dict[str, Any], issues: tuple[ReadIssue, ...], path: str, uncompressed: int) -> Timeline:
    merged, processes = collected.tables, _process_names(collected)
    if "gpu_ops" not in merged and (known := formats.of_spans(_spans(collected, processes))):
        raise refused(known, path)
    if "gpu_ops" not in merged and "cpu_ops" not in merged:
        raise _nothing_to_analyse(collected, _left_out(collected, processes, set()), issues)
    earliest = min(merger.earliest for merger in merged.values() if merger.earliest is not None)
    tables = {name: _frame(name, merged.pop(name), earliest) for name in list(merged)}
    _move_annotations(tables)
    hosts = {str(pid) for name in _OF_HOSTS if name in tables for pid in distinct(tables[name]["pid"]).tolist()}
    left_out = _left_out(collected, processes, hosts)
    return Timeline.build(
        replace(_source(metadata, issues, path, uncompressed, collected.events, tables), left_out=left_out),
        _devices(metadata),
        integer(metadata.get("baseTimeNanoseconds"), 0) + earliest,
        **tables,
    )


_CATEGORIES = {"python_calls": "python_function", "annotations": "user_annotation", "overheads": "overhead"}


def _spans(collected: _Collected, processes: dict[str, str]) -> list[tuple[str, str]]:
    """Categories of spans and their processes, of those that were read the categories alone."""
    read = [(_CATEGORIES.get(name, name), "") for name in collected.tables if name in LASTING]
    return [*read, *((category, processes.get(process, process)) for category, process in collected.left_out)]


_OF_HOSTS = ("cpu_ops", "api_calls", "python_calls")


def _process_names(collected: _Collected) -> dict[str, str]:
    """The trace's names of its processes, by their ids as text; removed from the collected rows."""
    merger = collected.tables.pop("processes", None)
    return dict(zip(map(str, merger.take("pid").tolist()), merger.take("name"), strict=True)) if merger else {}


def _left_out(collected: _Collected, processes: dict[str, str], hosts: set[str]) -> tuple[LeftOut, ...]:
    """The spans of no table. Those of processes that are not `hosts`, without ops or calls, come first, and the longest of them."""
    found: dict[tuple[bool, str], tuple[int, int]] = {}
    for (category, process), (events, ns) in collected.left_out.items():
        whose = processes.get(process) or (process if not process.isdecimal() else "")
        named = (category, "spans", whose and f"of the process {whose}", "" if category or whose else "without a category")
        key = process in hosts, " ".join(filter(None, named))
        before = found.get(key, (0, 0))
        found[key] = before[0] + events, before[1] + ns
    ordered = sorted(found.items(), key=lambda item: (item[0][0], -item[1][1], -item[1][0]))
    rest = [count for _, count in ordered[MOST_LEFT_OUT:]]
    made = [LeftOut(what, events, ns / 1000, of_host) for (of_host, what), (events, ns) in ordered[:MOST_LEFT_OUT]]
    return (*made, LeftOut("other spans", sum(n for n, _ in rest), sum(ns for _, ns in rest) / 1000)) if rest else tuple(made)


def _nothing_to_analyse(collected: _Collected, left_out: tuple[LeftOut, ...], issues: tuple[ReadIssue, ...]) -> NoTrace:
    counts = Counter({name: merger.rows for name, merger in collected.tables.items()})
    counts.update({category or "no category": n for category, n in collected.categories.items()})
    holds = ", ".join(f"{n:,} {name}" for name, n in counts.most_common(8)) or "no spans"
    if left_out:
        holds += f"; not read: {', '.join(map(str, left_out[:3]))}"
    details = "".join(f"; {issue.detail}" for issue in issues)
    if set(counts) == {"no category"}:
        told = "none of which has a category (`cat`), as PyTorch's have: another tool wrote them, and which of them are GPU work is not told"
        return NoTrace(f"the trace has {collected.events:,} events, {told}{details}", _HOW_TO_RECORD)
    return NoTrace(f"the trace has {collected.events:,} events but no GPU work and no framework ops ({holds}){details}", _HOW_TO_RECORD)


def _move_annotations(tables: dict[str, Table]) -> None:
    """Move the framework's own ranges from ops, where traces before torch 1.11 put them, to annotations."""
    ops = tables.get("cpu_ops")
    if ops is None:
        return
    names = ops["name"]
    is_annotation = np.array([bool(_ANNOTATION.match(name)) for name in names.categories], bool)
    if not is_annotation.any():
        return
    moved = is_annotation[names.codes]
    ranges = concatenated([tables.get("annotations", table("annotations", {})), ops[moved].select(*TABLES["annotations"])])
    tables["annotations"] = ranges.with_columns(name=Categorical.of_texts(ranges["name"]))
    ops = ops[~moved]
    tables["cpu_ops"] = ops.with_columns(name=ops["name"].without_unused())


def _respelled(column: Any, texts: Iterable[str]) -> Any:
    """The column with these texts for its categories, equal categories merged."""
    numbers: dict[str, int] = {}
    renumber = [numbers.setdefault(text, len(numbers)) for text in texts]
    return categorical(np.array(renumber, np.int32)[column.codes], list(numbers))


def _one_spelling(column: Any) -> Any:
    """Recorded JSON in a normal layout, so that equal shapes are a single category with any indentation of the file."""
    return _respelled(column, map(_respell, column.categories))


# Lists of strings and whole numbers as every writer spells them: all but a few of what is recorded. A number ends where no digit
# follows, or the digits of one could be shared among several in ways without end.
_PLAIN_LISTS = re.compile(r'(?:[\[\],\s]|"[^"\\\x00-\x1f]*"|-?(?:[1-9][0-9]*|0)(?![0-9]))*')


def _respell(text: str) -> str:
    try:
        if text and _PLAIN_LISTS.fullmatch(text):
            return msgspec.json.format(text, indent=0)
        return json.dumps(json.loads(text, strict=False), ensure_ascii=False) if text else ""
    except (ValueError, msgspec.DecodeError):
        return text


def _by_op(names: Any) -> dict[str, Any]:
    """The names of ops without their overloads, and the overloads."""
    ops, overloads = zip(*map(split_overload, names.categories), strict=True)
    return {"name": _respelled(names, ops), "overload": _respelled(names, overloads)}


def _frame(name: str, merger: Merger, earliest: int) -> Table:
    """A table, sorted by start, in microseconds from the earliest event; made column by column to save memory."""
    columns: dict[str, Any] = {}
    order = None
    if START in merger.names:
        start = merger.take(START).astype(np.int64, copy=False)
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start = start[order]
        columns["start_us"] = _microseconds(start, earliest)
        del start
    for column in merger.names:
        values = merger.take(column)
        if order is not None:
            values = chosen(values, order)
        if column == DURATION:
            columns["dur_us"] = _microseconds(values)
        elif isinstance(values, Categorical):
            columns[column] = _one_spelling(values) if column in _JSON_COLUMNS else values
        else:
            columns[column] = of_type(values, TABLES[name][column])
        del values
    if name == "cpu_ops":
        columns |= _by_op(columns["name"])
    rows = len(next(iter(columns.values())))
    recorded = {column: columns[column] if column in columns else empty_column(dtype, rows) for column, dtype in TABLES[name].items()}
    return Table(recorded)


def _microseconds(ns: Any, earliest: int = 0) -> Any:
    """Nanoseconds as float64 microseconds from the earliest, in the same memory: a table of all events is large."""
    ns = np.require(ns, np.int64, ["C", "W"])
    us = ns.view(np.float64)
    for at in range(0, len(ns), PIECE_ROWS):
        us[at : at + PIECE_ROWS] = (ns[at : at + PIECE_ROWS] - earliest) / 1000.0
    return us


def _devices(metadata: dict[str, Any]) -> tuple[Device, ...]:
    found = metadata.get("deviceProperties", metadata.get("computeProperties"))
    return tuple(_device(item) for item in found if isinstance(item, dict)) if isinstance(found, list) else ()


def _device(item: dict[str, Any]) -> Device:
    def number(*keys: str) -> int:
        return next((integer(item[key], 0) for key in keys if key in item), 0)

    return Device(
        number("id"), str(item.get("name", "")), number("numSms", "multiProcessorCount"),
        (number("computeMajor", "major"), number("computeMinor", "minor")), number("totalGlobalMem"), number("warpSize"),
    )  # fmt: skip


def _source(
    metadata: dict[str, Any],
    issues: tuple[ReadIssue, ...],
    path: str,
    uncompressed: int,
    events: int,
    tables: dict[str, Table],
) -> Source:
    ops = tables.get("cpu_ops")
    recording = metadata.get("advisor_recording")
    recording = recording if isinstance(recording, dict) else {}
    frameworks, loops = frameworks_of(recording)
    if not frameworks:  # vLLM's workers write their version
        frameworks, loops = frameworks_of({"frameworks": {"vllm": metadata.get("vllm_version")}, "loops": ["vllm.Engine"]})
    distributed = metadata.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    versions = {key: metadata[key] for key in _VERSIONS if isinstance(metadata.get(key), (int, str))}
    if isinstance(distributed.get("nccl_version"), (int, str)):
        versions["nccl_version"] = distributed["nccl_version"]
    return Source(
        path=path,
        format="kineto",
        bytes=uncompressed,
        events=events,
        shapes=ops is not None and any(ops["dims"].categories),
        stacks="python_calls" in tables or (ops is not None and any(ops["call_stack"].categories)),
        memory="memory" in tables,
        syncs="syncs" in tables,
        unprofiled_step_us=step_times(recording.get("unprofiled_step_us")),
        rank=_rank(distributed.get("rank")),
        world_size=_rank(distributed.get("world_size")),
        issues=issues,
        frameworks=frameworks,
        loops=loops,
        metadata=versions,
    )


def _rank(value: Any) -> int | None:
    number = integer(value)
    return number if number >= 0 else None
