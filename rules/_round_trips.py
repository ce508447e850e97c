"""Transposes that later ones take back."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found
from advisor.intervals import Ints
from advisor.report.finding import Code, Fix
from advisor.report.numbers import duration_of
from advisor.rules._phrases import a_step
from advisor.views.patterns.transposes import RoundTrips
from advisor.views.replay.edits import Edits, WithDurations, WithoutOps, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace import arguments
from advisor.views.trace.evidence import Witness


def round_trips(work: GpuWork, trips: RoundTrips, roofline: Roofline, witness: Witness, without: Ints) -> Found | None:
    """What copies there and back cost, those left out that the layout of images explains; None if there are none."""
    apart = ~np.isin(trips.there, without) & ~np.isin(trips.back, without)
    there, back = trips.there[apart], trips.back[apart]
    around = bool(trips.around_products[apart].any())
    if not len(there):
        return None
    both = np.union1d(there, back)
    cheaper = np.where(work.dur_us[there] < work.dur_us[back], there, back)
    gone = np.union1d(both, trips.left)
    straight = combine(WithoutOps(gone), WithDurations(trips.mixed, np.fmin(work.dur_us[trips.mixed], roofline.limit_us[work.rows[trips.mixed]])))
    return Found(
        title="Tensors are transposed in memory and back",
        summary=f"{a_step(work.a_step(there), 'round trip', 'copy', 'copies')} a tensor to another layout and back, for {duration_of(work.us_a_step(both), work.step_us)}; "
        + ("GEMMs in between accept the original layout." if around else "nothing in between needs it."),
        edits=Edits(WithoutOps(cheaper), straight, straight),
        removes="copies to another layout and back",
        quiet=f"{a_step(work.a_step(there), 'round trip', 'copy', 'copies')} a tensor to another layout and back",
        evidence=witness.of_gpu(work.rows[both], [_trip_label(work, position) for position in both.tolist()]),
        confidence=0.85,
        fix=Fix(
            title="Keep the tensor's layout",
            steps=(
                *(("Multiply the weight from the left: torch.bmm or torch.einsum accepts and returns the original layout.",) if around else ()),
                "Drop .contiguous(), .clone() or .reshape() after the transposes: elementwise ops accept any layout.",
                "If an op works along an axis, pass dim= instead of moving the axis to the end.",
            ),
            code=Code(
                before="y = F.linear(x.transpose(1, 2).contiguous(), weight)\nx = y.transpose(1, 2).contiguous()",
                after="x = torch.bmm(weight.expand(len(x), -1, -1), x)",
            )
            if around
            else Code(
                before="y = x.transpose(1, 2).contiguous()\ny = torch.relu(y * scale[:, None])\nx = y.transpose(1, 2).contiguous()",
                after="x = torch.relu(x * scale)",
            ),
            url="https://docs.pytorch.org/docs/stable/tensor_view.html",
            risk="Code that calls .view() on the copy fails on the original's strides: use .reshape().",
        ),
    )


def _trip_label(work: GpuWork, position: int) -> str:
    shapes = shapes_of(work, int(work.op[position]))
    return f"copy {shapes[0] if shapes else ''} into another order".replace("  ", " ")


def shapes_of(work: GpuWork, op: int) -> list[list[int]]:
    dims = work.timeline.cpu_ops["dims"][op] if op >= 0 else ""
    return [d for d in arguments.numbers(dims) if d and all(isinstance(n, int) for n in d)]
