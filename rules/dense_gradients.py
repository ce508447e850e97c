"""Embedding tables are filled, summed and updated whole for the few rows that a batch reads."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import union
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import counted, duration
from advisor.report.wording.period import A_STEP, EVERY_STEP, PER_STEP
from advisor.views.patterns.embedding_tables import DenseGradients
from advisor.views.replay.edits import Edit, Edits, WithDurations, WithoutOps, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.arguments import need_shapes
from advisor.views.trace.evidence import Witness

_SPARSE = Code(
    before="table = nn.Embedding(rows, width)\noptimizer = torch.optim.SGD(model.parameters(), lr)",
    after="table = nn.Embedding(rows, width, sparse=True)\noptimizer = torch.optim.SGD(model.parameters(), lr)  # of Adam's kind: torch.optim.SparseAdam for the table",
)
_ONE_TABLE = Code(
    before="tables = nn.ModuleList(nn.Embedding(rows, width) for rows in sizes)\nx = torch.stack([table(ids[:, at]) for at, table in enumerate(tables)], 1)",
    after="table = nn.Embedding(sum(sizes), width, sparse=True)\noffsets = torch.tensor([0, *sizes[:-1]]).cumsum(0)  # register_buffer\nx = table(ids + offsets)",
)


@rule("dense-gradients", min_saving_share=0.03, explains=("optimizer-foreach",))
def dense_gradients(
    timeline: Timeline, work: GpuWork, dense: DenseGradients, host_time: HostTime, witness: Witness, *, min_rows_per_read: float = 4.0
) -> Outcome:
    """Embedding tables get gradients as large as themselves

    What
    `nn.Embedding` and `nn.EmbeddingBag` return a gradient of the table's size unless `sparse=True`. Each step
    fills it with zeros and adds the few rows that the batch read. The optimizer then reads and writes the whole
    table.

    Why
    A batch of 4,096 reads at most 4,096 rows. Of a table with 100,000 rows, the other 96 % are written as
    zeros, read by the optimizer and written again. Many tables also mean many small kernels to launch.

    How to fix
    Use sparse gradients, and an optimizer that accepts them:

        table = nn.Embedding(rows, width, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=lr)

    SGD without momentum and Adagrad accept them too. Join tables of equal width into a single table with an
    offset per feature. TorchRec and fbgemm do both.

    When to ignore
    Weight decay, momentum, Adam's decay of unread rows, or gradient clipping must cover the whole table: the
    result differs. Many small tables under `SparseAdam` launch more kernels than dense gradients. Sixteen of
    them took twice the time, so join them first.

    How it is measured
    The rule looks at backward ops of embeddings with `min_rows_per_read` ({min_rows_per_read}) table rows or more per row read.
    The `low` estimate is `sparse=True` alone: no zeros, and optimizer kernels without the tables' share. If
    several tables have the same width, `expected` and `high` join them: a single lookup and gradient remain.
    Savings below `min_saving_share` ({min_saving_share}) of the step are not reported.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
    https://docs.pytorch.org/torchrec/
    """
    need_shapes(timeline)
    if not len(dense.gradients):
        return Clear(why="no embedding table gets a dense gradient")
    long = (dense.read > 0) & (dense.table >= min_rows_per_read * dense.read)
    if not long.any():
        return Clear(why=f"no embedding table has {min_rows_per_read:g} times as many rows as {A_STEP} reads")
    of_long = np.r_[long, False][dense.within]
    fills = dense.fills[of_long[dense.fills]]
    sparse = combine(WithoutOps(fills), WithDurations(dense.updates, work.dur_us[dense.updates] * (1.0 - dense.share)))
    joined = sparse
    tables = work.a_step(np.flatnonzero(long))
    several = tables > 1 and len({shape[1] for shape in dense.shapes}) == 1
    if several:
        joined = combine(sparse, *_joined_tables(timeline, work, dense, host_time))
    touched = np.flatnonzero(of_long)
    spent = work.us_a_step(touched) + float((work.dur_us[dense.updates] * dense.share).sum()) / work.schedule.steps
    rows, read = int(dense.table[long].sum()) / work.schedule.steps, int(dense.read[long].sum()) / work.schedule.steps
    return Found(
        summary=f"{counted(tables, 'embedding table')} of {rows:,.0f} rows get{'s' if tables == 1 else ''} a dense gradient {EVERY_STEP}, for {read:,.0f} rows read. "
        f"Filling, summing and applying them takes {duration(spent)} of GPU time.",
        edits=Edits(sparse, joined, joined),
        removes="dense gradients of embedding tables",
        quiet=f"dense gradients of embedding tables take {duration(spent)} {PER_STEP}",
        evidence=witness.of_gpu(
            work.rows[np.r_[touched, dense.updates]], ["dense gradient"] * len(touched) + ["update of the whole table"] * len(dense.updates)
        ),
        confidence=0.9,
        fix=Fix(
            title="Join the tables and use sparse gradients" if several else "Use sparse gradients for the embedding table",
            steps=(
                *(("Join embedding tables of equal width, and add an offset to each feature's ids.",) if several else ()),
                "Pass sparse=True to the table, so that its gradient holds the rows of the batch alone.",
                "Use an optimizer that takes sparse gradients: SGD without momentum and weight decay, Adagrad, or SparseAdam for the table and another for the rest.",
            ),
            code=_ONE_TABLE if several else _SPARSE,
            url="https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html",
            holds_for=("training", "torch"),
            risk="Momentum, weight decay and Adam's averages no longer change rows that the batch did not read. Clipping by the norm of all gradients needs its own code.",
        ),
    )


def _joined_tables(timeline: Timeline, work: GpuWork, dense: DenseGradients, host_time: HostTime) -> tuple[Edit, ...]:
    """What goes where the tables of a step are one: lookups and gradients of all but the first. The first then takes the rows of all, which costs little beside
    its launch."""
    gone, started, ended = [np.zeros(0, np.int64)], [np.zeros(0)], [np.zeros(0)]
    start, end = timeline.cpu_ops.bounds()
    for rows, of in ((dense.gradients, dense.within), (dense.lookups, dense.reading)):
        at = np.flatnonzero(of >= 0)
        if not len(at):
            continue
        _, first = np.unique(work.step[at], return_index=True)
        others = at[~np.isin(of[at], of[at[first]])]
        others = others[~np.isin(others, dense.fills)]
        calls = rows[np.unique(of[others])]
        gone.append(others)
        started.append(start[calls])
        ended.append(end[calls])
    return WithoutOps(np.concatenate(gone)), host_time.cut_time(union(np.concatenate(started), np.concatenate(ended)))
