"""A job as data that can be edited and run again: what its ranks do between collectives, and the collectives."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.structs import replace
from advisor.views.ranks.graph import JobGraph
from advisor.views.ranks.lane import PARTS


class JobSchedule(msgspec.Struct, frozen=True):
    """A graph and its nodes. Segments (m,): nodes 0 to m - 1, segment_rank, own (m, parts), held (starts when a collective releases the host), stretch (the
    rank's interval between collectives, equal on all ranks; 0 if their collectives differ). Collectives (k,): nodes m to m + k - 1; collective: number in
    `Matched`, -1 for a collective of a single rank; transfer_us.
    """

    graph: JobGraph
    segment_rank: Ints
    own: Floats
    held: Mask
    stretch: Ints
    collective: Ints
    transfer_us: Floats

    def edited(self, own: Floats | None = None, transfer_us: Floats | None = None, host_us: Floats | None = None) -> JobSchedule:
        """The same job with other durations."""
        own = self.own if own is None else own
        transfer = self.transfer_us if transfer_us is None else transfer_us
        graph = replace(self.graph, dur_us=np.r_[own.sum(axis=1), transfer], host_us=self.graph.host_us if host_us is None else host_us)
        return replace(self, graph=graph, own=own, transfer_us=transfer)

    @property
    def stretches(self) -> Floats:
        """(ranks, stretches, parts) of own time, in the window."""
        made = np.zeros((len(self.graph.closing), int(self.stretch.max(initial=0)) + 1, len(PARTS)))
        np.add.at(made, (self.segment_rank, self.stretch), self.own)
        return made

    @property
    def totals(self) -> Floats:
        """(ranks, parts) of own time, a step."""
        made = np.zeros((len(self.graph.closing), len(PARTS)))
        np.add.at(made, self.segment_rank, self.own)
        return made / max(self.graph.steps, 1)
