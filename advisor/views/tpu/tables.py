"""HLO ops of TPUs by category and by name: a step of one core, in the mean of all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.intervals import NANOSECOND_US
from advisor.recordings.columns import Categorical, Table
from advisor.recordings.tpu import TpuProfile
from advisor.report.charts import PIXELS
from advisor.report.kernels import KernelRow
from advisor.report.step import CategoryRow, Part
from advisor.views.groups import Groups
from advisor.views.tpu.core_time import TpuTime
from advisor.views.tpu.steps import TpuSteps

_WAITS = "waiting for other cores"


@dataclass(frozen=True)
class TpuTables:
    """categories sum to a core's work; parts, with idle time, to the step. flops: of a step of a core. known: share of computing ops' time with known FLOPs."""

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
        waits_us = sum(c.communication_us for c in time.cores) * share - float(data["us"][data["kind"] == "communication"].sum()) * share
        computing = data[data["kind"] == "compute"]
        known = computing["us"][~np.isnan(computing["flops"])].sum() / max(float(computing["us"].sum()), 1e-9)
        idle = [("unknown", sum(c.between_us for c in time.cores)), ("dependency", sum(c.within_us for c in time.cores))]
        parts = [*_parts(data, share), *(Part("idle", name, us=us * share) for name, us in idle if us * share > NANOSECOND_US)]
        if waits_us > NANOSECOND_US:
            parts.append(Part("communication", _WAITS, family=_WAITS, us=waits_us))
        return cls(
            _categories(data, _async_time(profile, steps), share, step_us, waits_us), _ops(data), tuple(parts), float(data["calls"].sum()) * share,
            float(np.nansum(data["flops"])) * share, float(np.nansum(data["bytes"])) * share, float(known),
        )  # fmt: skip


def _by_op(profile: TpuProfile, time: TpuTime) -> Table:
    """A row for each op that ran in the window, on whichever core. Loops have their own time only, and do nothing themselves."""
    op = np.concatenate([*(c.core.ops.what[c.rows] for c in time.cores), np.empty(0, np.int64)])
    leaf = np.concatenate([*(c.leaf for c in time.cores), np.empty(0, bool)])
    us = np.concatenate([*(c.own_us for c in time.cores), np.empty(0)])
    n = len(profile.ops)
    calls, leaves = np.bincount(op, minlength=n), np.bincount(op[leaf], minlength=n)
    data = Table(
        {
            "us": np.bincount(op, weights=us, minlength=n),
            "calls": calls,
            **{name: np.array([getattr(o, name) for o in profile.ops], float) * np.where(leaves > 0, leaves, np.nan) for name in ("flops", "bytes")},
            "kind": Categorical.of_texts(time.classes),
            **{name: Categorical.of_texts(getattr(o, name) for o in profile.ops) for name in ("name", "category", "scope")},
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


def _rates(of: Table, us: float) -> tuple[float, float]:
    """GB/s and TFLOP/s of ops that compute; 0 of others, which move what they move while the core does something else."""
    if us <= 0 or of["kind"][0] != "compute":
        return 0.0, 0.0
    return float(np.nansum(of["bytes"])) / us / 1e3, float(np.nansum(of["flops"])) / us / 1e6


def _categories(data: Table, beside: dict[str, float], share: float, step_us: float, waits_us: float) -> tuple[CategoryRow, ...]:
    rows = []
    for of in (data[rows] for rows in Groups.by_keys(data["category"].codes, data["kind"].codes).members):
        name, kind, us = of["category"][0], of["kind"][0], float(of["us"].sum())
        gbps, tflops = _rates(of, us)
        part, aside = us * share / max(step_us, 1e-9), beside.get(name, 0.0)
        rows.append(
            CategoryRow(name=name, kind=kind, calls=float(of["calls"].sum()) * share, us=us * share, share=part, beside_us=aside, gbps=gbps, tflops=tflops)
        )
    if waits_us > NANOSECOND_US:
        rows.append(CategoryRow(name=_WAITS, kind="communication", calls=0.0, us=waits_us, share=waits_us / max(step_us, 1e-9)))
    return tuple(sorted(rows, key=lambda row: -row.us))


def _ops(data: Table) -> tuple[KernelRow, ...]:
    whole = float(data["us"].sum()) or 1.0
    rows = []
    for at in range(len(data)):
        of = data[at : at + 1]
        us, calls = float(of["us"][0]), int(of["calls"][0])
        gbps, tflops = _rates(of, us)
        rows.append(
            KernelRow(
                name=of["name"][0], family=of["category"][0], precision="", calls=calls, total_us=us, mean_us=us / calls, share=us / whole,
                op=of["scope"][0], dur_us=us / calls, gbps=gbps, tflops=tflops,
            )
        )  # fmt: skip
    return tuple(sorted(rows, key=lambda row: -row.total_us))


def _parts(data: Table, share: float) -> list[Part]:
    """The largest ops each, and what is left of each category."""
    keys = [data[name] for name in ("kind", "category", "name", "scope")]
    groups = Groups.by_keys(*(key.codes for key in keys))
    sums = groups.sums(us=data["us"], calls=data["calls"])
    order = np.argsort(-sums["us"], kind="stable")
    kind, category, name, scope = (key[groups.first[order]] for key in keys)
    us, calls = sums["us"][order] * share, sums["calls"][order] * share
    parts = [Part(kind[at], name[at], family=category[at], op=scope[at], calls=float(calls[at]), us=float(us[at])) for at in range(min(len(order), PIXELS))]
    smaller = Groups.by_keys(kind.codes[PIXELS:], category.codes[PIXELS:])
    left = smaller.sums(us=sums["us"][order[PIXELS:]], calls=sums["calls"][order[PIXELS:]])
    return parts + [
        Part(kind[at], "smaller ops", family=category[at], calls=float(calls * share), us=float(us * share))
        for at, us, calls in zip((PIXELS + smaller.first).tolist(), left["us"], left["calls"], strict=True)
    ]
