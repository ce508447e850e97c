"""A link that carries less than others like it."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from advisor.engine.rule import Found, Outcome, Range, Share, rule
from advisor.knowledge.collectives import Collective
from advisor.report.finding import Clear, Evidence, Fix
from advisor.report.numbers import counted, percent
from advisor.views.ranks.collectives import KINDS
from advisor.views.ranks.edits import JobEdits, Transfers
from advisor.views.ranks.job import Job
from advisor.views.ranks.links import bus_gbps, nodes


@rule("slow-link", relies_on=("ranks",), min_saving_share=0.02)
def slow_link(job: Job, *, large_mib: Annotated[float, Range(0.0)] = 4.0, min_calls: Annotated[int, Range(1)] = 4, slow_share: Share = 0.6) -> Outcome:
    """A group's link carries less than those of similar groups

    What
    Collectives of the same kind and size take longer in a group of ranks than in the other groups. Causes are a
    link at a lower rate, a path through the host, or a node with another topology.

    Why
    The group's ranks wait for their data, and all other ranks wait for them.

    How to fix
    Check the link, then NCCL's choice, then the cable:

        nvidia-smi nvlink -s
        nvidia-smi topo -m
        ibstat
        NCCL_DEBUG=INFO torchrun train.py

    When to ignore
    The group spans several nodes, the others do not, and the traces' names do not show it.

    How it is measured
    Bus bandwidth is measured from the arrival of the last rank to the end, for collectives of `large_mib` ({large_mib})
    MiB or more. The rule takes medians of `min_calls` ({min_calls}) calls or more by kind, size and group. A group is
    slow below `slow_share` ({slow_share}) of the median of groups with the same kind, size, ranks and machines. The job
    is replayed at their rate. Savings below `min_saving_share` ({min_saving_share}) of the job's step are not reported.

    References
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    matched, rate = job.matched, bus_gbps(job)
    usable = job.in_window & (rate > 0) & (matched.bytes >= large_mib * 2**20)
    by_like: dict[tuple[int, int, int, int], dict[int, np.ndarray]] = {}
    on = nodes(job)
    for kind, size, count, over, group in {tuple(row) for row in np.c_[matched.kind, matched.bytes, matched.size, on, matched.group][usable].tolist()}:
        alike = (matched.kind == kind) & (matched.bytes == size) & (matched.size == count) & (on == over)
        rows = np.flatnonzero(usable & alike & (matched.group == group))
        if len(rows) >= min_calls and KINDS[kind] is not Collective.POINT_TO_POINT:
            by_like.setdefault((kind, size, count, over), {})[group] = rows
    best = 0.0
    for (kind, size, count, _), groups in by_like.items():
        if len(groups) < 2:
            continue
        rates = {g: float(np.median(rate[rows])) for g, rows in groups.items()}
        for group, reached in rates.items():
            usual = float(np.median([r for g, r in rates.items() if g != group]))
            best = max(best, usual / reached)
            if reached < slow_share * usual:
                rows = groups[group]
                ranks = tuple(sorted({job.numbers[r] for r in matched.of[np.isin(matched.collective, rows)].tolist()}))
                edit = Transfers(tuple(rows.tolist()), reached / usual)
                return Found(
                    summary=f"Ranks {', '.join(map(str, ranks[:8]))} reach {reached:.0f} GB/s in a {KINDS[kind].value} of {size / 2**20:.0f} MiB, groups like theirs {usual:.0f}.",
                    evidence=(
                        Evidence(label=f"{KINDS[kind].value} of {size / 2**20:.0f} MiB on {count} ranks at {reached:.0f} GB/s", start_us=0.0,
                                 dur_us=float(matched.transfer_us[rows].sum()) / job.steps, count=len(rows)),
                    ),
                    fix=Fix(
                        title="Check the group's link",
                        steps=(
                            "nvidia-smi nvlink -s and nvidia-smi topo -m on its nodes; ibstat for the adapters between nodes.",
                            "NCCL_DEBUG=INFO shows which path was chosen; compare it with that of a fast group.",
                        ),
                        url="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
                    ),
                    edits=JobEdits(edit, edit, edit),
                    removes="time of the group's transfers beyond others'",
                    quiet=f"a group reaches {percent(reached / usual)} of the others' rate",
                    confidence=0.75,
                    cause="communication",
                    ranks=ranks,
                )  # fmt: skip
    compared = sum(len(groups) > 1 for groups in by_like.values())
    return Clear(
        why=f"{counted(compared, 'size')} compared between groups; the slowest is {best:.2f} times as slow as its like"
        if compared
        else "no two groups of ranks move the same sizes: nothing to compare"
    )
