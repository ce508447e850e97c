"""Copies between host and device that nothing hides."""

from __future__ import annotations

from advisor.engine.rule import Found, Outcome, rule
from advisor.report.finding import Clear
from advisor.report.numbers import at_rate, counted, duration, percent, size
from advisor.report.wording.period import PER_STEP, of_each_step
from advisor.rules._phrases import a_step
from advisor.rules.fixes import for_program
from advisor.rules.fixes.copying import Copied, copying
from advisor.views.patterns import copy_costs
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
    witness: Witness,
    program: Program,
    *,
    small_bytes: int = 65536,
    min_value_share: float = 0.01,
) -> Outcome:
    """Copies between host and device hold up the step

    What
    Data crosses the bus while the GPU computes nothing. The copy comes from pageable memory, runs on the
    compute stream, or is split into many small pieces. The driver first copies pageable memory into a pinned
    buffer, and the host waits.

    Why
    The bus is 50 to 100 times slower than GPU memory. A pageable copy reaches a fraction of the bus rate and
    blocks the host, which then launches nothing.

    How to fix
    Pin the batches and copy without blocking:

        loader = DataLoader(dataset, pin_memory=True, num_workers=8)
        for batch in loader:
            batch = batch.to("cuda", non_blocking=True)

    Fetch the next batch on a side stream. Create tensors on the GPU: `torch.zeros(..., device="cuda")`. Keep
    constant data there. Send bytes, and convert them to floats on the GPU.

    When to ignore
    The copy is a deliberate offload because data do not fit on the GPU. Then only overlap helps.

    How it is measured
    The rule measures the part of each copy that overlaps no kernel, and the host's wait for it. In the replay,
    copies run at the rate of pinned memory on their own stream. The saving is at most the exposed time of the
    copies. Copies below `small_bytes` ({small_bytes}) cost latency, not bandwidth. Savings below `min_saving_share` ({min_saving_share})
    of the step are not reported. The threshold is `min_value_share` ({min_value_share}) if a single line fixes the copy.

    | Estimate | Assumption |
    |---|---|
    | `low` | still on the compute stream, none merged |
    | `expected` | side stream, small copies merged |
    | `high` | no pageable copies at all |

    References
    https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    https://docs.pytorch.org/docs/stable/data.html#memory-pinning
    """
    copies = costs.copies(small_bytes)
    if not len(copies.at) or not costs.partition.main:
        return Clear(why="no copy between host and GPU in the window")
    if not steps.repeats and not computing_ops(work.timeline).any():
        return Clear(why=f"{len(copies.at)} copies in a recording without steps or kernels: the data is not used yet")
    if not steps.repeats and not (again := copies.repeated(work)).any():
        return Clear(why=f"{len(copies.at)} copies in a recording without steps, none repeated {FEWEST_REPEATS} times: start-up work")
    if not steps.repeats:
        copies = HostCopies(copies.at[again], copies.bytes, copies.pageable)
    cost = costs.cost_of(copies, small_bytes)
    exposed_us, waited_us = cost.exposed_us, cost.waited_us
    memory = staged.text or ("all pinned" if cost.pinned else "of unrecorded memory kind")
    if cost.pageable:
        memory = "all from or to pageable memory" if cost.pageable == 1 else f"{percent(cost.pageable)} of them from or to pageable memory"
    spent = f"{duration(exposed_us)} {of_each_step(work.step_us)} is exposed"
    if cost.many:
        spent += f". Launching the small copies takes {duration(cost.issuing_us)} of host time; a single copy could carry them"
    elif waited_us - exposed_us * bool(cost.pageable) > max(exposed_us, copy_costs.MIN_WAIT_SHARE * work.step_us):
        launches_late = cost.launching_us + cost.paused_us > exposed_us
        spent += f", and the host waits {duration(waited_us)} for them as recorded" + ("; it launches only afterwards" if launches_late else "")
    count = work.a_step(copies.at)
    return Found(
        summary=f"{a_step(count, 'transfer', 'move')} {size(cost.bytes_moved / work.schedule.steps)}"
        f"{at_rate(cost.bytes_moved, float(work.dur_us[copies.at].sum()))}, {memory}. {spent}.",
        edits=cost.edits,
        removes="exposed copies between host and GPU",
        least_share=min_value_share if cost.call and not cost.call.general else None,
        at_most_us=cost.at_most_us,
        likely_at_most_us=cost.likely_at_most_us,
        quiet=f"{counted(count, 'copy', 'copies')} {PER_STEP}, exposed for {percent(exposed_us / work.step_us)} of it",
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
