"""Whether one CUDA graph could replay every step."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from advisor.intervals import Ints, Mask
from advisor.knowledge import cuda_api
from advisor.knowledge.counts import EXAMINED
from advisor.knowledge.shares import MOST
from advisor.recordings.timeline import CopyKind
from advisor.report.numbers import times
from advisor.views.patterns.device_syncs import FEW_VALUES_BYTES, asks_size, branching, fetched, masking, read_only, sizing
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.trace.launches import Launches
from advisor.views.trace.repeats import ONE_BY_ONE, alike
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches

DIFFERENT = "the steps launch different kernels or other shapes, so no single graph can replay them"
BRANCHING = "a branch on a tensor value changes which kernels run, so a CUDA graph cannot capture the step"
SIZED = "boolean masks change tensor shapes between steps, so a CUDA graph cannot capture the step"

REPLAYED = MOST
"""Of a step's GPU ops, those that graphs replay already, from which there is nothing left to capture. A few may be a library's own."""

LONGEST_BODY = EXAMINED
"""Kernels of a pass of a loop that waits after each, at most: what repeats after more is a layer."""

OF_A_STEP = 0.2
"""Of a step's kernels, those in passes of a loop at least: with less the step is something else that is read in pieces, as a network's boxes or a word
after each pass of it. Of seventeen programs below it nine are then predicted nearer, by 15 points in the mean, eight further off, by 9."""


class Part(msgspec.Struct, frozen=True, eq=False):
    """Segments between two waits with the same kernels from ops of the same dims, in every step. kernels: per segment. times: segments per step. calls:
    positions of calls from the first to the last kernel of each. rows: all their GPU ops."""

    kernels: int
    times: float
    calls: Ints
    rows: Ints


class Capturable(msgspec.Struct, frozen=True, eq=False):
    """why_not: obstacle to capturing the step, "" without one. removable: positions of waiting calls inside steps, if all read a value, ask for a mask's size
    or send host data, and nothing else prevents capture except conditions on such values or sizes. sent: those that send; masks: those that ask. first: rows
    of the GPU ops of the first step. in_passes: whether waits are so frequent that a graph covers only a loop pass; the trace does not show which part of it
    a module launches. parts: equal parts of all steps, most kernels first, if the rest differs or waits for more than values. resized: whether steps run the
    same ops on other sizes, before they ask for any. mostly: main purpose of waits: "values" that are read (which may end a loop), "sent", or neither."""

    why_not: str
    removable: Ints
    sent: Ints
    masks: Ints
    first: Ints
    in_passes: bool
    parts: tuple[Part, ...] = ()
    resized: bool = False
    mostly: Literal["values", "sent", ""] = ""

    @classmethod
    def build(cls, steps: Steps, work: GpuWork, calls: HostCalls, launches: Launches) -> Capturable:
        launched = _launched(steps, launches)
        # Memory that is given back waits too, which is the allocator's and ends no pass.
        ended = np.cumsum(np.r_[0, calls.waits & ~calls.with_role(cuda_api.ApiRole.ALLOCATION)])[work.schedule.op_call[work.kernel]]
        kernels = np.unique(ended, return_counts=True)[1] if len(ended) else np.zeros(1, np.int64)
        why_not, (waits, sends, sent) = _capture_obstacle(steps, work, calls, launches, launched), _waits_between(work, calls)
        resized = why_not == DIFFERENT and _resized(work, launched)
        # Where steps differ by the sizes that they ask for, these leave alone what is alike.
        removable, parts = waits[:0], _parts(work, ended, np.empty(0, np.int64)) if why_not == DIFFERENT else ()
        read, masks = read_only(work.ops, calls, waits), masking(work.ops, calls, waits)
        looked_at = read | fetched(work, calls, waits) | sent
        if (looked_at | masks).all():
            # Without shapes a cache that grows looks like a state that does not.
            if why_not == DIFFERENT and work.timeline.source.shapes:
                if looked_at.all() and _decided(work, waits[branching(work.ops, calls, waits)], launched):
                    why_not, removable = BRANCHING, waits
                elif masks.any() and _decided(work, waits[masks], launched, shapes=True) and not _grows(work, launched):
                    why_not, removable = SIZED, waits
            elif not why_not:
                removable = waits
        if not why_not and len(waits):
            why_not = f"the host waits for the GPU {times(work.a_step(waits))} per step, and a CUDA graph cannot contain a wait"
            if not read.all():
                parts = _parts(work, ended, waits[sizing(work.ops, calls, waits)])
        sending, asking = (waits[some] if len(removable) else removable for some in (sent, masks))
        return cls(
            why_not, removable, sending, asking, launched[0], _in_passes(kernels, work.schedule.steps), parts,
            resized=resized, mostly="values" if 2 * read.sum() > len(waits) else "sent" if 2 * sends.sum() > len(waits) else "",
        )  # fmt: skip


def _in_passes(kernels: Ints, steps: int) -> bool:
    """Whether a loop's passes hold much of a step. kernels: per segment between two waits, of all steps. Reads of a network's results in turn are no loop."""
    small = kernels[kernels <= LONGEST_BODY]
    return len(small) >= ONE_BY_ONE * steps and float(small.sum()) >= OF_A_STEP * float(kernels.sum())


def _parts(work: GpuWork, piece: Ints, sizing: Ints) -> tuple[Part, ...]:
    """Common parts of all steps, most kernels first. piece: (n,) kernels without a wait between. sizing: calls that wait for a size. Equal sizes in recorded
    steps do not bind the next, so launches after the first such call are no part, nor are launches that determine a size."""
    at = np.flatnonzero(work.kernel)
    call = work.schedule.op_call
    order = np.argsort(call[at], kind="stable")
    at, piece = at[order], piece[order]
    asked, step = np.searchsorted(sizing, call[at]), work.step[at]
    free = (asked == asked[np.searchsorted(step, step)]) & ~np.r_[asks_size(work.ops), False][work.op[at]]
    at, piece = at[free], piece[free]
    names, dims = work.timeline.gpu_ops["name"].codes[work.rows[at]], _dims(work)[work.ops.of_gpu[work.rows[at]]]
    found: dict[tuple[bytes, bytes], list[Ints]] = {}
    for those in np.split(np.arange(len(at)), np.flatnonzero(np.diff(piece) | np.diff(work.step[at])) + 1):
        found.setdefault((names[those].tobytes(), dims[those].tobytes()), []).append(at[those])
    steps = work.schedule.steps
    parts = [
        Part(len(pieces[0]), len(pieces) / steps, np.concatenate([np.arange(call[p[0]], call[p[-1]] + 1) for p in pieces]), work.rows[np.concatenate(pieces)])
        for pieces in found.values()
        if len(pieces[0]) > 1 and len({int(work.step[p[0]]) for p in pieces}) == steps > 1
    ]
    return tuple(sorted(parts, key=lambda part: -len(part.rows)))


def _dims(work: GpuWork) -> Ints:
    """(n_cpu + 1,) code of each op's dims; the last: outside any op."""
    return np.r_[work.timeline.cpu_ops["dims"].codes.astype(np.int64), -1]


def _launched(steps: Steps, launches: Launches) -> list[Ints]:
    """Rows of the GPU ops that each step of the window launched, in order: of a long window the replay holds some steps alone."""
    rows = launches.in_order
    edges = np.searchsorted(steps.of_host_time(launches.start_us[rows]), np.arange(steps.steps + 1)).tolist()
    launched = [rows[first:last] for first, last in pairwise(edges)]
    # A window of one step is held against the step that closes it, where that was recorded as far.
    closing = rows[edges[-1] : edges[-1] + len(launched[0])]
    return [*launched, closing] if steps.steps == 1 and len(closing) == len(launched[0]) else launched


def _capture_obstacle(steps: Steps, work: GpuWork, calls: HostCalls, launches: Launches, parts: list[Ints]) -> str:
    if not steps.repeats or len(parts) < 2:
        return "the window holds no two steps to compare"
    if launches.replayed[work.rows].mean() > REPLAYED:
        return "CUDA graphs are in use already"
    if _allocates(steps, calls):
        return "device memory is allocated inside the steps, and a CUDA graph cannot contain that"
    if not _steps_are_alike(work, parts):
        return DIFFERENT
    return ""


def _allocates(steps: Steps, calls: HostCalls) -> bool:
    """Whether each step takes memory from the driver, or any frees some. A step that takes it once grows a pool, as a graph does during capture."""
    at = np.flatnonzero(calls.with_role(cuda_api.ApiRole.ALLOCATION))
    frame = calls.timeline.api_calls
    those = steps.of_host_time(frame["start_us"][calls.rows[at]])
    return bool(len(at)) and (bool(matches(frame, cuda_api.RETURNS)[calls.rows[at]].any()) or len(np.unique(those)) >= calls.schedule.steps)


def _waits_between(work: GpuWork, calls: HostCalls) -> tuple[Ints, Mask, Mask]:
    """Positions of waits between a step's first and last kernel; those for host data; and those that can move. Data can be sent before the first kernel if
    nothing was read before. A few values are constants or follow from read values, also on the GPU. Waits
    around them send a step's input and read its result, and stay outside."""
    copies, size = work.column("copy_kind") == CopyKind.HTOD.value, work.column("bytes")
    free = copies & (size >= 0) & (size <= FEW_VALUES_BYTES)
    sending, small = (calls.held_by_copies(np.unique(work.schedule.op_call[some])) for some in (copies, free))
    found, sent = [np.empty(0, np.int64)], [np.empty(0, bool)]
    for step in np.unique(work.step):
        launching = work.schedule.op_call[work.kernel & (work.step == step)]
        if len(launching):
            waits = launching.min() + np.flatnonzero(calls.waits[launching.min() : launching.max()])
            found.append(waits)
            sent.append(np.isin(waits, small) | np.logical_and.accumulate(np.isin(waits, sending)))
    waits = np.concatenate(found)
    return waits, np.isin(waits, sending), np.concatenate(sent)


def _steps_are_alike(work: GpuWork, parts: list[Ints]) -> bool:
    """Whether all steps launch the same kernels in the same order, from ops of the same dims."""
    names = work.timeline.gpu_ops["name"].codes
    of_op = _dims(work)
    first, of_gpu = parts[0], work.ops.of_gpu
    return all(len(p) == len(first) and bool((names[p] == names[first]).all()) and bool((of_op[of_gpu[p]] == of_op[of_gpu[first]]).all()) for p in parts[1:])


def _resized(work: GpuWork, parts: list[Ints]) -> bool:
    """Whether all steps call the same ops in the same order, some of them on tensors of other sizes, before they ask for any: those behind follow from it."""
    dims, asked = _dims(work), np.r_[asks_size(work.ops), False]
    of_steps = [work.ops.of_gpu[part] for part in parts]
    ops = [op[: int(np.r_[np.flatnonzero(asked[op]), len(op)][0])] for op in of_steps]
    calls = [*map(work.ops.codes, ops)]
    return all(np.array_equal(calls[0], other) for other in calls[1:]) and any(not np.array_equal(dims[ops[0]], dims[op]) for op in ops[1:])


def _decided(work: GpuWork, waits: Ints, parts: list[Ints], *, shapes: bool = False) -> bool:
    """Whether steps differ only in a few launches, and only after one of `waits`, which each step has. Equal ops with other dims, as on a growing cache, do not
    depend on a tensor condition, but on a mask's size: `shapes`."""
    names, dims = work.timeline.gpu_ops["name"].codes, _dims(work)[work.ops.of_gpu]
    kinds = [Counter(zip(names[part].tolist(), dims[part].tolist(), strict=True)) for part in parts]
    named = [Counter(names[part].tolist()) for part in parts]
    for kind, name in zip(kinds[1:], named[1:], strict=True):
        of_both = (named[0], name) if shapes else (kinds[0], kind)
        if not alike(*of_both) or (of_both[0] & of_both[1]).total() < (named[0] & name).total():
            return False
    behind = np.searchsorted(work.schedule.op_call, waits, side="right")
    before = set()
    for step in np.unique(work.step):
        first, last = np.searchsorted(work.step, [step, step + 1])
        asked = behind[(behind > first) & (behind <= last)]
        if not len(asked):
            return False
        rows = work.rows[first : asked[0]]
        before.add((names[rows].tobytes(), dims[rows].tobytes()))
    return len(before) == 1


_NUMBER = re.compile(r"\d+")


def _grows(work: GpuWork, parts: list[Ints]) -> bool:
    """Whether what differs between steps is longer by one in each, as a cache of words is: no mask decides that."""
    dims, texts = _dims(work)[work.ops.of_gpu], work.timeline.cpu_ops["dims"].categories
    pairs = {pair for a, b in pairwise(parts) if len(a) == len(b) for pair in zip(dims[a].tolist(), dims[b].tolist(), strict=True) if pair[0] != pair[1]}
    sizes = [[[int(n) for n in _NUMBER.findall(texts[code])] if code >= 0 else [] for code in pair] for pair in pairs]
    return bool(sizes) and all(len(a) == len(b) and {y - x for x, y in zip(a, b, strict=True)} <= {0, 1} for a, b in sizes)
