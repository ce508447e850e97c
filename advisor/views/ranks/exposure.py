"""Exposed communication: the part that moves data, and the part that could overlap computing."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Floats, Mask, intersect, length, overlap_with, union
from advisor.knowledge.collectives import Collective
from advisor.knowledge.shares import MOST
from advisor.views.ranks.collectives import KINDS
from advisor.views.ranks.job import Job

GATHERS = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
"""Of weights and gradients in parts: known long before they are needed, so they can be fetched ahead or sent behind."""

MIN_RUN = 4
"""All-reduces in a row without computing between them are gradients; one alone may be a sum that the next GEMM needs."""

BETWEEN_US = 50.0
"""Own work of a rank that is shorter than this does not separate two collectives: the division of a gradient, a copy."""


class Exposure(msgspec.Struct, frozen=True):
    """collectives: numbers (of `Matched`) in the window that could overlap computing and do not. gathers: gathers and scatters among them. transfer_us: their
    exposed transfers per step on the mean rank. all_us: of all collectives. step_us: the job's step. each_us: (n,) exposed part of each. needed: those with a
    result that the next op needs (`NeededSums`); needed_us: their exposed transfers per step.
    """

    collectives: tuple[int, ...]
    gathers: Mask
    each_us: Floats
    transfer_us: float
    all_us: float
    step_us: float
    needed: tuple[int, ...] = ()
    needed_us: float = 0.0

    @classmethod
    def build(cls, job: Job) -> Exposure:
        matched, count = job.matched, max(job.steps, 1)
        exposed = np.zeros(matched.count)
        serial = np.zeros(matched.count, bool)
        total = 0.0
        for at, one in enumerate(job.ranks):
            shift = (one.facts.base_ns - job.base_ns) / 1000.0 - matched.offsets_us[at]
            starts, ends = one.segment_start_us + shift, one.segment_end_us + shift
            waits = (ends[:-1][starts[1:] > ends[:-1]], starts[1:][starts[1:] > ends[:-1]])
            mine = np.flatnonzero((matched.of == at) & job.in_window[matched.collective])
            number = matched.collective[mine]
            begin, end = matched.begin_us[number], matched.end_us[mine]
            open_ = overlap_with(begin, np.maximum(end, begin), waits)
            exposed[number] += open_ / matched.size[number]
            total += length(intersect(union(begin, np.maximum(end, begin)), waits))
            serial[number] |= _in_runs(one.own.sum(axis=1), starts, begin)
        kinds = [KINDS[k] for k in matched.kind.tolist()]
        gathers = np.array([k in GATHERS for k in kinds], bool)
        reduces = np.array([k is Collective.ALL_REDUCE for k in kinds], bool)
        whole = exposed >= MOST * matched.transfer_us
        chosen = np.flatnonzero(job.in_window & whole & (exposed > 0) & (gathers | (reduces & serial)) & ~job.needed)
        at_once = np.flatnonzero(job.in_window & (exposed > 0) & job.needed)
        transfer_us, needed_us = (float(exposed[some].sum()) / count for some in (chosen, at_once))
        return cls(
            tuple(chosen.tolist()),
            gathers[chosen],
            exposed[chosen],
            transfer_us,
            total / len(job.ranks) / count,
            job.step_us,
            tuple(at_once.tolist()),
            needed_us,
        )


def _in_runs(own_us: Floats, segment_start: Floats, begin: Floats) -> Mask:
    """(n,) whether each collective is one of a run: collectives with hardly any own work between them."""
    order = np.argsort(begin, kind="stable")
    done = np.r_[0.0, np.cumsum(own_us)]
    before = done[np.searchsorted(segment_start, begin[order], side="right")]
    run = np.r_[0, np.cumsum(np.diff(before) > BETWEEN_US)] if len(order) else np.empty(0, np.int64)
    members = np.bincount(run)[run] >= MIN_RUN if len(order) else np.empty(0, bool)
    made = np.zeros(len(begin), bool)
    made[order] = members
    return made
