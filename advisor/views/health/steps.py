"""Whether the steps represent how the program runs."""

from __future__ import annotations

import numpy as np

from advisor.knowledge.shares import CONSIDERABLE, HARDLY_ANY, MOST
from advisor.recordings.timeline import Timeline
from advisor.report.numbers import counted, duration, interval, percent
from advisor.report.recording import Health
from advisor.report.wording.checks import tolerated
from advisor.views.health.grades import HOST, compared
from advisor.views.trace.launches import launched_ops
from advisor.views.trace.marks import not_judged
from advisor.views.trace.startup import StartUp
from advisor.views.trace.step_marks import FEWEST_LAUNCHES
from advisor.views.trace.steps import Steps

STEP_SPREAD = CONSIDERABLE
"""Steps that differ by more than this share of their mean have no representative."""

FEWEST_OPS = FEWEST_LAUNCHES
"""A recording without steps that holds fewer GPU ops than this shows how a program starts, not how it runs."""

MOSTLY_ONCE = MOST
"""Of a window that is spent for more than this on what happens once, the rest is a start too: first launches, cold caches."""

START_UP = HARDLY_ANY
"""A window of which more than a twentieth happens once does not show how the program runs."""


def step_marks(timeline: Timeline, steps: Steps) -> Health:
    """Whether whole steps are marked, more than one, and alike."""
    check = "steps"
    again = "profile with schedule(wait=1, warmup=2, active=3) and call prof.step() after each step"
    count = int(launched_ops(timeline).sum())
    if steps.basis == "whole" and len(timeline.gpu_ops) and count < FEWEST_OPS:
        return compared(
            check,
            "failed",
            f"{counted(count, 'GPU op')} without step marks {'are' if count != 1 else 'is'} start-up, not a program: the host work may be start-up work",
            count,
            FEWEST_OPS,
            "count",
            touches=HOST,
            record_with=again,
            missing="steps",
        )
    if steps.basis == "whole":
        return Health(check=check, status="degraded", detail=steps.detail, record_with=again, missing="steps", reason="not-recorded")
    if steps.steps < 2:
        return compared(check, "degraded", f"{steps.detail}; a single step may mislead", steps.steps, 2, "count", record_with=again, missing="steps")
    spread = float(np.ptp(steps.periods_us)) / max(steps.step_us, 1e-9)
    detail = f"{steps.steps} whole steps{f' of {steps.kind}' if steps.kind else ''}, {interval(steps.periods_us.min(), steps.periods_us.max())}"
    if spread <= STEP_SPREAD:
        differ = f"they differ by {percent(spread, STEP_SPREAD)} ({tolerated(STEP_SPREAD)})"
        return compared(check, "ok", f"{detail}: {differ}{not_judged(steps.unjudged)}", spread, STEP_SPREAD)
    usual = float(np.median(steps.periods_us))
    far = np.flatnonzero(np.abs(steps.periods_us - usual) > STEP_SPREAD * usual)
    listed = ", ".join(f"no. {i + 1} with {duration(steps.periods_us[i])}" for i in far[:5]) + (" and more" if len(far) > 5 else "")
    return compared(
        check,
        "degraded",
        f"{detail}: they differ, so no step is typical"
        + (f" (far from the median: {listed})" if 0 < len(far) < steps.steps else "")
        + not_judged(steps.unjudged),
        spread,
        STEP_SPREAD,
        record_with="leave warm-up out (schedule's wait and warmup) and record more steps of the same kind",
        missing="steps",
    )


def start_up(steps: Steps, startup: StartUp) -> Health:
    """Whether the window holds what happens once: loading kernels, making contexts."""
    check = "start-up"
    share = startup.once_share(steps.start_us, steps.end_us)
    if share <= START_UP:
        little = f"{percent(share, START_UP)} of the window is start-up work ({tolerated(START_UP)})"
        return compared(check, "ok", little if share > 1e-6 else "the window holds no start-up work", share, START_UP, touches=HOST)
    return compared(
        check,
        "failed" if share > MOSTLY_ONCE else "degraded",
        f"{percent(share, START_UP)} of the window is start-up work (loading kernels, creating contexts, autotuning, graph capture), the longest call "
        f"{startup.longest(steps.start_us, steps.end_us)}",
        share,
        START_UP,
        touches=HOST,
        record_with="run a few steps before the recording begins: schedule(wait=1, warmup=2, active=3)",
        missing="steps",
    )
