"""What links between ranks carried: waits, transfers and bus bandwidth by kind, size and group."""

from __future__ import annotations

import numpy as np

from advisor.knowledge.collectives import bus_factor, link_gbps
from advisor.report.charts import ROWS
from advisor.report.ranks import CollectiveRow
from advisor.views.groups import Groups
from advisor.views.ranks.collectives import KINDS
from advisor.views.ranks.job import Job


def bus_gbps(job: Job) -> np.ndarray:
    """(collectives,) bus bandwidth of each in 1e9 bytes a second, 0 if its size is unknown or its transfer too short to time."""
    matched = job.matched
    factor = np.array([bus_factor(KINDS[k], n) for k, n in zip(matched.kind.tolist(), matched.size.tolist(), strict=True)])
    usable = (matched.bytes > 0) & (matched.transfer_us > 1.0)
    return np.where(usable, matched.bytes * factor / np.maximum(matched.transfer_us, 1.0) / 1e3, 0.0)


def nodes(job: Job) -> np.ndarray:
    """(collectives,) how many machines the ranks of each run on, 0 if that is unknown of one of them."""
    hosts = [s.facts.host for s in job.ranks]
    matched, number = job.matched, {host: i for i, host in enumerate(dict.fromkeys(hosts))}
    host = np.array([number[h] for h in hosts], np.int64)[matched.of]
    pairs = np.unique(np.c_[matched.collective, host], axis=0)
    made: np.ndarray = np.bincount(pairs[:, 0], minlength=matched.count)
    made[matched.collective[np.array([not h for h in hosts], bool)[matched.of]]] = 0
    return made


def collective_rows(job: Job) -> tuple[CollectiveRow, ...]:
    """The collectives of a step by kind, group and size; most time first."""
    matched = job.matched
    if not matched.count:
        return ()
    inside = job.in_window
    keys = [column[inside] for column in (matched.kind, matched.group, nodes(job), matched.size, matched.bytes)]
    transfer = matched.transfer_us[inside]
    wait = (np.bincount(matched.collective, weights=matched.wait_us, minlength=matched.count) / matched.size)[inside]
    alike = Groups.by_keys(*keys)
    sums = alike.sums(wait=wait, transfer=transfer)
    columns = (*(key[alike.first] for key in keys), alike.rows, sums["wait"], sums["transfer"], alike.medians(transfer), alike.medians(bus_gbps(job)[inside]))
    longest = np.argsort(-(sums["wait"] + sums["transfer"]), kind="stable")[:ROWS]
    peak = link_gbps(job.ranks[0].facts.device)
    return tuple(
        CollectiveRow(
            kind=KINDS[kind].value, group=matched.groups[group], ranks=size, bytes=number, calls=calls / job.steps,
            wait_us=wait_us / job.steps, transfer_us=transfer_us / job.steps, transfer_each_us=each_us, bus_gbps=gbps,
            link_gbps=peak if count < 2 else 0.0, nodes=count,  # the adapter between machines is not recorded
        )
        for kind, group, count, size, number, calls, wait_us, transfer_us, each_us, gbps in zip(*(column[longest].tolist() for column in columns), strict=True)
    )  # fmt: skip
