"""Stages of a pipeline, seen from the messages between ranks, and its schedule replayed with other numbers of micro-batches."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import msgspec
import numpy as np

from advisor.knowledge.measured_costs import cost
from advisor.views.ranks.edits import OWN
from advisor.views.ranks.graph import JobGraph
from advisor.views.ranks.job import Job
from advisor.views.ranks.lane import PARTS

KERNEL_US = cost("small-kernel")

FORWARD = cost("forward-share")


class Pipeline(msgspec.Struct, frozen=True):
    """ranks: of the stages in order, empty without a pipeline. micro_batches: per step. bubble_share: the mean stage's waits in messages, as a share of the
    step. own_us: (stages,) per step. kernels: (stages,) per step, repeated by micro-batches. hop_us: from the end of a stage's part to the next stage's start.
    host_us: (stages,) per step.
    """

    ranks: tuple[int, ...]
    micro_batches: int
    bubble_share: float
    own_us: np.ndarray
    kernels: np.ndarray
    hop_us: float
    host_us: np.ndarray

    @property
    def stages(self) -> int:
        return len(self.ranks)

    @classmethod
    def build(cls, job: Job) -> Pipeline:
        sent = _messages(job)
        order = _chain(sent)
        if len(order) < 2:
            return cls((), 1, 0.0, np.empty(0), np.empty(0), 0.0, np.empty(0))
        at = [job.numbers.index(rank) for rank in order]
        micro = max(1, round(np.median([sent[pair] for pair in pairwise(order)]) / max(job.steps, 1)))
        own = job.totals[:, [PARTS.index(part) for part in OWN]].sum(axis=1)
        messages = np.array(
            [bool(job.ranks[r].facts.peers[job.ranks[r].peers[i]]) for r, i in zip(job.matched.of.tolist(), job.matched.row.tolist(), strict=True)]
        )
        waits = job.by_rank(np.where(messages, job.matched.wait_us, 0.0))
        exposed = np.minimum(waits, job.part("communication"))
        hops = job.matched.transfer_us[np.unique(job.matched.collective[messages])]
        return cls(
            tuple(order), micro, float(exposed[at].mean() / job.step_us) if job.step_us else 0.0, own[at],
            np.array([job.ranks[i].facts.kernels for i in at]), float(np.median(hops)) if len(hops) else 0.0,
            np.array([job.ranks[i].facts.host_us for i in at]),
        )  # fmt: skip

    def replayed_us(self, micro: int) -> float:
        """A step with so many micro-batches, all forward and then all backward: each stage does as much, in smaller parts."""
        p, ratio = self.stages, micro / self.micro_batches
        own = self.own_us + np.maximum(ratio - 1, 0.0) * self.kernels * KERNEL_US
        forward, backward = own * FORWARD / micro, own * (1 - FORWARD) / micro
        hop = self.hop_us / ratio
        # Node of stage s and micro-batch i: forward first, then backward in the same order.
        node = np.arange(p * 2 * micro).reshape(p, 2, micro)
        dur = np.empty((p, 2, micro))
        dur[:, 0], dur[:, 1] = forward[:, None], backward[:, None]
        sequence = node.reshape(p, 2 * micro)
        edges = [(sequence[:, :-1].ravel(), sequence[:, 1:].ravel(), 0.0), (node[:-1, 0].ravel(), node[1:, 0].ravel(), hop)]
        edges.append((node[1:, 1].ravel(), node[:-1, 1].ravel(), hop))
        source, target = np.concatenate([e[0] for e in edges]), np.concatenate([e[1] for e in edges])
        lag = np.concatenate([np.full(len(e[0]), e[2]) for e in edges])
        closing = sequence[:, -1]
        graph = JobGraph.create(
            dur.ravel(), np.repeat(np.arange(p), 2 * micro), (source, target, lag), (closing, sequence[:, 0], np.zeros(p)),
            (sequence[:, 0], np.zeros(p)), closing, self.host_us * (1 + (ratio - 1) * _REPEATED), 1,
        )  # fmt: skip
        return graph.step_us()


_REPEATED = cost("repeated-by-micro-batches")


def _messages(job: Job) -> Counter[tuple[int, int]]:
    """How many messages of the window go from each rank to each other."""
    sent: Counter[tuple[int, int]] = Counter()
    for one in job.ranks:
        inside = (one.step >= 0) & (one.step < one.facts.steps)
        for peers in one.peers[inside].tolist():
            for talk in one.facts.peers[peers].split(","):
                if talk.startswith("to "):
                    sent[(one.rank, int(talk[3:]))] += 1
    return sent


def _chain(sent: Counter[tuple[int, int]]) -> list[int]:
    """The ranks in stage order: each exchanges messages with the next, first and last with a single neighbour. Of several equal chains the first."""
    near: dict[int, set[int]] = {}
    for a, b in sent:
        if (b, a) in sent and a != b:
            near.setdefault(a, set()).add(b)
    ends = sorted(rank for rank, others in near.items() if len(others) == 1)
    if not ends or any(len(others) > 2 for others in near.values()):
        return []
    order = [ends[0]]
    while True:
        following = [r for r in near[order[-1]] if r not in order]
        if not following:
            return order
        order.append(following[0])
