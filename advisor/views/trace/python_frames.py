"""Which Python frame called which: as the profiler recorded it, by time if it did not."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import PIECE_ROWS, Ints, nest
from advisor.recordings.links import Forest, forest
from advisor.recordings.timeline import Timeline
from advisor.views.trace.ops import thread_ids


class PythonFrames(msgspec.Struct, frozen=True):
    """callers: (n_python,) the row of `python_calls` around each, and how many recorded ones led in a ring or too far."""

    callers: Forest

    @classmethod
    def build(cls, timeline: Timeline) -> PythonFrames:
        frame = timeline.python_calls
        parent_id, python_id = frame["parent_id"], frame["python_id"]
        if not (parent_id >= 0).any():
            return cls(forest(nest(thread_ids(frame), *frame.bounds())))
        return cls(forest(_rows_of(python_id, parent_id)))


_SPREAD = 4
"""Numbers up to this many times the rows are looked up in a table: profilers count frames."""


def _rows_of(numbers: Ints, wanted: Ints) -> Ints:
    """The first row with each number that is wanted, -1 if none has it or it is negative."""
    largest = max(int(numbers.max()), -1)
    if largest < _SPREAD * len(numbers):
        rows, found = np.full(largest + 2, -1), np.empty(len(wanted), np.int64)
        pieces = [slice(at, at + PIECE_ROWS) for at in range(0, len(numbers), PIECE_ROWS)]
        for piece in reversed(pieces):
            counted = np.flatnonzero(numbers[piece] >= 0)[::-1]  # of rows with one number the first is written last
            rows[numbers[piece][counted]] = counted + piece.start
        for piece in pieces:
            number = wanted[piece]
            found[piece] = rows[np.where((number >= 0) & (number <= largest), number, largest + 1)]
        return found
    order = np.argsort(numbers, kind="stable")
    at = order[np.minimum(np.searchsorted(numbers[order], wanted), len(order) - 1)]
    return np.where((wanted >= 0) & (numbers[at] == wanted), at, -1)
