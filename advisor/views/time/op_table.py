"""Framework ops by name: their own time and that with the ops inside of them, on the GPU and the host, and what they allocate."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask, levels, nest, walk
from advisor.recordings.columns import Table
from advisor.recordings.timeline import Timeline
from advisor.report.charts import ROWS
from advisor.report.step import OpRow
from advisor.views.groups import Groups
from advisor.views.time.roofline import Roofline
from advisor.views.trace.captured_graphs import CapturedGraphs
from advisor.views.trace.ops import Ops, thread_ids
from advisor.views.trace.steps import Steps


class OpTable(msgspec.Struct, frozen=True):
    """The window's ops by name, most GPU time first, then most host time; at most `ROWS`. host_self_us: (n_cpu,) each op's own time."""

    rows: tuple[OpRow, ...]
    host_self_us: Floats

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, ops: Ops, roofline: Roofline, captured: CapturedGraphs | None) -> OpTable:
        host, gpu = timeline.cpu_ops, timeline.gpu_ops
        count = len(host)
        dur = host["dur_us"]
        inner = np.flatnonzero(ops.parent >= 0)
        own = np.maximum(dur - np.bincount(ops.parent[inner], dur[inner], count), 0.0)
        if not count:
            return cls((), own)
        # The host issues a step's work before the GPU runs it: its ops are those of the host's part of the window's steps.
        inside = issued_inside(host, steps)
        outermost_of_name = ~_inside_same_name(ops)
        each: dict[str, Floats | Ints] = {
            "calls": inside.astype(np.int64),
            **_on_the_gpu(gpu, steps, roofline, ops, ops.of_gpu, outermost_of_name),
            "host_self": np.where(inside, own, 0.0),
            "host_total": np.where(inside & outermost_of_name, dur, 0.0),
            "allocated": np.where(inside, _allocated(timeline, count), 0),
        }
        codes, categories = ops.names, ops.categories
        if captured:
            theirs = _replayed(gpu, steps, roofline, captured)
            each = {name: np.r_[column, theirs.get(name, np.zeros(len(captured.ops.names)))] for name, column in each.items()}
            first = {name: at for at, name in reversed([*enumerate((*categories, *captured.ops.categories))])}
            categories = (*categories, *captured.ops.categories)
            codes = np.array([first[name] for name in categories])[np.r_[codes, len(ops.categories) + captured.ops.names]]
        groups = Groups.by_keys(codes)
        by_name, names = groups.sums(**each), codes[groups.first]
        order = np.lexsort((names, -by_name["host_self"], -by_name["gpu_total"], -by_name["gpu_self"]))
        kept = order[(by_name["calls"][order] > 0) | (by_name["gpu_total"][order] > 0)][:ROWS]
        whole = float(gpu["dur_us"][steps.holds(gpu["start_us"])].sum()) or 1.0
        rows = zip(*(column[kept].tolist() for column in by_name.values()), strict=True)
        return cls(
            tuple(_row(categories[name], dict(zip(by_name, row, strict=True)), whole) for name, row in zip(names[kept].tolist(), rows, strict=True)), own
        )


def _on_the_gpu(gpu: Table, steps: Steps, roofline: Roofline, ops: Ops, of_gpu: Ints, outermost_of_name: Mask) -> dict[str, Floats | Ints]:
    """Of each op (n_cpu,) what it launches in the window: `of_gpu` is the op of each GPU op."""
    count = len(ops.names)
    launched = np.flatnonzero(steps.holds(gpu["start_us"]) & (of_gpu >= 0))
    by, times = of_gpu[launched], gpu["dur_us"][launched]
    # Rates are of the kernels whose work is known, over their own time.
    known = ~np.isnan(roofline.bytes[launched])
    self_us: Floats = np.bincount(by, times, count).astype(float)
    return {
        "kernels": np.bincount(by, minlength=count),
        "gpu_self": self_us,
        "gpu_total": np.where(outermost_of_name, _with_inner(ops, self_us), 0.0),
        "bytes": np.bincount(by[known], roofline.bytes[launched][known], count),
        "flops": np.bincount(by, np.nan_to_num(roofline.flops[launched]), count),
        "counted": np.bincount(by[known], times[known], count),
    }


def _replayed(gpu: Table, steps: Steps, roofline: Roofline, captured: CapturedGraphs) -> dict[str, Floats | Ints]:
    """The same of ops that graphs were captured of: each replay is a call that costs the host nothing."""
    inside = np.flatnonzero(steps.holds(gpu["start_us"]) & (captured.op >= 0))
    calls = Groups.by_keys(captured.op[inside], captured.replay[inside])
    by = captured.op[inside][calls.first]
    launched = _on_the_gpu(gpu, steps, roofline, captured.ops, captured.op, ~_inside_same_name(captured.ops))
    return {"calls": np.bincount(by, minlength=len(captured.ops.names)), **launched}


def issued_inside(host: Table, steps: Steps) -> np.ndarray:
    """(n,) whether each row of a host table is of the window's steps; if nothing repeats, all that was recorded is."""
    begun = host["start_us"]
    return steps.issued_at(begun) | (not steps.repeats)


def _row(name: str, row: dict[str, float], whole: float) -> OpRow:
    counted = row["counted"]
    return OpRow(
        name=name,
        calls=int(row["calls"]),
        kernels=int(row["kernels"]),
        gpu_self_us=float(row["gpu_self"]),
        gpu_total_us=float(row["gpu_total"]),
        host_self_us=float(row["host_self"]),
        host_total_us=float(row["host_total"]),
        allocated_bytes=int(row["allocated"]),
        share=float(row["gpu_self"]) / whole,
        gbps=float(row["bytes"] / counted / 1e3) if counted > 0 else 0.0,
        tflops=float(row["flops"] / counted / 1e6) if counted > 0 else 0.0,
    )


def _with_inner(ops: Ops, own: Floats) -> Floats:
    """(n_cpu,) each op's value with those of all ops inside of it."""
    total = own.copy()
    for level in reversed(levels(ops.parent)[1:]):
        np.add.at(total, ops.parent[level], total[level])
    return total


def _inside_same_name(ops: Ops) -> np.ndarray:
    """(n_cpu,) whether an op of the same name is around it: a total counts recursion once."""
    place, behind = walk(ops.parent)
    order = np.lexsort((place, ops.names))
    # Those of one name, as a walk comes by: what lies in one of them ends before that does.
    name = ops.names[order]
    far = name * (len(order) + 1)
    reach = np.maximum.accumulate(behind[order] + far) - far
    found = np.zeros(len(order), bool)
    found[order[1:]] = (name[1:] == name[:-1]) & (reach[:-1] > place[order][1:])
    return found


def _allocated(timeline: Timeline, count: int) -> Ints:
    """(n_cpu,) bytes of device memory that the allocator gave out while the op, and none inside of it, ran."""
    memory = timeline.memory
    memory = memory[(memory["bytes"] > 0) & (memory["device_type"] != 0)]
    if not len(memory):
        return np.zeros(count, np.int64)
    host = timeline.cpu_ops
    start = np.r_[host["start_us"], memory["start_us"]]
    parents = nest(thread_ids(host, memory), start, start + np.r_[host["dur_us"], np.zeros(len(memory))])[count:]
    at = parents >= 0
    return np.bincount(parents[at], memory["bytes"][at].astype(float), count).astype(np.int64)
