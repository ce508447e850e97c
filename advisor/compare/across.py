"""A program on two devices, or under two frameworks: the distance of each side from its device's limits. It does not judge the code, since a shorter step on
another device says nothing about the program.
"""

from __future__ import annotations

import msgspec

from advisor.compare.shares import share
from advisor.errors import UsageError
from advisor.knowledge.release import release
from advisor.knowledge.shares import CONSIDERABLE, MOST
from advisor.report.kernels import KernelRow
from advisor.report.model import Report
from advisor.report.roofline import peaks_of, reach


class Family(msgspec.Struct, frozen=True):
    """Kernels of a family on one side: time per step, share of the step, and mean share of the roofline if known."""

    name: str
    us: float = 0.0
    share: float = 0.0
    reached: float | None = None


class ProgramSide(msgspec.Struct, frozen=True, kw_only=True):
    """One side. Shares of peaks are of the device's datasheet, over the time in which it works; None if they are not known."""

    path: str
    device: str
    format: str
    step_us: float
    busy_us: float
    """On all devices."""
    idle_share: float | None
    waiting_share: float | None = None
    """Of a job: its ranks' waits for each other."""
    kernels: float
    """A step."""
    flops: float
    """A step; 0 if shapes were not recorded."""
    of_peak_flops: float | None = None
    of_peak_bytes: float | None = None
    families: tuple[Family, ...] = ()

    def family(self, name: str) -> Family:
        """The family of that name, without time if it did not run."""
        return next((found for found in self.families if found.name == name), Family(name))


class ProgramComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides, and what makes them two programs rather than one; "" if nothing does."""

    schema: int = 1
    advisor: str = ""
    left: ProgramSide
    right: ProgramSide
    doubt: str = ""

    @property
    def families(self) -> list[str]:
        """Of both sides, most time first."""
        names = dict.fromkeys(found.name for found in (*self.left.families, *self.right.families))
        return sorted(names, key=lambda name: -max(side.family(name).share for side in (self.left, self.right)))


def compare_programs(left: Report, right: Report) -> ProgramComparison:
    """Both reports side by side. Raises UsageError if one is not of a trace."""
    for report in (left, right):
        if report.window is None or not report.step_us:
            raise UsageError(f"{report.source.path} is a recording of kind {report.kind}, which has no step", "Give two traces.")
    return ProgramComparison(advisor=release(), left=_side_of(left), right=_side_of(right), doubt=_doubt(left, right))


def _side_of(report: Report) -> ProgramSide:
    window, step = report.traced, report.step_us
    rates = report.rates if report.rates and report.rates.known >= KNOWN else None
    return ProgramSide(
        path=report.source.path,
        device=", ".join(dict.fromkeys(device.name for device in report.devices)) or "no GPU",
        format=report.source.format,
        step_us=step,
        busy_us=report.work.kernel_us,
        idle_share=share(report, "idle_us"),
        waiting_share=share(report, "wait_us") if report.kind == "job" else None,
        kernels=report.work.kernels,
        flops=report.work.flops,
        of_peak_flops=rates.flops_busy if rates else None,
        of_peak_bytes=rates.bytes_busy if rates else None,
        families=_families(report, window.steps, step),
    )


def _families(report: Report, steps: int, step_us: float) -> tuple[Family, ...]:
    peaks = peaks_of(report)
    rows: dict[str, list[KernelRow]] = {}
    for row in report.kernels:
        rows.setdefault(row.family, []).append(row)
    made = []
    for name, mine in rows.items():
        known = [(row.total_us, at.share) for row in mine if (at := reach(row, peaks))]
        weight = sum(us for us, _ in known)
        us = sum(row.total_us for row in mine)
        reached = sum(t * min(share, 1.0) for t, share in known) / weight if weight > us / 2 else None
        made.append(Family(name, us / steps, us / steps / step_us if step_us else 0.0, reached))
    return tuple(made)


KNOWN = MOST
"""A share of the peaks speaks for a side where the work of half of its kernels' time is known."""

SAME_WORK = CONSIDERABLE
"""The same model under two frameworks differs in FLOPs by what each pads and fuses; by a quarter it is not the same model."""


def _doubt(left: Report, right: Report) -> str:
    a, b = left.work.flops, right.work.flops
    if min(a, b) > 0 and abs(a - b) > SAME_WORK * max(a, b):
        return f"a step does {a / 1e9:,.0f} GFLOP on one side and {b / 1e9:,.0f} on the other: batch or model differ"
    return ""
