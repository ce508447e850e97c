"""Decides whether a repeating launch sequence is the layers of a pass. Then each is a part of a step, and work for all of them is outside."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.cuda_api import ApiRole
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.shares import HARDLY_ANY, VIRTUALLY_ALL
from advisor.recordings.columns import Table
from advisor.recordings.timeline import CopyKind, Timeline
from advisor.views.trace.launches import Launches, computing_ops
from advisor.views.trace.program import Program
from advisor.views.trace.repeats import FEWEST_REPEATS
from advisor.views.trace.table_filters import matches

_MODULE = names_of("nn_module")
_OPTIMIZER = names_of("optimizer_step")

ONCE = HARDLY_ANY
"""Of the work that is issued in one go, the kernels that do not repeat: from a twentieth on the repeats are parts of something."""


FEWEST_OF_A_LAYER = FEWEST_REPEATS
"""Kernels of a layer: a GEMM, a bias, an activation. Fewer are the loop of a single op, as in a benchmark."""


def one_pass(timeline: Timeline, launches: Launches, program: Program, start_us: float, end_us: float, repeats: int) -> str:
    """Evidence that so many repeats, launched from start_us to end_us, are layers; "" without any. Only frameworks have layers: without a framework, a
    repeat is the program's loop.
    """
    if program.framework != "torch":
        return ""
    inside = (launches.start_us >= start_us) & (launches.start_us < end_us)
    if not inside.any() or not len(timeline.api_calls):
        return ""
    if _in_a_module(timeline, launches, inside, start_us, end_us):
        return "a single module call holds them all"
    if (held := matches(timeline.annotations, _OPTIMIZER)).any() and _enclosing_spans(timeline.annotations[held], start_us, end_us).any():
        return "a single optimizer step holds them all"
    if program.training and _backward_alone(timeline, launches, inside, start_us):
        return "a single backward pass holds them all"
    if _issued_with_more(timeline, launches, inside, start_us, end_us, repeats):
        return "they were launched together with kernels that run only before or after them"
    return ""


def _threads(timeline: Timeline, launches: Launches, rows: Mask | Ints) -> Ints:
    return timeline.api_calls["tid"][launches.call[rows]]


def _in_a_module(timeline: Timeline, launches: Launches, inside: Mask, start_us: float, end_us: float) -> bool:
    calls = timeline.python_calls
    if not len(calls) or timeline.source.borrowed:
        return False
    around = matches(calls, _MODULE) & _enclosing_spans(calls, start_us, end_us)
    return bool(np.isin(calls["tid"][around], _threads(timeline, launches, inside)).any())


def _enclosing_spans(frame: Table, start_us: float, end_us: float) -> Mask:
    """Spans that hold all from start_us to end_us, and more."""
    start = frame["start_us"]
    return (start <= start_us) & (start + frame["dur_us"] > end_us)


ON_ONE_THREAD = VIRTUALLY_ALL
"""A repeat may start with the last kernel before the backward pass, because the cut of the sequence is arbitrary."""


def _backward_alone(timeline: Timeline, launches: Launches, inside: Mask, start_us: float) -> bool:
    """Whether a single thread launched the repeats, and other threads most earlier work. Gradients are computed on a thread of their own, and a whole
    training step needs both.
    """
    threads, counts = np.unique(_threads(timeline, launches, inside), return_counts=True)
    before = (launches.start_us < start_us) & computing_ops(timeline)
    if counts.max() < ON_ONE_THREAD * counts.sum() or not before.any():
        return False
    return bool((_threads(timeline, launches, before) != threads[counts.argmax()]).mean() > 0.5)


def _issued_with_more(timeline: Timeline, launches: Launches, inside: Mask, start_us: float, end_us: float, repeats: int) -> bool:
    """Whether the host neither waits nor exchanges data between repeats, and launches other kernels directly before and after them, at most a repeat's
    worth on each side: a network's work around its layers. Steps get data or return results, and a prefill or a warm-up run is a whole pass.
    """
    bounds = _exchanges(timeline, launches, _threads(timeline, launches, inside))
    if ((bounds > start_us) & (bounds < end_us)).any():
        return False
    first = float(bounds[bounds <= start_us].max(initial=-np.inf))
    last = float(bounds[bounds >= end_us].min(initial=np.inf))
    chosen = np.flatnonzero((launches.start_us >= first) & (launches.start_us < last) & computing_ops(timeline))
    chosen = chosen[np.argsort(launches.start_us[chosen], kind="stable")]
    starts, dur = launches.start_us[chosen], timeline.gpu_ops["dur_us"][chosen]
    a_repeat = round(((starts >= start_us) & (starts < end_us)).sum() / repeats)
    if a_repeat < FEWEST_OF_A_LAYER:
        return False
    # The repeat that begins at end_us may be the last whole one.
    before, after = int(np.searchsorted(starts, start_us)), min(int(np.searchsorted(starts, end_us)) + a_repeat, len(starts))
    few = max(before, len(starts) - after) <= a_repeat
    return few and float(dur[:before].sum() + dur[after:].sum()) >= ONCE * max(float(dur.sum()), 1e-9)


def _exchanges(timeline: Timeline, launches: Launches, threads: Ints) -> Floats:
    """When these threads wait for the device, or begin to copy from or to the host."""
    calls = timeline.api_calls
    waits = launches.calls_with(ApiRole.SYNC)
    waits = waits[np.isin(calls["tid"][waits], threads)]
    copies = timeline.gpu_ops["copy_kind"].isin([CopyKind.HTOD.value, CopyKind.DTOH.value]) & (launches.call >= 0)
    copies[copies] = np.isin(_threads(timeline, launches, copies), threads)
    return np.r_[calls["start_us"][waits], launches.start_us[copies]]
