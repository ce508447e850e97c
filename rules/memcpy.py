"""Copies between host and device that nothing hides."""

from __future__ import annotations

import re

import numpy as np

from advisor.engine.rule import Judged, Outcome, rule
from advisor.intervals import Floats, Ints, clip, intersect, length, union
from advisor.knowledge.devices import find
from advisor.report.model import Clear, Code, Finding, Fix, severity_of
from advisor.rules._copies import waits_of_copies
from advisor.rules._evidence import a_step, gpu_evidence, milliseconds
from advisor.rules._needs import NO_GPU_WORK
from advisor.timeline import CopyKind, MemoryKind, Timeline
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import Edits, FasterCopies, OnSideStream, WithDispatch, WithoutOps, WithoutWaits, combine
from advisor.views.replay.schedule import Schedule
from advisor.views.time.device_time import DevicePartition, Partition
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.steps import Steps

DEFAULT_LINK_GBPS = 22.0
"""What pinned copies reach over PCIe 4.0 x16, for a device that is not in devices.toml."""

COPY_LATENCY_US = 2.0
"""A small pinned copy takes this long whatever its size, as the captures show."""

_CREATES = re.compile(
    r"aten::(zeros|ones|full|empty|arange|linspace|rand|randn|randint|eye|tensor|scalar_tensor|lift_fresh|detach_)$"
)
_HOST_COPIES = (CopyKind.HTOD.value, CopyKind.DTOH.value)


@rule("memcpy")
def memcpy(
    timeline: Timeline,
    steps: Steps,
    launches: Launches,
    host: HostActivity,
    ops: Ops,
    partition: Partition,
    gaps: Gaps,
    replay: Replay,
    sources: Sources,
    *,
    min_saving_share: float = 0.03,
    small_bytes: int = 65536,
) -> Outcome:
    """Copies between host and device hold up the step

    What it is
    Data crosses the bus while the GPU computes nothing: from pageable memory, which the driver first copies into a
    pinned buffer of its own while the host waits, or on the stream that computes, or in many small pieces.

    Why it costs time
    The bus is 50 to 100 times slower than the GPU's memory. A pageable copy reaches a fraction of the bus's rate and
    blocks the host, which then cannot launch what comes next.

    How it is measured
    Copies by direction, memory kinds and the op that asked for them; which part of each overlaps no kernel; whether the
    call returned only after the transfer. The step is replayed with the copies at the rate of pinned memory (devices.toml)
    and on a stream of their own (`low`: still on the stream that computes; `high`: no pageable copy at all, as if the data
    were made or kept on the GPU). Copies under `small_bytes` (64 KiB) cost their latency, not bandwidth. Reported from
    `min_saving_share` of the step (0.03). Copies within the device are not counted here.

    How to fix it
    Pin the batches (`DataLoader(pin_memory=True)`), copy with `non_blocking=True`, and fetch the next batch on a side
    stream while this one computes. Build tensors where they are used (`torch.zeros(..., device="cuda")`). Keep data that
    is read every step on the GPU.

    When to ignore it
    When the copy is a deliberate offload because the data does not fit on the GPU; then only overlap helps.

    References
    https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    https://docs.pytorch.org/docs/stable/data.html#memory-pinning
    """
    if not len(timeline.gpu_ops):
        return NO_GPU_WORK
    frame = timeline.gpu_ops
    schedule = replay.recorded
    between = frame["copy_kind"].isin(_HOST_COPIES).to_numpy()
    # Small reads of a value are waits, not transfers: that rule speaks of them.
    reads = (frame["copy_kind"] == CopyKind.DTOH.value).to_numpy() & (frame["bytes"] < small_bytes).to_numpy()
    moves = between & ~reads
    copies = np.flatnonzero(moves[schedule.op_row])
    if not len(copies) or not partition.main:
        return Clear(why="no copy between host and device inside the window")
    size = frame["bytes"].to_numpy()[schedule.op_row]
    rows = schedule.op_row[copies]
    exposed = _exposed(timeline, partition.main, steps, np.flatnonzero(moves))
    edits = _edits(timeline, launches, host, ops, replay, copies, size, small_bytes)
    # Copies cost the time that nothing hides and what the GPU then waits for the host; no fix of them gains more.
    starved = float(gaps.causes[["sync", "launch", "host"]].to_numpy().sum()) / steps.steps
    saving = replay.saving(edits, "copies between host and device that overlap no compute", exposed + starved)
    share = saving.expected_us / steps.step_us
    if share < min_saving_share:
        return Clear(
            why=f"{len(copies) / schedule.steps:.0f} copies a step, {exposed / steps.step_us:.1%} of it not hidden behind compute; "
            f"hiding them would gain {share:.1%}, reported from {min_saving_share:.0%}"
        )
    pageable = (frame["src_kind"] == MemoryKind.PAGEABLE.value) | (frame["dst_kind"] == MemoryKind.PAGEABLE.value)
    pageable_share = float(pageable.to_numpy()[rows].mean())
    created = _created_on_host(ops, rows)
    small = float((size[copies] < small_bytes).mean())
    labels = [f"{frame['name'].iloc[r]} by {_outer(ops, int(ops.of_gpu[r]))}" for r in rows]
    total_bytes, busy = float(size[copies].clip(min=0).sum()), float(schedule.dur_us[copies].sum())
    memory = f"{pageable_share:.0%} of them from or to pageable memory" if pageable_share else "all of them pinned"
    summary = (
        f"{a_step(len(copies) / schedule.steps, 'transfer', 'move')} {total_bytes / schedule.steps / 1e6:.2f} MB at {total_bytes / max(busy, 1e-9) / 1e3:.1f} GB/s, "
        f"{memory}; {milliseconds(exposed)} of each {milliseconds(steps.step_us)} step overlap no compute."
    )
    finding = Finding(
        title="Copies between host and device hold up the step",
        summary=summary,
        severity=severity_of(saving, steps.step_us),
        confidence=0.9 if replay.basis == "simulated" and steps.repeats else 0.6,
        saving=saving,
        evidence=gpu_evidence(timeline, rows, labels, lambda members: sources.most_common(launches.call[rows[members[:50]]])),
        fix=_fix(pageable_share, created, small),
    )
    return [Judged(finding, edits)]


def _edits(
    timeline: Timeline,
    launches: Launches,
    host: HostActivity,
    ops: Ops,
    replay: Replay,
    copies: Ints,
    size: Floats,
    small_bytes: int,
) -> Edits:
    schedule = replay.recorded
    peaks = find(timeline.device(int(timeline.gpu_ops["device"].to_numpy()[schedule.op_row[copies[0]]])).name)
    rate = (peaks.host_link_gbps if peaks and peaks.host_link_gbps else DEFAULT_LINK_GBPS) * 1e3  # bytes per µs
    pinned_us = COPY_LATENCY_US + size.clip(min=0) / rate
    frame = timeline.gpu_ops
    pageable = ((frame["src_kind"] == MemoryKind.PAGEABLE.value) | (frame["dst_kind"] == MemoryKind.PAGEABLE.value)).to_numpy()
    # Where kinds were not recorded, a copy that held its call was staged from pageable memory.
    pageable = pageable | np.isin(launches.call, host.blocking_copies)
    slow = copies[pageable[schedule.op_row[copies]]]
    large, tiny = slow[size[slow] >= small_bytes], slow[size[slow] < small_bytes]
    waits = _waits_of(launches, ops, schedule, copies)
    faster = combine(
        WithoutWaits(waits), FasterCopies(large, pinned_us[large]), FasterCopies(tiny, np.full(len(tiny), COPY_LATENCY_US))
    )
    # Copies that have a stream to themselves are ahead already.
    computing = np.unique(schedule.stream[~np.isin(np.arange(len(schedule.op_row)), copies)])
    hidden = combine(faster, OnSideStream(copies[np.isin(schedule.stream[copies], computing)]))
    op = ops.of_gpu[schedule.op_row[slow]]
    around = np.unique(ops.outermost[op[op >= 0]]) if len(ops.names) else op[:0]
    cpu = timeline.cpu_ops
    start = cpu["start_us"].to_numpy()[around]
    copying = union(start, start + cpu["dur_us"].to_numpy()[around])
    gone = combine(WithoutWaits(waits), WithoutOps(slow), WithDispatch(replay.outside(copying)), hidden)
    return Edits(faster, hidden, gone)


def _waits_of(launches: Launches, ops: Ops, schedule: Schedule, copies: Ints) -> Ints:
    """Positions of the calls that wait for these copies: the copying call itself, and the sync that goes with it."""
    own = schedule.op_call[copies]
    waiting = schedule.waits_for != -1
    return np.unique(np.r_[own[waiting[own]], np.flatnonzero(waiting & waits_of_copies(launches, ops, schedule, own))])


def _exposed(timeline: Timeline, main: DevicePartition, steps: Steps, rows: Ints) -> float:
    """Time a step in which these copies run and nothing else does."""
    start = timeline.gpu_ops["start_us"].to_numpy()[rows]
    spans = clip(union(start, start + timeline.gpu_ops["dur_us"].to_numpy()[rows]), steps.start_us, steps.end_us)
    return length(intersect(spans, main.copy)) / steps.steps


def _created_on_host(ops: Ops, rows: Ints) -> float:
    """Share of the copies whose tensor was made by the op just before, on the host."""
    found = 0
    for op in ops.of_gpu[rows]:
        outer = int(ops.outermost[op]) if op >= 0 else -1
        before = outer - 1
        while before >= 0 and ops.outermost[before] != before:
            before -= 1
        found += outer >= 0 and before >= 0 and bool(_CREATES.match(ops.name(before)))
    return found / max(len(rows), 1)


def _outer(ops: Ops, op: int) -> str:
    return next((n for n in reversed(ops.chain(op)) if n.startswith("aten::")), "a runtime call")


def _fix(pageable_share: float, created: float, small: float) -> Fix:
    url = "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html"
    if created >= 0.5:
        return Fix(
            title="Build the tensors on the GPU",
            steps=(
                "Create each tensor with device=..., so that nothing is copied.",
                "Hoist constants out of the loop: masks, position ids, index tables.",
                "Data that must come from the host: pin it once and copy it with non_blocking=True.",
            ),
            code=Code(
                before='mask = torch.zeros(n, n).to("cuda")\nids = torch.tensor(values).cuda()',
                after='mask = torch.zeros(n, n, device="cuda")\nids = torch.tensor(values, pin_memory=True).to("cuda", non_blocking=True)',
            ),
            url=url,
            risk="Random numbers drawn on the GPU differ from those drawn on the host for the same seed.",
        )
    steps = []
    if pageable_share > 0:
        steps.append(
            "Pin the memory that is copied: DataLoader(pin_memory=True), or tensor.pin_memory() once for buffers that are reused."
        )
        steps.append("Copy with non_blocking=True, so that the host goes on while the data moves.")
    steps.append("Copy the next batch on a side stream while this one computes.")
    if small >= 0.5:
        steps.append("Pack small tensors into one buffer and copy it once.")
    after = (
        "side = torch.cuda.Stream()\n\n"
        "def fetch(batch):\n"
        "    with torch.cuda.stream(side):\n"
        '        return batch.to("cuda", non_blocking=True)  # batch is pinned\n\n'
        "ahead = fetch(next(batches))\n"
        "for batch in batches:\n"
        "    torch.cuda.current_stream().wait_stream(side)\n"
        "    x, ahead = ahead, fetch(batch)\n"
        "    x.record_stream(torch.cuda.current_stream())\n"
        "    step(x)"
    )
    return Fix(
        title="Pin the host memory and copy ahead" if pageable_share > 0 else "Copy ahead on a stream of its own",
        steps=tuple(steps),
        code=Code(before='for batch in batches:\n    x = batch.to("cuda")\n    step(x)', after=after),
        url=url,
        risk="Pinned memory cannot be swapped out: pin buffers, not data sets. A pinned buffer must not be overwritten before its copy is done.",
    )
