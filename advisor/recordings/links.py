"""Links from row to row that a file holds, as who called whom: made a forest before anything walks along them.

What a program recorded has no ring and a depth that stacks have. A file may have anything: a frame that is its own caller, two that call
each other, a chain of a million. So every link that is followed more than once goes through `forest`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from advisor.intervals import Ints, over_ancestors
from advisor.report.numbers import counted

DEEPEST = 1 << 14
"""Links from a row to its root, at most. Python stops at 1,000 calls unless a program asks for more; a thread's default stack holds some 20,000 of them."""


class Forest(NamedTuple):
    """to: (n,) target row of each, or -1; every row reaches a root within the requested depth. rings: omitted links in a cycle. deep: omitted links beyond that
    depth.
    """

    to: Ints
    rings: int
    deep: int

    @property
    def cut(self) -> int:
        """How many links were left out."""
        return self.rings + self.deep


CHECK = "recorded-links"
"""The check that says so."""


def told(what: str, cut: int) -> str:
    """A check's text about omitted links of a kind."""
    return f"left out {counted(cut, 'link')} from {what}: followed, they lead back to where they began, or further than {DEEPEST:,} links"


def forest(to: Ints, deepest: int = DEEPEST) -> Forest:
    """The links without those that close a ring, of each the earliest row's, and without those that lead beyond a depth.

    to: (n,) the row that each leads to; -1, and what is no row, is none.
    """
    n = len(to)
    to = to.astype(np.int64)
    to[(to < 0) | (to >= n)] = -1
    closing = _closing(to) if (to >= np.arange(n)).any() else np.empty(0, np.int64)
    to[closing] = -1
    far = np.empty(0, np.int64)
    if n > deepest and _reaches(to, deepest):
        depth = over_ancestors(to, np.where(to >= 0, 1, 0), 0, np.add)
        far = np.flatnonzero((depth > 0) & (depth % (deepest + 1) == 0))
    to[far] = -1
    return Forest(to, len(closing), len(far))


def _reaches(to: Ints, depth: int) -> bool:
    """False only if every row reaches a root within that many links: a third of the work of counting them."""
    jump = np.append(to, -1)  # what is no row leads to the last, which leads to itself
    for _ in range(depth.bit_length() - 1):
        jump = jump[jump]
        if (jump < 0).all():
            return False
    return True


def _closing(to: Ints) -> Ints:
    """Of each ring the earliest of its rows."""
    n = len(to)
    jump = np.r_[np.where(to >= 0, to, n), n]
    first = np.arange(n + 1)  # of all rows that a jump passes, the earliest
    for _ in range(n.bit_length()):
        first, jump = np.minimum(first, first[jump]), jump[jump]
    # After more jumps than there are rows, what has reached no root is in a ring.
    ring = np.unique(jump[jump < n])
    return ring[first[ring] == ring]
