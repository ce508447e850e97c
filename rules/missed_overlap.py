"""Gradients that are averaged on the stream that computes, where nothing can hide it."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Judged, Outcome, rule
from advisor.intervals import Floats, Ints
from advisor.knowledge.kernel_names import Family
from advisor.report.model import Clear, Code, Finding, Fix, severity_of
from advisor.rules._evidence import gpu_evidence, milliseconds
from advisor.rules._needs import NO_GPU_WORK
from advisor.timeline import Timeline
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import Edits, WithDurations
from advisor.views.replay.schedule import Schedule
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.launches import Launches
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.steps import Steps

LEAST_HIDDEN, HIDDEN, MOST_HIDDEN = 0.2, 0.35, 0.7
"""Shares of the transfer that overlap gains. Beside a collective the products run slower, since it takes multiprocessors and
memory rate: four pairs on two H200 over NVLink gained 20 to 60 % of it. Slower links leave more to hide."""

WAITING = 1.5
"""A collective that takes longer than this many times the shortest one like it waits for another rank: overlap hides no wait."""

_PRODUCTS = (Family.GEMM, Family.CONV, Family.ATTENTION)


@rule("missed-overlap", relies_on=("kernels",))
def missed_overlap(
    timeline: Timeline,
    steps: Steps,
    kernels: Kernels,
    launches: Launches,
    replay: Replay,
    sources: Sources,
    *,
    min_saving_share: float = 0.03,
    min_run: int = 4,
) -> Outcome:
    """Gradients are averaged after the backward pass, on the stream that computes

    What it is
    Collectives run one after another on the stream of the backward pass, after it. A gradient is ready long before the pass
    ends, so its average could be under way while the rest is computed.

    Why it costs time
    While a collective has the stream, nothing else runs: the link works and the multiprocessors wait, then the reverse.

    How it is measured
    Collectives on the stream that computes, in runs of `min_run` or more (4) without a product, convolution or attention
    between them: a sum that the next product needs, as tensor parallelism makes them, is not counted. The transfer is what
    each takes, up to 1.5 times the shortest one like it: the rest waits for a slower rank, which overlap does not hide. Of the
    transfer a bucketed overlap gains 35 % (`low` 20 %, `high` 70 %): the products beside it run slower, as four pairs measured
    on two H200 show. Reported from `min_saving_share` of the step (0.03).

    How to fix it
    `DistributedDataParallel(model)` averages buckets of gradients beside the backward pass. By hand:
    `dist.all_reduce(grad, async_op=True)` in a hook, and wait for all before the optimizer.

    When to ignore it
    When gradients are clipped or changed before they are averaged, or the ranks must not drift within a step.

    References
    https://docs.pytorch.org/docs/stable/notes/ddp.html
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    if not len(timeline.gpu_ops):
        return NO_GPU_WORK
    schedule = replay.recorded
    collective = kernels.communication[schedule.op_row]
    if not collective.any():
        return Clear(why="no collective inside the window")
    product = kernels.of(*_PRODUCTS)[schedule.op_row]
    serial = _in_runs(schedule, collective, product, min_run)
    if not len(serial):
        return Clear(
            why=f"{collective.sum() / schedule.steps:.0f} collectives a step, none of them in a run of {min_run} on the stream that computes"
        )
    transfer = _transfer(timeline, schedule, serial)
    dur = schedule.dur_us[serial]
    edits = Edits(*(WithDurations(serial, dur - share * transfer) for share in (LEAST_HIDDEN, HIDDEN, MOST_HIDDEN)))
    saving = replay.saving(edits, "collectives that could run beside the backward pass")
    share = saving.expected_us / steps.step_us
    if share < min_saving_share:
        return Clear(
            why=f"collectives on the stream that computes move data for {transfer.sum() / schedule.steps / steps.step_us:.1%} of the step; "
            f"overlap would gain {share:.1%}, reported from {min_saving_share:.0%}"
        )
    rows = schedule.op_row[serial]
    spent, moving = dur.sum() / schedule.steps, transfer.sum() / schedule.steps
    names = timeline.gpu_ops["name"].to_numpy()[rows]
    finding = Finding(
        title="Gradients are averaged after the backward pass, not beside it",
        summary=f"{len(serial) / schedule.steps:.0f} collectives a step run on the stream that computes, for {milliseconds(spent)} of "
        f"{milliseconds(steps.step_us)}, of which {milliseconds(moving)} move data; nothing runs meanwhile.",
        severity=severity_of(saving, steps.step_us),
        confidence=0.7 if steps.repeats else 0.5,
        saving=saving,
        evidence=gpu_evidence(
            timeline, rows, [str(name) for name in names], lambda m: sources.most_common(launches.call[rows[m[:50]]])
        ),
        fix=Fix(
            title="Average gradients in buckets beside the backward pass",
            steps=(
                "Wrap the model in DistributedDataParallel, which averages each bucket as soon as it is ready.",
                "Where that does not fit: start all_reduce with async_op=True from a hook of each parameter, and wait before the optimizer.",
            ),
            code=Code(
                before="loss.backward()\nfor p in model.parameters():\n    dist.all_reduce(p.grad)\n    p.grad /= world_size\noptimizer.step()",
                after="model = DistributedDataParallel(model, gradient_as_bucket_view=True)\n...\nloss.backward()  # averages as it goes\noptimizer.step()",
            ),
            url="https://docs.pytorch.org/docs/stable/notes/ddp.html",
            risk="Buckets hold a copy of the gradients unless gradient_as_bucket_view=True. Parameters that got no gradient need find_unused_parameters.",
        ),
    )
    return [Judged(finding, edits)]


def _in_runs(schedule: Schedule, collective: np.ndarray, product: np.ndarray, least: int) -> Ints:
    """Positions of collectives on the stream with most products, in runs of so many without a product between them."""
    if not product.any():
        return np.empty(0, np.int64)
    streams, counts = np.unique(schedule.stream[product], return_counts=True)
    here = np.flatnonzero(schedule.stream == streams[counts.argmax()])
    run = np.cumsum(product[here])
    members, run = here[collective[here]], run[collective[here]]
    length = np.bincount(run) if len(run) else np.empty(0, np.int64)
    found: Ints = members[length[run] >= least]
    return found


def _transfer(timeline: Timeline, schedule: Schedule, serial: Ints) -> Floats:
    """(n,) how much of each collective moves data: as long as the shortest of its kernel, grid and size takes, and some."""
    frame = timeline.gpu_ops.iloc[schedule.op_row[serial]]
    alike = frame.groupby(["name", "grid_blocks", "bytes", "in_elements"], observed=True, sort=False)["dur_us"].transform("min")
    found: Floats = np.minimum(schedule.dur_us[serial], WAITING * alike.to_numpy())
    return found
