"""Copies between host and device that nothing hides."""

from __future__ import annotations

from advisor.engine.rule import Found, Outcome, rule
from advisor.report.finding import Clear
from advisor.report.numbers import at_rate, counted, duration, percent, size
from advisor.rules._phrases import a_step
from advisor.rules.fixes import for_program
from advisor.rules.fixes.copying import Copied, copying
from advisor.views.patterns import copy_costs
from advisor.views.patterns.released_memory import ReleasedMemory
from advisor.views.patterns.transfers import HostCopies, StagedCopies
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.evidence import Witness
from advisor.views.trace.launches import computing_ops
from advisor.views.trace.program import Program
from advisor.views.trace.repeats import FEWEST_REPEATS
from advisor.views.trace.steps import Steps


@rule("memcpy", min_saving_share=0.03)
def memcpy(
    steps: Steps,
    work: GpuWork,
    costs: copy_costs.CopyCosts,
    staged: StagedCopies,
    released: ReleasedMemory,
    witness: Witness,
    program: Program,
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
    copies = costs.copies(small_bytes)
    if not len(copies.at) or not costs.partition.main:
        return Clear(why="no copy between host and device inside the window")
    if not steps.repeats and not computing_ops(work.timeline).any():
        return Clear(why=f"{len(copies.at)} copies in a recording without steps and without a kernel: what is loaded is not used yet")
    if not steps.repeats and not (again := copies.repeated(work)).any():
        return Clear(why=f"{len(copies.at)} copies in a recording without steps, none of which comes {FEWEST_REPEATS} times: what happens once is no step")
    if not steps.repeats:
        copies = HostCopies(copies.at[again], copies.bytes, copies.pageable)
    cost = costs.of(copies, small_bytes)
    exposed_us, waited_us = cost.exposed_us, cost.waited_us
    memory = staged.text or ("all pinned" if cost.pinned else "of memory whose kind was not recorded")
    if cost.pageable:
        memory = "all from or to pageable memory" if cost.pageable == 1 else f"{percent(cost.pageable)} of them from or to pageable memory"
    spent = f"{duration(exposed_us)} of each {duration(work.step_us)} step overlap no compute"
    if cost.many:
        spent += f"; issuing the small ones takes the host {duration(cost.issuing_us)}, where one copy could carry them"
    elif waited_us - exposed_us * bool(cost.pageable) > max(exposed_us, copy_costs.MIN_WAIT_SHARE * work.step_us):
        launches_late = cost.launching_us + cost.paused_us > exposed_us
        spent += f", and the host waits {duration(waited_us)} for them as recorded" + ("; only then it launches" if launches_late else "")
    count = work.a_step(copies.at)
    return Found(
        summary=f"{a_step(count, 'transfer', 'move')} {size(cost.bytes_moved / work.schedule.steps)}"
        f"{at_rate(cost.bytes_moved, float(work.dur_us[copies.at].sum()))}, {memory}; {spent}{cost.made.told(work.schedule.steps, work.step_us)}{released.told(work.step_us)}.",
        edits=cost.edits,
        removes="copies between host and device that overlap no compute",
        least_share=min_value_share if cost.call and not cost.call.general else None,
        at_most_us=cost.at_most_us,
        likely_at_most_us=cost.likely_at_most_us,
        quiet=f"{counted(count, 'copy', 'copies')} a step, {percent(exposed_us / work.step_us)} of its time in copies that nothing hides",
        evidence=witness.of_gpu(
            work.rows[copies.at], [f"{work.kernel_name(k)} by {copy_costs.outer_op(work.ops, int(work.op[k]))}" for k in copies.at.tolist()]
        ),
        confidence=0.9,
        fix=for_program(
            program,
            "memcpy of pinned memory" if memory == "all pinned" else "memcpy",
            copying(
                Copied(
                    pageable=cost.pageable,
                    small=float((copies.bytes[copies.at] < small_bytes).mean()),
                    created=cost.created,
                    returning=copies.returning(work),
                    fetched=cost.fetched,
                    many=cost.many,
                    loader=cost.loader,
                    call=cost.call,
                ),
            ),
        ),
    )
