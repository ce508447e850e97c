"""A group whose transfers take longer than those of its like."""

from __future__ import annotations

import msgspec

from advisor.engine.rule import built_in
from advisor.knowledge.structs import replace
from advisor.report.finding import Clear
from advisor.views.ranks.job import Job, RankSummaries
from tests.views.ranks import build


def job(monkeypatch, slow_us):
    """Two pairs of ranks; the second's collectives take `slow_us`, the first's 100 µs."""
    work = [[[1000.0, 500.0]] * 4] * 2
    ranks = []
    for pair, transfer in enumerate((100.0, slow_us)):
        monkeypatch.setattr(build, "TRANSFER_US", transfer)
        for r in range(2):
            one = build.summary_of(build.rank_timeline(r, work[r], work, group=str(pair), members=str([2 * pair, 2 * pair + 1])))
            ranks.append(replace(one, facts=msgspec.structs.replace(one.facts, rank=2 * pair + r, world_size=4)))
    return Job.build(RankSummaries(tuple(ranks)))


def test_the_slower_group_is_named(monkeypatch):
    found = built_in()["slow-link"].function(job(monkeypatch, 400.0))
    assert found.ranks == (2, 3) and found.cause == "communication"


def test_groups_alike_are_left_alone(monkeypatch):
    assert isinstance(built_in()["slow-link"].function(job(monkeypatch, 110.0)), Clear)
