"""Tables of a timeline from columns in absolute nanoseconds, as databases of profilers hold them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from advisor.recordings.columns import Table, joined
from advisor.recordings.timeline import table
from advisor.sources.limits import LARGEST, LONGEST_NS


class Timed(msgspec.Struct):
    """Leaves out rows without a valid time, and counts them."""

    bad_times: int = 0
    bad_durations: int = 0

    def valid(self, part: dict[str, Any]) -> dict[str, Any]:
        """The rows with a valid start; `end_ns` becomes `dur_ns`, 0 if it is none."""
        start = part["start_ns"]
        good = np.abs(start) < LARGEST // 2
        if not good.all():
            self.bad_times += int((~good).sum())
            part = {name: column[good] for name, column in part.items()}
        if "end_ns" in part:
            duration = part.pop("end_ns") - part["start_ns"]
            bad = (duration < 0) | (duration > LONGEST_NS)
            self.bad_durations += int(bad.sum())
            part["dur_ns"] = np.where(bad, 0, duration)
        return part


def frame(name: str, parts: Iterable[dict[str, Any]], base: int) -> Table:
    """A table of the timeline, times in µs from `base`."""
    frames = []
    for part in parts:
        if len(part["start_ns"]):
            columns = {k: v for k, v in part.items() if k not in ("start_ns", "dur_ns")}
            columns["start_us"] = (part["start_ns"] - base) / 1000.0
            if "dur_ns" in part:
                columns["dur_us"] = part["dur_ns"] / 1000.0
            frames.append(table(name, columns))
    if len(frames) < 2:
        return frames[0] if frames else table(name, {})
    # Column by column, each of the parts given back before the next: all of them twice would be the most memory that reading takes.
    return Table({column: joined([one.columns.pop(column) for one in frames]) for column in list(frames[0])})
