"""Finds steps with lost device work: profilers lose work of the first steps if their buffers are not ready."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Floats
from advisor.knowledge.shares import HARDLY_ANY
from advisor.recordings.timeline import Timeline
from advisor.views.trace.launches import Launches
from advisor.views.trace.unexecuted_launches import lost_launches

LOST = HARDLY_ANY
"""A step that lost a twentieth of its GPU ops looks shorter, with idle time in place of the lost ops."""

FEWEST_LEFT = 2
"""Whole steps needed to leave others out: a single step does not show the usual count, and they must outnumber the others."""


def first_that_lost(timeline: Timeline, launches: Launches, edges_us: Floats) -> tuple[int, str]:
    """The number of first steps with lost GPU ops, if whole steps follow, and a sentence. edges_us: (steps + 1,) start of each step on the host, and
    the end of the last.
    """
    steps = len(edges_us) - 1
    rows, gone = lost_launches(timeline, launches)
    of = np.searchsorted(edges_us, timeline.api_calls["start_us"][rows], side="right") - 1
    inside = (of >= 0) & (of < steps)
    made, lost = (np.bincount(of[chosen], minlength=steps) for chosen in (inside, inside & gone))
    partial = lost > LOST * made
    skip = steps if partial.all() else int(np.argmin(partial))
    if not skip or steps - skip < max(FEWEST_LEFT, skip):
        return 0, ""
    first = "the first step" if skip == 1 else f"the first {skip} steps"
    return skip, f"; {first} left out: {int(lost[:skip].sum()):,} of {int(made[:skip].sum()):,} launches left no GPU op in the trace"
