"""Exposed communication, where all ranks of a job were recorded."""

from __future__ import annotations

import msgspec

from advisor.engine.rule import Found, Outcome
from advisor.knowledge.measured_costs import costs
from advisor.report.finding import Advice, Clear, Conditional, Evidence, Fix
from advisor.report.numbers import duration_of, percent, threshold
from advisor.report.wording.period import PER_STEP, THE_STEP
from advisor.rules._collectives import HIDDEN
from advisor.rules._sums import MIN_SHARE, needed_of_job
from advisor.rules.fixes import for_framework, known_fix
from advisor.views.ranks.edits import Ahead, JobEdits, LessComputing, Several, Transfers
from advisor.views.ranks.exposure import Exposure
from advisor.views.ranks.job import Job

GATHERS = costs("overlap-of-gathers")


def of_job(job: Job, exposure: Exposure, min_gain_share: float) -> Outcome:
    if exposure.needed_us >= max(MIN_SHARE * exposure.step_us, exposure.transfer_us):
        return needed_of_job(job, exposure)
    if not exposure.collectives:
        return Clear(why=f"exposed transfers take {percent(exposure.all_us / exposure.step_us)} of {THE_STEP}; none of them could overlap computing")
    gathers = tuple(c for c, g in zip(exposure.collectives, exposure.gathers.tolist(), strict=True) if g)
    reduces = tuple(c for c, g in zip(exposure.collectives, exposure.gathers.tolist(), strict=True) if not g)
    gathered = float(exposure.each_us[exposure.gathers].sum()) / max(job.steps, 1)
    low, expected, high = (
        Several((Ahead(gathers), LessComputing((-(1 - of_gathers) * gathered,)), Transfers(reduces, 1 - of_reduces)))
        for of_gathers, of_reduces in zip(GATHERS, HIDDEN, strict=True)
    )
    count = len(exposure.collectives) / max(job.steps, 1)
    gain = job.replay.share(job.replay.corrected, expected)
    if gain < min_gain_share:
        return Clear(
            why=f"transfers that could overlap computing take {percent(exposure.transfer_us / exposure.step_us)} of {THE_STEP}; "
            f"with overlap {THE_STEP} would gain {percent(gain, min_gain_share)} (threshold {threshold(min_gain_share)})"
        )
    what = "gathers and scatters" if len(gathers) >= len(reduces) else "all-reduces"
    return Found(
        title="Gathering weights overlaps no computing"
        if len(gathers) >= len(reduces)
        else "Gradients are averaged after the backward pass, not during it"
        if job.trains
        else "All-reduces overlap no computing",
        summary=f"{count:.0f} {what} {PER_STEP} move data for {duration_of(exposure.transfer_us, exposure.step_us)} "
        "while no rank computes; they could overlap computing.",
        evidence=(
            Evidence(label=f"exposed transfers of {what}, a step", start_us=0.0, dur_us=exposure.transfer_us, count=max(round(count), 1)),
            Evidence(label="exposed transfers of all collectives, a step", start_us=0.0, dur_us=exposure.all_us),
        ),
        fix=_GATHER_AHEAD
        if len(gathers) >= len(reduces)
        else known_fix("pytorch", "buckets")
        if job.trains
        else for_framework(job.framework, "exposed-communication", _BESIDE),
        edits=JobEdits(low, expected, high),
        removes="transfers that could overlap computing",
        at_most_us=max(exposure.transfer_us, gain * exposure.step_us),
        confidence=0.8,
        cause="communication",
        ranks=job.numbers,
    )


RECORD = known_fix("jobs", "record")
"""Where nothing is trained."""


_BESIDE = Fix(title="Start collectives early and wait for them late", steps=RECORD.steps[1:], code=RECORD.code, url=RECORD.url, risk=RECORD.risk)


_GATHER = known_fix("jobs", "gather-ahead")
_GATHER_AHEAD = msgspec.structs.replace(
    _GATHER, steps=(*_GATHER.steps, Advice(Conditional("training", "Scatter gradients from a hook, on a stream of their own.")))
)
