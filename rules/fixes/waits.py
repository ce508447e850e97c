"""What to write in place of calls that make the host wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from advisor.knowledge.counts import SHOWN
from advisor.knowledge.host_waits import GENERALLY, HostWait, Instead
from advisor.report.finding import Code, Fix

MOST_STEPS = SHOWN
"""Kinds of calls that a fix speaks of, those that wait most often first."""


def fix_of_waits(known: Sequence[HostWait | None], ops: Sequence[str], training: bool) -> Fix:
    """What is in for each of the calls that wait, the most frequent first. known: the row of each; ops: the op that each is of, "" for none, which is all
    that is said of one that no table knows."""
    chosen = [row for row, _ in Counter(row for row in known if row).most_common(MOST_STEPS)]
    unknown = [op for op, _ in Counter(op for row, op in zip(known, ops, strict=True) if not row and op).most_common(1)]
    steps = dict.fromkeys([*(row.instead for row in chosen), *(f"{op} waits for the GPU: {GENERALLY[0].lower()}{GENERALLY[1:]}" for op in unknown)])
    first = chosen[0] if chosen and sum(row is chosen[0] for row in known) >= sum(row is None for row in known) else None
    code = first and (first.code if training else first.inference or first.code)
    return Fix(
        title="Let the host run ahead",
        steps=(*(steps or (GENERALLY,)), 'Find other waits with torch.cuda.set_sync_debug_mode("warn").'),
        code=as_code(code) if code else None,
        url=(first.url if first else "") or _TUNING,
        intervention=first.intervention or None if first else None,
        holds_for=("torch",),
        risk="Values are read later than before: check code that reacts to them at once.",
    )


def as_code(instead: Instead) -> Code:
    """The same as the code of a fix."""
    return Code(before=instead.before, after=instead.after)


_TUNING = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization"
