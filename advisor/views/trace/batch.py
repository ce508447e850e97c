"""How many samples or requests a step works on, where marks or shapes say so."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from advisor.recordings.timeline import Timeline
from advisor.views.trace import arguments
from advisor.views.trace.steps import Steps

_MARKS = (
    re.compile(r"^execute_\w*?context_(?P<context>\d{1,12})\b.*_generation_(?P<generation>\d{1,12})"),
    re.compile(r"\b(?:bs|batch[_ ]?size)[ =:]+(?P<batch>\d{1,12})", re.IGNORECASE),
)
"""vLLM's steps, with requests in their prefill and those that generate; `bs=16` of SGLang and of programs that say so."""
_IMAGES = re.compile(r"^aten::(conv2d|conv3d|convolution|cudnn_convolution|miopen_convolution)$")


@dataclass(frozen=True)
class Batch:
    """a_step: samples of a mean step, 0 where nothing says; source: what said so."""

    a_step: float = 0.0
    source: str = ""

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps) -> Batch:
        if not steps.repeats:
            return cls()
        return _marked(timeline, steps) or _of_images(timeline, steps) or cls()


def _marked(timeline: Timeline, steps: Steps) -> Batch | None:
    """Mean of what the marks in the window say, one mark a step at most."""
    notes = timeline.annotations
    start = notes["start_us"].to_numpy()
    inside = steps.issued_at(start)
    sizes = []
    for name in notes["name"][inside].astype(str):
        match = next((found for pattern in _MARKS if (found := pattern.search(name))), None)
        if match:
            sizes.append(sum(int(value) for value in match.groupdict().values() if value))
    if not sizes or len(sizes) > 1.5 * steps.steps:
        return None
    return Batch(float(np.mean(sizes)), "the marks of its steps")


def _of_images(timeline: Timeline, steps: Steps) -> Batch | None:
    """The first dimension of the first convolution's input, where all in the window agree on it."""
    ops = timeline.cpu_ops
    named = np.array([*(bool(_IMAGES.match(name)) for name in ops["name"].cat.categories), False], bool)[ops["name"].cat.codes.to_numpy()]
    start = ops["start_us"].to_numpy()
    rows = np.flatnonzero(named & steps.issued_at(start))
    first = {shapes[0][0] for text in set(ops["dims"].iloc[rows].astype(str)) if (shapes := arguments.numbers(text)) and len(shapes[0]) >= 4}
    return Batch(float(first.pop()), "the inputs of its convolutions") if len(first) == 1 else None
