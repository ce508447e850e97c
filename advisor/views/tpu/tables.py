"""HLO ops of TPUs by category and by name: a step of one core, in the mean of all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from advisor.intervals import NANOSECOND_US
from advisor.recordings.tpu import TpuProfile
from advisor.report.kernels import KernelRow
from advisor.report.step import CategoryRow, Part
from advisor.views.tpu.core_time import TpuTime
from advisor.views.tpu.steps import TpuSteps

PARTS = 500
"""Ops that a comparison distinguishes; the rest of each category is one part."""
_WAITS = "waiting for other cores"


@dataclass(frozen=True)
class TpuTables:
    """categories sum to what a core works; parts, with its idle time, to the step. flops: of a step of one core. known: the share of
    the time of ops that compute whose FLOPs are known."""

    categories: tuple[CategoryRow, ...]
    ops: tuple[KernelRow, ...]
    parts: tuple[Part, ...]
    calls: float
    flops: float
    bytes: float
    known: float

    @classmethod
    def build(cls, profile: TpuProfile, steps: TpuSteps, time: TpuTime) -> TpuTables:
        """Sums over the runs of all cores in the window, by step and core."""
        share = 1 / (steps.steps * max(len(time.cores), 1))
        data = _by_op(profile, time)
        step_us = float(steps.end_us - steps.start_us) / steps.steps
        waits_us = sum(c.communication_us for c in time.cores) * share - float(data.loc[data["kind"] == "communication", "us"].sum()) * share
        computing = data[data["kind"] == "compute"]
        known = computing.loc[computing["flops"].notna(), "us"].sum() / max(float(computing["us"].sum()), 1e-9)
        idle = [("unknown", sum(c.between_us for c in time.cores)), ("dependency", sum(c.within_us for c in time.cores))]
        parts = [*_parts(data, share), *(Part("idle", name, us=us * share) for name, us in idle if us * share > NANOSECOND_US)]
        if waits_us > NANOSECOND_US:
            parts.append(Part("communication", _WAITS, family=_WAITS, us=waits_us))
        return cls(
            _categories(data, _async_time(profile, steps), share, step_us, waits_us), _ops(data), tuple(parts), float(data["calls"].sum()) * share,
            float(data["flops"].sum()) * share, float(data["bytes"].sum()) * share, float(known),
        )  # fmt: skip


def _by_op(profile: TpuProfile, time: TpuTime) -> pd.DataFrame:
    """A row for each op that ran in the window, on whichever core. Loops have their own time only, and do nothing themselves."""
    op = np.concatenate([*(c.core.ops.what[c.rows] for c in time.cores), np.empty(0, np.int64)])
    leaf = np.concatenate([*(c.leaf for c in time.cores), np.empty(0, bool)])
    us = np.concatenate([*(c.own_us for c in time.cores), np.empty(0)])
    n = len(profile.ops)
    calls, leaves = np.bincount(op, minlength=n), np.bincount(op[leaf], minlength=n)
    data = pd.DataFrame(
        {
            "us": np.bincount(op, weights=us, minlength=n),
            "calls": calls,
            **{name: np.array([getattr(o, name) for o in profile.ops], float) * np.where(leaves > 0, leaves, np.nan) for name in ("flops", "bytes")},
            "kind": list(time.classes),
            **{name: [getattr(o, name) for o in profile.ops] for name in ("name", "category", "scope")},
        }
    )
    return data[calls > 0]


def _async_time(profile: TpuProfile, steps: TpuSteps) -> dict[str, float]:
    """Time of asynchronous ops by category: a step, in the mean of the cores that have any."""
    found: dict[str, float] = {}
    cores = [core for core in profile.cores if len(core.beside)]
    for core in cores:
        us = np.minimum(core.beside.end_us, steps.end_us) - np.maximum(core.beside.start_us, steps.start_us)
        spent = np.bincount(core.beside.what, weights=np.maximum(us, 0.0), minlength=len(profile.ops))
        for row in np.flatnonzero(spent).tolist():
            category = profile.ops[row].category
            found[category] = found.get(category, 0.0) + float(spent[row]) / len(cores) / steps.steps
    return found


def _rates(of: pd.DataFrame, us: float) -> tuple[float, float]:
    """GB/s and TFLOP/s of ops that compute; 0 of others, which move what they move while the core does something else."""
    if us <= 0 or of["kind"].iloc[0] != "compute":
        return 0.0, 0.0
    return float(of["bytes"].sum()) / us / 1e3, float(of["flops"].sum()) / us / 1e6


def _categories(data: pd.DataFrame, beside: dict[str, float], share: float, step_us: float, waits_us: float) -> tuple[CategoryRow, ...]:
    rows = []
    for _, of in data.groupby(["category", "kind"], sort=False):
        name, kind, us = str(of["category"].iloc[0]), of["kind"].iloc[0], float(of["us"].sum())
        gbps, tflops = _rates(of, us)
        part, aside = us * share / max(step_us, 1e-9), beside.get(name, 0.0)
        rows.append(
            CategoryRow(name=name, kind=kind, calls=float(of["calls"].sum()) * share, us=us * share, share=part, beside_us=aside, gbps=gbps, tflops=tflops)
        )
    if waits_us > NANOSECOND_US:
        rows.append(CategoryRow(name=_WAITS, kind="communication", calls=0.0, us=waits_us, share=waits_us / max(step_us, 1e-9)))
    return tuple(sorted(rows, key=lambda row: -row.us))


def _ops(data: pd.DataFrame) -> tuple[KernelRow, ...]:
    whole = float(data["us"].sum()) or 1.0
    rows = []
    for at in range(len(data)):
        of = data.iloc[at : at + 1]
        one, us, calls = of.iloc[0], float(of["us"].iloc[0]), int(of["calls"].iloc[0])
        gbps, tflops = _rates(of, us)
        rows.append(
            KernelRow(
                name=str(one["name"]), family=str(one["category"]), precision="", calls=calls, total_us=us, mean_us=us / calls, share=us / whole,
                op=str(one["scope"]), dur_us=us / calls, gbps=gbps, tflops=tflops,
            )
        )  # fmt: skip
    return tuple(sorted(rows, key=lambda row: -row.total_us))


def _parts(data: pd.DataFrame, share: float) -> list[Part]:
    """The largest ops each, and what is left of each category."""
    grouped = data.groupby(["kind", "category", "name", "scope"], sort=False).agg(us=("us", "sum"), calls=("calls", "sum")).reset_index()
    grouped = grouped.sort_values("us", ascending=False, kind="stable")
    head, tail = grouped.head(PARTS), grouped.iloc[PARTS:].groupby(["kind", "category"], sort=False).sum(numeric_only=True).reset_index()
    parts = [
        Part(kind, str(name), family=str(category), op=str(scope), calls=float(calls * share), us=float(us * share))
        for kind, category, name, scope, us, calls in head.itertuples(index=False)
    ]
    return parts + [
        Part(kind, "smaller ops", family=str(category), calls=float(calls * share), us=float(us * share))
        for kind, category, us, calls in tail.itertuples(index=False)
    ]
