"""How many samples or requests a step works on, where marks or shapes say so."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from advisor.knowledge.op_tokens import names_of
from advisor.recordings.timeline import Timeline
from advisor.views.trace import arguments
from advisor.views.trace.serving import Serving
from advisor.views.trace.steps import Steps

_MARK = re.compile(r"\b(?:bs|batch[_ ]?size)[ =:]+(\d{1,12})", re.IGNORECASE)
"""`bs=16` of programs that say so."""
_IMAGES = names_of("convolution_of_images")


class Batch(msgspec.Struct, frozen=True):
    """a_step: samples of a mean step, 0 if nothing says; source: what said so."""

    a_step: float = 0.0
    source: str = ""

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, serving: Serving) -> Batch:
        if not steps.repeats:
            return cls()
        return _served(serving, steps) or _marked(timeline, steps) or _of_images(timeline, steps) or cls()


def _served(serving: Serving, steps: Steps) -> Batch | None:
    """Mean of what a server's marks say of the steps in the window."""
    sizes = [step.mark.requests for step in serving.judged(steps)]
    return Batch(float(np.mean(sizes)), "the marks of its steps") if sizes and min(sizes) > 0 else None


def _marked(timeline: Timeline, steps: Steps) -> Batch | None:
    """Mean over the marks in the window, at most one mark per step."""
    notes = timeline.annotations
    inside = steps.issued_at(notes["start_us"])
    sizes = [int(found[1]) for name in notes["name"][inside] if (found := _MARK.search(name))]
    if not sizes or len(sizes) > 1.5 * steps.steps:
        return None
    return Batch(float(np.mean(sizes)), "the marks of its steps")


def _of_images(timeline: Timeline, steps: Steps) -> Batch | None:
    """The first dimension of the first convolution's input, where all in the window agree on it."""
    ops = timeline.cpu_ops
    named = np.array([*(bool(_IMAGES.match(name)) for name in ops["name"].categories), False], bool)[ops["name"].codes]
    start = ops["start_us"]
    rows = np.flatnonzero(named & steps.issued_at(start))
    first = {shapes[0][0] for text in set(ops["dims"][rows]) if (shapes := arguments.numbers(text)) and len(shapes[0]) >= 4}
    return Batch(float(first.pop()), "the inputs of its convolutions") if len(first) == 1 else None
