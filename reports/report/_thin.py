"""A cut with few enough slices to draw: those narrower than a pixel are merged with their neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.structs import replace
from advisor.report.charts import Cut

_PIXELS = (4_000_000, 1_000_000, 250_000, 60_000, 15_000, 4_000, 1_000, 250, 125)
"""Of the whole cut, tried in order: levels of detail, of which the finest that fits is taken."""


class Thin(msgspec.Struct, frozen=True, eq=False):
    """Columns as in `Cut`; `count` slices are in each row, named and coloured as the longest of them."""

    lane: Ints
    depth: Ints
    start_us: Floats
    end_us: Floats
    busy_us: Floats
    """For how long a slice runs between start and end: less than all of it where several were merged."""
    longest: Ints
    """Row of the cut."""
    count: Ints
    of: Ints
    """(n of the cut,) the row that each slice went into, -1 if it is left out."""


def thin(cut: Cut, most: int, deepest: int, whole: Sequence[tuple[float, float]] = ()) -> Thin:
    """The cut with at most `most` slices, none nested deeper than `deepest`. Within the stretches that are to stay `whole`
    (start and end in µs) no slice is merged, as far as that leaves half of the room for the rest."""
    shown = np.flatnonzero(cut.depth < deepest)
    kept = np.zeros(len(cut.lane), bool)
    for start, end in whole:
        inside = (cut.slice_start_us < end) & (cut.slice_start_us + cut.slice_dur_us > start)
        if (kept | inside)[shown].sum() <= most // 2:
            kept |= inside
    groups = np.arange(len(shown))
    if len(shown) > most:
        for pixels in _PIXELS:
            groups = _merged(cut, shown, (cut.end_us - cut.start_us) / pixels, kept[shown])
            if len(np.unique(groups)) <= most:
                break
    _, groups = np.unique(groups, return_inverse=True)
    made = _folded(cut, shown, groups)
    if len(made.lane) > most:
        kept = np.sort(np.argsort(made.start_us - made.end_us, kind="stable")[:most])
        place = np.full(len(made.lane) + 1, -1)
        place[kept] = np.arange(len(kept))
        columns = {name: getattr(made, name)[kept] for name in Thin.__struct_fields__ if name != "of"}
        made = replace(made, **columns, of=place[made.of])
    return made


def _merged(cut: Cut, shown: Ints, pixel_us: float, kept: np.ndarray) -> Ints:
    """A group for each slice: its own if it is kept or wider than a pixel, else its lane, depth and pixel's."""
    bins = np.floor((cut.slice_start_us[shown] - cut.start_us) / pixel_us).astype(np.int64)
    bins -= bins.min()
    row = cut.lane[shown] * (cut.depth.max() + 1) + cut.depth[shown]
    key: Ints = row * (bins.max() + 1) + bins
    wide = kept | (cut.slice_dur_us[shown] >= pixel_us)
    key[wide] = key.max() + 1 + np.arange(wide.sum())
    return key


def _folded(cut: Cut, shown: Ints, groups: Ints) -> Thin:
    """One row a group."""
    number = int(groups.max()) + 1 if len(groups) else 0
    start, dur = cut.slice_start_us[shown], cut.slice_dur_us[shown]
    first, last = np.full(number, np.inf), np.full(number, -np.inf)
    np.minimum.at(first, groups, start)
    np.maximum.at(last, groups, start + dur)
    busy = np.minimum(np.bincount(groups, dur, minlength=number), last - first)
    longest = np.zeros(number, np.int64)
    order = np.argsort(dur, kind="stable")
    longest[groups[order]] = shown[order]
    order = np.lexsort((first, cut.depth[longest], cut.lane[longest]))
    place = np.argsort(order)
    of = np.full(len(cut.lane), -1)
    of[shown] = place[groups]
    longest = longest[order]
    count = np.bincount(groups, minlength=number)[order]
    return Thin(cut.lane[longest], cut.depth[longest], first[order], last[order], busy[order], longest, count, of)
