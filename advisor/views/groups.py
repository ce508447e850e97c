"""Rows that agree in their keys: what is added up, compared or counted by group."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import msgspec
import numpy as np

from advisor.intervals import PIECE_ROWS, Codes, Floats, Ints
from advisor.recordings.columns import chosen

DENSE = 4
"""Keys that span at most so many times the rows, or `FEW`, are numbered by a table of that size; others are sorted."""
FEW = 1 << 12  # keys: as small a table fits the first cache


class Groups(msgspec.Struct, frozen=True, eq=False, dict=True):
    """of: (n,) each row's group, numbered as they are first met. first: (n_groups,) the row where each is."""

    of: Ints
    first: Ints

    @property
    def rows(self) -> Ints:
        """(n_groups,) how many rows each has."""
        return np.bincount(self.of, minlength=len(self.first))

    def sums(self, **columns: Floats | Ints) -> dict[str, Floats]:
        """(n_groups,) the sum of each column over each group; NaN counts as nothing. In the machine's widest floats: the same times in
        another order are as long, but for the rarest."""
        return {name: self._sums(column) for name, column in columns.items()}

    def _sums(self, column: Floats | Ints) -> Floats:
        order, begins = self._in_order
        made = np.empty(len(begins))
        # A few groups after the other: the widest floats of all rows would be the most memory that an analysis takes.
        at = np.unique(np.searchsorted(begins, np.arange(0, len(order) + PIECE_ROWS, PIECE_ROWS)))
        for first, last in pairwise(at.tolist()):
            rows = order[begins[first] : begins[last] if last < len(begins) else None]
            exact = np.nan_to_num(chosen(column, rows)).astype(np.longdouble)
            made[first:last] = np.add.reduceat(exact, begins[first:last] - begins[first])
        return made

    def minima(self, values: np.ndarray) -> np.ndarray:
        """(n_groups,) the smallest of each group's values."""
        order, begins = self._in_order
        return np.minimum.reduceat(values[order], begins) if len(begins) else values[:0]

    def medians(self, values: Floats) -> Floats:
        """(n_groups,) the median of each group's values, without those that are NaN."""
        order = np.lexsort((values, self.of))
        known = np.bincount(self.of, ~np.isnan(values), len(self.first)).astype(np.int64)
        begins = self._in_order[1]
        low, high = (values[order[begins + half]] for half in (np.maximum(known - 1, 0) // 2, known // 2))
        return np.where(known > 0, (low + high) / 2, np.nan)

    @property
    def nth(self) -> Ints:
        """(n,) how many rows of its group are before each."""
        order, begins = self._in_order
        found = np.empty(len(order), np.int64)
        found[order] = np.arange(len(order)) - np.repeat(begins, self.rows)
        return found

    @property
    def members(self) -> list[Ints]:
        """The rows of each group."""
        order, begins = self._in_order
        return np.split(order, begins[1:]) if len(begins) else []

    @cached_property
    def _in_order(self) -> tuple[Ints, Ints]:
        """(n,) rows sorted by group in stable order, and (n_groups,) start of each group."""
        return np.argsort(self.of, kind="stable"), np.cumsum(self.rows) - self.rows

    @classmethod
    def by_keys(cls, *keys: Ints | Codes) -> Groups:
        """The rows with the same integers under every key."""
        codes, size = np.zeros(len(keys[0]), np.int64), 1
        for key in keys:
            if key.strides == (0,):
                continue  # all rows agree
            more, span = _dense(key)
            codes *= span
            codes += more
            codes, size = _dense(codes, size * span)
        return cls(*_numbered(codes, size))


FEW_OF = 16
"""A table with an entry for each number is worth it from one value for so many: a few are sorted, whatever they span."""


def distinct(values: Ints) -> Ints:
    """The values in order, each once. They span few numbers, as codes, rows and streams do; a file may number its devices as it likes."""
    sorted_better = len(values) > 0 and (FEW_OF * len(values) < int(values.max()) or int(values.min()) < 0)
    return np.unique(values) if sorted_better else np.flatnonzero(np.bincount(values))


def _dense(key: Ints | Codes, size: int | None = None) -> tuple[Ints, int]:
    """The same numbers from 0, and how many there may be: no more than a table for them may have entries. size: if they are from 0 already."""
    most, low = max(DENSE * len(key), FEW), 0
    if size is None:
        low = int(key.min()) if len(key) else 0
        size = int(key.max()) - low + 1 if len(key) else 1
    codes: Ints = np.subtract(key, low, dtype=np.int64) if low or key.dtype != np.int64 else key  # type: ignore[assignment]
    if size <= most:
        return codes, size
    values, codes = np.unique(codes, return_inverse=True)
    return codes, len(values)


def _numbered(codes: Ints, size: int) -> tuple[Ints, Ints]:
    n = len(codes)
    met = np.full(size, n)
    met[codes[::-1]] = np.arange(n - 1, -1, -1)
    there = np.flatnonzero(met < n)
    there = there[np.argsort(met[there])]
    number = np.empty(size, np.int64)
    number[there] = np.arange(len(there))
    return number[codes], met[there]
