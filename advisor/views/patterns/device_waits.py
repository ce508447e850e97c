"""Waits for the device: which count, their labels, their cost, and the step without them."""

from __future__ import annotations

import re
from functools import cached_property

import msgspec
import numpy as np

from advisor.intervals import Ints, overlap_with
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.op_tokens import AUTOGRAD, TORCH
from advisor.recordings.timeline import CopyKind
from advisor.views.patterns.device_syncs import WAITING_OPS, branching, value_waits, without_reads, without_waiting_ops
from advisor.views.patterns.served_work import ServedWork
from advisor.views.replay.edits import Edit, Edits, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.replay import Replay
from advisor.views.time.device_time import DevicePartition, Partition, total
from advisor.views.trace.ops import Ops
from advisor.views.trace.program import Program
from advisor.views.trace.startup import StartUp
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches

TIMES_A_RUN = re.compile(r"(Device|Ctx|Event)Synchronize")


POWER_LIMITED_SHARE = cost("power-limited")

MOST_TIMED = 100
"""Waits for the whole device in a recording that does not repeat: two time a run, and some each of its parts; a hundred are the program's way."""


class DeviceWaits(msgspec.Struct, frozen=True, dict=True):
    """Calls of the window that make the host wait for the GPU. every: all positions. at: without waits for timing, start-up, the end of the run, shrinking
    batches, or between a server's steps."""

    steps: Steps
    work: GpuWork
    calls: HostCalls
    partition: Partition
    replay: Replay
    every: Ints
    at: Ints

    @classmethod
    def build(
        cls, steps: Steps, work: GpuWork, calls: HostCalls, partition: Partition, replay: Replay, startup: StartUp, served: ServedWork | None
    ) -> DeviceWaits:
        every = waits = value_waits(work, calls)
        if not steps.repeats:
            # Around a single run, waiting for the whole device, or for an event behind it, is how the run is timed.
            timing = matches(calls.timeline.api_calls, TIMES_A_RUN)[calls.rows[waits]] & (calls.op[waits] < 0)
            waits = waits[~timing | (timing.sum() > MOST_TIMED)]
        waits = waits[~calls.mostly_covered(waits, startup.once)]
        if served and served.known:
            waits = waits[~calls.mostly_covered(waits, served.between)]
        if steps.steps == 1:
            # Nothing that was recorded comes after it: what the next step would gain was not seen.
            waits = waits[waits < work.schedule.op_call.max(initial=-1)]
        return cls(steps, work, calls, partition, replay, every, waits)

    @property
    def a_step(self) -> float:
        return len(self.at) / self.work.schedule.steps

    @cached_property
    def removed(self) -> Edit:
        """The step without them."""
        return without_waiting_ops(self.work, self.calls, self.replay, self.at)

    def edits(self, program: Program) -> Edits:
        """Without an `if` the work of both ways is done, which may take what the wait took."""
        main, at = self.partition.main, self.at
        full = main is not None and main.busy_us >= POWER_LIMITED_SHARE * self.steps.steps * self.work.step_us
        least = combine() if full else WithoutWaits(at[~branching(self.work.ops, self.calls, at)])
        return Edits(least, self.removed, without_reads(self.work, self.calls, self.replay, at, self.removed, program))

    @property
    def lost_us(self) -> tuple[float, float]:
        """A step, for how long the device idles or copies alone, in the mean and in the median step."""
        return lost_us(self.partition.main) / self.steps.steps, usually_lost_us(self.partition.main, self.steps)

    @property
    def labels(self) -> list[str]:
        """(n,) what each is called: see `wait_label`."""
        work, calls = self.work, self.calls
        to_host = {*work.op[work.column("copy_kind") == CopyKind.DTOH.value].tolist()}
        pairs = zip(calls.op[self.at].tolist(), calls.names(self.at), strict=True)
        return [wait_label(work.ops, op, name, op in to_host) for op, name in pairs]

    @property
    def ops_around(self) -> list[str]:
        """(n,) the op around each that the program calls, "" if there is none."""
        return [outermost_op(self.work.ops, op) for op in self.calls.op[self.at].tolist()]

    @property
    def end_ranges(self) -> bool:
        """Whether each ends the range that marks a step: see `end_ranges`."""
        return end_ranges(self.steps, self.work, self.calls, self.at)


def end_ranges(steps: Steps, work: GpuWork, calls: HostCalls, waits: Ints) -> bool:
    """Whether all of them wait, outside of any op, for the whole device or for an event behind the last launch of a range that the program marks."""
    api = calls.timeline.api_calls
    if steps.basis != "nvtx" or not (matches(api, TIMES_A_RUN)[calls.rows[waits]] & (calls.op[waits] < 0)).all():
        return False
    launching = np.unique(work.schedule.op_call)
    of = np.r_[steps.of_host_time(api["start_us"][calls.rows]), steps.steps]
    following = np.r_[launching, len(calls.rows)][np.searchsorted(launching, waits)]
    return bool((of[following] > of[waits]).all())


def lost_us(main: DevicePartition | None) -> float:
    """Without waits the device works no faster: they cost the time in which it idles, or copies alone."""
    return float(total(main.idle).sum() + total(main.copy).sum()) if main else 0.0


def wait_label(ops: Ops, op: int, name: str, to_host: bool) -> str:
    """The op that waits, as the user knows it, which way it copies if it says only that it does, and the call it made."""
    chain = [n for n in ops.chain(op) if n.startswith(TORCH)]
    if not chain:
        return name
    waiting = next((n for n in reversed(chain) if WAITING_OPS.search(n)), chain[-1])
    if waiting != chain[-1]:
        return f"{waiting} in {chain[-1]} ({name})"
    return f"{waiting} ({name}{', to the host' if to_host and not WAITING_OPS.search(waiting) else ''})"


def outermost_op(ops: Ops, op: int) -> str:
    """The op around a call that the program calls, "" if there is none."""
    return next((n for n in reversed(ops.chain(op)) if "::" in n and not n.startswith(AUTOGRAD)), "")


def usually_lost_us(main: DevicePartition | None, steps: Steps) -> float:
    """The same of the median step: what a few steps lose, as those that still take memory, others do not."""
    if main is None or not steps.repeats:
        return np.inf
    edges = steps.edges_us
    lost = sum(overlap_with(edges[:-1], edges[1:], spans) for spans in (main.idle, main.copy))
    return float(np.median(lost))
