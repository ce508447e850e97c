"""What the steps of an inference server spend their time on, by phase and batch."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Floats, Mask, overlap_with, subtract, union
from advisor.knowledge.devices import Peaks
from advisor.knowledge.op_tokens.families import Family
from advisor.recordings.timeline import Timeline
from advisor.views.device_rates import DeviceRates
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.serving import ServedPhase, Serving

CLASSES = ("products", "attention", "communication", "other", "idle")


class ServedTime(msgspec.Struct, frozen=True):
    """shares: of each phase of `Serving.phases`, the shares of its steps' time by `CLASSES`, which sum to 1; None if no device worked in them. knees: of each, rows of a step
    up to which its GEMMs are bound by reading their weights, NaN if the device's rates are not known. weight_bytes, kv_bytes: of each, the most that its GEMMs and its
    attention can have read in a step, as long as they ran and at the memory's peak rate; NaN as well."""

    shares: tuple[tuple[float, ...] | None, ...]
    knees: tuple[float, ...]
    weight_bytes: tuple[float, ...]
    kv_bytes: tuple[float, ...]

    @classmethod
    def build(cls, timeline: Timeline, serving: Serving, kernels: Kernels, rates: DeviceRates) -> ServedTime:
        if not serving.steps or not len(timeline.gpu_ops):
            unknown = (np.nan,) * len(serving.phases)
            return cls((None,) * len(serving.phases), unknown, unknown, unknown)
        ops = timeline.gpu_ops
        device = ops["device"]
        busiest = np.bincount(device - device.min(), ops["dur_us"]).argmax() + device.min()
        start = ops["start_us"]
        end, here = start + ops["dur_us"], device == busiest
        products, attention = kernels.in_families(Family.GEMM, Family.CONV), kernels.in_families(Family.ATTENTION)
        computing = [kernels.compute & chosen for chosen in (products, attention, ~(products | attention))]
        peaks = rates.peaks_of(timeline.device(int(busiest)))
        shares = tuple(_shares(phase, start, end, here, computing, kernels) for phase in serving.phases)
        rate = (peaks.bytes_per_s if peaks else None) or np.nan
        per_step = [np.mean([step.lasts_us for step in phase.steps]) / 1e6 for phase in serving.phases]
        most = [[(of[at] if of else np.nan) * step_s * rate for of, step_s in zip(shares, per_step, strict=True)] for at in (0, 1)]
        return cls(
            shares,
            tuple(_knee(phase, start, end, here & products, kernels, peaks) for phase in serving.phases),
            tuple(map(float, most[0])),
            tuple(map(float, most[1])),
        )


def _knee(phase: ServedPhase, start: Floats, end: Floats, products: Mask, kernels: Kernels, peaks: Peaks | None) -> float:
    """Two FLOP for each weight and row: of weights of two bytes the ridge point in FLOP/byte is as many rows. In the precision of most GEMM time."""
    begins = np.array([step.begins_us for step in phase.steps])
    spans = union(begins, begins + np.array([step.lasts_us for step in phase.steps]))
    spent_us = np.bincount(kernels.precision.codes[products] + 1, overlap_with(start[products], end[products], spans), len(kernels.precision.categories) + 1)[
        1:
    ]
    if peaks is None or not spent_us.any():
        return np.nan
    precision = str(kernels.precision.categories[int(spent_us.argmax())])
    ridge, bits = peaks.ridge(precision), "".join(filter(str.isdigit, precision))
    return ridge * int(bits) / 8 / 2 if ridge and bits else np.nan


def _shares(phase: ServedPhase, start: Floats, end: Floats, here: Mask, computing: list[Mask], kernels: Kernels) -> tuple[float, ...] | None:
    """A stretch in which kernels of several classes run is divided by their time; if none computes, what else runs has it."""
    begins = np.array([step.begins_us for step in phase.steps])
    ends = begins + np.array([step.lasts_us for step in phase.steps])

    def spent_us(chosen: Mask) -> float:
        return float(overlap_with(start[chosen], end[chosen], union(begins, ends)).sum())

    computes, communicates, runs = (union(start[rows], end[rows]) for rows in (here & kernels.compute, here & kernels.communication, here))
    whole = float((ends - begins).sum())
    alone = [float(overlap_with(begins, ends, spans).sum()) for spans in (computes, subtract(communicates, computes), runs)]
    if whole <= 0 or alone[2] <= 0:
        return None
    each = np.array([spent_us(here & chosen) for chosen in computing])
    divided = each / max(float(each.sum()), 1e-9) * alone[0]
    beside = alone[2] - alone[0] - alone[1]
    return tuple(float(us) / whole for us in (divided[0], divided[1], alone[1], divided[2] + beside, whole - alone[2]))
