"""Steps of which the device's work is in the trace: a profiler whose buffers were not ready loses that of the first ones."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Floats
from advisor.knowledge.shares import HARDLY_ANY
from advisor.recordings.timeline import Timeline
from advisor.views.trace.launches import Launches
from advisor.views.trace.unexecuted_launches import lost_launches

LOST = HARDLY_ANY
"""A step that lost a twentieth of its GPU ops is shorter than it was, and what it did in their place looks like idle time."""

FEWEST_LEFT = 2
"""Of steps that are whole, for the others to be left out: one alone does not say what is usual, nor do fewer than those that are left out."""


def first_that_lost(timeline: Timeline, launches: Launches, edges_us: Floats) -> tuple[int, str]:
    """How many of the first steps lost GPU ops, where whole ones follow, and that in words. edges_us: (steps + 1,) where the host begins each, and
    ends the last."""
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
