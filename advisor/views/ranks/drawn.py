"""What a job's page draws: each rank's steps, who waits for whom, and the ranks side by side around their worst collective."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from advisor.intervals import Floats
from advisor.report.charts import ROWS
from advisor.report.ranks import CollectiveMoment, RankMoment, RankSpan, RankStep, WaitRow
from advisor.views.ranks.collectives import KINDS
from advisor.views.ranks.job import Job
from advisor.views.ranks.lane import PARTS
from advisor.views.ranks.summary import STRIP, RankSummary

SHOWN_RANKS = 24
"""Ranks around a collective: half of them the last to come, half the first; others of the job if there is room."""

BEFORE, AFTER = 1.5, 0.5
"""What is shown around a collective, as multiples of the longest wait for it; at least and at most so many µs."""
LEAST_US, MOST_US = 200.0, 1e6  # what lies between is seen on one screen

_NAMES = {"communication": "wait", "sync": "host", "launch": "host", "data-loading": "input"}


def rank_steps(job: Job) -> list[tuple[RankStep, ...]]:
    """Each rank's steps. What collectives take of a step while nothing else runs is waiting and transfer as all of the step's are."""
    matched = job.matched
    waits: list[Floats] = []
    transfer = matched.transfer_us[matched.collective]
    for at, one in enumerate(job.ranks):
        mine = np.flatnonzero(matched.of == at)
        step = one.step[matched.row[mine]]
        inside = (step >= 0) & (step < len(one.steps_us))
        mine, step = mine[inside], step[inside]
        waited, moved = (np.bincount(step, weights=us[mine], minlength=len(one.steps_us)) for us in (matched.wait_us, transfer))
        waits.append(np.maximum(one.steps_us[:, PARTS.index("communication")], 0.0) * waited / np.maximum(waited + moved, 1e-9))
    compute = PARTS.index("compute")
    return [
        tuple(RankStep(float(parts.sum()), float(parts[compute]), float(wait)) for parts, wait in zip(one.steps_us, of_rank, strict=True))
        for one, of_rank in zip(job.ranks, waits, strict=True)
    ]


def wait_rows(job: Job) -> tuple[WaitRow, ...]:
    """Who waits for whom, most first."""
    rank, late, us = job.waits_for
    order = np.argsort(-us, kind="stable")[:ROWS]
    return tuple(WaitRow(rank=job.numbers[rank[i]], waits_for=job.numbers[late[i]], wait_us=float(us[i])) for i in order.tolist() if us[i] > 0)


def worst(job: Job) -> CollectiveMoment | None:
    """The window's collective with most waiting in it, and what ranks did around it; None if none is matched."""
    matched = job.matched
    if not matched.proved or not job.in_window.any():
        return None
    wait = np.where(job.in_window, np.bincount(matched.collective, weights=matched.wait_us, minlength=matched.count), -1.0)
    number = int(wait.argmax())
    entries = np.flatnonzero(matched.collective == number)
    entries = entries[np.argsort(matched.arrival_us[entries], kind="stable")]
    begin, end = float(matched.begin_us[number]), float(matched.end_us[entries].max())
    longest = float(np.clip(matched.wait_us[entries].max(), LEAST_US, MOST_US))
    low, high = begin - BEFORE * longest, end + AFTER * longest
    if len(entries) > SHOWN_RANKS:
        entries = np.r_[entries[: SHOWN_RANKS // 2], entries[-SHOWN_RANKS // 2 :]]
    last = int(matched.last[number])
    entry_of = dict(zip(matched.of[entries].tolist(), entries.tolist(), strict=True))
    others = [at for at in range(len(job.ranks)) if at not in entry_of][: max(SHOWN_RANKS - len(entry_of), 0)]
    ranks = [
        RankMoment(
            rank=job.numbers[at], spans=_spans(job, at, low, high, begin),
            arrival_us=float(matched.arrival_us[entry_of[at]] - low) if at in entry_of else None,
            end_us=float(matched.end_us[entry_of[at]] - low) if at in entry_of else None,
        )
        for at in sorted([*entry_of, *others])
    ]  # fmt: skip
    return CollectiveMoment(
        kind=KINDS[matched.kind[number]].value, group=matched.groups[matched.group[number]], bytes=int(matched.bytes[number]),
        step=int(job.ranks[matched.of[last]].step[matched.row[last]]), last=job.numbers[matched.of[last]], wait_us=float(wait[number]),
        begin_us=begin - low, span_us=high - low, ranks=tuple(ranks),
    )  # fmt: skip


def _spans(job: Job, at: int, low: float, high: float, begin: float) -> tuple[RankSpan, ...]:
    """The rank's strip from low to high on the job's clock; waiting after the last has come is transfer."""
    one = job.ranks[at]
    shift = (one.facts.base_ns - job.base_ns) / 1000.0 - float(job.matched.offsets_us[at])
    edges = _edges(one) + shift
    first, last = max(int(np.searchsorted(edges, low, side="right")) - 1, 0), min(int(np.searchsorted(edges, high)), STRIP)
    codes = one.strip[first:last]
    turns = np.r_[0, np.flatnonzero(np.diff(codes)) + 1, len(codes)]
    made: list[RankSpan] = []
    for a, b in pairwise(turns.tolist()):
        if a == b:
            continue
        part = PARTS[codes[a]]
        start, end = (float(np.clip(edges[first + i], low, high)) - low for i in (a, b))
        middle = begin - low
        if part == "communication" and start < middle < end:
            made += [RankSpan("wait", start, middle), RankSpan("transfer", middle, end)]
        elif part == "communication" and start >= middle:
            made.append(RankSpan("transfer", start, end))
        else:
            made.append(RankSpan(_NAMES.get(part, part), start, end))
    return tuple(span for span in made if span.end_us > span.start_us)


def _edges(one: RankSummary) -> Floats:
    return np.linspace(one.facts.start_us, one.facts.end_us, STRIP + 1)
