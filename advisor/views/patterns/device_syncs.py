"""Calls at which the host waits for a value or for the device, and the step without them."""

from __future__ import annotations

import re

import numpy as np

from advisor.intervals import Ints, Mask, joined
from advisor.knowledge import cuda_api
from advisor.knowledge.op_tokens import names_of
from advisor.recordings.timeline import CopyKind
from advisor.views.replay.edits import Edit, FewerLaunches, WithDispatch, WithoutOps, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.replay import Replay
from advisor.views.trace.launches import NUMBER_BYTES
from advisor.views.trace.ops import Ops
from advisor.views.trace.program import Program
from advisor.views.trace.table_filters import matches, spans_of

# Ops that exist to bring a value or a size to the host, and the Python calls that wait: the fix does without them.
WAITING_OPS = names_of("bring_to_host")
# Ops around those that go with them: they are there for the shape that is asked for. What writes at a mask stays, as a masked write.
_SHAPED_OPS = names_of("of_asked_shape")
# Ops whose result fits a value that is read or a mask that is asked for its size: reductions and comparisons. Generated kernels name theirs.
_JUDGING_OPS = names_of("judge_value")
# Ops that ask for a size: where nothing asks for it any more, the comparison that made their mask is not needed either.
_SIZING_OPS = names_of("ask_size")
# Of these, what has a twin of one size, as a mask has torch.where; how many different values there are is known only once they are counted.
_MASKING_OPS = names_of("ask_size_of_mask")
_READING_OPS = names_of("read_value")
_BRANCHING_OPS = names_of("branch_on_value")
_WAITING_CALLS = re.compile(r": synchronize$|built-in (method (item|tolist|synchronize)|function _cuda_synchronize)")

_COPYING_OPS = names_of("host_copy")

BIG_READ_BYTES = 1 << 20
"""A copy to the host larger than this costs its transfer, not the wait: the copy rule speaks of it."""


FEW_VALUES_BYTES = 4096
"""Largest copy to the host that counts as values to look at, such as a word for each of hundreds of requests; a larger copy is a result."""


def value_waits(work: GpuWork, calls: HostCalls) -> Ints:
    """Positions of calls that wait for a value, for the device, or for an op's input. Other waits of an upload belong to the copy, as do those that pinned
    memory would avoid."""
    kind = work.column("copy_kind")
    small = work.column("bytes") <= BIG_READ_BYTES
    transfer = ((kind == CopyKind.HTOD.value) & ~given(work)) | ((kind == CopyKind.DTOH.value) & ~small)
    of_copy = calls.waits_of_copies(np.unique(work.schedule.op_call[transfer]))
    reading = calls.launching((kind == CopyKind.DTOH.value) & small) & ~calls.held_unasked(work.pageable)
    return np.flatnonzero(calls.waits & ((calls.with_role(cuda_api.ApiRole.SYNC) & ~of_copy) | reading))


def given(work: GpuWork) -> Mask:
    """(n,) copies to the device of a value that an op is given, as in x[i] = 1: nobody wrote these as copies."""
    size, known = work.column("bytes"), work.op >= 0
    found = (work.column("copy_kind") == CopyKind.HTOD.value) & (size >= 0) & (size <= NUMBER_BYTES) & known
    found[known] &= ~work.ops.named(_COPYING_OPS)[work.ops.outermost[work.op[known]]]
    return found


def without_waiting_ops(work: GpuWork, calls: HostCalls, replay: Replay, waits: Ints, also: Mask | None = None, *, with_lead: bool = False) -> Edit:
    """The waits disappear, with ops and Python calls that only wait, comparisons for a mask with a requested size, and gathers of a shape that is no longer
    requested: their kernels and host time.

    also: (n_cpu,) other removed ops. with_lead: removes all launching time before each wait, not only the part of these ops and calls.
    """
    cpu, python, ops = work.timeline.cpu_ops, work.timeline.python_calls, work.ops
    doomed = _waiting(ops, calls.op[waits]) | _judging(ops, calls, waits[sizing(ops, calls, waits)])
    if also is not None:
        doomed |= also
    gone = np.zeros(len(work.op), bool)
    known = work.op >= 0
    gone[known] = ops.outermost_where(doomed)[work.op[known]] >= 0
    spans = joined(spans_of(cpu, doomed), spans_of(python, matches(python, _WAITING_CALLS)))
    at = np.flatnonzero(gone)
    return combine(WithoutWaits(waits), WithoutOps(at) if with_lead else FewerLaunches(at[:0], at, np.empty(0)), WithDispatch(replay.uncovered_share(spans)))


def branching(ops: Ops, calls: HostCalls, waits: Ints) -> Mask:
    """(n,) whether the program goes one way or another by the value of each wait: without that it does the work of both."""
    return _inside_op(ops, calls, waits, _BRANCHING_OPS)


def read_only(ops: Ops, calls: HostCalls, waits: Ints) -> Mask:
    """(n,) whether each wait is for a value that is read, and for no size that later shapes follow."""
    return _inside_op(ops, calls, waits, _READING_OPS)


def fetched(work: GpuWork, calls: HostCalls, waits: Ints) -> Mask:
    """(n,) whether each wait is for a few values that are copied to the host, as of the words that were drawn, and for no size."""
    size = work.column("bytes")
    few = (work.column("copy_kind") == CopyKind.DTOH.value) & (size >= 0) & (size <= FEW_VALUES_BYTES) & (work.op >= 0)
    return np.isin(calls.op[waits], work.op[few]) & ~sizing(work.ops, calls, waits)


def sizing(ops: Ops, calls: HostCalls, waits: Ints) -> Mask:
    """(n,) whether each wait asks for a size that later shapes follow."""
    return _inside_op(ops, calls, waits, _SIZING_OPS)


def masking(ops: Ops, calls: HostCalls, waits: Ints) -> Mask:
    """(n,) whether each wait asks for the size of a mask, in whose place all rows can be worked on."""
    return _inside_op(ops, calls, waits, _MASKING_OPS)


def asks_size(ops: Ops) -> Mask:
    """(n_cpu,) the ops that ask for such a size, and those inside them."""
    return np.asarray(ops.outermost_where(ops.named(_SIZING_OPS)) >= 0)


def _inside_op(ops: Ops, calls: HostCalls, at: Ints, names: re.Pattern[str]) -> Mask:
    """(n,) whether each of some calls is made inside an op of such a name."""
    return np.asarray(ops.enclosing(calls.op[at], names) >= 0)


def _waiting(ops: Ops, at: Ints) -> Mask:
    """(n_cpu,) the ops around calls that wait which exist for what is waited for."""
    doomed = np.zeros(len(ops.names), bool)
    for op in np.unique(at[at >= 0]):
        inner = True
        while op >= 0 and (WAITING_OPS.search(ops.name(int(op))) or (not inner and _SHAPED_OPS.search(ops.name(int(op))))):
            doomed[op] = True
            op, inner = ops.parent[op], False
    return doomed


def _judging(ops: Ops, calls: HostCalls, waits: Ints) -> Mask:
    """(n_cpu,) the unbroken runs of reductions and comparisons that launched last before waits for a value."""
    found = np.zeros(len(ops.names), bool)
    waits = waits[calls.op[waits] >= 0]
    if not len(waits):
        return found
    judging = ops.named(_JUDGING_OPS)
    known = calls.op >= 0
    around = np.full(len(calls.op), -1, np.int64)
    around[known] = ops.outermost_where(judging)[calls.op[known]]
    reads = np.isin(calls.op, np.flatnonzero(_waiting(ops, calls.op[waits]))) | np.isin(calls.op, calls.op[waits])
    run = np.cumsum((around < 0) & ~reads)
    last_read = np.full(run[-1] + 1, -1, np.int64)
    np.maximum.at(last_read, run[reads], np.flatnonzero(reads))
    found[around[(around >= 0) & (np.arange(len(run)) < last_read[run])]] = True
    return found


def without_reads(work: GpuWork, calls: HostCalls, replay: Replay, waits: Ints, removed: Edit, program: Program) -> Edit:
    """Work that may exist only to be read: the last launch before each wait. In JAX the jitted call and its copy; elsewhere reductions and comparisons."""
    if program.framework != "jax":
        return without_waiting_ops(work, calls, replay, waits, _judging(work.ops, calls, waits), with_lead=True)
    launching = np.flatnonzero(calls.launching(work.kernel) & (calls.op >= 0))
    before = np.searchsorted(launching, waits) - 1
    last = work.ops.outermost[calls.op[launching[before[before >= 0]]]]
    known = np.where(work.op >= 0, work.op, 0)
    of_reads = (work.op >= 0) & np.isin(work.ops.outermost[known], last)
    copies = (work.column("copy_kind") == CopyKind.DTOH.value) & (work.column("bytes") <= BIG_READ_BYTES)
    return combine(removed, WithoutOps(np.flatnonzero(of_reads | copies)))
