"""Marks of steps on the host, and which of them are judged if they are of several kinds, as a server's prefill and decode."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from advisor.intervals import Floats, Mask
from advisor.knowledge.shares import MOST
from advisor.report.numbers import duration
from advisor.views.trace.repeats import FEWEST_REPEATS, longest_run

MOST_WORK = MOST
"""Share of a process's GPU work that its steps launch: below it, the marks are of a part of the program."""


class Unjudged(msgspec.Struct, frozen=True):
    """Marked steps outside of the window: of which kind, how many, and how long each takes."""

    kind: str
    count: int
    each_us: float

    def __str__(self) -> str:
        return f"{self.count:,} of {self.kind} ({duration(self.each_us)} each)"


def not_judged(unjudged: tuple[Unjudged, ...]) -> str:
    """The end of a sentence about the steps that are judged."""
    return f"; not judged: {' and '.join(map(str, unjudged))}" if unjudged else ""


class Marks(msgspec.Struct, frozen=True):
    """Start and end of each step on the host. process: of its launches, -1 if processes are not distinguished. kind: of the steps, "" if names do not show
    it; unjudged: other marked steps; apart: share of the marked work in steps of other kinds. by_launches: whether only a repeating launch sequence
    defines the steps.
    """

    start: Floats
    end: Floats
    process: int = -1
    kind: str = ""
    unjudged: tuple[Unjudged, ...] = ()
    apart: float = 0.0
    by_launches: bool = False

    def __len__(self) -> int:
        return len(self.start)

    @property
    def told(self) -> str:
        """The kind of the steps and what is not judged, as the end of a sentence about them."""
        return f", those of {self.kind}{not_judged(self.unjudged)}" if self.kind else ""


def of_one_kind(kinds: Sequence[str], start: Floats, end: Floats, work_us: Floats, process: int, fewest: int) -> Marks | None:
    """The longest run of marks of the judged kind, if it has at least `fewest`: steps of two kinds have no mean. The next mark closes it, whatever its
    kind. work_us: device time of each; if all are zero, host time counts.

    The judged kind has most work of the repeating kinds, or is the most frequent if none repeats.
    """
    names, kind, count = np.unique(np.asarray(kinds, object), return_inverse=True, return_counts=True)
    total = np.bincount(kind, weights=work_us if work_us.any() else end - start)
    repeats = count >= FEWEST_REPEATS
    judged = int(np.argmax(np.where(repeats, total, -1.0))) if repeats.any() else int(np.lexsort((total, count))[-1])
    first, last = longest_run(kind == judged)
    if last - first < fewest:
        return None
    left = np.ones(len(kind), bool)
    left[first:last] = False
    unjudged = tuple(_unjudged(name, left & (kind == number), start, end) for number, name in enumerate(names) if (left & (kind == number)).any())
    return Marks(start[first : last + 1], end[first : last + 1], process, str(names[judged]), unjudged, 1 - float(total[judged] / max(total.sum(), 1e-9)))


def _unjudged(kind: str, rows: Mask, start: Floats, end: Floats) -> Unjudged:
    """A step lasts to where the next begins, which only the last mark of all does not say."""
    each_us = np.r_[np.diff(start), end[-1] - start[-1]][rows]
    whole = each_us[:-1] if rows[-1] and len(each_us) > 1 else each_us
    return Unjudged(kind, len(each_us), float(whole.mean()))
