"""Micro-batches: parts of a step of training that each go forward and back through the same network, whose gradients are added up."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import PRODUCTS, Family
from advisor.knowledge.shares import LITTLE, MOST
from advisor.views.groups import Groups
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.trace.repeats import alike
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches

ABOUT = LITTLE
"""Gradients that autograd adds to and those filled with zeros ahead of the first part may differ by this share: some get none."""

MOST_STEPS = MOST
"""Of the steps, those that consist of micro-batches at least: a last one of an epoch may have fewer."""

_OPTIMIZER, _COLLECTS = names_of("optimizer_step_or_zero_grad"), names_of("accumulate_grad")
_TO_ONE = names_of("send_receive")
"""What stages of a pipeline send each other: their micro-batches are small on purpose."""


class MicroBatches(msgspec.Struct, frozen=True, eq=False):
    """Positions of GPU ops; none if a step has a single micro-batch, or parts that differ.

    times: micro-batches per step, at least 1. kept: launches of the first micro-batch that others repeat. together_us: their time in all micro-batches of the
    step, in turn; gradients are exchanged once. gone: repeated launches, and gradient sums. waits: positions of calls that wait between first and last.
    """

    times: float
    kept: Ints
    together_us: Floats
    gone: Ints
    waits: Ints

    @classmethod
    def build(cls, steps: Steps, work: GpuWork, calls: HostCalls) -> MicroBatches:
        adds = np.zeros(len(work.op), bool)
        adds[accumulations(work)] = True
        part = _parts(steps, work, adds) if adds.any() and steps.repeats else np.full(len(adds), -1)
        whole = np.flatnonzero(part >= 0)
        if not len(whole):
            return cls(1.0, whole, np.empty(0), whole, whole)
        step, part, us = work.step[whole], part[whole], work.dur_us[whole]
        op = work.ops.codes(work.op[whole])
        # The n-th of each kind in the first part, and its likes in the others.
        like = Groups.by_keys(step, op, Groups.by_keys(step, part, op).nth)
        together_us, of_first = like.sums(us=us)["us"][like.of], like.minima(part)[like.of]
        several = np.bincount(like.of[Groups.by_keys(like.of, part).first])[like.of] > 1
        first = np.flatnonzero((part == 0) & several)
        kept, exchanged = whole[first], work.in_families(Family.COMMUNICATION)[whole[first]]
        inside = np.zeros(len(calls.waits), bool)
        for of_step in Groups.by_keys(step).members:
            begun, ended = (work.schedule.op_call[whole[of_step[part[of_step] == number]]] for number in (0, part[of_step].max()))
            inside[begun.max() + 1 : ended.max() + 1] = True
        return cls(
            times=len(Groups.by_keys(step, part).first) / len(Groups.by_keys(step).first),
            kept=kept,
            together_us=np.where(exchanged, us[first], together_us[first]),
            gone=whole[(part > 0) & ((of_first == 0) | adds[whole])],
            waits=np.flatnonzero(inside & calls.waits),
        )


def accumulations(work: GpuWork) -> Ints:
    """Positions of additions of a gradient to one that is there already."""
    adds = work.launched_by(names_of("add_in_place").search)
    return np.flatnonzero(adds & (work.ops.enclosing(work.op, _COLLECTS) >= 0))


def _parts(steps: Steps, work: GpuWork, adds: Mask) -> Ints:
    """(n,) micro-batch of each op in its step, from 0; -1 with a single micro-batch, and after the last."""
    forward = work.in_families(*PRODUCTS, Family.CONV, Family.ATTENTION) & work.kernel & ~work.backward
    fills, exchanges = work.in_families(Family.FILL), work.in_families(Family.COMMUNICATION)
    compared = work.kernel & ~adds & ~fills & ~exchanges & (work.op >= 0)
    notes = work.timeline.annotations
    marks = notes[matches(notes, _OPTIMIZER)]
    marked = marks.bounds()
    found, sends = np.full(len(work.op), -1), work.named(_TO_ONE)
    order = np.lexsort((work.launched_us, work.step))
    count = 0
    for at in np.split(order, np.flatnonzero(np.diff(work.step[order])) + 1):
        parts = _cut(at, forward[at], work.backward[at])
        if (
            len(parts) > 1
            and not sends[np.concatenate(parts)].any()
            and _added_up(parts, adds, fills)
            and _parts_are_alike(parts, compared, work)
            and not _separated_by_update(parts, work.launched_us, *marked)
        ):
            count += 1
            for number, positions in enumerate(parts):
                found[positions] = number
    return found if count >= MOST_STEPS * steps.steps else np.full(len(work.op), -1)


def _cut(at: Ints, forward: Mask, backward: Mask) -> list[Ints]:
    """A step's launches in order, cut where a forward pass follows a backward pass; without those after the last."""
    passes = np.flatnonzero(forward | backward)
    turns = passes[:-1][backward[passes[:-1]] & forward[passes[1:]]] + 1
    last = np.flatnonzero(backward)[-1:] + 1
    return np.split(at[: last[0]], turns[turns < last[0]]) if len(last) else []


def _added_up(parts: list[Ints], adds: Mask, fills: Mask) -> bool:
    """Whether the later parts add to gradients of the first: it has none to add to, or to as many as were filled with zeros ahead of it."""
    first, *others = (int(adds[part].sum()) for part in parts)
    filled = int(fills[parts[0]].sum()) - int(fills[parts[1]].sum())
    return min(others) > 0 and (2 * first < min(others) or abs(filled - first) <= ABOUT * first)


def _parts_are_alike(parts: list[Ints], compared: Mask, work: GpuWork) -> bool:
    """Whether all parts launch the same ops."""
    first, *others = (Counter(work.ops.names[work.op[part[compared[part]]]].tolist()) for part in parts)
    return all(alike(first, other) and other for other in others)


def _separated_by_update(parts: list[Ints], launched_us: Floats, begun_us: Floats, ended_us: Floats) -> bool:
    """Whether an optimizer steps, or drops gradients, between two parts, or evaluates them itself."""
    return bool(((begun_us < launched_us[parts[-1][-1]]) & (ended_us > launched_us[parts[0][-1]])).any())
