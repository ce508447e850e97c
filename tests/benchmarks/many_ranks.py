"""How a job's analysis grows with its ranks: seconds and memory of the driver, from summaries alone.

    python -m tests.benchmarks.many_ranks 100 1000

The ranks are those of a recorded job of four, numbered on; one of them is late. What reading a rank takes does not depend on how
many there are.
"""

from __future__ import annotations

import resource
import sys
import time

import msgspec

from advisor.engine.fleet import Reduced, merged, reduced
from advisor.engine.reduce import Judging
from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.knowledge.structs import replace
from advisor.report.model import Report
from advisor.sources import read
from advisor.views.ranks.job import RankSummaries
from tests.paths import ROOT

JOB = ROOT / "samples" / "jobs" / "ddp_forward_host"
LATE = 1


def summaries(count: int, late: int) -> Reduced:
    """As many ranks as wanted, all alike but one."""
    part = reduced(read(JOB), Judging(rules=()), executor="serial").parts[0]
    assert isinstance(part, RankSummaries)
    alike = [one for one in part.ranks if one.rank != LATE]
    made = []
    for rank in range(count):
        one = part.ranks[LATE] if rank == late else alike[rank % len(alike)]
        facts = msgspec.structs.replace(one.facts, rank=rank, world_size=count, label=f"rank{rank}", groups=("0",) * len(one.facts.groups))
        made.append(replace(one, facts=facts).to_bytes())
    return Reduced(tuple(made))


def report(count: int, late: int = 7) -> Report:
    """The report of a job of so many ranks."""
    return run(merged(summaries(count, late), "generated"), [rule for rule in catalog().values() if "ranks" in rule.relies_on])


def main() -> None:
    for count in map(int, sys.argv[1:]):
        given = summaries(count, 7)
        start = time.perf_counter()
        recording = merged(given, "generated")
        between = time.perf_counter()
        made = run(recording, catalog().values())
        done = time.perf_counter()
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        sizes = sum(map(len, given.summaries)) / count / 1e3
        print(
            f"{count} ranks of {sizes:.1f} kB: {between - start:.1f} s to read, {done - between:.1f} s to judge, {peak_mb:.0f} MB at most, "
            f"first {made.findings[0].rule} of rank {made.findings[0].ranks[0]}"
        )


if __name__ == "__main__":
    main()
