"""What a TPU's planes say: steps, time by category of HLO op, idle time. No more: advice is for GPUs."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from advisor.intervals import Floats, clip, length, nest, union
from advisor.sources.jax.planes import Events, Line, Plane

_STEPS, _MODULES, _OPS = "Steps", "XLA Modules", "XLA Ops"
SHOWN = 4
"""Categories that are named; the rest is small."""
_GROUPS = {
    "infeed and outfeed": re.compile(r"infeed|outfeed|host (send|recv)", re.IGNORECASE),
    "collectives": re.compile(r"(async[ -])?(all-|reduce-scatter|collective-|ragged-all-|send|recv)", re.IGNORECASE),
}
"""Categories that are summed, wherever they rank."""


class Tpu:
    """Collects spans of steps, modules and ops of the first TPU that has any, in µs from the profile's start."""

    def __init__(self) -> None:
        self.spans: dict[str, tuple[Floats, Floats]] = {}
        self.categories: list[str] = []
        self.events = 0

    def add(self, plane: Plane) -> None:
        """Take in one TPU's plane."""
        for line in plane.lines:
            pieces = list(line.events)
            self.events += sum(len(events.name) for events in pieces)
            if line.name not in (_STEPS, _MODULES, _OPS) or line.name in self.spans or not pieces:
                continue
            self.spans[line.name] = _times(line, pieces)
            if line.name == _OPS:
                codes = np.concatenate([events.name for events in pieces]).tolist()
                self.categories = [plane.categories.get(line.texts.all[code]) or category_of(line.texts.all[code]) for code in codes]

    def __str__(self) -> str:
        """In words, "" where no ops were recorded."""
        start, end = self.spans.get(_OPS, (np.empty(0), np.empty(0)))
        steps = self.spans.get(_STEPS) or self.spans.get(_MODULES)
        if not len(start) or steps is None:
            return ""
        window = float(steps[0].min()), float(steps[1].max())
        whole = max(window[1] - window[0], 1e-9)
        busy = length(clip(union(start, end), *window))
        parents = nest(np.zeros(len(start), np.int64), start, end)
        own = end - start
        np.subtract.at(own, parents[parents >= 0], (end - start)[parents >= 0])
        spent: Counter[str] = Counter()
        for category, us in zip(self.categories, own.tolist(), strict=True):
            spent[category] += us
        groups = {what: sum(us for category, us in spent.items() if pattern.match(category)) for what, pattern in _GROUPS.items()}
        shown = dict(spent.most_common(SHOWN)) | {f"{what} in all": us for what, us in groups.items() if us}
        named = ", ".join(f"{category} {us / whole:.0%}" for category, us in shown.items())
        what = "steps" if _STEPS in self.spans else "runs of executables"
        usual = float(np.median(steps[1] - steps[0])) / 1000
        return f"{len(steps[0])} {what} of {usual:.3g} ms; ops run for {busy / whole:.0%} of the time ({named}), the rest is idle"


def category_of(name: str) -> str:
    """The category of an HLO op by its name alone: `%all-reduce.12 = …` is an all-reduce."""
    return name.removeprefix("%").split(" ", 1)[0].split(".", 1)[0] or "unnamed"


def _times(line: Line, pieces: list[Events]) -> tuple[Floats, Floats]:
    start = line.start_ns / 1000 + np.concatenate([events.start_ps for events in pieces]) / 1e6
    return start, start + np.concatenate([np.maximum(events.dur_ps, 0) for events in pieces]) / 1e6
