"""Repeats folded into a few rows of evidence, most time first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from advisor.intervals import Floats, Ints
from advisor.report.model import Evidence, SourceLine
from advisor.timeline import Timeline

ROWS = 8
"""Rows of evidence a finding shows; the rest is counted in the last one."""


def folded(
    labels: Sequence[str] | np.ndarray,
    start_us: Floats,
    dur_us: Floats,
    *,
    device: int | None = None,
    source: Callable[[Ints], SourceLine | None] | None = None,
) -> tuple[Evidence, ...]:
    """One row a distinct label: its first start, total duration and count. `source` gets the positions of a row's members."""
    group, values = pd.factorize(np.asarray(labels, object), sort=True)
    total = np.bincount(group, weights=dur_us, minlength=len(values))
    rows = []
    for value in np.argsort(-total, kind="stable")[:ROWS]:
        members = np.flatnonzero(group == value)
        rows.append(
            Evidence(
                label=str(values[value]),
                start_us=float(start_us[members].min()),
                dur_us=float(total[value]),
                count=len(members),
                device=device,
                source=source(members) if source else None,
            )
        )
    rest = len(values) - ROWS
    if rest > 0:
        others = ~np.isin(group, np.argsort(-total, kind="stable")[:ROWS])
        rows.append(
            Evidence(
                label=f"({rest} more kinds)",
                start_us=float(start_us[others].min()),
                dur_us=float(dur_us[others].sum()),
                count=int(others.sum()),
                device=device,
            )
        )
    return tuple(rows)


def gpu_evidence(
    timeline: Timeline, rows: Ints, labels: Sequence[str], source: Callable[[Ints], SourceLine | None] | None = None
) -> tuple[Evidence, ...]:
    """Evidence of rows of `gpu_ops`."""
    ops = timeline.gpu_ops
    device = int(ops["device"].to_numpy()[rows[0]])
    return folded(labels, ops["start_us"].to_numpy()[rows], ops["dur_us"].to_numpy()[rows], device=device, source=source)


def milliseconds(us: float) -> str:
    """A duration as people say it."""
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.0f} µs"


def a_step(count: float, noun: str, verb: str, singular: str = "") -> str:
    """`3 calls a step block`, `1 call a step blocks`; `singular` is the verb's form where an s is not enough."""
    one = round(count) == 1
    return f"{count:.0f} {noun}{'' if one else 's'} a step {(singular or f'{verb}s') if one else verb}"
