"""From a piece of a trace's text to the columns of the timeline's tables: a pure function of its bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from math import prod
from operator import attrgetter, is_
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from advisor.recordings.timeline import GpuKind
from advisor.sources.copies import describe_copy
from advisor.sources.kineto.columns import (
    DURATION,
    START,
    Column,
    InexactTimes,
    Microseconds,
    Strings,
    floats,
    integer,
    integers,
    nanoseconds,
    strings,
)
from advisor.sources.kineto.events import NOTHING, Args, Event, parse, parse_times

GPU_KINDS = {
    "kernel": GpuKind.KERNEL,
    "Kernel": GpuKind.KERNEL,
    "gpu_memcpy": GpuKind.MEMCPY,
    "Memcpy": GpuKind.MEMCPY,
    "gpu_memset": GpuKind.MEMSET,
    "Memset": GpuKind.MEMSET,
}
"""Only the category makes an event GPU work: an op that Inductor compiled has a `stream` argument too."""

MTIA = "mtia_ccp_events"
_MTIA_QUEUE = ("event_wait", "event_record")
"""What a queue of MTIA does between work: such spans hold no engine."""
_KIND_NAMES = {category: kind.value for category, kind in GPU_KINDS.items()}

TABLE_OF = {
    **dict.fromkeys((*GPU_KINDS, MTIA), "gpu_ops"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime", "glow_runtime", "hpu_op"), "api_calls"),
    **dict.fromkeys(("xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver"), "api_calls"),
    **dict.fromkeys(("cpu_op", "Operator"), "cpu_ops"),
    "python_function": "python_calls",
    "user_annotation": "annotations",
    "gpu_user_annotation": "gpu_annotations",
    "cuda_sync": "syncs",
    "overhead": "overheads",
}
"""The table of each category of spans."""

# An event of a week is a broken clock.
MAX_DURATION_NS = 7 * 86_400 * 10**9

_UNSIGNED_NONE = (1 << 32) - 1  # -1 as CUPTI's uint32
_INT32 = np.iinfo(np.int32)


@dataclass
class Piece:
    """One piece of a trace, transposed.

    `tables` hold the columns of advisor.recordings.timeline.TABLES, times as int64 nanoseconds under START and DURATION.
    `ranges` are the halves of spans that were recorded as begin and end events, each with its time in ns, in order.
    `categories` counts the spans that belong to no table.
    """

    tables: dict[str, dict[str, Column]] = field(default_factory=dict)
    ranges: list[tuple[int, Event]] = field(default_factory=list)
    events: int = 0
    categories: Counter[str] = field(default_factory=Counter)
    bad_durations: int = 0
    bad_times: int = 0
    exact: bool = False
    """Whether times had to be read as text."""


def decode_piece(text: bytes, exact: bool = False) -> Piece:
    """Decode and transpose `{…}, {…}`; `exact` reads times as text from the start. Raises MalformedError."""
    events = parse(text)
    if not exact:
        try:
            return transpose(events)
        except InexactTimes:
            pass
    for event, times in zip(events, parse_times(text), strict=True):
        event.ts = Microseconds(bytes(times.ts).decode("utf-8", "replace"))
        duration = bytes(times.dur).decode("utf-8", "replace")
        event.dur = Microseconds("0" if duration in ("", "null") else duration)
    piece = transpose(events)
    piece.exact = True
    return piece


def transpose(events: Sequence[Event]) -> Piece:
    """Sort events into tables and turn each into columns. Raises InexactTimes."""
    piece = Piece(events=len(events))
    kinds = _get(events, "ph")
    spans = events if kinds.count("X") == len(kinds) else list(compress(events, map("X".__eq__, kinds)))
    rows = _by_table(spans, piece)
    if len(spans) < len(events):
        for event, kind in zip(events, kinds, strict=True):
            if kind not in "XsftC":
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
    categories = _get(spans, "cat")
    of_table = np.fromiter(map(number_of.__getitem__, categories), np.int8, len(categories))
    for category in [category for category, number in number_of.items() if number < 0]:
        piece.categories[category or ""] += categories.count(category)
    return {table: list(compress(spans, (of_table == number).tolist())) for table, number in numbers.items()}


class _Numbers(dict["str | None", int]):
    """A number for the table of each category, -1 for those of none; tables are numbered as they are first met."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self.numbers = numbers

    def __missing__(self, category: str | None) -> int:
        table = TABLE_OF.get(category or "") if category != MTIA else MTIA
        self[category] = number = self.numbers.setdefault(table, len(self.numbers)) if table else -1
        return number


def _route_other(event: Event, piece: Piece, rows: dict[str, list[Event]]) -> None:
    if event.ph in ("i", "I") and event.name == "[memory]":
        rows.setdefault("memory", []).append(event)
    elif event.ph == "M" and event.name == "thread_name" and isinstance(event.pid, int) and isinstance(event.tid, int):
        rows.setdefault("threads", []).append(event)
    elif event.ph in ("B", "E"):
        time, valid = nanoseconds([event.ts])
        if valid[0]:
            piece.ranges.append((int(time[0]), event))


def _add_table(piece: Piece, table: str, events: list[Event]) -> None:
    if table == "threads":
        piece.tables[table] = {**_thread(events), "name": strings([str(event.args.name or "") for event in events])}
        return
    start, valid = nanoseconds(_get(events, "ts"))
    duration = _durations(events, piece) if table != "memory" else None
    if not valid.all():
        piece.bad_times += int((~valid).sum())
        events = [event for event, keep in zip(events, valid.tolist(), strict=True) if keep]
        start, duration = start[valid], duration[valid] if duration is not None else None
    if not events:
        return
    columns: dict[str, Column] = {START: start}
    if duration is not None:
        columns[DURATION] = duration
    columns |= _COLUMNS[table](events, _get(events, "args"))
    piece.tables[table] = columns


def _durations(events: list[Event], piece: Piece) -> NDArray[np.int64]:
    """Durations in nanoseconds, 0 where the recorded one cannot be."""
    recorded = _get(events, "dur")
    duration, valid = nanoseconds([0 if dur is None else dur for dur in recorded] if None in recorded else recorded)
    bad = ~valid | (duration < 0) | (duration > MAX_DURATION_NS)
    piece.bad_durations += int(bad.sum())
    return np.where(bad, 0, duration)


def _get(rows: Sequence[Any], attribute: str) -> list[Any]:
    return list(map(attrgetter(attribute), rows))


def _ints(args: Sequence[Args], *attributes: str) -> dict[str, Column]:
    return {attribute: _integers(_get(args, attribute)) for attribute in attributes}


def _integers(values: list[Any]) -> NDArray[np.int64]:
    """As `integers`; a column that nobody recorded costs a comparison a row."""
    return np.full(len(values), -1, np.int64) if values.count(-1) == len(values) else integers(values)


def _small(values: NDArray[np.int64]) -> NDArray[np.int32]:
    """As int32; what does not fit was not a count."""
    return np.where((values < _INT32.min) | (values > _INT32.max), -1, values).astype(np.int32)


def _all(value: str, rows: int) -> Strings:
    """One value in every row."""
    return Strings(np.zeros(rows, np.int32), [value] if rows else [])


def _text(values: list[str | None]) -> Strings:
    if values.count("") == len(values):
        return _all("", len(values))
    return strings([value or "" for value in values] if None in values else values)  # type: ignore[arg-type]


def _peers(args: Sequence[Args]) -> Strings:
    ranks = _get(args, "target_rank"), _get(args, "source_rank")
    if all(of.count(None) == len(of) for of in ranks):
        return _all("", len(args))
    return strings([_peer(one) for one in args])


def _peer(args: Args) -> str:
    """Where a message goes or comes from; "" for all other ops."""
    if args.target_rank is None and args.source_rank is None:
        return ""
    sent = args.target_rank is not None
    return f"{'to' if sent else 'from'} {args.target_rank if sent else args.source_rank} of {args.group_ranks or '[]'}"


def _label(values: list[Any]) -> Strings:
    """Names that some writers give as numbers."""
    if values.count(None) == len(values):
        return _all("", len(values))
    return strings(["" if value is None else str(value) for value in values])


_nothing = partial(is_, NOTHING)


def _raw(values: list[msgspec.Raw]) -> Strings:
    """Nested values as the JSON text that was recorded."""
    if all(map(_nothing, values)):
        return _all("", len(values))
    coded = strings(list(map(bytes, values)))  # type: ignore[arg-type]
    return Strings(coded.codes, [bytes(value).decode("utf-8", "replace") for value in coded.values])  # type: ignore[arg-type]


def _name(events: Sequence[Event]) -> dict[str, Column]:
    return {"name": _text(_get(events, "name"))}


def _thread(events: Sequence[Event]) -> dict[str, Column]:
    return {"pid": integers(_get(events, "pid")), "tid": integers(_get(events, "tid"))}


def _external_id(args: Sequence[Args]) -> NDArray[np.int64]:
    ids = _integers(_get(args, "external_id"))
    return np.where(ids == -1, integers(_get(args, "external_id_2021")), ids) if (ids == -1).any() else ids


def _device(events: Sequence[Event], args: Sequence[Args]) -> NDArray[np.int32]:
    """The device an event names, else its process where that is a number: Kineto files GPU work under its device."""
    own = _get(args, "device")
    if None in own:
        pairs = zip(own, _get(events, "pid"), strict=True)
        own = [device if device is not None else pid if isinstance(pid, int) else 0 for device, pid in pairs]
    return _small(integers(own))


def _stream(events: Sequence[Event], args: Sequence[Args]) -> NDArray[np.int64]:
    """The stream an event names, else its thread. (Since 2026 the thread of a Stream Sync is its stream + 1,000,000.)"""
    own = _get(args, "stream")
    if None in own:
        own = [tid if stream is None else stream for stream, tid in zip(own, _get(events, "tid"), strict=True)]
    return _no_unsigned_none(integers(own))


def _no_unsigned_none(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(values == _UNSIGNED_NONE, -1, values)


def _product(values: list[msgspec.Raw]) -> NDArray[np.int64]:
    """Blocks of a grid, threads of a block: `[x, y, z]` multiplied; -1 where it was not recorded."""
    coded = _raw(values)
    return np.array([_product_of(text) for text in coded.values], np.int64)[coded.codes]


def _product_of(text: str) -> int:
    try:
        sizes = msgspec.json.decode(text, type=list[int])
    except msgspec.DecodeError:
        return -1
    return integer(prod(sizes)) if sizes else -1


def _gpu_ops(events: list[Event], args: list[Args]) -> dict[str, Column]:
    columns: dict[str, Column] = {
        "kind": strings([_KIND_NAMES.get(category) or _gpu_kind(event).value for category, event in zip(_get(events, "cat"), events, strict=True)]),
        **_name(events),
        "device": _device(events, args),
        "stream": _stream(events, args),
        **_ints(args, "correlation", "shared_bytes", "in_elements", "out_elements", "collective_sequence"),
        "bytes": integers([arg.bytes if arg.bytes != -1 else arg.dma_bytes for arg in args]),
        "external_id": _external_id(args),
        "grid_blocks": _product(_get(args, "grid")),
        "block_threads": _small(_product(_get(args, "block"))),
        "registers": _small(integers(_get(args, "registers"))),
        "occupancy_pct": floats(_get(args, "occupancy")),
        "collective": _text(_get(args, "collective")),
        "collective_dtype": _text(_get(args, "dtype")),
        "group": _label(_get(args, "group")),
        "group_ranks": _text(_get(args, "group_ranks")),
        "communicator": _label(_get(args, "communicator")),
        "in_split": _text(_get(args, "in_split")),
        "out_split": _text(_get(args, "out_split")),
        "group_size": _small(_integers(_get(args, "group_size"))),
    }
    for column in ("graph_id", "graph_node_id"):
        # CUPTI: 0 where the work was not launched by a graph.
        ids = _integers(_get(args, column))
        columns[column] = np.where(ids == 0, -1, ids)
    return columns | dict(zip(("copy_kind", "src_kind", "dst_kind"), _copies(events), strict=True))


def _copies(events: list[Event]) -> tuple[Strings, ...]:
    """Direction and kinds of memory, "" of what is no copy."""
    if GpuKind.MEMCPY not in {GPU_KINDS.get(category, GpuKind.MEMCPY) for category in {*_get(events, "cat")}}:
        return (_all("", len(events)),) * 3
    return tuple(strings(list(column)) for column in zip(*(_copy(event) for event in events), strict=True))


_NO_COPY = ("", "", "")


def _gpu_kind(event: Event) -> GpuKind:
    return GPU_KINDS.get(event.cat or "") or (GpuKind.MEMCPY if event.name == "dma_request" else GpuKind.KERNEL)


def _copy(event: Event) -> tuple[str, str, str]:
    if _gpu_kind(event) is not GpuKind.MEMCPY:
        return _NO_COPY
    args = event.args
    kind = args.copy_kind or args.kind
    return describe_copy(args.direction or event.name or "", *(str(text or "") for text in (kind, args.src_kind, args.dst_kind)))


def _api_calls(events: list[Event], args: list[Args]) -> dict[str, Column]:
    return {**_name(events), **_thread(events), **_ints(args, "correlation"), "external_id": _external_id(args)}


def _cpu_ops(events: list[Event], args: list[Args]) -> dict[str, Column]:
    return {
        **_name(events),
        **_thread(events),
        **_ints(args, "sequence", "forward_thread"),
        "external_id": _external_id(args),
        "dims": _raw(_dims(args)),
        **{column: _raw(_get(args, column)) for column in ("types", "strides", "concrete")},
        **{column: _text(_get(args, column)) for column in ("kernel_file", "call_stack", "module")},
        "peer": _peers(args),
    }


def _dims(args: Sequence[Args]) -> list[msgspec.Raw]:
    newer, older = _get(args, "dims"), _get(args, "dims_2021")
    return newer if all(map(_nothing, older)) else [new or old for new, old in zip(newer, older, strict=True)]


def _python_calls(events: list[Event], args: list[Args]) -> dict[str, Column]:
    return {**_name(events), **_thread(events), **_ints(args, "python_id", "parent_id", "module_id")}


def _host_ranges(events: list[Event], args: list[Args]) -> dict[str, Column]:
    return {**_name(events), **_thread(events)}


def _gpu_annotations(events: list[Event], args: list[Args]) -> dict[str, Column]:
    return {**_name(events), "device": _device(events, args), "stream": _stream(events, args)}


def _syncs(events: list[Event], args: list[Args]) -> dict[str, Column]:
    return {
        "kind": strings([event.args.sync_kind or event.name or "" for event in events]),
        "device": _device(events, args),
        "stream": _stream(events, args),
        **_ints(args, "correlation", "waits_on_correlation"),
        "waits_on_stream": _no_unsigned_none(integers(_get(args, "waits_on_stream"))),
    }


def _memory(events: list[Event], args: list[Args]) -> dict[str, Column]:
    return {
        **_thread(events),
        **_ints(args, "address", "allocated_bytes", "reserved_bytes"),
        "bytes": integers(_get(args, "memory_bytes")),
        "device_type": _small(integers(_get(args, "device_type"))),
        "device": _small(integers(_get(args, "device_id"))),
    }


_COLUMNS: dict[str, Callable[[list[Event], list[Args]], dict[str, Column]]] = {
    "gpu_ops": _gpu_ops,
    "api_calls": _api_calls,
    "cpu_ops": _cpu_ops,
    "python_calls": _python_calls,
    "annotations": _host_ranges,
    "overheads": _host_ranges,
    "gpu_annotations": _gpu_annotations,
    "syncs": _syncs,
    "memory": _memory,
}
