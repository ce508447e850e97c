"""What the rules about memory share: places as evidence, savings in bytes."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Literal

import msgspec
import numpy as np

from advisor.errors import Unavailable
from advisor.knowledge.shares import LITTLE
from advisor.report.finding import BytesSaved, Evidence, Fix, SourceLine
from advisor.views.memory.attribution import Attribution, Category
from advisor.views.memory.health import HISTORY, STACKS
from advisor.views.memory.history import Bools, DeviceMemory
from advisor.views.memory.origins import Phase
from advisor.views.trace.evidence import ROWS


def with_history(attribution: Attribution) -> DeviceMemory:
    """The device with the highest peak, with a history of allocations. Raises Unavailable without one."""
    if not len(attribution.device.events):
        raise Unavailable("without events only current memory is known, not earlier allocations", HISTORY)
    return attribution.device


def with_stacks(attribution: Attribution) -> DeviceMemory:
    """As with_history. Also raises Unavailable if no allocation has a stack, so owners and purposes are unknown."""
    device = with_history(attribution)
    if not (device.allocations.stack >= 0).any():
        raise Unavailable("no stacks were recorded, so the purpose of allocations is unknown", STACKS)
    return device


LEAST_BYTES = 128 << 20
"""What a fix must free to be worth a word: a sixtieth of the smallest GPUs that people train on."""


def saved(peak: int, low: float, expected: float, high: float, removes: str, of: Literal["allocated", "reserved"] = "allocated") -> BytesSaved:
    """Bytes of the peak that a fix frees; each bound is put in order and kept within the peak."""
    expected = min(max(expected, 0), peak)
    return BytesSaved(
        low=float(max(min(low, expected), 0)), expected=float(expected), high=float(min(max(high, expected), peak)),
        basis="simulated", removes=removes, of=of,
    )  # fmt: skip


GROWS_WITH_BATCH = (Category.ACTIVATIONS, Category.TEMPORARIES)
MOST_BATCH = 10.0
"""Times the batch beyond which something else than memory is the limit."""


def and_batch(fix: Fix, attribution: Attribution, freed: float, *, of_batch: bool) -> Fix:
    """The fix with another step: the batch that fits the same memory then. Unchanged if unknown or negligible.

    Activations and temporaries at the peak, except the optimizer's, grow with the batch; the rest stays. of_batch: whether the freed memory grows too.
    """
    device = attribution.device
    growing = attribution.in_categories(*GROWS_WITH_BATCH) & (attribution.phase != Phase.OPTIMIZER)
    grows, peak = float(device.allocations.size[device.at_peak & growing].sum()), float(device.peak_allocated)
    if not attribution.backwards or grows < GROWS_SHARE * peak:
        return fix
    times = grows / max(grows - freed, grows / MOST_BATCH) if of_batch else (grows + freed) / grows
    if times < LEAST_BATCH:
        return fix
    about = f"about {times:.2g} times" if times < MOST_BATCH else "ten times and more"
    said = f"The same memory then holds {about} the batch, as far as activations and temporaries grow with it."
    return msgspec.structs.replace(fix, steps=(*fix.steps, said))


GROWS_SHARE = LITTLE
"""Of the peak, what grows with the batch: if it is less, the batch says little of the peak."""
LEAST_BATCH = 1 + LITTLE
"""Times the batch below which nobody changes it."""


def places(attribution: Attribution, rows: Bools) -> tuple[Evidence, ...]:
    """One row of evidence a place, most bytes first: its allocations, and the most of them held at once at the peak."""
    a, device = attribution.device.allocations, attribution.device
    by_place: dict[str, list[int]] = defaultdict(list)
    for row in np.flatnonzero(rows).tolist():
        origin = attribution.origin(row)
        by_place[" ".join(part for part in (origin.op, f"in {origin.module}" if origin.module else "") if part) or "allocation"].append(row)
    weight = {place: int(a.size[members].sum()) for place, members in by_place.items()}
    first_us = int(device.events.time_us[0]) if len(device.events) else 0
    found = []
    for place in sorted(weight, key=lambda p: -weight[p])[:ROWS]:
        members = np.array(by_place[place])
        lines = Counter((o.file, o.line) for o in (attribution.origin(int(row)) for row in members) if o.file)
        born = np.maximum(a.born[members], 0)
        held = device.at_peak[members]
        line = lines.most_common(1)[0][0] if lines else None
        found.append(
            Evidence(
                label=place, start_us=float(device.events.time_us[born.min()] - first_us) if len(device.events) else 0.0, dur_us=0.0,
                count=len(members), device=device.device, source=SourceLine(*line) if line else None,
                bytes=int(a.size[members][held].sum()) or int(a.size[members].max()),
            )
        )  # fmt: skip
    return tuple(found)
