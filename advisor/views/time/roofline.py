"""FLOPs and bytes of each GPU op, from shapes of its framework op or of the compiler's source ops, and the least time for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from advisor.errors import Unavailable
from advisor.intervals import Floats, Ints, Mask, innermost, over_ancestors
from advisor.knowledge.devices import Peaks
from advisor.knowledge.op_costs import Cost, op_cost
from advisor.knowledge.op_tokens.families import Family
from advisor.recordings.columns import Categorical, Table, compact
from advisor.recordings.timeline import Device, GpuKind, Timeline
from advisor.views.device_rates import DeviceRates
from advisor.views.groups import Groups, distinct
from advisor.views.trace.captured_graphs import CapturedGraphs
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.ops import Ops

MOVES_DATA = (Family.LAYOUT, Family.COPY, Family.FILL)
"""Kernels that move data as it is, or write a constant."""

ADD_DEVICE = "say its rates in [tool.advisor.devices] of pyproject.toml"


class Roofline(msgspec.Struct, frozen=True):
    """flops, bytes: (n_gpu,) each op's part of the work of its framework or compiled op, NaN without shapes or formula.

    An op's work is divided among its kernels by time, so it is never counted twice. FLOPs go to kernels that compute, if there are any: not to layout
    conversions next to a convolution. cost_op: (n_gpu,) the framework op of that work, or -1. limit_us: (n_gpu,) least time at rates that the device
    reaches in practice, NaN if unknown; peak_us: at the datasheet's rates. peaks: by device id.
    """

    flops: Floats
    bytes: Floats
    cost_op: Ints
    limit_us: Floats
    peak_us: Floats
    peaks: dict[int, Peaks]

    def peaks_of(self, device: Device) -> Peaks:
        """The device's peak rates. Raises Unavailable if they are not known."""
        found = self.peaks.get(device.id)
        if found is None:
            raise Unavailable(f"the peak rates of {device.name or 'this device'} are not known", ADD_DEVICE)
        return found

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops, kernels: Kernels, rates: DeviceRates, captured: CapturedGraphs | None) -> Roofline:
        frame = timeline.gpu_ops
        n = len(frame)
        device = frame["device"]
        peaks = {d: p for d in np.unique(device).tolist() if (p := rates.peaks_of(timeline.device(d)))}
        costs, known = _costs(timeline, ops, ops.of_gpu)
        # The innermost op around the launch whose cost is known.
        nearest = over_ancestors(ops.parent, np.where(known, np.arange(len(known)), -1), -1, innermost)
        at = np.where(ops.of_gpu >= 0, np.r_[nearest, -1][ops.of_gpu], -1)
        at[frame["kind"] != GpuKind.KERNEL.value] = -1
        flops, moved = np.full(n, np.nan), np.full(n, np.nan)
        computes = ~kernels.in_families(*MOVES_DATA)
        rows = np.flatnonzero(at >= 0)
        if len(rows):
            of, dur = at[rows], frame["dur_us"][rows]
            flops[rows] = costs[of, 0] * _parts(of, dur, computes[rows])
            moved[rows] = costs[of, 1] * _parts(of, dur)
        compiled = _compiled(timeline, computes)
        flops, moved = (np.where(at >= 0, own, said) for own, said in zip((flops, moved), compiled, strict=True))
        if captured:
            replayed = _captured(captured, frame, computes)
            flops, moved = (np.where(captured.op >= 0, theirs, own) for own, theirs in zip((flops, moved), replayed, strict=True))
        reached, peak = (_limits(flops, moved, device, kernels.precision, peaks, rates_of) for rates_of in (_reached, _peak))
        return cls(compact(flops), compact(moved), compact(at), compact(reached), compact(peak), peaks)


def _parts(of: Ints, dur_us: Floats, counted: Mask | None = None) -> Floats:
    """(n,) each one's part of the work of its op `of`, by time; equal parts if none took any. Uncounted kernels get none, unless the op has no other."""
    mine = np.ones(len(of), bool) if counted is None else counted | (np.bincount(of, counted) == 0)[of]
    weight = np.where(mine, dur_us, 0.0)
    spent, count = np.bincount(of, weight)[of], np.bincount(of, mine)[of]
    return np.where(spent > 0, weight / np.maximum(spent, 1e-12), mine / count)


def _captured(captured: CapturedGraphs, frame: Table, computes: Mask) -> tuple[Floats, Floats]:
    """FLOPs and bytes of each GPU op (n_gpu,) that a graph replays, by the op that it was captured of: once each replay."""
    flops, moved = np.full(len(frame), np.nan), np.full(len(frame), np.nan)
    costs, known = _costs(captured.timeline, captured.ops, captured.op)
    nearest = over_ancestors(captured.ops.parent, np.where(known, np.arange(len(known)), -1), -1, innermost)
    at = np.where(captured.op >= 0, np.r_[nearest, -1][captured.op], -1)
    at[frame["kind"] != GpuKind.KERNEL.value] = -1
    rows = np.flatnonzero(at >= 0)
    if len(rows):
        once, dur = Groups.by_keys(at[rows], captured.replay[rows]).of, frame["dur_us"][rows]
        flops[rows] = costs[at[rows], 0] * _parts(once, dur, computes[rows])
        moved[rows] = costs[at[rows], 1] * _parts(once, dur)
    return flops, moved


def _compiled(timeline: Timeline, computes: Mask) -> tuple[Floats, Floats]:
    """FLOPs and bytes of each GPU op (n_gpu,) by the compiler's source ops.

    Kernels of a compiled op follow each other on their stream; a recurring kernel name starts another run.
    """
    frame = timeline.gpu_ops
    flops, moved = np.full(len(frame), np.nan), np.full(len(frame), np.nan)
    work = timeline.compiled_ops
    rows = np.flatnonzero((frame["compiled"] >= 0) & (frame["kind"] == GpuKind.KERNEL.value))
    if not len(rows):
        return flops, moved
    at, dur = frame["compiled"][rows], frame["dur_us"][rows]
    stream = Groups.by_keys(frame["device"][rows], frame["stream"][rows]).of
    order = np.argsort(stream, kind="stable")
    run = np.empty(len(rows), np.int64)
    run[order] = np.cumsum(np.r_[True, (np.diff(at[order]) != 0) | (np.diff(stream[order]) != 0)])
    once = Groups.by_keys(run, Groups.by_keys(run, frame["name"].codes[rows]).nth).of
    flops[rows] = work["flops"][at] * _parts(once, dur, computes[rows])
    moved[rows] = work["bytes"][at] * _parts(once, dur)
    return flops, moved


def _costs(timeline: Timeline, ops: Ops, launching: Ints) -> tuple[Floats, np.ndarray]:
    """FLOPs and bytes (n_cpu, 2) of the framework ops that launch, by their rows, and of those around them, and which are known. Equal ops are worked out once."""
    frame = timeline.cpu_ops
    costs, known = np.zeros((len(frame), 2)), np.zeros(len(frame), bool)
    wanted = np.zeros(len(frame), bool)
    at = launching[launching >= 0]
    while len(at):
        wanted[at] = True
        at = ops.parent[distinct(at)]
        at = at[(at >= 0) & ~wanted[at]]
    columns = [frame[c] for c in ("name", "dims", "types", "concrete", "strides")]
    names, *texts = (list(column.categories) for column in columns)
    keys = [column.codes for column in columns]
    recorded = np.array([text != "" for text in texts[0]], bool)[keys[1]]
    rows = np.flatnonzero(wanted & recorded)
    if not len(rows):
        return costs, known
    keys = [key[rows] for key in keys]
    groups = Groups.by_keys(*keys)
    lists = [_Lists(values) for values in texts]
    found: list[Cost | None] = []
    for name, *codes in zip(*(key[groups.first].tolist() for key in keys), strict=True):
        dims, types, concrete, strides = (values[code] for values, code in zip(lists, codes, strict=True))
        found.append(op_cost(names[name] if name >= 0 else "", dims, types, concrete, strides))
    table = np.array([(c.flops, c.bytes) if c else (np.nan, np.nan) for c in found])[groups.of]
    good = ~np.isnan(table[:, 0])
    costs[rows[good]] = table[good]
    known[rows] = good
    return costs, known


class _Lists(dict[int, list[Any]]):
    """A column's argument lists by code, each parsed when it is first asked for."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __missing__(self, code: int) -> list[Any]:
        self[code] = _list(self.texts[code]) if code >= 0 else []
        return self[code]


def _list(text: str) -> list[Any]:
    """A recorded argument list; nothing if the producer wrote something else."""
    value = json.loads(text) if text else []
    return value if isinstance(value, list) else []


RateOf = Callable[[Peaks, str], tuple[float | None, float | None]]
"""Bytes and FLOPs a second of a device, in a precision."""


def _reached(peak: Peaks, precision: str) -> tuple[float | None, float | None]:
    return peak.achievable_bytes_per_s, peak.achievable_flops_per_s(precision)


def _peak(peak: Peaks, precision: str) -> tuple[float | None, float | None]:
    return peak.bytes_per_s, peak.flops_per_s(precision)


def _limits(flops: Floats, moved: Floats, device: Ints, precision: Categorical, peaks: dict[int, Peaks], rates_of: RateOf) -> Floats:
    limit = np.full(len(flops), np.nan)
    known = ~np.isnan(moved)
    for number, peak in peaks.items():
        for code, name in enumerate(precision.categories):
            rows = np.flatnonzero((device == number) & (precision.codes == code) & known)
            bandwidth, rate = rates_of(peak, name or "fp32")
            if not len(rows) or bandwidth is None:
                continue
            by_bytes = moved[rows] / bandwidth * 1e6
            limit[rows] = np.maximum(by_bytes, flops[rows] / rate * 1e6) if rate else by_bytes
    return limit
