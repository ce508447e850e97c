"""Whether one CUDA graph could replay every step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from advisor.intervals import Ints, Mask
from advisor.knowledge import cuda_api
from advisor.recordings.timeline import CopyKind
from advisor.report.numbers import times
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.loops import FEWEST_PASSES, LONGEST_BODY
from advisor.views.replay.value_waits import FEW_VALUES_BYTES, fetched, read_only, sizing
from advisor.views.trace.launches import Launches
from advisor.views.trace.steps import Steps

NEARLY_ALL = 0.8
"""Of a step's kernels, those in passes that are alike: the first pass of a loop may set something up, and be one of eight."""


@dataclass(frozen=True, eq=False)
class Capturable:
    """why_not: what keeps a step from being captured and replayed, "" where nothing does. removable: positions of the calls that wait inside the
    steps, if they all read a value or send what the host has, and nothing else keeps the steps from being captured; sent: those that send. first: rows of the GPU ops of the first step.
    pieces: parts of a step that a wait ends, each of which would be a graph of its own; piece: kernels of the median one. alike: how many of a step's pieces launch the same kernels,
    where these are nearly all of its work and nothing but waits keeps it from being captured; each: how many kernels such a piece launches."""

    why_not: str
    removable: Ints
    sent: Ints
    first: Ints
    pieces: float
    piece: float
    alike: float = 0.0
    each: int = 0

    @property
    def in_passes(self) -> bool:
        """Whether the host waits so often that a graph holds no more than the pass of a loop: what of it one module launches, and a compiler
        is given, the trace does not tell."""
        return self.pieces >= FEWEST_PASSES and self.piece <= LONGEST_BODY

    @classmethod
    def build(cls, steps: Steps, work: GpuWork, calls: HostCalls, launches: Launches) -> Capturable:
        parts = _launched(steps, launches)
        # Memory that is given back waits too, which is the allocator's and ends no pass.
        ended = np.cumsum(np.r_[0, calls.waits & ~calls.of(cuda_api.ApiRole.ALLOCATION)])[work.schedule.op_call[work.kernel]]
        kernels = np.unique(ended, return_counts=True)[1] if len(ended) else np.zeros(1)
        why_not, (waits, sent) = _why_not(steps, work, calls, launches, parts), _between(work, calls)
        removable, count, each = waits[:0], 0, 0
        if not why_not and len(waits):
            why_not = f"the host waits for the GPU {times(work.a_step(waits))} a step, which no graph can hold"
            read = read_only(work.ops, calls, waits)
            # That a size came out alike in each recorded pass does not bind the next.
            if not read.all() and len(ended) and not sizing(work.ops, calls, waits).any():
                count, each = _alike(work, ended)
            if (read | fetched(work, calls, waits) | sent).all():
                removable = waits
        sending = waits[sent] if len(removable) else removable
        alike, pieces = count / work.schedule.steps, len(kernels) / work.schedule.steps
        return cls(why_not, removable, sending, parts[0], pieces, float(np.median(kernels)), alike, each)


def _alike(work: GpuWork, piece: Ints) -> tuple[int, int]:
    """How many pieces of the window launch the same kernels from ops of the same dims, and how many kernels; zeros where they are not nearly all of the work.
    piece: (n,) of each kernel."""
    rows = work.rows[work.kernel]
    names, dims = work.timeline.gpu_ops["name"].cat.codes.to_numpy()[rows], _dims(work)[work.ops.of_gpu[rows]]
    edges = np.flatnonzero(np.diff(piece)) + 1
    kinds = Counter((n.tobytes(), d.tobytes(), len(n)) for n, d in zip(np.split(names, edges), np.split(dims, edges), strict=True))
    (*_, kernels), count = max(kinds.items(), key=lambda kind: kind[0][-1] * kind[1])
    return (count, kernels) if kernels * count >= NEARLY_ALL * len(rows) else (0, 0)


def _dims(work: GpuWork) -> Ints:
    """(n_cpu + 1,) code of each op's dims; the last: outside any op."""
    return np.r_[work.timeline.cpu_ops["dims"].cat.codes.to_numpy().astype(np.int64), -1]


def _launched(steps: Steps, launches: Launches) -> list[Ints]:
    """Rows of the GPU ops that each step of the window launched, in order: of a long window the replay holds some steps alone."""
    rows = np.flatnonzero(launches.call >= 0)
    rows = rows[np.argsort(launches.start_us[rows], kind="stable")]
    of = steps.of_host_time(launches.start_us[rows])
    return [rows[of == step] for step in range(steps.steps)]


def _why_not(steps: Steps, work: GpuWork, calls: HostCalls, launches: Launches, parts: list[Ints]) -> str:
    if not steps.repeats or steps.steps < 2:
        return "the window holds no two steps to compare"
    if np.isin(launches.call[work.rows], launches.calls_with(cuda_api.ApiRole.GRAPH_LAUNCH)).any():
        return "CUDA graphs are in use already"
    if not _same(work, parts):
        return "the steps launch different kernels or other shapes, so one graph cannot replay them"
    if calls.of(cuda_api.ApiRole.ALLOCATION).any():
        return "memory is allocated from the driver inside the steps, which no graph can hold"
    return ""


def _between(work: GpuWork, calls: HostCalls) -> tuple[Ints, Mask]:
    """Positions of the waits between the first and the last kernel of their step, and which of them are for what the host sends: before anything
    is read in that step it can be sent ahead of the first kernel, and a few values are a constant or follow from what is read, on the GPU too. Waits
    around them send a step's input and read its result, and stay outside."""
    copies, size = work.column("copy_kind") == CopyKind.HTOD.value, work.column("bytes")
    sending, small = (calls.held_by_copies(np.unique(work.schedule.op_call[some])) for some in (copies, copies & (size >= 0) & (size <= FEW_VALUES_BYTES)))
    found, sent = [np.empty(0, np.int64)], [np.empty(0, bool)]
    for step in np.unique(work.step):
        launching = work.schedule.op_call[work.kernel & (work.step == step)]
        if len(launching):
            waits = launching.min() + np.flatnonzero(calls.waits[launching.min() : launching.max()])
            found.append(waits)
            sent.append(np.isin(waits, small) | np.logical_and.accumulate(np.isin(waits, sending)))
    return np.concatenate(found), np.concatenate(sent)


def _same(work: GpuWork, parts: list[Ints]) -> bool:
    """Whether all steps launch the same kernels in the same order, from ops of the same dims."""
    names = work.timeline.gpu_ops["name"].cat.codes.to_numpy()
    of_op = _dims(work)
    first, of_gpu = parts[0], work.ops.of_gpu
    return all(len(p) == len(first) and bool((names[p] == names[first]).all()) and bool((of_op[of_gpu[p]] == of_op[of_gpu[first]]).all()) for p in parts[1:])
