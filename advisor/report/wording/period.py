"""The period that a rule's counts and times are of: a step, or the whole recording if no step repeats. Sentences are made with these words.

The engine says which it is before rules run (`worded_for`), so no finished sentence has to be changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from advisor.report.numbers import duration

_has_steps: ContextVar[bool] = ContextVar("has_steps", default=True)


@contextmanager
def worded_for(*, steps: bool) -> Iterator[None]:
    """Inside, sentences are about steps, or about a recording without any."""
    token = _has_steps.set(steps)
    try:
        yield
    finally:
        _has_steps.reset(token)


class Words:
    """Words for a period, chosen when they are put into a sentence."""

    def __init__(self, of_steps: str, of_recording: str) -> None:
        self._of_steps, self._of_recording = of_steps, of_recording

    def __str__(self) -> str:
        return self._of_steps if _has_steps.get() else self._of_recording


PER_STEP = Words("per step", "in all")
IN_STEP = Words("in a step", "in all")
A_STEP = Words("a step", "the recording")
THE_STEP = Words("the step", "the traced time")
EVERY_STEP = Words("every step", "the traced time")


def of_each_step(us: float) -> str:
    """`of each 4.66 ms step`, after a time that is a part of it."""
    return f"of each {duration(us)} step" if _has_steps.get() else f"of the {duration(us)} traced"


def step_of(us: float) -> str:
    """`a step of 42.0 ms`."""
    return f"a step of {duration(us)}" if _has_steps.get() else f"{duration(us)} traced"
