"""Calls at which the host waits for a value or for the device, and the step without them."""

from __future__ import annotations

import re

import numpy as np

from advisor.intervals import Ints, union
from advisor.knowledge import cuda_api
from advisor.recordings.timeline import CopyKind
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import Edit, WithDispatch, WithoutOps, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.trace.frames import matches
from advisor.views.trace.program import Program

# Ops that exist to bring a value or a size to the host, and the Python calls that wait: the fix does without them.
WAITING_OPS = re.compile(r"aten::(item|_local_scalar_dense|is_nonzero|equal|nonzero|masked_select|_unique2?|unique_dim|unique_consecutive)$")
_WAITING_CALLS = re.compile(r": synchronize$|built-in (method (item|tolist|synchronize)|function _cuda_synchronize)")

BIG_READ_BYTES = 1 << 20
"""A copy to the host larger than this costs its transfer, not the wait: the copy rule speaks of it."""


def value_waits(work: GpuWork, calls: HostCalls) -> Ints:
    """Positions of the calls that wait for a value or for the device; waits of an upload belong to the copy."""
    kind = work.column("copy_kind")
    small = work.column("bytes") <= BIG_READ_BYTES
    transfer = (kind == CopyKind.HTOD.value) | ((kind == CopyKind.DTOH.value) & ~small)
    of_copy = calls.waits_of_copies(np.unique(work.schedule.op_call[transfer]))
    reading = calls.launching((kind == CopyKind.DTOH.value) & small)
    return np.flatnonzero(calls.waits & ((calls.of(cuda_api.ApiRole.SYNC) & ~of_copy) | reading))


def without_waiting_ops(work: GpuWork, calls: HostCalls, replay: Replay, waits: Ints) -> Edit:
    """The waits go, with the ops and Python calls that exist only to wait, their kernels and the host time in them."""
    cpu, python, ops = work.timeline.cpu_ops, work.timeline.python_calls, work.ops
    doomed = np.zeros(len(cpu), bool)
    at = calls.op[waits]
    for op in np.unique(at[at >= 0]):
        while op >= 0 and WAITING_OPS.search(ops.name(int(op))):
            doomed[op] = True
            op = ops.parent[op]
    rows = np.flatnonzero(doomed)
    calling = matches(python, _WAITING_CALLS)
    starts = np.r_[cpu["start_us"].to_numpy()[rows], python["start_us"].to_numpy()[calling]]
    durations = np.r_[cpu["dur_us"].to_numpy()[rows], python["dur_us"].to_numpy()[calling]]
    gone = np.zeros(len(work.op), bool)
    known = work.op >= 0
    gone[known] = np.isin(ops.outermost_where(doomed)[work.op[known]], rows)
    return combine(
        WithoutWaits(waits),
        WithoutOps(np.flatnonzero(gone)),
        WithDispatch(replay.outside(union(starts, starts + durations))),
    )


def without_reads(work: GpuWork, calls: HostCalls, waits: Ints, removed: Edit, program: Program) -> Edit:
    """In a program of JAX what is read may have been computed to be read: the jitted call before each wait goes with it, and its copy."""
    if program.framework != "jax":
        return removed
    launching = np.flatnonzero(calls.launching(work.kernel) & (calls.op >= 0))
    before = np.searchsorted(launching, waits) - 1
    last = work.ops.outermost[calls.op[launching[before[before >= 0]]]]
    known = np.where(work.op >= 0, work.op, 0)
    of_reads = (work.op >= 0) & np.isin(work.ops.outermost[known], last)
    copies = (work.column("copy_kind") == CopyKind.DTOH.value) & (work.column("bytes") <= BIG_READ_BYTES)
    return combine(removed, WithoutOps(np.flatnonzero(of_reads | copies)))
