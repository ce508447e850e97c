"""A memory snapshot beside a timeline: what its rules find stands in the timeline's report, apart from what the step gains."""

from __future__ import annotations

from advisor.engine.outcome import Outcomes
from advisor.engine.rule import Judged
from advisor.report.finding import SEVERITIES, BytesSaved, Skipped


def with_memory(step: Outcomes, memory: Outcomes) -> Outcomes:
    """Both, severest first, of one severity the step's first.

    Only bytes of the peak are a snapshot's to promise here: what it takes of time, the timeline judges itself.
    """
    timed = [f for f in memory.found if not isinstance(f.finding.saving, BytesSaved)]
    skipped = [Skipped(rule=f.finding.rule, why=f"{f.finding.summary} What that costs the step, the rule allocator reads from the timeline.") for f in timed]
    return Outcomes(
        found=sorted([*step.found, *(f for f in memory.found if f not in timed)], key=_severity),
        clear=step.clear + memory.clear,
        skipped=step.skipped + memory.skipped + skipped,
        failed=step.failed + memory.failed,
    )


def _severity(found: Judged) -> int:
    return SEVERITIES.index(found.finding.severity)
