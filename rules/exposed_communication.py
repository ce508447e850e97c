"""Communication that nothing hides, seen from one rank or from many."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, Share, rule
from advisor.intervals import Floats, overlap_with
from advisor.report.model import Clear, Code, Fix
from advisor.rules._collectives import transfer_us
from advisor.rules._phrases import a_step, milliseconds
from advisor.views.replay.edits import Edits, WithDurations
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.device_time import Partition, total
from advisor.views.trace.evidence import Witness
from advisor.views.trace.steps import Steps

LEAST_HIDDEN, HIDDEN, MOST_HIDDEN = 0.0, 0.35, 1.0
"""Of the time that moves data, what overlap gains: 20 to 60 % in four pairs on two H200 over NVLink. It may be nothing where the
next op needs the result, and all of the exposed time where the rest is waiting for a rank that can be made faster."""

WAITING = 1.5
"""A collective that takes longer than this many times the shortest one like it waits for other ranks in the rest."""


@rule("exposed-communication", relies_on=("kernels",))
def exposed_communication(
    steps: Steps, work: GpuWork, partition: Partition, witness: Witness, *, min_exposed_share: Share = 0.10
) -> Outcome:
    """Communication that overlaps no computing holds the step up

    What it is
    Collectives and transfers between ranks run while the GPU computes nothing.

    Why it costs time
    A collective that spins is not work: the kernel occupies the GPU while it waits for a link, or for another rank that has not
    arrived yet. Such a GPU looks busy.

    How it is measured
    The time in which communication runs and no other kernel does, from `min_exposed_share` of the step ({min_exposed_share}; less
    cannot be told from noise). One rank cannot tell transfer from waiting: what a collective takes, up to 1.5 times the
    shortest one of its kernel and size, counts as transfer. `low` is 0 (the next op may need the result), `expected` 35 % of
    the transfer, `high` all that is exposed.

    How to fix it
    First see which it is: record every rank and give their directory to `advisor analyze`; it matches the collectives and names
    the rank that the others wait for. Then overlap what is transfer: buckets of gradients beside the backward pass
    (`DistributedDataParallel`), prefetched parameters (`fully_shard`), two micro-batches in turn for expert parallelism.

    When to ignore it
    When ranks were held up by the recording itself, or the model is so split that nothing is left to compute meanwhile.

    References
    https://docs.pytorch.org/docs/stable/notes/ddp.html
    https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    mine = np.flatnonzero(work.kernels.communication[work.rows])
    main = partition.main
    if not len(mine) or main is None:
        return Clear(why="no communication inside the window")
    window = steps.end_us - steps.start_us
    share = float(total(main.communication).sum()) / max(window, 1e-9)
    count = work.a_step(mine)
    if share < min_exposed_share:
        return Clear(why=f"communication that overlaps no computing takes {share:.0%} of the step, reported from {min_exposed_share:.0%}")
    start = work.column("start_us")[mine]
    exposed: Floats = np.minimum(overlap_with(start, start + work.dur_us[mine], main.communication), work.dur_us[mine])
    moving = np.minimum(exposed, transfer_us(work, mine, WAITING))
    rows = work.rows[mine]
    names = [str(name)[:100] for name in work.column("name")[mine]]
    edits = [exposed * 0.0, HIDDEN * moving, exposed]
    spent = share * steps.step_us
    waiting = max(0.0, float((exposed - moving).sum())) / work.schedule.steps
    return Found(
        summary=f"{a_step(count, 'collective', 'take', 'takes')} {milliseconds(spent)} of {milliseconds(steps.step_us)} in which nothing is computed. "
        f"At least {milliseconds(waiting)} of it look like waiting for other ranks; one rank alone cannot tell for sure.",
        edits=Edits(*(WithDurations(mine, work.dur_us[mine] - gone) for gone in edits)),
        removes="communication that no computing hides",
        at_most_us=spent,
        evidence=witness.of_gpu(rows, names),
        confidence=0.8,
        cause="communication",
        fix=Fix(
            title="Record all ranks to see who waits for whom, then overlap what is transfer",
            steps=(
                "Record the same steps on every rank, one file each in a directory, and run advisor analyze on the directory.",
                "Where the ranks arrive together, the time is transfer: overlap it, or send less (larger buckets, bf16 gradients, fewer layers gathered).",
                "Where one rank comes late, make that one faster: the others' collectives shrink by themselves.",
            ),
            code=Code(
                before="loss.backward()\nfor p in model.parameters():\n    dist.all_reduce(p.grad)",
                after="model = DistributedDataParallel(model, gradient_as_bucket_view=True)\n...\nloss.backward()  # averages as it goes",
            ),
            url="https://docs.pytorch.org/docs/stable/notes/ddp.html",
            risk="Beside a collective the products run slower, since it takes multiprocessors and memory rate.",
        ),
    )
