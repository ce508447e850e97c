"""What waits for the device lose, what they are called, and which of them only time a run."""

from __future__ import annotations

import re

import numpy as np

from advisor.intervals import Ints, overlap_with
from advisor.knowledge.op_tokens import AUTOGRAD, TORCH
from advisor.views.patterns.device_syncs import WAITING_OPS
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.time.device_time import DevicePartition, total
from advisor.views.trace.ops import Ops
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches

TIMES_A_RUN = re.compile(r"(Device|Ctx|Event)Synchronize")


def end_ranges(steps: Steps, work: GpuWork, calls: HostCalls, waits: Ints) -> bool:
    """Whether all of them wait, outside of any op, for the whole device or for an event behind the last launch of a range that the program marks."""
    api = calls.timeline.api_calls
    if steps.basis != "nvtx" or not (matches(api, TIMES_A_RUN)[calls.rows[waits]] & (calls.op[waits] < 0)).all():
        return False
    launching = np.unique(work.schedule.op_call)
    of = np.r_[steps.of_host_time(api["start_us"].to_numpy()[calls.rows]), steps.steps]
    following = np.r_[launching, len(calls.rows)][np.searchsorted(launching, waits)]
    return bool((of[following] > of[waits]).all())


def lost_us(main: DevicePartition | None) -> float:
    """Without waits the device works no faster: they cost the time in which it idles, or copies alone."""
    return float(total(main.idle).sum() + total(main.copy).sum()) if main else 0.0


def wait_label(ops: Ops, op: int, name: str, to_host: bool) -> str:
    """The op that waits, as the user knows it, which way it copies where it says only that it does, and the call it made."""
    chain = [n for n in ops.chain(op) if n.startswith(TORCH)]
    if not chain:
        return name
    waiting = next((n for n in reversed(chain) if WAITING_OPS.search(n)), chain[-1])
    if waiting != chain[-1]:
        return f"{waiting} in {chain[-1]} ({name})"
    return f"{waiting} ({name}{', to the host' if to_host and not WAITING_OPS.search(waiting) else ''})"


def outermost_op(ops: Ops, op: int) -> str:
    """The op around a call that the program calls, "" where there is none."""
    return next((n for n in reversed(ops.chain(op)) if "::" in n and not n.startswith(AUTOGRAD)), "")


def usually_lost_us(main: DevicePartition | None, steps: Steps) -> float:
    """The same of the median step: what a few steps lose, as those that still take memory, others do not."""
    if main is None or not steps.repeats:
        return np.inf
    edges = steps.edges_us
    lost = sum(overlap_with(edges[:-1], edges[1:], spans) for spans in (main.idle, main.copy))
    return float(np.median(lost))
