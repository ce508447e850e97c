"""Tables of a timeline from columns in absolute nanoseconds, as databases of profilers hold them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from advisor.recordings.columns import Table, chosen, joined
from advisor.recordings.timeline import table
from advisor.sources.limits import LARGEST, LONGEST_NS


class Timed(msgspec.Struct):
    """Leaves out rows without a valid time, and counts them."""

    bad_times: int = 0
    bad_durations: int = 0

    def valid(self, part: dict[str, Any]) -> dict[str, Any]:
        """The rows with a valid start; `end_ns` becomes `dur_ns`, 0 if it is none."""
        start = part["start_ns"]
        good = (start > -LARGEST // 2) & (start < LARGEST // 2)
        if not good.all():
            self.bad_times += int((~good).sum())
            part = {name: column[good] for name, column in part.items()}
        if "end_ns" in part:
            duration = part.pop("end_ns") - part["start_ns"]
            bad = (duration < 0) | (duration > LONGEST_NS)
            self.bad_durations += int(bad.sum())
            duration[bad] = 0
            part["dur_ns"] = duration
        return part


def frame(name: str, parts: Iterable[dict[str, Any]], base: int) -> Table:
    """A table of the timeline by start, times in µs from `base`."""
    frames = []
    for part in parts:
        if len(part["start_ns"]):
            part["start_us"] = (part.pop("start_ns") - base) / 1000.0  # in place of the other: both would be the most memory that reading takes
            if "dur_ns" in part:
                part["dur_us"] = part.pop("dur_ns") / 1000.0
            frames.append(table(name, part))
    if not frames:
        return table(name, {})
    starts = np.concatenate([one["start_us"] for one in frames])
    order = slice(None) if (starts[:-1] <= starts[1:]).all() else np.argsort(starts, kind="stable")
    # Column by column, each of the parts given back before the next: all of them twice would be the most memory that reading takes.
    return Table({column: chosen(joined([one.columns.pop(column) for one in frames]), order) for column in list(frames[0])})
