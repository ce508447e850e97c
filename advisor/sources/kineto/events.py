"""Kineto's events as typed structs of only the fields that some table needs."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec import Raw

from advisor.sources.kineto.numerals import without_no_numbers

# Writers differ: numbers stand as strings, pids as names, ids as floats or null.
Scalar = int | float | str | None

NOTHING = Raw()
"""A nested value that was not recorded. (Typed `Raw | None`, msgspec would decode the value instead.)"""

_KEYS = {
    "external_id": "External id",
    "external_id_2021": "external id",
    "correlation": "correlation",
    "device": "device",
    "stream": "stream",
    "original_stream": "original_stream",
    "bytes": "bytes",
    "dma_bytes": "size",
    "direction": "direction",
    "kind": "kind",
    "copy_kind": "copy kind",
    "src_kind": "src kind",
    "dst_kind": "dst kind",
    "grid": "grid",
    "block": "block",
    "registers": "registers per thread",
    "shared_bytes": "shared memory",
    "occupancy": "est. achieved occupancy %",
    "graph_id": "graph id",
    "graph_node_id": "graph node id",
    "collective": "Collective name",
    "dtype": "dtype",
    "group_size": "Group size",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "group": "Process Group Name",
    "group_ranks": "Process Group Ranks",
    "collective_sequence": "Seq",
    "communicator": "Comms Id",
    "source_rank": "Src Rank",
    "target_rank": "Dst Rank",
    "in_split": "In split size",
    "out_split": "Out split size",
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "dims": "Input Dims",
    "dims_2021": "Input dims",
    "types": "Input type",
    "strides": "Input Strides",
    "concrete": "Concrete Inputs",
    "kernel_file": "kernel_file",
    "call_stack": "Call stack",
    "module": "Module Hierarchy",
    "python_id": "Python id",
    "parent_id": "Python parent id",
    "module_id": "Python module id",
    "sync_kind": "cuda_sync_kind",
    "waits_on_stream": "wait_on_stream",
    "waits_on_correlation": "wait_on_cuda_event_record_corr_id",
    "address": "Addr",
    "memory_bytes": "Bytes",
    "allocated_bytes": "Total Allocated",
    "reserved_bytes": "Total Reserved",
    "device_type": "Device Type",
    "device_id": "Device Id",
    "thread": "name",
}


class Args(msgspec.Struct, gc=False, frozen=True, rename=_KEYS):
    """Fields of an event, all of them optional."""

    external_id: Scalar = -1
    external_id_2021: Scalar = -1
    correlation: Scalar = -1
    device: Scalar = None
    stream: Scalar = None
    original_stream: Scalar = None
    bytes: Scalar = -1
    dma_bytes: Scalar = -1
    direction: str | None = ""
    kind: str | int | None = ""
    copy_kind: str | int | None = ""
    src_kind: str | int | None = ""
    dst_kind: str | int | None = ""
    grid: Raw = NOTHING
    block: Raw = NOTHING
    registers: Scalar = -1
    shared_bytes: Scalar = -1
    occupancy: Scalar = None
    graph_id: Scalar = -1
    graph_node_id: Scalar = -1
    collective: str | None = ""
    dtype: str | None = ""
    group_size: Scalar = -1
    in_elements: Scalar = -1
    out_elements: Scalar = -1
    group: Scalar = None
    group_ranks: str | None = ""
    collective_sequence: Scalar = -1
    communicator: Scalar = None
    source_rank: Scalar = None
    target_rank: Scalar = None
    in_split: str | None = ""
    out_split: str | None = ""
    sequence: Scalar = -1
    forward_thread: Scalar = -1
    dims: Raw = NOTHING
    dims_2021: Raw = NOTHING
    types: Raw = NOTHING
    strides: Raw = NOTHING
    concrete: Raw = NOTHING
    kernel_file: str | None = ""
    call_stack: str | None = ""
    module: str | None = ""
    python_id: Scalar = -1
    parent_id: Scalar = -1
    module_id: Scalar = -1
    sync_kind: str | None = ""
    waits_on_stream: Scalar = -1
    waits_on_correlation: Scalar = -1
    address: Scalar = -1
    memory_bytes: Scalar = -1
    allocated_bytes: Scalar = -1
    reserved_bytes: Scalar = -1
    device_type: Scalar = -1
    device_id: Scalar = -1
    thread: str | int | float | None = ""
    """Of a metadata event that names its thread, or its process."""


_NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """An event; times in microseconds. An event without `dur` lasts 0."""

    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: Any = None
    dur: Any = 0
    args: Args = _NO_ARGS


class Times(msgspec.Struct, gc=False):
    """An event's times as they are written."""

    ts: Raw = NOTHING
    dur: Raw = NOTHING


class MalformedError(ValueError):
    """The text is not a sequence of JSON objects."""


_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_EACH = msgspec.json.Decoder(list[Raw])
_TIMES = msgspec.json.Decoder(list[Times])
_FAILURES = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def parse(piece: bytes) -> list[Event]:
    """Decode `{…}, {…}`, the inside of a list. Raises MalformedError for any other text."""
    text = b"[" + piece + b"]"
    try:
        return _EVENTS.decode(text)
    except msgspec.ValidationError:
        return _parse_odd_types(_mended(text))
    except _FAILURES as error:
        mended = _mended(text)
        if mended != text:
            return parse(mended[1:-1])
        raise MalformedError(str(error)) from None


def parse_times(piece: bytes) -> list[Times]:
    """The times of the events that `parse` accepted, one time per event."""
    text = b"[" + piece + b"]"
    try:
        return _TIMES.decode(text)
    except _FAILURES:  # what only the lenient way through `parse` accepted
        return [_as_times(item) for item in _lenient(_mended(text), parse_float=str, parse_constant=str) if isinstance(item, dict)]


_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>u[dD][89a-fA-F]..)|.)", re.DOTALL)


def _mended(text: bytes) -> bytes:
    """The text with `null` for C's spellings of values that are no number. Each escaped half of a surrogate pair
    without its other half, which is no character, becomes `?`."""
    text = without_no_numbers(text)
    return _ESCAPE.sub(lambda found: b"?" if found["half"] else found[0], text)


def _parse_odd_types(text: bytes) -> list[Event]:
    """Decode events, some of which hold a value of an unexpected type. That value is left out, the others cost nothing."""
    try:
        each: list[Raw] = _EACH.decode(text)
    except _FAILURES:
        return [_as_struct(Event, item) for item in _lenient(text) if isinstance(item, dict)]
    return [event for raw in each if (event := _event_of(raw)) is not None]


def _event_of(raw: Raw) -> Event | None:
    """An event, None for any other value."""
    try:
        return _EVENT.decode(raw)
    except _FAILURES:
        (item,) = _lenient(b"[" + bytes(raw) + b"]")
        return _as_struct(Event, item) if isinstance(item, dict) else None


def _lenient(text: bytes, **options: Any) -> list[Any]:
    """As the standard library reads it, bytes that are not UTF-8 replaced: msgspec looks only at the fields it takes."""
    try:
        items: list[Any] = json.loads(text.decode("utf-8", "replace"), strict=False, **options)
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(error)) from None
    return items


_FIELDS = {kind: msgspec.structs.fields(kind) for kind in (Event, Args)}
"""Asked for by every odd event, and slow to make."""


def _as_struct(kind: type[Any], item: dict[str, Any]) -> Any:
    known = {}
    for field in _FIELDS[kind]:
        value = item.get(field.encode_name, NOTHING)
        if value is NOTHING:
            continue
        if field.type is Args:
            known[field.name] = _as_struct(Args, value) if isinstance(value, dict) else _NO_ARGS
        elif field.type is Raw:
            known[field.name] = Raw(json.dumps(value).encode())
        else:
            try:
                known[field.name] = msgspec.convert(value, field.type)
            except msgspec.ValidationError:
                if field.name in ("ph", "cat", "name") and isinstance(value, (int, float)):
                    known[field.name] = str(value)
    return kind(**known)


def _as_times(item: dict[str, Any]) -> Times:
    return Times(**{key: Raw(str(item[key]).encode()) for key in ("ts", "dur") if key in item})
