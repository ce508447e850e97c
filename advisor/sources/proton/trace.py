"""Proton's Chrome traces as timelines. Until early 2026 it wrote a document per line, for each stream. Now it writes a single document, with the
host's scopes and Triton's metadata of kernels. Neither has the calls that launched work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from advisor.errors import TraceError
from advisor.intervals import Mask
from advisor.knowledge import formats
from advisor.recordings.timeline import GpuKind, ReadIssue, Source, Timeline, table
from advisor.report.numbers import NAMED, counted, percent
from advisor.sources.json_pieces import Readable, pieces
from advisor.sources.limits import LARGEST, LONGEST_NS
from advisor.sources.sniff import refused
from advisor.sources.stream import Stream
from advisor.sources.time_issues import time_issues

RECORD = 'Record with: proton.start("name", data="trace", hook="triton"), a few steps, proton.finalize(output_format="chrome_trace"); or with torch.profiler.'

_GRAPHS, _DEVICES, _OF_A_DEVICE = 100_000, 200_000, 1_000_000
"""Lanes: threads of the host are below the first, graphs' scopes below the second; devices behind it, a million lanes each."""
_MOST_LANES = 1 << 48
"""Streams that are pointers stay below; an event without a valid lane does not."""
_PROCESS = 0
"""The host's: Proton records its own alone."""


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    args: dict[str, Any] = {}


class _Document(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents", default_factory=list)


class _Undecoded(msgspec.Struct):
    """An event with its arguments still as text: most are equal to those of another event."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Known:
    """Arguments and names that were read, each held once: of an event they take most of the memory."""

    def __init__(self) -> None:
        self._args: dict[bytes, dict[str, Any]] = {}
        self._texts: dict[str, str] = {}

    def event(self, one: _Undecoded) -> _Event:
        """The event with its arguments. Raises DecodeError if they are none."""
        text = bytes(one.args)
        if text not in self._args:
            self._args[text] = msgspec.json.decode(text, type=dict[str, Any])
        ph, cat, name = (self._texts.setdefault(said, said) for said in (one.ph, one.cat, one.name))
        return _Event(ph, cat, name, one.ts, one.dur, one.tid, self._args[text])


_PIECE = msgspec.json.Decoder(list[_Undecoded])


class _Work(NamedTuple):
    """What Triton's metadata, or the user's, says that a kernel does; NaN if it says nothing."""

    name: str
    flops: float
    bytes: float


def read(data: bytes, path: str, truncated: str = "") -> Timeline:
    """The timeline. Raises TraceError if no kernel is left of it, or if it is of the inside of kernels."""
    events, bad = _events(data)
    return _timeline(events, bad, path, truncated, len(data))


def read_in_pieces(file: Readable, path: str, stream: Stream) -> Timeline:
    """The timeline of a file that is too large to be decoded as a whole; stream: of it. Raises as `read`, and if an event is damaged."""
    events: list[_Event] = []
    size, bad, known = 0, 0, _Known()
    try:
        for at, piece in pieces(file, path, 2, lambda keys: keys[1] == b'"traceEvents"'):
            size += len(piece)
            if at:
                events += map(known.event, _PIECE.decode(b"[" + piece + b"]"))
            else:
                _, bad = _events(piece)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path} is damaged: {error}", "Copy the file again, or record it again.") from None
    return _timeline(events, bad, path, stream.truncated, size)


def _timeline(events: list[_Event], bad: int, path: str, truncated: str, size: int) -> Timeline:
    spans = [event for event in events if event.ph == "X"]
    inside = [event for event in spans if "Finalization Time (ns)" in event.args]
    if inside:
        raise _intra_kernel_error(inside, path)
    issues = (
        [ReadIssue("complete-file", f"{counted(bad, 'line')} could not be read{f' ({truncated})' if truncated else ''}", cut=True)] if bad or truncated else []
    )
    recorded_us = np.array([(event.ts, event.dur) for event in spans]).reshape(-1, 2)
    good: Mask = np.asarray((np.abs(recorded_us) < LARGEST / 2000.0).all(axis=1))
    times = np.where(good[:, None], recorded_us, 0.0) * 1000.0
    wrong = (times[:, 1] < 0) | (times[:, 1] > LONGEST_NS)
    issues += time_issues(int((~good).sum()), int((wrong & good).sum()))
    times[wrong, 1] = 0.0
    kept = [(event, start, dur) for event, (start, dur), fits in zip(spans, times.tolist(), good.tolist(), strict=True) if fits]
    kernels = [row for row in kept if row[0].cat == "kernel"]
    if not kernels:
        scopes = f"{counted(len(spans), 'scope')} of the host" if spans else "nothing"
        raise TraceError(f"{path} is a trace of Proton without a kernel: it holds {scopes}", RECORD)
    lanes = any(event.ph == "M" and event.name == "thread_name" for event in events)
    base = min(start for _, start, _ in kept)
    tables = {
        **_kernels(kernels, base, lanes),
        "annotations": _scopes(_of_lanes(kept, 0, _GRAPHS) if lanes else [], base),
    }
    source = Source(path=path, format="proton", bytes=size, events=len(events), issues=tuple(issues))
    return Timeline.build(source, (), 0, **tables)


def _events(data: bytes) -> tuple[list[_Event], int]:
    """The events of all documents, and how many lines hold none that can be read."""
    decoder, found, bad = msgspec.json.Decoder(_Document), [], 0
    for line in data.splitlines() if b'"traceEvents": ' not in data[:200] else [data]:
        if not line.strip():
            continue
        try:
            found += decoder.decode(line).events
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            bad += 1
    return found, bad


_Row = tuple[_Event, float, float]
"""An event with its start and its duration in ns."""


def _place(event: _Event, lanes: bool) -> tuple[int, int]:
    """The device and the stream."""
    lane = event.tid if isinstance(event.tid, int) and abs(event.tid) < _MOST_LANES else -1
    return divmod(lane - _DEVICES, _OF_A_DEVICE) if lanes and lane >= _DEVICES else (0, lane)


def _of_lanes(rows: Iterable[_Row], first: int, end: int) -> list[_Row]:
    return [row for row in rows if isinstance(row[0].tid, int) and first <= row[0].tid < end and row[0].cat in ("scope", "metric")]


def _kernels(rows: list[_Row], base: float, lanes: bool) -> dict[str, Any]:
    """`gpu_ops`, their recorded work, and the scopes around them."""
    places = [_place(event, lanes) for event, _, _ in rows]
    works: dict[_Work, int] = {}
    said = [_work(event) for event, _, _ in rows]
    of = [-1 if work is None else works.setdefault(work, len(works)) for work in said]
    made = {
        "gpu_ops": table("gpu_ops", {
            "kind": [GpuKind.KERNEL.value] * len(rows), "name": [event.name for event, _, _ in rows], "device": [d for d, _ in places],
            "stream": [s for _, s in places], **_times(rows, base), "compiled": of,
        }),
        "gpu_annotations": _scope_spans(rows, places, base),
    }  # fmt: skip
    if works:
        columns = {"name": [w.name for w in works], "flops": [w.flops for w in works], "bytes": [w.bytes for w in works]}
        made["compiled_ops"] = table("compiled_ops", columns)
    return made


def _times(rows: list[_Row], base: float) -> dict[str, Any]:
    return {"start_us": (np.array([start for _, start, _ in rows]) - base) / 1000.0, "dur_us": np.array([dur for _, _, dur in rows]) / 1000.0}


def _work(event: _Event) -> _Work | None:
    metrics = event.args.get("metrics")
    flops, moved = work_of(metrics) if isinstance(metrics, dict) else (float("nan"), float("nan"))
    return None if np.isnan(flops) and np.isnan(moved) else _Work(event.name, flops, moved)


def work_of(metrics: dict[str, Any]) -> tuple[float, float]:
    """FLOPs, of any width, and bytes; NaN if neither is given."""
    counts = {name: number(metrics[name]) for name in ("flops", "flops8", "flops16", "flops32", "flops64", "bytes") if name in metrics}
    moved = counts.pop("bytes", float("nan"))
    known = [count for count in counts.values() if not np.isnan(count)]
    return sum(known) if known else float("nan"), moved


def number(value: Any) -> float:
    """A count; the newer writer writes numbers as texts. NaN for other values."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return float("nan")
    return found if 0 <= found < LARGEST else float("nan")


def _frames(event: _Event) -> list[str]:
    stack = event.args.get("call_stack")
    return [str(name) for name in stack] if isinstance(stack, list) else []


def _stack(event: _Event) -> list[str]:
    """The scopes around a kernel, without the root and itself."""
    return _frames(event)[1:-1]


def _scope_spans(rows: list[_Row], places: list[tuple[int, int]], base: float) -> Any:
    """Scopes as spans on their stream: from the first to the last of the kernels next to each other that ran in them."""
    order = sorted(range(len(rows)), key=lambda i: (places[i], rows[i][1]))
    found: list[tuple[str, int, int, float, float]] = []
    open_: list[list[Any]] = []
    at = None
    for i in [*order, None]:
        stack = [] if i is None else _stack(rows[i][0])
        if i is None or places[i] != at:
            found += (tuple(one) for one in open_)
            open_, at = [], None if i is None else places[i]
        same = next((depth for depth, (one, name) in enumerate(zip(open_, stack, strict=False)) if one[0] != name), min(len(open_), len(stack)))
        found += (tuple(one) for one in open_[same:])
        del open_[same:]
        if i is not None:
            _, start, dur = rows[i]
            open_ += [[name, *places[i], start, start + dur] for name in stack[same:]]
            for one in open_:
                one[4] = max(one[4], start + dur)
    starts, ends = np.array([one[3] for one in found]), np.array([one[4] for one in found])
    columns = {"name": [one[0] for one in found], "device": [one[1] for one in found], "stream": [one[2] for one in found]}
    return table("gpu_annotations", columns | {"start_us": (starts - base) / 1000.0, "dur_us": (ends - starts) / 1000.0} if found else {})


def _scopes(rows: list[_Row], base: float) -> Any:
    names = [(_frames(event) or [event.name])[-1] for event, _, _ in rows]
    threads = {"pid": [_PROCESS] * len(rows), "tid": [event.tid for event, _, _ in rows]}
    return table("annotations", {"name": names, **threads, **_times(rows, base)} if rows else {})


def _intra_kernel_error(events: list[_Event], path: str) -> TraceError:
    """A trace of scopes inside kernels: their kernels, and the warps' time."""
    known = next(one for one in formats.known() if one.id == "proton-in-kernel")
    spent: dict[tuple[str, str], float] = {}
    for event in events:
        spent[event.cat, event.name] = spent.get((event.cat, event.name), 0.0) + max(event.dur, 0.0)
    return refused(known, path, "; ".join(_shares(spent)))


def _shares(spent: dict[tuple[str, str], float]) -> Iterator[str]:
    """`of kernel add: load 20 %, store 80 %`."""
    for kernel in list(dict.fromkeys(kernel for kernel, _ in spent))[:NAMED]:
        of = {scope: us for (of, scope), us in spent.items() if of == kernel}
        whole = sum(of.values()) or 1.0
        ranked = sorted(of.items(), key=lambda item: -item[1])
        rest = f" and {counted(len(of) - NAMED, 'other scope')}" if len(of) > NAMED else ""
        yield f"of kernel {kernel} its warps' time is in {', '.join(f'{scope} {percent(us / whole)}' for scope, us in ranked[:NAMED])}{rest}"
