"""From a piece of a trace's text to the columns of the timeline's tables: a pure function of its bytes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import compress
from math import prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from advisor.recordings.timeline import GpuKind
from advisor.sources.copies import BARE, copy_name, describe_copy
from advisor.sources.kineto import native
from advisor.sources.kineto.columns import DURATION, START, Codes, Column, InexactTimes, Microseconds, Strings, integer, nanoseconds, strings
from advisor.sources.kineto.counters import TABLE, counters
from advisor.sources.kineto.events import Event, parse, parse_times
from advisor.sources.kineto.fields import (
    GPU_KINDS,
    HALVES,
    LASTING,
    MARKS,
    MISSING,
    MTIA,
    OF_THREADS,
    TABLE_OF,
    TIMED,
    WINDOW,
    Fields,
    OfStructs,
    get,
    repeated_value,
)
from advisor.sources.limits import LONGEST_NS

_MTIA_QUEUE = ("event_wait", "event_record")
"""Activities of an MTIA queue between work: such spans are on no engine."""
_KIND_NAMES = {category: kind.value for category, kind in GPU_KINDS.items()}

OF_A_RANK = re.compile(r"(?P<rank>\[[^\]]{1,80}\]|[Rr]ank[ _-]?\d{1,9}(?!\d))[\W_]*(?P<pid>.{0,80})", re.DOTALL)
"""SGLang merges profiles as `[TP00-DP01] 4100`, scripts as `rank0_4100`."""

_FLOWS = "XsftC"  # and spans and counters
_UNSIGNED_NONE = np.iinfo(np.uint32).max  # -1 as CUPTI's uint32
_INT32 = np.iinfo(np.int32)


class Piece(msgspec.Struct):
    """A piece of a trace, transposed.

    `tables` hold the columns of advisor.recordings.timeline.TABLES, times as int64 nanoseconds under START and DURATION.
    `ranges` are the halves of spans that were recorded as begin and end events, each with its time in ns, in order.
    `categories` counts the spans that belong to no table. `left_out` counts those that may be somebody's work, with their total ns, by category
    and process."""

    tables: dict[str, dict[str, Column]] = msgspec.field(default_factory=dict)
    ranges: list[tuple[int, Event]] = msgspec.field(default_factory=list)
    events: int = 0
    categories: Counter[str] = msgspec.field(default_factory=Counter)
    left_out: dict[tuple[str, str], tuple[int, int]] = msgspec.field(default_factory=dict)
    ranks: dict[str, Piece] = msgspec.field(default_factory=dict)
    """Events of the ranks that names of processes show, as `[TP00] 4100` in a file of several merged traces. Other events belong to no rank."""
    bad_durations: int = 0
    bad_times: int = 0
    exact: bool = False
    """Whether times had to be read as text."""
    native: bool = False
    """Whether the decoder in C took it."""


def decode_piece(text: bytes, exact: bool = False) -> Piece:
    """Decode and transpose `{…}, {…}`; `exact` reads times as text from the start. Raises MalformedError."""
    return of_decoded(text, None if exact else native.decode(text), exact)


def of_decoded(text: bytes, decoded: native.Decoded | None, exact: bool = False) -> Piece:
    """As decode_piece, after `native.decode` of the text."""
    piece = None if exact else _of_columns(text, decoded)
    return decode_in_python(text, exact) if piece is None else piece


def decode_in_c(text: bytes) -> Piece | None:
    """As decode_piece, by the decoder in C; None if there is none, or it gives the piece back."""
    return _of_columns(text, native.decode(text))


def _of_columns(text: bytes, decoded: native.Decoded | None) -> Piece | None:
    if decoded is None or set(decoded.categories) - {WINDOW}:
        return None  # how long spans of no table last, and whose they are, it does not say
    tables = {table: times | _COLUMNS[table](fields) for table, times, fields in decoded.tables}
    piece = Piece(tables, events=decoded.events, categories=decoded.categories, bad_durations=decoded.bad_durations, native=True)
    return _with_counters(piece, text) if decoded.samples else piece


def decode_in_python(text: bytes, exact: bool = False) -> Piece:
    """As decode_piece, without the decoder in C, which is compared with it."""
    events = parse(text)
    if not exact:
        try:
            return _with_counters(transpose(events), text)
        except InexactTimes:
            pass
    for event, times in zip(events, parse_times(text), strict=True):
        event.ts = Microseconds(bytes(times.ts).decode("utf-8", "replace"))
        duration = bytes(times.dur).decode("utf-8", "replace")
        event.dur = Microseconds(duration or "0")
    piece = _with_counters(transpose(events), text)
    piece.exact = True
    return piece


def _with_counters(piece: Piece, text: bytes) -> Piece:
    """The piece with the samples of hardware counters that its text holds."""
    if found := counters(text):
        piece.tables[TABLE] = found
    return piece


def transpose(events: Sequence[Event]) -> Piece:
    """Sort events into tables and turn each into columns, those of each rank that processes are named by for themselves. Raises InexactTimes."""
    named = {pid: of for pid in {*get(events, "pid")} if isinstance(pid, str) and (of := OF_A_RANK.fullmatch(pid))}
    if not named:
        return _single_column(events)
    ranks: dict[str, list[Event]] = {}
    others = []
    for event in events:
        if isinstance(event.pid, str) and (of := named.get(event.pid)):
            event.pid = int(of["pid"]) if of["pid"].isdecimal() else of["pid"]
            ranks.setdefault(of["rank"], []).append(event)
        else:
            others.append(event)
    piece = _single_column(others)
    piece.events, piece.ranks = len(events), {rank: _single_column(of_rank) for rank, of_rank in ranks.items()}
    return piece


def _single_column(events: Sequence[Event]) -> Piece:
    piece = Piece(events=len(events))
    kinds = get(events, "ph")
    spans = events if kinds.count("X") == len(kinds) else list(compress(events, map("X".__eq__, kinds)))
    rows = _by_table(spans, piece)
    if len(spans) < len(events):
        for event, kind in zip(events, kinds, strict=True):
            if kind not in _FLOWS:
                _route_other(event, piece, rows)
    if queued := rows.pop(MTIA, []):
        rows["gpu_ops"] = [*rows.get("gpu_ops", []), *(event for event in queued if event.name not in _MTIA_QUEUE)]
    for table, members in rows.items():
        _add_table(piece, table, members)
    return piece


def _by_table(spans: Sequence[Event], piece: Piece) -> dict[str, list[Event]]:
    """The events of each table in their order: no step of Python for each."""
    numbers: dict[str, int] = {}
    number_of = _Numbers(numbers)
    categories = get(spans, "cat")
    of_table = np.fromiter(map(number_of.__getitem__, categories), np.int8, len(categories))
    if -1 in number_of.values():
        _leave_out(list(compress(spans, (of_table < 0).tolist())), piece)
    return {table: list(compress(spans, (of_table == number).tolist())) for table, number in numbers.items()}


def _leave_out(spans: list[Event], piece: Piece) -> None:
    """Count spans that belong to no table, and how long they last, by category and process."""
    piece.categories.update(span.cat or "" for span in spans)
    work = [span for span in spans if span.cat != WINDOW]
    for span, duration in zip(work, _durations(work, Piece()).tolist(), strict=True):
        key = span.cat or "", "" if span.pid is None else str(span.pid)
        events, ns = piece.left_out.get(key, (0, 0))
        piece.left_out[key] = events + 1, ns + duration


class _Numbers(dict["str | None", int]):
    """A number for the table of each category, -1 for those of none; tables are numbered as they are first met."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self.numbers = numbers

    def __missing__(self, category: str | None) -> int:
        table = TABLE_OF.get(category or "") if category != MTIA else MTIA
        self[category] = number = self.numbers.setdefault(table, len(self.numbers)) if table else -1
        return number


def _route_other(event: Event, piece: Piece, rows: dict[str, list[Event]]) -> None:
    table = MARKS.get((event.ph, event.name or ""))
    if table is not None and (table not in OF_THREADS or (isinstance(event.pid, int) and isinstance(event.tid, int))):
        rows.setdefault(table, []).append(event)
    elif event.ph in HALVES:
        time, valid = nanoseconds([event.ts])
        if valid[0]:
            piece.ranges.append((int(time[0]), event))


def _add_table(piece: Piece, table: str, events: list[Event]) -> None:
    times: dict[str, Column] = {}
    if table in TIMED:
        start, valid = nanoseconds(get(events, "ts"))
        duration = _durations(events, piece) if table in LASTING else None
        if not valid.all():
            piece.bad_times += int((~valid).sum())
            events = [event for event, keep in zip(events, valid.tolist(), strict=True) if keep]
            start, duration = start[valid], duration[valid] if duration is not None else None
        times = {START: start} if duration is None else {START: start, DURATION: duration}
    if events:
        piece.tables[table] = times | _COLUMNS[table](OfStructs(events))


def _durations(events: list[Event], piece: Piece) -> NDArray[np.int64]:
    """Durations in nanoseconds, 0 if the recorded duration is impossible."""
    duration, valid = nanoseconds(get(events, "dur"))
    bad = ~valid | (duration < 0) | (duration > LONGEST_NS)
    piece.bad_durations += int(bad.sum())
    return np.where(bad, 0, duration)


def _ints(fields: Fields, *names: str) -> dict[str, Column]:
    return {name: fields.integers(name) for name in names}


def _texts(fields: Fields, *names: str) -> dict[str, Column]:
    return {name: fields.texts(name) for name in names}


def _small(values: NDArray[np.int64]) -> NDArray[np.int32]:
    """As int32; a value that does not fit was no count."""
    return np.where((values < _INT32.min) | (values > _INT32.max), -1, values).astype(np.int32)


def _nowhere(text: Strings) -> bool:
    return not any(text.values)


def _either(first: Strings, second: Strings) -> Strings:
    """The first if it was recorded, else the second."""
    if _nowhere(second) or "" not in first.values:
        return first
    return second if _nowhere(first) else strings([one or other for one, other in zip(first.rows(), second.rows(), strict=True)])


def _peers(fields: Fields) -> Strings:
    """Source or destination of messages; "" for all other ops."""
    sent, came = fields.texts("target_rank"), fields.texts("source_rank")
    if _nowhere(sent) and _nowhere(came):
        return repeated_value("", fields.rows)
    return strings([_peer(*ends) for ends in zip(sent.rows(), came.rows(), fields.texts("group_ranks").rows(), strict=True)])


def _peer(sent: str, came: str, ranks: str) -> str:
    return f"{'to' if sent else 'from'} {sent or came} of {ranks or '[]'}" if sent or came else ""


def _thread(fields: Fields) -> dict[str, Column]:
    return _ints(fields, "pid", "tid")


def _external_id(fields: Fields) -> NDArray[np.int64]:
    ids = fields.integers("external_id")
    return np.where(ids == -1, fields.integers("external_id_2021"), ids) if (ids == -1).any() else ids


def _device(fields: Fields) -> NDArray[np.int32]:
    """The device an event names, else its process if that is a number: Kineto files GPU work under its device."""
    own = fields.optional("device")
    missing = own == MISSING
    return _small(np.where(missing, fields.numbers("pid"), own) if missing.any() else own)


def _stream(fields: Fields) -> NDArray[np.int64]:
    """The stream an event names, else its thread. (Since 2026 the thread of a Stream Sync is its stream + 1,000,000.)"""
    own = fields.optional("stream")
    missing = own == MISSING
    return _no_unsigned_none(np.where(missing, fields.integers("tid"), own) if missing.any() else own)


def _ran_on(fields: Fields) -> NDArray[np.int64]:
    """The stream that work ran on. Of a CUDA graph's, torch 2.15 can write the lane that it is drawn on as its stream, and the stream next to it."""
    ran_on = fields.optional("original_stream")
    drawn = ran_on != MISSING
    return np.where(drawn, ran_on, _stream(fields)) if drawn.any() else _stream(fields)


def _no_unsigned_none(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(values == _UNSIGNED_NONE, -1, values)


def _product(coded: Strings) -> NDArray[np.int64]:
    """Blocks of a grid, threads of a block: `[x, y, z]` multiplied; -1 if it was not recorded."""
    return np.array([_product_of(text) for text in coded.values], np.int64)[coded.codes]


def _product_of(text: str) -> int:
    try:
        sizes = msgspec.json.decode(text, type=list[int])
    except msgspec.DecodeError:
        return -1
    return integer(prod(sizes)) if sizes else -1


def _gpu_ops(fields: Fields) -> dict[str, Column]:
    kinds = _gpu_kinds(fields)
    own = fields.integers("bytes")
    columns: dict[str, Column] = {
        "kind": kinds,
        "name": _gpu_names(fields),
        "device": _device(fields),
        "stream": _ran_on(fields),
        **_ints(fields, "correlation", "shared_bytes", "in_elements", "out_elements", "collective_sequence"),
        "bytes": np.where(own == -1, fields.integers("dma_bytes"), own) if (own == -1).any() else own,
        "external_id": _external_id(fields),
        "grid_blocks": _product(fields.texts("grid")),
        "block_threads": _small(_product(fields.texts("block"))),
        "registers": _small(fields.integers("registers")),
        "occupancy_pct": fields.floats("occupancy"),
        "collective_dtype": fields.texts("dtype"),
        **_texts(fields, "collective", "group", "group_ranks", "communicator", "in_split", "out_split"),
        "group_size": _small(fields.integers("group_size")),
    }
    for column in ("graph_id", "graph_node_id"):
        # CUPTI: 0 where the work was not launched by a graph.
        ids = fields.integers(column)
        columns[column] = np.where(ids == 0, -1, ids)
    return columns | dict(zip(("copy_kind", "src_kind", "dst_kind"), _copies(fields, kinds), strict=True))


def _gpu_names(fields: Fields) -> Strings:
    """A copy's name in a form that is the same for all exporters."""
    names = fields.texts("name")
    if BARE not in names.values:
        return names
    rows = names.rows()
    bare = np.flatnonzero(names.codes == names.values.index(BARE))
    said = zip(*(fields.texts(name).texts_at(bare) for name in ("copy_kind", "src_kind", "dst_kind")), strict=True)
    for row, copy in zip(bare.tolist(), said, strict=True):
        rows[row] = copy_name(*copy)
    return strings(rows)


def _gpu_kinds(fields: Fields) -> Strings:
    categories = fields.texts("cat")
    if MTIA not in categories.values:
        return categories.renamed([_KIND_NAMES[category] for category in categories.values])
    pairs = zip(categories.rows(), fields.texts("name").rows(), strict=True)
    return strings([_KIND_NAMES.get(category) or (GpuKind.MEMCPY if name == "dma_request" else GpuKind.KERNEL).value for category, name in pairs])


def _copies(fields: Fields, kinds: Strings) -> tuple[Strings, ...]:
    """Direction and kinds of memory, "" for ops that are no copies."""
    if GpuKind.MEMCPY.value not in kinds.values:
        return (repeated_value("", fields.rows),) * 3
    copied = np.flatnonzero(kinds.codes == kinds.values.index(GpuKind.MEMCPY.value))
    texts = [fields.texts(name).texts_at(copied) for name in ("direction", "name", "copy_kind", "kind", "src_kind", "dst_kind")]
    found = [describe_copy(direction or name, kind or plain, *ends) for direction, name, kind, plain, *ends in zip(*texts, strict=True)]
    return tuple(_spread(column, copied, fields.rows) for column in zip(*found, strict=True))


def _spread(texts: Sequence[str], at: NDArray[np.int64], rows: int) -> Strings:
    """Texts of some rows among others that have none."""
    numbers, made = Codes(), np.empty(rows, np.int32)
    first = next((i for i, row in enumerate(at.tolist()) if row != i), len(at))  # the first row of the others
    made[at[:first]] = [numbers[text] for text in texts[:first]]
    if first < rows:
        made[first:] = numbers[""]
    made[at[first:]] = [numbers[text] for text in texts[first:]]
    return Strings(made, list(numbers))


def _api_calls(fields: Fields) -> dict[str, Column]:
    return {**_host_ranges(fields), **_ints(fields, "correlation"), "external_id": _external_id(fields)}


def _cpu_ops(fields: Fields) -> dict[str, Column]:
    return {
        **_host_ranges(fields),
        **_ints(fields, "sequence", "forward_thread"),
        "external_id": _external_id(fields),
        "dims": _either(fields.texts("dims"), fields.texts("dims_2021")),
        **_texts(fields, "types", "strides", "concrete", "kernel_file", "call_stack", "module"),
        "peer": _peers(fields),
    }


def _python_calls(fields: Fields) -> dict[str, Column]:
    return {**_host_ranges(fields), **_ints(fields, "python_id", "parent_id", "module_id")}


def _host_ranges(fields: Fields) -> dict[str, Column]:
    return {**_texts(fields, "name"), **_thread(fields)}


def _gpu_annotations(fields: Fields) -> dict[str, Column]:
    return {**_texts(fields, "name"), "device": _device(fields), "stream": _stream(fields)}


def _syncs(fields: Fields) -> dict[str, Column]:
    return {
        "kind": _either(fields.texts("sync_kind"), fields.texts("name")),
        "device": _device(fields),
        "stream": _stream(fields),
        **_ints(fields, "correlation", "waits_on_correlation"),
        "waits_on_stream": _no_unsigned_none(fields.integers("waits_on_stream")),
    }


def _memory(fields: Fields) -> dict[str, Column]:
    return {
        **_thread(fields),
        **_ints(fields, "address", "allocated_bytes", "reserved_bytes"),
        "bytes": fields.integers("memory_bytes"),
        "device_type": _small(fields.integers("device_type")),
        "device": _small(fields.integers("device_id")),
    }


def _threads(fields: Fields) -> dict[str, Column]:
    return {**_thread(fields), "name": fields.texts("thread")}


_COLUMNS: dict[str, Callable[[Fields], dict[str, Column]]] = {
    "gpu_ops": _gpu_ops,
    "api_calls": _api_calls,
    "cpu_ops": _cpu_ops,
    "python_calls": _python_calls,
    "annotations": _host_ranges,
    "overheads": _host_ranges,
    "gpu_annotations": _gpu_annotations,
    "syncs": _syncs,
    "memory": _memory,
    "threads": _threads,
    "processes": _threads,
}
