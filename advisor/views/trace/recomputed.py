"""Ops of the forward pass that run again inside the backward pass: activation checkpointing."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from advisor.intervals import EMPTY, Floats, Ints, Mask, Spans, innermost, over_ancestors, union
from advisor.knowledge.counts import DISTINCT
from advisor.knowledge.op_tokens import AUTOGRAD
from advisor.recordings.timeline import Timeline
from advisor.views.trace.ops import Ops
from advisor.views.trace.repeats import FEWEST_REPEATS

FEWEST_OPS = FEWEST_REPEATS
"""Ops of a region, at least. If gradients of gradients are taken, one or two ops of a formula may are in the forward pass too."""

MOST_REGIONS = DISTINCT
"""Limit on distinct regions. Layers of a kind are a single region, so programs have about a dozen. The limit keeps artificial traces linear."""


class Recomputed(msgspec.Struct, frozen=True):
    """ops: (n_cpu,) whether each op is, or is inside, a forward op that runs again. spans: when they run on the host.

    regions: how many backward nodes do so in the whole trace. by_op: the most frequent of these runs, as op names.
    """

    ops: Mask
    spans: Spans
    regions: int
    by_op: tuple[str, ...] = ()

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops) -> Recomputed:
        n = len(ops.parent)
        chosen = np.zeros(n, bool)
        runs = _runs(timeline, ops) if n else []
        if not runs:
            return cls(chosen, EMPTY, 0)
        frame = timeline.cpu_ops
        start, end = frame.bounds()
        chosen[np.concatenate([run for _, run in runs])] = True
        # What a node does before the region and between its ops is part of it: the random state that is put back, hooks of saved tensors.
        around = np.array([at for at, _ in runs])
        last = np.array([end[run].max() for _, run in runs])
        spans = union(start[around], _next_starts(ops, around, last, start, end))
        most, _ = Counter(tuple(ops.names[run].tolist()) for _, run in runs).most_common(1)[0]
        return cls(ops.outermost_where(chosen) >= 0, spans, len(runs), tuple(ops.categories[code] for code in most))


def _next_starts(ops: Ops, nodes: Ints, after: Floats, start: Floats, end: Floats) -> Floats:
    """(n_nodes,) when the first op directly inside each node begins after a time; when the node ends, if none does."""
    # A node's function, `MmBackward0`, stands between the node and its ops.
    above = np.r_[ops.parent, -1]
    owner = np.where(np.isin(above[:-1], nodes), above[:-1], above[above[:-1]])
    inside = np.flatnonzero(np.isin(owner, nodes))
    owner = owner[inside]
    order = np.lexsort((start[inside], owner))
    found = end[nodes].copy()
    first, past = (np.searchsorted(owner[order], edge) for edge in (nodes, nodes + 1))
    for k, (low, high) in enumerate(zip(first.tolist(), past.tolist(), strict=True)):
        begins = start[inside[order[low:high]]]
        at = int(np.searchsorted(begins, after[k]))
        if at < len(begins):
            found[k] = begins[at]
    return found


def _runs(timeline: Timeline, ops: Ops) -> list[tuple[int, Ints]]:
    """Each backward node that repeats ops of the forward pass, and the rows of these ops that no other op called.

    Gradient formulas run with gradients off, so they have no sequence number. Gradients of gradients (`create_graph=True`) have one, but the forward
    pass does not contain their formulas as a run.
    """
    n = len(ops.parent)
    is_node = ops.matching(lambda name: name.startswith(AUTOGRAD))
    operator = ops.matching(lambda name: "::" in name) & ~is_node  # a Python function of autograd, as CheckpointFunction, is seen through
    own = operator & (ops.outermost_where(operator) == np.arange(n))
    node = over_ancestors(ops.parent, np.where(is_node, np.arange(n), -1), -1, innermost)
    sequence = timeline.cpu_ops["sequence"]
    recorded = own & (node >= 0) & (sequence >= 0) & (sequence != sequence[node])
    nodes = np.unique(node[recorded])
    if not len(nodes):
        return []
    inside = np.flatnonzero(own & np.isin(node, nodes))
    inside = inside[np.argsort(node[inside], kind="stable")]
    texts = _texts(timeline, ops, np.flatnonzero(own & (node < 0)))
    known: dict[str, bool] = {}
    found = []
    for group in np.split(inside, np.flatnonzero(np.diff(node[inside])) + 1):
        among = np.flatnonzero(recorded[group])
        run = group[among[0] : among[-1] + 1]
        if len(run) < FEWEST_OPS:
            continue
        text = _letters(ops, run)
        if text not in known and len(known) < MOST_REGIONS:
            known[text] = any(text in whole for whole in texts)
        if known.get(text):
            found.append((int(node[run[0]]), run))
    return found


def _letters(ops: Ops, rows: Ints) -> str:
    """A letter an op, by its name, so that a run of ops is found as a text in a text."""
    return "".join(map(chr, (ops.names[rows] + 1).tolist()))


def _texts(timeline: Timeline, ops: Ops, rows: Ints) -> list[str]:
    """The ops at some rows in order of time, a text for each thread."""
    thread = timeline.cpu_ops["tid"][rows]
    order = np.argsort(thread, kind="stable")
    return [_letters(ops, part) for part in np.split(rows[order], np.flatnonzero(np.diff(thread[order])) + 1)]
