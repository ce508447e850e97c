"""From a piece of a trace's text to the columns of the timeline's tables: a pure function of its bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

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
from advisor.sources.kineto.events import Args, Event, parse, parse_times
from advisor.timeline import GpuKind

GPU_KINDS = {
    "kernel": GpuKind.KERNEL,
    "Kernel": GpuKind.KERNEL,
    "gpu_memcpy": GpuKind.MEMCPY,
    "Memcpy": GpuKind.MEMCPY,
    "gpu_memset": GpuKind.MEMSET,
    "Memset": GpuKind.MEMSET,
}
"""Only the category makes an event GPU work: an op that Inductor compiled has a `stream` argument too."""

TABLE_OF = {
    **dict.fromkeys(GPU_KINDS, "gpu_ops"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime", "glow_runtime", "hpu_op"), "api_calls"),
    **dict.fromkeys(("xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver"), "api_calls"),
    **dict.fromkeys(("cpu_op", "Operator"), "cpu_ops"),
    "python_function": "python_calls",
    "user_annotation": "annotations",
    "gpu_user_annotation": "gpu_annotations",
    "cuda_sync": "syncs",
    "overhead": "overheads",
}
"""The table of each category of spans (FORMATS.md, 7.2)."""

# An event of a week is a broken clock.
MAX_DURATION_NS = 7 * 86_400 * 10**9

_UNSIGNED_NONE = (1 << 32) - 1  # -1 as CUPTI's uint32
_INT32 = np.iinfo(np.int32)


@dataclass
class Piece:
    """One piece of a trace, transposed.

    `tables` hold the columns of advisor.timeline.TABLES, times as int64 nanoseconds under START and DURATION.
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
    rows: dict[str, list[Event]] = {}
    sinks = _Sinks(rows)
    for event in events:
        if event.ph == "X":
            sinks[event.cat].append(event)
        elif event.ph not in "sftC":
            _route_other(event, piece, rows)
    for category, unknown in sinks.unknown.items():
        piece.categories[category] += len(unknown)
    for table, members in rows.items():
        _add_table(piece, table, members)
    return piece


class _Sinks(dict["str | None", list[Event]]):
    """The list to which events of a category go; categories of one table share theirs, so that order is kept."""

    def __init__(self, rows: dict[str, list[Event]]) -> None:
        self.rows = rows
        self.unknown: dict[str, list[Event]] = {}

    def __missing__(self, category: str | None) -> list[Event]:
        table = TABLE_OF.get(category or "")
        sink = self.rows.setdefault(table, []) if table else self.unknown.setdefault(category or "", [])
        self[category] = sink
        return sink


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
    start, valid = nanoseconds([event.ts for event in events])
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
    columns |= _COLUMNS[table](events, [event.args for event in events])
    piece.tables[table] = columns


def _durations(events: list[Event], piece: Piece) -> NDArray[np.int64]:
    """Durations in nanoseconds, 0 where the recorded one cannot be."""
    duration, valid = nanoseconds([0 if event.dur is None else event.dur for event in events])
    bad = ~valid | (duration < 0) | (duration > MAX_DURATION_NS)
    piece.bad_durations += int(bad.sum())
    return np.where(bad, 0, duration)


def _get(rows: Sequence[Any], attribute: str) -> list[Any]:
    return list(map(attrgetter(attribute), rows))


def _ints(args: Sequence[Args], *attributes: str) -> dict[str, Column]:
    return {attribute: integers(_get(args, attribute)) for attribute in attributes}


def _small(values: NDArray[np.int64]) -> NDArray[np.int32]:
    """As int32; what does not fit was not a count."""
    return np.where((values < _INT32.min) | (values > _INT32.max), -1, values).astype(np.int32)


def _text(values: Sequence[str | None]) -> Strings:
    return strings([value or "" for value in values])


def _peer(args: Args) -> str:
    """Where a message goes or comes from; "" for all other ops."""
    if args.target_rank is None and args.source_rank is None:
        return ""
    sent = args.target_rank is not None
    return f"{'to' if sent else 'from'} {args.target_rank if sent else args.source_rank} of {args.group_ranks or '[]'}"


def _label(values: Sequence[Any]) -> Strings:
    """Names that some writers give as numbers."""
    return strings(["" if value is None else str(value) for value in values])


def _raw(values: Sequence[msgspec.Raw]) -> Strings:
    """Nested values as the JSON text that was recorded."""
    coded = strings(list(map(bytes, values)))  # type: ignore[arg-type]
    return Strings(coded.codes, [bytes(value).decode("utf-8", "replace") for value in coded.values])  # type: ignore[arg-type]


def _name(events: Sequence[Event]) -> dict[str, Column]:
    return {"name": _text(_get(events, "name"))}


def _thread(events: Sequence[Event]) -> dict[str, Column]:
    return {"pid": integers(_get(events, "pid")), "tid": integers(_get(events, "tid"))}


def _external_id(args: Sequence[Args]) -> NDArray[np.int64]:
    ids = integers(_get(args, "external_id"))
    return np.where(ids == -1, integers(_get(args, "external_id_2021")), ids) if (ids == -1).any() else ids


def _device(events: Sequence[Event], args: Sequence[Args]) -> NDArray[np.int32]:
    """The device an event names, else its process where that is a number: Kineto files GPU work under its device."""
    pairs = zip(args, events, strict=True)
    own = [arg.device if arg.device is not None else event.pid if isinstance(event.pid, int) else 0 for arg, event in pairs]
    return _small(integers(own))


def _stream(events: Sequence[Event], args: Sequence[Args]) -> NDArray[np.int64]:
    """The stream an event names, else its thread. (Since 2026 the thread of a Stream Sync is its stream + 1,000,000.)"""
    pairs = zip(args, events, strict=True)
    return _no_unsigned_none(integers([arg.stream if arg.stream is not None else event.tid for arg, event in pairs]))


def _no_unsigned_none(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(values == _UNSIGNED_NONE, -1, values)


def _product(values: Sequence[msgspec.Raw]) -> NDArray[np.int64]:
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
        "kind": strings([GPU_KINDS[event.cat or ""].value for event in events]),
        **_name(events),
        "device": _device(events, args),
        "stream": _stream(events, args),
        **_ints(args, "correlation", "bytes", "shared_bytes", "in_elements", "out_elements", "collective_sequence"),
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
        "group_size": _small(integers(_get(args, "group_size"))),
    }
    for column in ("graph_id", "graph_node_id"):
        # CUPTI: 0 where the work was not launched by a graph.
        ids = integers(_get(args, column))
        columns[column] = np.where(ids == 0, -1, ids)
    copies = [_copy(event) for event in events]
    for i, column in enumerate(("copy_kind", "src_kind", "dst_kind")):
        columns[column] = strings([copy[i] for copy in copies])
    return columns


_NO_COPY = ("", "", "")


def _copy(event: Event) -> tuple[str, str, str]:
    if GPU_KINDS[event.cat or ""] is not GpuKind.MEMCPY:
        return _NO_COPY
    args = event.args
    kind = args.copy_kind or args.kind
    return describe_copy(event.name or "", *(str(text or "") for text in (kind, args.src_kind, args.dst_kind)))


def _api_calls(events: list[Event], args: list[Args]) -> dict[str, Column]:
    return {**_name(events), **_thread(events), **_ints(args, "correlation"), "external_id": _external_id(args)}


def _cpu_ops(events: list[Event], args: list[Args]) -> dict[str, Column]:
    return {
        **_name(events),
        **_thread(events),
        **_ints(args, "sequence", "forward_thread"),
        "external_id": _external_id(args),
        "dims": _raw([arg.dims or arg.dims_2021 for arg in args]),
        **{column: _raw(_get(args, column)) for column in ("types", "strides", "concrete")},
        **{column: _text(_get(args, column)) for column in ("kernel_file", "call_stack", "module")},
        "peer": strings([_peer(one) for one in args]),
    }


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
