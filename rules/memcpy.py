"""Copies between host and device that nothing hides."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.shares import HARDLY_ANY
from advisor.recordings.timeline import CopyKind, MemoryKind
from advisor.report.finding import Clear
from advisor.report.numbers import at_rate, counted, duration, percent, size
from advisor.rules._phrases import a_step
from advisor.rules.fixes import for_program
from advisor.rules.fixes.copying import Copied, copying
from advisor.views.device_rates import DeviceRates
from advisor.views.patterns.copy_savings import COPY_LATENCY_US, copy_edits, outer_op, sending_call
from advisor.views.patterns.host_tensors import MadeOnHost, created_on_host
from advisor.views.patterns.released_memory import ReleasedMemory
from advisor.views.patterns.transfers import HostCopies, StagedCopies, us_a_step_inside
from advisor.views.replay.edits import WithoutOps, changes
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.replay import Replay
from advisor.views.time.device_time import Partition
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.evidence import Witness
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches, computing_ops
from advisor.views.trace.program import Program
from advisor.views.trace.repeats import FEWEST_REPEATS
from advisor.views.trace.steps import Steps
from advisor.views.trace.waited_calls import WaitedCalls

MIN_WAIT_SHARE = HARDLY_ANY
"""Waits for copies that are said beside what the copies take."""

_HOST_COPIES = (CopyKind.HTOD.value, CopyKind.DTOH.value)


@rule("memcpy", min_saving_share=0.03)
def memcpy(
    steps: Steps,
    work: GpuWork,
    calls: HostCalls | None,
    launches: Launches,
    host: HostActivity,
    partition: Partition,
    gaps: Gaps,
    replay: Replay,
    witness: Witness,
    program: Program,
    rates: DeviceRates,
    staged: StagedCopies,
    waited_calls: WaitedCalls,
    released: ReleasedMemory,
    *,
    small_bytes: int = 65536,
    min_value_share: float = 0.01,
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
    and on a stream of their own, eight small ones a step or more as one, with what issued the others gone; where ops make a tensor on
    the host, as many launches make it on the GPU and nothing is copied; where a copy of pageable memory is the last that needs it, the host gives it
    back right behind, which pinned memory that is kept does without (`low`: still on the stream that computes, in the order as recorded, none packed, made on
    the host, what comes to the host waited for, what a loader without workers makes pinned at 12 GB/s by the thread that copies it; `high`: no pageable copy at all, as if the data were made once or kept on the GPU). What JAX
    stages on the host while the program waits goes too: `low` ahead of its step, `high` altogether, `expected` altogether where
    the host had no time to make new arrays (20 GB/s). No fix gains more than copies are seen to cost: their time alone, the host's in them,
    and what the device waits right behind them; what it waits before one, it waits for the next op. Copies under `small_bytes` ({small_bytes}) cost their latency, not
    bandwidth. Reported from `min_saving_share` of the step ({min_saving_share}), or from
    `min_value_share` ({min_value_share}) where most of it is of values that calls send by themselves, as `torch.tensor(3.0, device="cuda")` and `x[[0, 5]]` do: one line mends
    those. Copies within the device are not counted here.

    How to fix it
    Pin the batches (`DataLoader(pin_memory=True)`), copy with `non_blocking=True`, and fetch the next batch on a side
    stream while this one computes. Build tensors where they are used (`torch.zeros(..., device="cuda")`). Keep data that
    is read every step on the GPU. Send bytes that become floats as bytes, and convert them there.

    When to ignore it
    When the copy is a deliberate offload because the data does not fit on the GPU; then only overlap helps.

    References
    https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    https://docs.pytorch.org/docs/stable/data.html#memory-pinning
    """
    kind, nbytes = work.timeline.gpu_ops["copy_kind"], work.timeline.gpu_ops["bytes"].to_numpy()
    # Small reads of a value are waits, not transfers: that rule speaks of them, but not of those that only pageable memory makes wait.
    moves = kind.isin(_HOST_COPIES).to_numpy() & ~((kind == CopyKind.DTOH.value).to_numpy() & (nbytes < small_bytes))
    pageable = work.pageable
    moves[work.rows] |= pageable & calls.held_unasked(pageable)[work.schedule.op_call] if calls else False
    copies = HostCopies(np.flatnonzero(moves[work.rows]), work.column("bytes"), pageable)
    if not len(copies.at) or not partition.main:
        return Clear(why="no copy between host and device inside the window")
    if not steps.repeats and not computing_ops(work.timeline).any():
        return Clear(why=f"{len(copies.at)} copies in a recording without steps and without a kernel: what is loaded is not used yet")
    if not steps.repeats and not (again := copies.repeated(work)).any():
        return Clear(why=f"{len(copies.at)} copies in a recording without steps, none of which comes {FEWEST_REPEATS} times: what happens once is no step")
    if not steps.repeats:
        copies = HostCopies(copies.at[again], copies.bytes, pageable)
    rows = work.rows[copies.at]
    exposed = us_a_step_inside(work, steps, np.flatnonzero(moves), partition.main.copy)
    # Copies cost the time that nothing hides and, where they hold the host up, what the GPU then waits for it; no fix of them gains more.
    blocking = np.isin(launches.call[work.rows], host.blocking_copies)
    # A call outlasts a transfer of a microsecond whether it waits for it or not.
    long = (work.dur_us >= COPY_LATENCY_US) & blocking
    spare = copies.spare(work, small_bytes)
    holds = bool(len(spare)) or bool(
        (pageable | long | (copies.bytes >= small_bytes))[copies.at].any() or (calls and calls.waits_of_copies(work.schedule.op_call[copies.at]).any())
    )
    launching, paused = (float(gaps.causes[causes].to_numpy().sum()) / steps.steps if holds else 0.0 for causes in (["launch"], ["sync", "host"]))
    pageable_share = float(pageable[copies.at].mean())
    moved = float(copies.bytes[copies.at].clip(min=0).sum())
    pinned = (work.column("src_kind") == MemoryKind.PINNED.value) | (work.column("dst_kind") == MemoryKind.PINNED.value)
    memory = staged.text or ("all pinned" if pinned[copies.at].all() else "of memory whose kind was not recorded")
    if pageable_share:
        memory = "all from or to pageable memory" if pageable_share == 1 else f"{percent(pageable_share)} of them from or to pageable memory"
    waited = calls.us_a_step(calls.held_by_copies(work.schedule.op_call[copies.at])) if calls else 0.0
    cost = f"{duration(exposed)} of each {duration(work.step_us)} step overlap no compute"
    issuing = sum(change.host_us for change in changes(work.schedule, WithoutOps(spare)))
    # What moves in no time may still be waited for, and each costs the host its call.
    many = issuing > max(exposed, waited, MIN_WAIT_SHARE * work.step_us)
    if many:
        cost += f"; issuing the small ones takes the host {duration(issuing)}, where one copy could carry them"
    elif waited - exposed * bool(pageable_share) > max(exposed, MIN_WAIT_SHARE * work.step_us):
        cost += f", and the host waits {duration(waited)} for them as recorded" + ("; only then it launches" if launching + paused > exposed else "")
    loader = len(host.data_loading[0]) > 0
    up = copies.to_device(work)
    made = MadeOnHost.of(work, up[(pageable | blocking)[up]])
    created = max(created_on_host(work.timeline, work.ops, work.rows[up]), len(made.copies) / max(len(up), 1))
    # Of the host's pauses no more are likely to be theirs than what it does for them while the device idles: kernels it would wait for anyway.
    staging = (copies.host_us(calls, partition.main.idle) if calls else 0.0) + staged.us + released.us
    call = sending_call(work, calls, launches, waited_calls, copies.at) if calls else None
    edits = copy_edits(
        work, calls, replay, rates, copies, blocking, small_bytes, staged, made, released.gone, partition.main.communication, WithoutOps(spare), loader
    )
    # What the device waits for before a copy it would wait for before the next op, but for the time that the host has more by then.
    # A wait as recorded is shorter by what recording had the host do before it.
    held = len(calls.held_by_copies(work.schedule.op_call[copies.at])) / max(int(calls.waits.sum()), 1) if calls else 0.0
    seen = exposed + waited + gaps.behind_us(work.timeline.gpu_ops.iloc[rows]) + staged.us + released.us + held * replay.true_step.recording_us
    likely, most = (seen + sum(change.host_us for change in changes(work.schedule, edit)) for edit in (edits.expected, edits.high))
    return Found(
        summary=f"{a_step(work.a_step(copies.at), 'transfer', 'move')} {size(moved / work.schedule.steps)}"
        f"{at_rate(moved, float(work.dur_us[copies.at].sum()))}, {memory}; {cost}{made.told(work.schedule.steps, work.step_us)}{released.told(work.step_us)}.",
        edits=edits,
        removes="copies between host and device that overlap no compute",
        least_share=min_value_share if call and not call.general else None,
        at_most_us=min(exposed + launching + paused, max(likely, most)),
        likely_at_most_us=min(exposed + launching + min(paused, staging + issuing + made.us(work.schedule.steps)), likely),
        quiet=f"{counted(work.a_step(copies.at), 'copy', 'copies')} a step, {percent(exposed / work.step_us)} of its time in copies that nothing hides",
        evidence=witness.of_gpu(rows, [f"{work.kernel_name(k)} by {outer_op(work.ops, int(work.op[k]))}" for k in copies.at.tolist()]),
        confidence=0.9,
        fix=for_program(
            program,
            "memcpy of pinned memory" if memory == "all pinned" else "memcpy",
            copying(
                Copied(
                    pageable=pageable_share,
                    small=float((copies.bytes[copies.at] < small_bytes).mean()),
                    created=created,
                    returning=copies.returning(work),
                    fetched=float(work.dur_us[copies.to_host(work)].sum() / max(float(work.dur_us[copies.at].sum()), 1e-9)),
                    many=many,
                    loader=loader,
                    call=call,
                ),
            ),
        ),
    )
