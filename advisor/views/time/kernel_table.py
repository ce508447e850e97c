"""GPU ops by name: calls, time, share, occupancy and achieved rates."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from advisor.intervals import PIECE_ROWS, Floats, Ints
from advisor.knowledge.occupancy import WARP, fit
from advisor.recordings.columns import chosen, row_by_row
from advisor.recordings.timeline import Timeline
from advisor.report.charts import ROWS
from advisor.report.kernels import KernelRow, Occupancy
from advisor.views.groups import Groups
from advisor.views.time.roofline import Roofline
from advisor.views.trace.gpu_kernels import FAMILIES, Kernels
from advisor.views.trace.origins import Origins
from advisor.views.trace.steps import Steps


def _fits(timeline: Timeline, rows: Ints) -> dict[str, np.ndarray]:
    """Theoretical occupancy of kernels (rows of `gpu_ops`), 0 to 1, and its limit; "" if their resources were not recorded."""
    device, threads, registers, shared = (chosen(timeline.gpu_ops[c], rows) for c in ("device", "block_threads", "registers", "shared_bytes"))
    theoretical, limiter = np.full(len(rows), np.nan), np.full(len(rows), "", object)
    for d in np.unique(device).tolist():
        gpu = timeline.device(d)
        mine = (device == d) & (threads > 0) & (registers > 0) & (shared >= 0)
        fits = fit(gpu.compute_capability, threads[mine], registers[mine], shared[mine])
        if gpu.warp_size == WARP and fits is not None:
            theoretical[mine], limiter[mine] = fits.occupancy, fits.limiter
    return {"theoretical": theoretical, "limiter": limiter}


def _active_sms(timeline: Timeline, rows: Ints) -> Floats:
    """(n,) the share of the SMs that each op's blocks reach at once, NaN where grid or device was not recorded."""
    ops = timeline.gpu_ops
    blocks, count = chosen(ops["grid_blocks"], rows), timeline.sm_counts(chosen(ops["device"], rows))

    def shares(blocks: Ints, count: Ints) -> Floats:
        known = (blocks > 0) & (count > 0)
        return np.where(known, np.minimum(blocks.astype(float) / np.maximum(count.astype(float), 1.0), 1.0), np.nan)

    return row_by_row(shares, blocks, count)


class KernelTable(msgspec.Struct, frozen=True):
    """The window's GPU ops by name, most time first."""

    rows: tuple[KernelRow, ...]

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, kernels: Kernels, origins: Origins, roofline: Roofline) -> KernelTable:
        names, calls, columns = _by_name(timeline, steps, kernels, origins, roofline)
        total = columns["total"]
        whole = float(total.sum()) or 1.0
        titles = timeline.gpu_ops["name"].categories
        kept = zip(names[:ROWS], calls[:ROWS].tolist(), *(columns[name][:ROWS].tolist() for name in _COLUMNS), strict=True)
        rows = [
            KernelRow(
                name=str(titles[name.code]),
                family=FAMILIES[name.family].value,
                precision=name.precision,
                calls=n,
                total_us=us,
                mean_us=us / n,
                share=us / whole,
                op=origins.names[name.op] if name.op >= 0 else "",
                occupancy_pct=occupancy,
                active_sms=sms,
                gbps=bytes_a_us / 1e3,
                tflops=flops_a_us / 1e6,
                dur_us=us / n,
                occupancy=Occupancy(name.theoretical, limiter=name.limiter) if name.limiter else None,
            )
            for name, n, us, occupancy, sms, bytes_a_us, flops_a_us in kept
        ]
        return cls((*rows, *_rest(total[ROWS:], calls[ROWS:], whole)))


class _Name(NamedTuple):
    """Ops of the same name: its code among the categories, family and precision, the op of the first, and how many fit on the device."""

    code: int
    family: int
    precision: str
    op: int
    theoretical: float
    limiter: str


_COLUMNS = ("total", "occupancy", "sms", "bytes", "flops")


def _by_name(timeline: Timeline, steps: Steps, kernels: Kernels, origins: Origins, roofline: Roofline) -> tuple[list[_Name], Ints, dict[str, Floats]]:
    """The window's GPU ops by name, family and precision, most time first, with counts and `_COLUMNS`: time; over ops with known values, mean occupancy and
    share
    of the SMs, bytes and FLOPs per µs.
    """
    frame = timeline.gpu_ops
    start = frame["start_us"]
    inside = np.flatnonzero(steps.holds(start))
    op, dur = chosen(origins.inner, inside), frame["dur_us"][inside]
    code, family, precision = frame["name"].codes[inside], kernels.family[inside], kernels.precision.codes[inside]
    groups = Groups.by_keys(code, family, precision)

    def mean(amount: Floats) -> Floats:
        sums = groups.sums(amount=amount, us=np.where(np.isnan(amount), 0.0, dur))
        return _ratio(sums["amount"], sums["us"])

    columns = {
        "total": groups.sums(us=dur)["us"],
        "occupancy": mean(chosen(frame["occupancy_pct"], inside) * dur),
        "sms": mean(_active_sms(timeline, inside) * dur),
        "bytes": mean(np.fmax(row_by_row(lambda copied: np.where(copied > 0, copied, np.nan), chosen(frame["bytes"], inside)), chosen(roofline.bytes, inside))),
        "flops": mean(chosen(roofline.flops, inside)),
    }
    order = np.argsort(-columns["total"], kind="stable")
    first = groups.first[order]
    fits = _fits(timeline, inside[groups.first])
    known = fits["theoretical"]
    # Where it is unknown of the first, the first of which it is known tells.
    unknown = np.isnan(known)
    for at in range(0, len(inside) if unknown.any() else 0, PIECE_ROWS)[::-1]:
        others = at + np.flatnonzero(unknown[groups.of[at : at + PIECE_ROWS]])
        theirs = _fits(timeline, inside[others])["theoretical"]
        fitting = np.flatnonzero(~np.isnan(theirs))[::-1]  # of rows with one name the first is written last
        known[groups.of[others[fitting]]] = theirs[fitting]
    told = list(kernels.precision.categories)
    names = [
        _Name(name, kind, told[number], by, theoretical, limiter)
        for name, kind, number, by, theoretical, limiter in zip(
            *(column[first].tolist() for column in (code, family, precision, op)), known[order].tolist(), fits["limiter"][order], strict=True
        )
    ]
    return names, groups.rows[order], {name: column[order] for name, column in columns.items()}


def _rest(total_us: Floats, calls: Ints, whole: float) -> tuple[KernelRow, ...]:
    """One row for the names that the table has no room for, so that it still sums to the whole; none if it has."""
    if not len(calls):
        return ()
    total, count = float(total_us.sum()), int(calls.sum())
    return (
        KernelRow(
            name=f"({len(calls)} more names)", family="other", precision="", calls=count, total_us=total, mean_us=total / count, share=total / whole
        ),
    )  # fmt: skip


def _ratio(amount: Floats, us: Floats) -> Floats:
    """0 if it is not known: of no time, or of shapes that no tensor has."""
    found = np.divide(amount, us, out=np.zeros(len(us)), where=us > 0)
    return np.where(np.isfinite(found), found, 0.0)
