"""What to do about a step that waits for its batch."""

from __future__ import annotations

from advisor.intervals import Spans
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Code, Evidence, Fix
from advisor.report.numbers import times
from advisor.views.patterns.batch_waits import PINS
from advisor.views.trace.loader import STARTS_WORKERS
from advisor.views.trace.table_filters import begins_inside, matches

KEEP = "  # keep your other arguments"


def load_ahead(timeline: Timeline, multi: bool, pageable: bool, slowest: Evidence | None, workers: int, spans: Spans) -> Fix:
    url = "https://docs.pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading"
    cheaper = f"Make {slowest.label} cheaper: it runs {times(slowest.count)} in the window." if slowest else (
        "Make the transforms cheaper: decode once and store the result, or move them to the GPU, batched."
    )  # fmt: skip
    pin = ("Set pin_memory=True: the trace shows copies from pageable memory.",) if pageable else ()
    pinned = ", pin_memory=True" if pageable or bool(matches(timeline.python_calls, PINS).any()) else ""
    named = ", persistent_workers=True and pin_memory=True" if pinned else " and persistent_workers=True"
    if multi:
        calls = timeline.python_calls
        restarts = bool((matches(calls, STARTS_WORKERS) & begins_inside(calls, spans)).any())
        keep = ("Set persistent_workers=True: workers are started again inside the window.",) if restarts else ()
        return Fix(
            title="Let the workers keep up",
            steps=(
                "Raise num_workers while the host has idle cores, and prefetch_factor (2 by default) if batches take unequal time.",
                cheaper,
                *keep,
                *pin,
            ),
            code=Code(
                before="loader = DataLoader(..., num_workers=n)",
                after=f"loader = DataLoader(..., num_workers=2 * n, prefetch_factor=4, persistent_workers=True{pinned}){KEEP}",
            ),
            url=url,
            risk="Each worker holds its own copy of the data set object and prefetch_factor batches in host memory.",
            intervention="loader-more-workers",
        )
    return Fix(
        title="Load batches in worker processes",
        steps=(
            f"Set num_workers={workers} (at most the CPU cores per GPU){named}{', since the trace shows copies from pageable memory' * pageable}.",
            cheaper,
        ),
        code=Code(
            before="loader = DataLoader(...)",
            after=f"loader = DataLoader(..., num_workers={workers}, persistent_workers=True{pinned}){KEEP}",
        ),
        url=url,
        risk="Workers fork or spawn: the data set must be picklable, must not touch CUDA, and draws other random numbers in each worker.",
        intervention="loader-workers",
    )
