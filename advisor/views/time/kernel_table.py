"""GPU ops by name: calls, time, share, occupancy and achieved rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from advisor.intervals import Floats, Ints
from advisor.knowledge.occupancy import WARP, fit
from advisor.recordings.timeline import Timeline
from advisor.report.model import KernelRow, Occupancy
from advisor.views.time.roofline import Roofline
from advisor.views.trace.gpu_kernels import FAMILIES, Kernels
from advisor.views.trace.ops import Ops
from advisor.views.trace.steps import Steps

ROWS = 200
"""Rows kept; the rest is one row, so that the table still sums to the whole."""


def _fits(timeline: Timeline, rows: Ints) -> dict[str, np.ndarray]:
    """Theoretical occupancy of kernels (rows of `gpu_ops`), 0 to 1, and what limits it; "" where what it takes was not recorded."""
    frame = timeline.gpu_ops
    device, threads, registers, shared = (frame[c].to_numpy()[rows] for c in ("device", "block_threads", "registers", "shared_bytes"))
    theoretical, limiter = np.full(len(rows), np.nan), np.full(len(rows), "", object)
    for d in np.unique(device).tolist():
        gpu = timeline.device(d)
        mine = (device == d) & (threads > 0) & (registers > 0) & (shared >= 0)
        fits = fit(gpu.compute_capability, threads[mine], registers[mine], shared[mine])
        if gpu.warp_size == WARP and fits is not None:
            theoretical[mine], limiter[mine] = fits.occupancy, fits.limiter
    return {"theoretical": theoretical, "limiter": limiter}


def _active_sms(timeline: Timeline, rows: Ints) -> Floats:
    """(n,) the share of the multiprocessors that each op's blocks reach at once, NaN where grid or device was not recorded."""
    ops = timeline.gpu_ops
    blocks, device = ops["grid_blocks"].to_numpy()[rows].astype(float), ops["device"].to_numpy()[rows]
    sms = {d: timeline.device(d).sm_count for d in np.unique(device).tolist()}
    count = np.array([sms[d] for d in device.tolist()], float)
    known = (blocks > 0) & (count > 0)
    return np.where(known, np.minimum(blocks / np.maximum(count, 1.0), 1.0), np.nan)


@dataclass(frozen=True)
class KernelTable:
    """The window's GPU ops by name, most time first."""

    rows: tuple[KernelRow, ...]

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, kernels: Kernels, ops: Ops, roofline: Roofline) -> KernelTable:
        grouped = _by_name(timeline, steps, kernels, ops, roofline)
        whole = float(grouped["total"].sum()) or 1.0
        names = timeline.gpu_ops["name"].cat.categories
        rows = [
            KernelRow(
                name=str(names[r.code]),
                family=FAMILIES[r.family].value,
                precision=r.precision,
                calls=int(r.calls),
                total_us=float(r.total),
                mean_us=float(r.total / r.calls),
                share=float(r.total / whole),
                op=ops.categories[r.op] if r.op >= 0 else "",
                occupancy_pct=float(np.nan_to_num(r.occupancy / r.total)) if r.total else 0.0,
                active_sms=float(np.nan_to_num(r.sms / r.total)) if r.total else 0.0,
                gbps=float(r.bytes / r.total / 1e3) if r.total else 0.0,
                tflops=float(r.flops / r.total / 1e6) if r.total else 0.0,
                dur_us=float(r.total / r.calls),
                occupancy=Occupancy(float(r.theoretical), limiter=r.limiter) if r.limiter else None,
            )
            for r in grouped.head(ROWS).itertuples(index=False)
        ]
        return cls((*rows, *_rest(grouped.iloc[ROWS:], whole)))


def _by_name(timeline: Timeline, steps: Steps, kernels: Kernels, ops: Ops, roofline: Roofline) -> pd.DataFrame:
    """The window's GPU ops by name (`code`, of the name's category), family and precision, most time first."""
    frame = timeline.gpu_ops
    start = frame["start_us"].to_numpy()
    inside = np.flatnonzero((start >= steps.start_us) & (start < steps.end_us))
    op, dur, copied = ops.of_gpu[inside], frame["dur_us"].to_numpy()[inside], frame["bytes"].to_numpy()[inside]
    data = pd.DataFrame(
        {
            "code": frame["name"].cat.codes.to_numpy()[inside],
            "family": kernels.family[inside],
            "precision": np.asarray(kernels.precision, object)[inside],
            "op": np.where(op >= 0, ops.names[op], -1) if len(ops.names) else -1,
            "dur": dur,
            "occupancy": frame["occupancy_pct"].to_numpy()[inside] * dur,
            "sms": _active_sms(timeline, inside) * dur,
            "bytes": np.fmax(np.where(copied > 0, copied, np.nan), roofline.bytes[inside]),
            "flops": roofline.flops[inside],
            **_fits(timeline, inside),
        }
    )
    return (
        data.groupby(["code", "family", "precision"], sort=False)
        .agg(
            calls=("dur", "size"),
            total=("dur", "sum"),
            op=("op", "first"),
            bytes=("bytes", "sum"),
            flops=("flops", "sum"),
            occupancy=("occupancy", "sum"),
            sms=("sms", "sum"),
            theoretical=("theoretical", "first"),
            limiter=("limiter", "first"),
        )
        .sort_values("total", ascending=False, kind="stable")
        .reset_index()
    )


def _rest(names: pd.DataFrame, whole: float) -> tuple[KernelRow, ...]:
    """One row for the names that the table has no room for, so that it still sums to the whole; none where it has."""
    if not len(names):
        return ()
    total, calls = float(names["total"].sum()), int(names["calls"].sum())
    return (
        KernelRow(
            name=f"({len(names)} more names)", family="other", precision="", calls=calls, total_us=total, mean_us=total / calls, share=total / whole
        ),
    )  # fmt: skip
