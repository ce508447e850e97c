"""PyTorch's memory snapshot (`torch.cuda.memory._dump_snapshot`): a pickle of lists and dicts, converted to columns.

Writer of the fields: torch/csrc/cuda/memory_snapshot.cpp. Missing fields of a version are filled in if the rest determines them (a block's address,
its stack)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from advisor.errors import TraceError
from advisor.knowledge import formats
from advisor.recordings.snapshot import Action, Block, DeviceSnapshot, Events, Frame, Mark, MemorySnapshot, Segment, Stack
from advisor.report.numbers import cut
from advisor.sources.limits import LARGEST
from advisor.sources.memory.pickles import Fold
from advisor.sources.memory.rows import Referred
from advisor.sources.sniff import refused

RECORD = (
    "Record with: torch.cuda.memory._record_memory_history(); run a few steps; then: "
    "torch.cuda.memory._dump_snapshot('snapshot.pickle'). Give that file, with or without .gz."
)

RECORD_TIME = "Or record the program's time: advisor record -- python PROGRAM."

_ACTIONS = {
    "alloc": Action.ALLOC,
    "free_requested": Action.FREE_REQUESTED,
    "free": Action.FREE_REQUESTED,
    "free_completed": Action.FREE_COMPLETED,
    "segment_alloc": Action.SEGMENT_ALLOC,
    "segment_free": Action.SEGMENT_FREE,
    "segment_map": Action.SEGMENT_MAP,
    "segment_unmap": Action.SEGMENT_UNMAP,
    "oom": Action.OOM,
}
_ALLOCATED = ("active_allocated",)
_IN_USE = ("active_pending_free", "active_awaiting_free")
_MOST_BYTES = 1 << 50
"""A petabyte, which no GPU has: a size beyond it is damage, and sums of such sizes are no numbers of a column any more."""
_NO_LINE = int(np.iinfo(np.uint64).max)
"""The line number that torch writes for a C++ frame with an unknown line: -1 without a sign."""


def from_value(value: Any, path: str, size: int) -> MemorySnapshot:
    """The snapshot that `value` holds: what torch.cuda.memory._snapshot() returns, or the list of memory_snapshot()."""
    value = {"segments": value} if isinstance(value, list) and all(isinstance(one, dict) for one in value) else value
    if not isinstance(value, dict) or not isinstance(value.get("segments"), list):
        if isinstance(value, dict) and (known := formats.of_pickled(value)):
            raise refused(known, path)
        raise TraceError(f"{path} is a pickle, but no memory snapshot: it has no segments ({_held(value)})", f"{RECORD} {RECORD_TIME}")
    try:
        return _snapshot(value, path, size)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        raise TraceError(f"{path} is a damaged memory snapshot: {type(error).__name__}: {str(error)[:120]}", RECORD) from None


def _held(value: Any) -> str:
    """The content of a pickle in a few words."""
    if not isinstance(value, dict):
        return f"a {type(value).__name__}"
    return f"a dict of {cut(', '.join(str(key) for key in list(value)[:6]), 100)}" if value else "an empty dict"


def _snapshot(value: dict[str, Any], path: str, size: int) -> MemorySnapshot:
    stacks = _Stacks()
    traces = value.get("device_traces") or []
    found: dict[int, list[Segment]] = {device: [] for device, trace in enumerate(traces) if trace}
    for segment in value["segments"]:
        found.setdefault(_whole(segment.get("device", 0)), []).append(_segment(segment, stacks))
    devices = tuple(
        DeviceSnapshot(
            device=device,
            segments=tuple(sorted(segments)),
            events=_events(traces[device] if device < len(traces) else [], stacks),
        )
        for device, segments in sorted(found.items())
    )
    if not devices:
        raise TraceError(f"{path} is a memory snapshot of a program that used no GPU memory", RECORD)
    settings = value.get("allocator_settings")
    return MemorySnapshot(
        path=path,
        format="torch-memory",
        bytes=size,
        devices=devices,
        stacks=tuple(stacks.made),
        marks=_marks(value.get("external_annotations") or []),
        settings=settings if isinstance(settings, dict) else {},
    )


class _Stacks:
    """Stacks by index, each distinct stack once. A snapshot shares lists of frames, so a known list costs a single look-up."""

    def __init__(self) -> None:
        self.made: list[Stack] = []
        self._by_stack: dict[Stack, int] = {}
        self._by_list: dict[int, int] = {}
        self._frames: dict[tuple[str, str, int], Frame] = {}

    def index(self, frames: list[dict[str, Any]] | None) -> int:
        """The index of the stack, -1 for an empty stack."""
        if not frames:
            return -1
        known = self._by_list.get(id(frames))
        if known is not None:
            return known
        stack = tuple([self._frame(frame) for frame in frames])
        index = self._by_stack.setdefault(stack, len(self.made))
        if index == len(self.made):
            self.made.append(stack)
        self._by_list[id(frames)] = index
        return index

    def _frame(self, frame: Mapping[str, Any]) -> Frame:
        key = _text(frame["name"]), _text(frame["filename"]), _whole(frame["line"], _NO_LINE)
        made = self._frames.get(key)
        if made is None:
            made = self._frames[key] = Frame(key[0], key[1].replace("\\", "/"), 0 if key[2] == _NO_LINE else key[2])
        return made


def _segment(segment: Mapping[str, Any], stacks: _Stacks) -> Segment:
    address = _whole(segment["address"])
    blocks, at = [], address
    for block in segment["blocks"]:
        at = _whole(block.get("address", at))
        size, state = _size(block["size"]), block["state"]
        frames = block.get("frames") or next((h.get("frames") for h in block.get("history") or ()), None)
        allocated = state in _ALLOCATED
        blocks.append(Block(at, size, _size(block.get("requested_size", size)), allocated, allocated or state in _IN_USE, stacks.index(frames)))
        at += size
    first, second = segment.get("segment_pool_id") or (0, 0)
    return Segment(
        address=address,
        size=_size(segment["total_size"]),
        stream=_whole(segment.get("stream", 0)),
        large=segment.get("segment_type", "large") == "large",
        pool=(_whole(first), _whole(second)),
        expandable=bool(segment.get("is_expandable", False)),
        blocks=tuple(blocks),
    )


def _whole(value: Any, besides: int = 0) -> int:
    """An address, a stream, a time, …. Raises ValueError if a difference of two, or a sum with a size, is beyond 64 bits. besides: another allowed
    value."""
    if abs(int(value)) >= LARGEST and value != besides:
        raise ValueError(f"{value} is beyond 64 bits")
    return int(value)


def _text(value: Any) -> str:
    """Raises TypeError for other types: a tuple that contains itself in many ways takes forever to compare or to print."""
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} stands where a text belongs")
    return value


def _size(value: Any) -> int:
    """Raises ValueError for an impossible number of bytes of a GPU's memory."""
    if abs(int(value)) > _MOST_BYTES:
        raise ValueError(f"{value} is no size of a GPU's memory")
    return int(value)


class _Rows(NamedTuple):
    """Events as columns, with the pickle's stacks: a tenth of the dicts' memory."""

    action: Any
    address: Any
    size: Any
    stream: Any
    time_us: Any
    stack: Any
    """Index into `frames`."""
    frames: list[list[dict[str, Any]] | None]


def _of_dicts(rows: list[dict[str, Any]]) -> _Rows | None:
    """Rows of a trace as columns; None if they cannot be read."""
    try:
        return _columns(rows)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _columns(rows: list[dict[str, Any]]) -> _Rows:
    def column(values: Iterable[int], kind: str) -> Any:
        return np.fromiter(values, kind, len(rows))

    return _Rows(
        action=column((_ACTIONS.get(_text(e["action"]), Action.OTHER) for e in rows), "i1"),
        address=column((e.get("addr", -1) for e in rows), "i8"),
        size=column((e.get("size", 0) for e in rows), "i8"),
        stream=column((e.get("stream", 0) for e in rows), "i8"),
        time_us=column((e.get("time_us", 0) for e in rows), "i8"),
        stack=np.arange(len(rows)),
        frames=[e.get("frames") for e in rows],
    )


_NUMBERS = {"address": ("addr", -1), "size": ("size", 0), "stream": ("stream", 0), "time_us": ("time_us", 0)}


def _of_columns(count: int, columns: dict[str, Any]) -> _Rows | None:
    """The same for rows that are columns already; None if a field is not an event's."""
    actions, frames = columns.get("action"), columns.get("frames", Referred([None], np.zeros(count, "i8")))
    if not isinstance(actions, Referred) or not isinstance(frames, Referred):
        return None
    numbers = {name: columns.get(key, np.full(count, missing, "i8")) for name, (key, missing) in _NUMBERS.items()}
    if not all(isinstance(column, np.ndarray) for column in numbers.values()):
        return None
    try:
        known = np.array([_ACTIONS.get(_text(a), Action.OTHER) for a in actions.values], "i1")
    except TypeError:
        return None
    return _Rows(action=known[actions.of], stack=frames.of, frames=frames.values, **numbers)


FOLD = Fold("action", _of_dicts, _of_columns)


def _events(trace: list[dict[str, Any] | _Rows], stacks: _Stacks) -> Events:
    parts = [part if isinstance(part, _Rows) else _columns([part]) for part in trace] or [_columns([])]
    *columns, of, frames = zip(*parts, strict=True)
    action, address, size, stream, time_us = map(np.concatenate, columns)
    for check, column in ((_size, size), (_whole, address), (_whole, stream), (_whole, time_us)) if len(size) else ():
        check(column.min()), check(column.max())
    stack = np.concatenate([np.array([stacks.index(one) for one in part], "i4")[chosen] for chosen, part in zip(of, frames, strict=True)])
    # They are a log, in order: a clock that is set back stands until it is where it was.
    return Events(action, address, size, stream, np.maximum.accumulate(time_us), stack)


def _marks(annotations: list[dict[str, Any]]) -> tuple[Mark, ...]:
    """Ranges from their starts and ends; an end belongs to the last open start of its name and device."""
    opened: dict[tuple[str, int], list[int]] = {}
    marks = []
    for note in annotations:
        name, device, time_us = _text(note["name"]), _whole(note.get("device", 0)), _whole(note["time_us"])
        if note.get("stage") == "START":
            opened.setdefault((name, device), []).append(time_us)
        elif starts := opened.get((name, device)):
            marks.append(Mark(name, starts.pop(), time_us, device))
    return tuple(sorted(marks, key=lambda mark: (mark.start_us, -mark.end_us)))
