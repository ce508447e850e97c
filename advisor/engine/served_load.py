"""What clients or counters measured of a server beside its trace, and whether the traced steps are of that state."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.knowledge.server_marks import DECODE, MIXED, VERIFY
from advisor.knowledge.shares import FAR_APART, UNUSUAL
from advisor.recordings.served_load import LoadBeside
from advisor.report.numbers import duration
from advisor.report.recording import Health
from advisor.report.serving import Decoding, ServingLoad
from advisor.views.trace.serving import Serving

SAME_BATCH = UNUSUAL
"""Requests in the traced steps against those that ran when it was measured: in a steady state the batch changes by less."""
SAME_STEP = FAR_APART
"""A traced step against the measured time per token: recording makes a step longer, and prompts that are taken in make tokens wait."""


def load_beside(beside: LoadBeside) -> LoadBeside:
    """Measurements that were given with the trace."""
    return beside


def decoding(serving: Serving) -> Decoding | None:
    """The traced decode steps; None without any."""
    steps = [step for step in serving.steps if step.mark.phase in (DECODE, MIXED, VERIFY) and step.mark.decodes > 0]
    if not steps:
        return None
    batch, third = [step.mark.decodes for step in steps], max(len(steps) // 3, 1)
    took = [step.lasts_us for step in steps if step.mark.phase == DECODE and step.whole]
    return Decoding(
        requests=float(np.median(batch)),
        first=float(np.mean(batch[:third])),
        last=float(np.mean(batch[-third:])),
        step_us=float(np.median(took)) if took else None,
    )


def judged(load: ServingLoad, traced: Decoding | None) -> ServingLoad:
    """Compares the traced decode steps with the measured state."""

    def is_steady(steady: str, why: str) -> ServingLoad:
        return msgspec.structs.replace(load, steady=steady, why=why)

    if traced is None:
        return is_steady("unknown", "no traced step decodes")
    told = f"they decode {traced.requests:,.0f} requests"
    if not _alike(traced.first, traced.last, SAME_BATCH):
        return is_steady("no", f"from the first to the last of them the requests change from {traced.first:,.0f} to {traced.last:,.0f}")
    if load.running is not None and not _alike(traced.requests, load.running, SAME_BATCH):
        return is_steady("no", f"{told}, and {load.running:,.1f} ran when it was measured")
    each_us = 1e3 * load.tpot.usual_ms if load.tpot and load.tpot.usual_ms and not load.accepted_tokens else 0.0
    if traced.step_us and each_us:
        if not _alike(traced.step_us, each_us, SAME_STEP):
            return is_steady("no", f"a traced decode step takes {duration(traced.step_us)}, and a token took {duration(each_us)} when it was measured")
    elif load.running is None:
        return is_steady("unknown", "neither the requests that ran nor the time per token were measured")
    return is_steady("yes", told)


def _alike(one: float, other: float, most: float) -> bool:
    return one <= most * other and other <= most * one


def load_check(load: ServingLoad | None) -> Health:
    """Whether what was measured is of the traced steps."""
    name = "serving-load"
    if load is None:
        return Health(check=name, status="degraded", detail="the trace holds no step that a server marks", touches=(), reason="nothing-to-check")
    told = {
        "yes": f"the traced steps are of the state that {load.source} measured: {load.why}",
        "no": f"the traced steps are not of the state that {load.source} measured: {load.why}",
        "unknown": f"whether the traced steps are of the state that {load.source} measured is not known: {load.why}",
    }[load.steady]
    again = "record while the server is under the load that was measured, once it runs as many requests as it keeps" if load.steady == "no" else ""
    return Health(
        check=name,
        status="degraded" if again else "ok",
        detail=told,
        touches=(),
        record_with=again,
        reason="disagreement" if again else "within-threshold" if load.steady == "yes" else "nothing-to-check",
    )
