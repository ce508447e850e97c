"""A step that leaves room for more requests: the device waits for launches, or works in kernels that fill little of it."""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np

from advisor.intervals import Floats, Mask
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import PRODUCTS
from advisor.views.groups import distinct
from advisor.views.patterns.grid_occupancy import Grids, filled
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.first_pass import FirstPass
from advisor.views.trace.launches import Launches

_RECURRENT = names_of("recurrent_layer")
"""Ops of a network whose kernels are neither products nor convolutions by their names."""


class LittleWork(msgspec.Struct, frozen=True, dict=True):
    """How much of a step more requests could share."""

    work: GpuWork
    gaps: Gaps
    launches: Launches
    first: FirstPass
    grids: Grids | None

    @classmethod
    def build(cls, work: GpuWork, gaps: Gaps, first: FirstPass, launches: Launches, grids: Grids | None) -> LittleWork:
        return cls(work, gaps, launches, first, grids)

    @cached_property
    def fill(self) -> Floats:
        """(n,) of the device, what each op fills; see `grid_occupancy.filled`."""
        return filled(self.work, self.grids)

    @cached_property
    def of_network(self) -> Mask:
        """(n,) ops of a network: products, convolutions, attention and recurrent layers."""
        return self.work.in_families(*PRODUCTS) | self.work.launched_by(_RECURRENT.search)

    @property
    def network_share(self) -> float:
        """Of busy time."""
        return float(self.work.dur_us[self.of_network].sum()) / self.work.busy_us

    @property
    def waits(self) -> float:
        """Of the step, what the device waits for launches."""
        gaps = self.gaps
        waiting = gaps.causes["launch"] * self.first.repeats(gaps.next_op, gaps.start_us, gaps.end_us)
        return float(waiting.sum()) / gaps.run_us

    def in_small_kernels(self, most_fill: float) -> float:
        """Of the step, what it works in kernels that fill no more."""
        work = self.work
        little_us = work.us_a_step(np.flatnonzero((self.fill <= most_fill) & ~work.held_up)) / len(distinct(work.column("device")))
        return little_us / work.step_us if work.step_us else 0.0

    @property
    def replayed(self) -> bool:
        """Whether a CUDA graph launches any of it: gaps inside one come from recording its nodes."""
        return bool(self.launches.replayed[self.work.rows].any())
