"""Repetition: a single finder of periods for steps, layers and loop passes, and a single pair of thresholds for a repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np

from advisor.intervals import Ints, Mask
from advisor.knowledge.shares import NEARLY_ALL

FEWEST_REPEATS = 3
"""Fewer repeats than this are not a pattern: any two equal kernels would be one."""

TWICE = 2
"""Fewer times show nothing of what is usual."""

ALIKE = NEARLY_ALL
"""Share of a repeat that equals the period before: programs do something extra now and then."""

ONE_BY_ONE = 8
"""As often the same is done by itself, from which it is a loop that one call for all is worth: passes, tensors, small copies."""

_MARKERS = 8
"""Kinds that may mark a period, the rarest that repeat: most come once a period, a branch less often."""


class Repeat(msgspec.Struct, frozen=True):
    """period: after how many a sequence is itself again. stretches: (n, 2) if it is, from the first up to, not with, the last: three periods at least each."""

    period: int
    stretches: Ints

    @property
    def longest(self) -> tuple[int, int]:
        """The longest stretch, the first of several."""
        return _longest(self.stretches)

    @property
    def length(self) -> int:
        """How much of the sequence repeats."""
        return int((self.stretches[:, 1] - self.stretches[:, 0]).sum())

    @property
    def starts(self) -> Ints:
        """Start of each repeat, and end of a run."""
        return np.concatenate([np.r_[np.arange(first, end, self.period), end] for first, end in self.stretches.tolist()])


def repeats(kind: Ints, fewest: int = FEWEST_REPEATS) -> Iterator[Repeat]:
    """Periods of a sequence of kinds, numbered from 0, the shortest first. fewest: repeats, less only for kinds that hardly coincide."""
    count = np.bincount(kind)
    repeated = np.flatnonzero(count >= fewest)
    markers = repeated[np.argsort(count[repeated], kind="stable")][:_MARKERS]
    for period in sorted({_period(np.flatnonzero(kind == marker)) for marker in markers.tolist()}):
        if len(kind) >= fewest * period:
            again = np.r_[0, np.cumsum(kind[:-period] == kind[period:])]
            stretches = runs(again[period:] - again[:-period] >= ALIKE * period)
            stretches[:, 1] += 2 * period - 1  # what the last window compares, and what it compares that with
            stretches = stretches[stretches[:, 1] - stretches[:, 0] >= fewest * period]
            if len(stretches):
                yield Repeat(period, stretches)


def _period(at: Ints) -> int:
    """After how many places a kind comes that is at these: it may come up to three times a period."""
    each = [at[often:] - at[:-often] for often in (1, 2, 3) if often < len(at)]
    usual = [int(np.median(apart)) for apart in each]
    return next((period for period, apart in zip(usual, each, strict=True) if (apart == period).mean() >= ALIKE), usual[0])


def passes(members: Ints, kind: Ints) -> list[Ints]:
    """Members of a sequence, split into passes of the loop that nearly all belong to; a single piece without a loop. Passes may differ by one missing or
    extra member, unless each pass is a single member.
    """
    for found in repeats(np.unique(kind, return_inverse=True)[1]) if len(kind) >= FEWEST_REPEATS else ():
        if found.length >= (ALIKE if found.period > 1 else 1) * len(kind):
            return [piece for piece in np.split(members, np.unique(found.starts)) if len(piece)]
    return [members]


def runs(good: Mask) -> Ints:
    """(n, 2) where stretches of True begin and end."""
    return np.flatnonzero(np.diff(np.r_[0, good.astype(np.int8), 0])).reshape(-1, 2)


def longest_run(good: Mask) -> tuple[int, int]:
    """Where the longest stretch of True begins and ends, the first of several; (0, 0) if there is none."""
    return _longest(runs(good)) if good.any() else (0, 0)


def _longest(stretches: Ints) -> tuple[int, int]:
    first, end = stretches[int(np.argmax(stretches[:, 1] - stretches[:, 0]))].tolist()
    return first, end


def alike(one: Counter[Any], other: Counter[Any]) -> bool:
    """Whether two repeats have the same members in any order, except for extra members of the larger."""
    return (one & other).total() >= ALIKE * max(one.total(), other.total())


def rounds(counts: Iterable[int]) -> int:
    """How often a loop goes round in which kinds come so often: some come several times a round, some only now and then; 0 if nothing comes."""
    often = [*counts]
    return min((count for count in often if 4 * count >= max(often)), default=0)
