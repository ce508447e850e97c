"""Records of streams and threads, which process their queues in turn: rows that are out of order or too long, and their repair."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.counts import BY_CHANCE
from advisor.knowledge.shares import HARDLY_ANY
from advisor.recordings.columns import Table, joined, row_by_row
from advisor.recordings.columns import numbered as numbers_of
from advisor.recordings.timeline import ReadIssue
from advisor.report.numbers import counted, duration

SINGLE = HARDLY_ANY
"""Share of contradicting records above which they are not singly damaged. The checks of clocks and streams fail from here on."""

OTHERS = BY_CHANCE
"""With this few rows, it is unknown whether a row or the rest is damaged."""

SLACK_US = 10.0
"""Programmatic launch starts a kernel a few µs before the previous kernel ends, and clocks of a host and a device differ by as much."""

Race = Callable[[int | None, int, int | None], bool]
"""Whether the order of a row and those numbered before and after it is unknown."""


class Queued(msgspec.Struct):
    """The rows of a table, sorted by start, during their repair. queue: (n,) the stream or thread of each.

    numbers: (n,) increasing in each queue, -1 if unknown. moved_us, cut_us: errors of the moved and the cut rows."""

    table: Table
    numbers: Ints
    queue: Ints
    start_us: Floats
    dur_us: Floats
    moved_us: list[float] = msgspec.field(default_factory=list)
    cut_us: list[float] = msgspec.field(default_factory=list)

    @classmethod
    def create(cls, place: tuple[str, str], numbered: dict[str, Table]) -> list[Queued]:
        """Of each table by the column that numbers it; a queue is a place, with the same number in all of them."""
        tables = list(numbered.values())
        (outer, _), (inner, known) = (numbers_of(joined([table[column] for table in tables])) for column in place)
        queue = row_by_row(lambda outer, inner: outer * (len(known) + 1) + inner, outer, inner)
        queues = np.split(queue, np.cumsum([len(table) for table in tables])[:-1])
        columns = [[table[column] for column in (number, "start_us", "dur_us")] for number, table in numbered.items()]
        return [cls(table, number, queue, start, dur) for table, queue, (number, start, dur) in zip(tables, queues, columns, strict=True)]

    @property
    def end_us(self) -> Floats:
        return self.start_us + self.dur_us

    @property
    def frame(self) -> Table:
        """The table with its new times."""
        return self.table.with_columns(start_us=self.start_us, dur_us=self.dur_us)

    def by_queue(self) -> dict[int, Ints]:
        """The rows of each queue, by their start."""
        order = np.lexsort((self.start_us, self.queue))
        queues, first = np.unique(self.queue[order], return_index=True)
        return dict(zip(queues.tolist(), np.split(order, first[1:]), strict=True)) if len(order) else {}

    def following(self, among: Mask) -> NDArray[np.int32]:
        """(n,) the row after each of some rows in its queue, of these, or -1. Rows that share a number, as nodes of a graph, do not follow each other."""
        rows = np.flatnonzero(among).astype(np.int32)
        if self.moved_us:
            rows = rows[np.argsort(self.start_us[rows], kind="stable")]
        if self.queue.strides != (0,):
            rows = rows[np.argsort(self.queue[rows], kind="stable")]
        number = self.numbers[rows]
        follows = (number[:-1] != number[1:]) | (number[:-1] < 0)
        del number
        queue = self.queue[rows]
        follows &= queue[:-1] == queue[1:]
        del queue
        found = np.full(len(among), -1, np.int32)
        found[rows[:-1][follows]] = rows[1:][follows]
        return found

    def out_of_turn(self) -> Mask:
        """The fewest rows without which the numbers rise in every queue."""
        found = np.zeros(len(self.numbers), bool)
        rows = np.flatnonzero(self.numbers >= 0)
        rows = rows[np.argsort(self.queue[rows], kind="stable")]
        falls = (np.diff(self.numbers[rows]) < 0) & (np.diff(self.queue[rows]) == 0)
        for queue in np.unique(self.queue[rows[1:][falls]]).tolist():
            of = rows[self.queue[rows] == queue]
            found[of] = ~rising(self.numbers[of])
        return found

    def put_back(self, lost: Mask, earliest_us: Floats | None = None, race: Race | None = None) -> None:
        """Move a few rows to a free time in their queue: after the row numbered before them, ending before the next.

        earliest_us: (n,) earliest possible begin of each."""
        for queue in np.unique(self.queue[few_rows(lost)]).tolist():
            of = np.flatnonzero((self.queue == queue) & (self.numbers >= 0))
            of = of[np.argsort(self.numbers[of], kind="stable")]
            kept, rows, free_us = of[~lost[of]], of[lost[of]], -np.inf
            for row, at in zip(rows.tolist(), np.searchsorted(self.numbers[kept], self.numbers[rows], side="right").tolist(), strict=True):
                before, after = kept[at - 1] if at else None, kept[at] if at < len(kept) else None
                if race and race(before, row, after):
                    continue
                floor_us = max(free_us, -np.inf if before is None else self.end_us[before], -np.inf if earliest_us is None else earliest_us[row])
                free_us = self._move(row, floor_us, np.inf if after is None else self.start_us[after])

    def _move(self, row: int, floor_us: float, ceiling_us: float) -> float:
        """Put a row between two moments, as far as both are known. Returns when it ends."""
        start = min(floor_us, ceiling_us) if np.isfinite(floor_us) else ceiling_us - self.dur_us[row]
        if np.isfinite(start) and abs(start - self.start_us[row]) > SLACK_US:
            if not self.moved_us:
                self.start_us, self.dur_us = self.start_us.copy(), self.dur_us.copy()
            self.moved_us.append(float(abs(start - self.start_us[row])))
            self.start_us[row], self.dur_us[row] = start, min(self.dur_us[row], ceiling_us - start)
        return float(self.start_us[row] + self.dur_us[row])

    def cut(self, long: Mask, until_us: Floats) -> None:
        """End a few rows if they had ended at the latest."""
        rows = np.flatnonzero(few_rows(long))
        if len(rows):
            self.cut_us += (self.end_us[rows] - until_us[rows]).tolist()
            self.dur_us = self.dur_us.copy()
            self.dur_us[rows] = np.maximum(until_us[rows] - self.start_us[rows], 0.0)

    def issues(self, noun: str) -> list[ReadIssue]:
        """The repairs."""
        queue, found = "stream" if "stream" in self.table else "thread", []
        for check, off_us, told in (
            ("timestamps", self.moved_us, "off {their} place in {their} {queue}, and put there"),
            ("durations", self.cut_us, "longer than the other records allow, and cut there"),
        ):
            if off_us:
                were, their = ("was", "its") if len(off_us) == 1 else ("were up to", "their")
                some = f"{len(off_us):,} of {counted(len(self.table), noun)} {were} {duration(max(off_us))}"
                found.append(ReadIssue(check, f"{some} {told.format(their=their, queue=queue)}", events=len(off_us), of=len(self.table)))
        return found


def few_rows(wrong: Mask) -> Mask:
    """Those rows. None if they are too many to be single damaged rows, or the others are too few to decide."""
    told = wrong.sum() <= max(1, SINGLE * len(wrong)) and len(wrong) > OTHERS
    return wrong if told else np.zeros(len(wrong), bool)


def rising(numbers: Ints) -> Mask:
    """The longest part of a sequence that never falls (patience sorting)."""
    tops: list[int] = []
    piles: list[int] = []
    below = np.full(len(numbers), -1)
    for i, number in enumerate(numbers.tolist()):
        pile = bisect_right(tops, number)
        tops[pile : pile + 1] = [number]
        piles[pile : pile + 1] = [i]
        below[i] = piles[pile - 1] if pile else -1
    kept, i = np.zeros(len(numbers), bool), piles[-1] if piles else -1
    while i >= 0:
        kept[i] = True
        i = int(below[i])
    return kept
