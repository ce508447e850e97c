"""What the formats say of two devices: rows of a quantity and its values on both sides."""

from __future__ import annotations

from advisor.compare.across import Family, ProgramComparison, ProgramSide
from advisor.report.numbers import UNKNOWN, duration, percent, rate
from advisor.reports._clean import shortened

FAMILIES = 10
NOTE = "Across devices or frameworks a shorter step is no verdict on the code. Shares of peak are of each device's own datasheet."


def name(text: str) -> str:
    """A text of the recording, fit to show."""
    return shortened(text, 120)


def heads(shown: ProgramComparison) -> tuple[str, str]:
    """What tells the sides apart: the device, else how it was recorded too, else which file it is."""
    left, right = shown.left, shown.right
    if left.device != right.device:
        return name(left.device), name(right.device)
    apart = [side.format if left.format != right.format else side.path.rpartition("/")[2] for side in (left, right)]
    return name(f"{left.device}, {apart[0]}"), name(f"{right.device}, {apart[1]}")


def rows(shown: ProgramComparison) -> list[tuple[str, str, str]]:
    """Quantity, left, right."""
    sides = (shown.left, shown.right)

    def row(what: str, left: str, right: str) -> tuple[str, str, str]:
        return what, left, right

    def part(value: float | None) -> str:
        return UNKNOWN if value is None else percent(value)

    def tera(side: ProgramSide) -> str:
        return f"{rate(side.flops / side.step_us / 1e6)} TFLOP/s" if side.flops and side.step_us else UNKNOWN

    made = [
        row("Device", *(name(side.device) for side in sides)),
        row("Recorded as", *(name(side.format) for side in sides)),
        row("Step", *(duration(side.step_us) for side in sides)),
        row("GPU work a step, all devices", *(duration(side.busy_us) for side in sides)),
        row("Idle", *(part(side.idle_share) for side in sides)),
        *([row("Waiting for other ranks", *(part(side.waiting_share) for side in sides))] if any(side.waiting_share is not None for side in sides) else []),
        row("Kernels a step, all devices", *(f"{side.kernels:,.0f}" for side in sides)),
        row("Achieved over the step", *(tera(side) for side in sides)),
        row("Of peak FLOP/s while it works", *(part(side.of_peak_flops) for side in sides)),
        row("Of the bandwidth while it works", *(part(side.of_peak_bytes) for side in sides)),
    ]
    return [*made, *(row(name(family), *(_family(side.family(family)) for side in sides)) for family in shown.families[:FAMILIES])]


def _family(found: Family) -> str:
    if not found.us:
        return UNKNOWN
    reached = f", {percent(found.reached)} of roofline" if found.reached is not None else ""
    return f"{duration(found.us)}, {percent(found.share)} of the step{reached}"


def doubt(shown: ProgramComparison) -> str:
    """What makes them two programs, as a sentence; "" if nothing does."""
    return f"Perhaps not the same program: {shown.doubt}." if shown.doubt else ""
