"""What became of a rule: why it is clear or skipped, and why the combined estimate leaves a finding out. The engine words outcomes with it."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.report.finding import AnySaving, Excluded, Saving
from advisor.report.numbers import percent, threshold
from advisor.report.wording.checks import check_name

UNFIT = "the fix is for training, and this program does not train"
"""Of a rule whose fix no program of this kind can apply."""

NO_FRAMEWORK = "the rule looks at modules, optimizers or loss scalers of a framework, and this program uses none"
"""Of a rule about PyTorch in a program of plain CUDA."""

RECORD_AGAIN = "record again; the report's health section says why"
"""How to let a rule look whose check failed, where the check itself gives no hint."""


def left_out(why: Excluded, saving: AnySaving, others: Sequence[str]) -> str:
    """Why the combined estimate leaves a finding out, in brackets after its rule."""
    return {
        "": "",
        "allowed": "allowed",
        "unconfirmed": "unconfirmed",
        "frees-memory": "frees memory, not time",
        "other-unit": f"makes a {saving.per} shorter, not the step" if isinstance(saving, Saving) else "",
        "alternative": f"an alternative to {' and '.join(others)}" if others else "its gain overlaps with other fixes",
        "same-graphs": f"{' and '.join(others)} uses CUDA graphs too",
    }[why]


def small_gain(measured: str, share: float, least: float) -> str:
    """Of a rule whose fix gains too little: what it measured, the gain, and the share from which it reports."""
    return f"{measured}. The fix would gain {percent(share, least)} (threshold {threshold(least)})"


def check_failed(check: str, detail: str) -> str:
    """Of a rule that relies on a check which failed."""
    return f"the trace fails the check for {check_name(check)}: {detail}"


def covered(summary: str, rule: str) -> str:
    """Of a rule on a memory snapshot whose cost in time the timeline shows."""
    return f"{summary} The rule {rule} reports its cost in time from the timeline."
