"""Whether the events fit each other: clocks, launches and their ops, streams, what kernels can reach."""

from __future__ import annotations

import numpy as np

from advisor.intervals import CLOCKS_APART_US, union
from advisor.knowledge.how_to_record import AS_WRITTEN, RECORD_BOTH
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.shares import HARDLY_ANY
from advisor.recordings.timeline import Timeline
from advisor.report.numbers import counted, percent, three
from advisor.report.recording import Health
from advisor.report.wording.checks import tolerated
from advisor.views.health.grades import FEW, HOST, MANY, compared, graded
from advisor.views.time.roofline import Roofline
from advisor.views.trace.launches import Launches, launched_ops
from advisor.views.trace.steps import Steps

SKEWED = HARDLY_ANY
"""Clocks that disagree by less than what tells more than 95 % of the idle time leave the cause of the gaps known."""

LINKED = 0.7
"""Where fewer GPU ops than this are tied to their launch, what the host did for the others is not known."""

EARLY_START_US = cost("early-start")

ABOVE = 1 + HARDLY_ANY
"""A kernel that is faster than the datasheet allows by more than this is unknown by rounding: its work, its clock or its cache is."""


def causality(timeline: Timeline, launches: Launches, steps: Steps) -> Health:
    """Whether GPU ops start after their launch: if not, the clocks disagree."""
    check = "clock-causality"
    known = ~np.isnan(launches.start_us)
    if not known.any():
        return Health(check=check, status="ok", detail="no launches recorded, so nothing to compare", touches=HOST, reason="nothing-to-check")
    early = launches.start_us[known] - timeline.gpu_ops["start_us"][known]
    bad, slack = int((early > CLOCKS_APART_US).sum()), f"up to {CLOCKS_APART_US:g} µs is tolerated"
    if not bad:
        of, before = counted(len(early), "GPU op"), int((early > 0).sum())
        some = f"{before:,} of {of} start before their launch, by up to {three(early.max())} µs ({slack})"
        set_by = timeline.source.device_clock_us
        told = f"; the device's clock was behind: it is set forward by {three(set_by)} µs, as no launch is faster" if set_by else ""
        return compared(
            check,
            "ok",
            (some if before else f"of {of} with a launch none starts before it") + told,
            max(float(early.max()), 0.0),
            CLOCKS_APART_US,
            "us",
            touches=HOST,
            reason="within-threshold" if before else "absent",
        )
    failed = bad / int(known.sum()) > MANY and _in_doubt(timeline, steps, float(early.max())) > SKEWED
    return compared(
        check,
        "failed" if failed else "degraded",
        f"{bad} of {int(known.sum())} GPU ops start before their launch, by up to {early.max():.0f} µs ({slack}). "
        f"Host and device clocks disagree, so {'gaps cannot' if failed else 'short gaps cannot'} be blamed on the host",
        float(early.max()),
        CLOCKS_APART_US,
        "us",
        touches=HOST,
        record_with="record again on an idle machine, a few steps long; the clocks are matched when the recording starts",
    )


def _in_doubt(timeline: Timeline, steps: Steps, skew_us: float) -> float:
    """Share of the devices' idle time in the window whose cause clocks that disagree by `skew_us` may hide: that much of each gap."""
    ops = timeline.gpu_ops
    device, start, end = ops["device"], *ops.bounds()
    window = steps.start_us, steps.end_us
    busy = [union(start[device == d], end[device == d]) for d in np.unique(device)]
    gaps = np.concatenate([np.clip(starts[1:], *window) - np.clip(ends[:-1], *window) for starts, ends in busy])
    return float(np.minimum(gaps, skew_us).sum()) / max(float(gaps.sum()), 1e-9) if gaps.any() else 1.0


def links(timeline: Timeline, launches: Launches, steps: Steps) -> Health:
    """Whether GPU ops are tied to the call that launched them, each to one."""
    check = "launch-links"
    start = timeline.gpu_ops["start_us"]
    inside = steps.holds(start) & launched_ops(timeline)
    if not inside.any():
        return Health(check=check, status="ok", detail="the window holds no GPU work", touches=HOST, reason="nothing-to-check")
    linked = float((launches.call[inside] >= 0).mean())
    if launches.ambiguous:
        return compared(
            check,
            "failed" if launches.ambiguous > MANY * len(start) else "degraded",
            f"{launches.ambiguous} GPU ops share a correlation id with several launches: is this a merge of several ranks?",
            float(launches.ambiguous),
            0.0,
            "count",
            touches=HOST,
            record_with="give the trace of a single rank, as the profiler wrote it",
            reason="other-recording",
        )
    if linked < LINKED:
        again = AS_WRITTEN if len(timeline.cpu_ops) else RECORD_BOTH
        return compared(
            check,
            "degraded",
            f"{f'only {linked:.0%}' if linked else 'none'} of {counted(int(inside.sum()), 'GPU op')} in the window "
            f"{'have their launch' if linked else 'has its launch'} in the trace",
            linked,
            LINKED,
            touches=HOST,
            record_with=again.text,
            missing=again.missing,
            reason="not-recorded",
        )
    of = counted(int(inside.sum()), "GPU op")
    return compared(check, "ok", f"{percent(linked)} of {of} in the window are tied to the call that launched them", linked, LINKED, touches=HOST)


def stream_order(timeline: Timeline, steps: Steps) -> Health:
    """Ops of one stream run in turn. Programmatic launch starts one a little early; nodes of a graph may run side by side."""
    check = "stream-order"
    ops = timeline.gpu_ops
    start, dur = ops["start_us"], ops["dur_us"]
    rows = np.flatnonzero(steps.holds(start))
    device, stream = ops["device"], ops["stream"]
    rows = rows[np.lexsort((start[rows], stream[rows], device[rows]))]
    same = (device[rows[1:]] == device[rows[:-1]]) & (stream[rows[1:]] == stream[rows[:-1]])
    correlation = ops["correlation"]
    one_graph = (correlation[rows[1:]] == correlation[rows[:-1]]) & (correlation[rows[1:]] >= 0)
    overlap = start[rows[:-1]] + dur[rows[:-1]] - start[rows[1:]]
    shorter = np.minimum(dur[rows[1:]], dur[rows[:-1]])
    # A file that was merged with itself holds each op twice, with one correlation as nodes of a graph have. Merged ranks have a check of their own.
    ranks = any(issue.check == "one-rank" for issue in timeline.source.issues)
    name = ops["name"].codes
    twice = (name[rows[1:]] == name[rows[:-1]]) & (start[rows[1:]] == start[rows[:-1]]) & (dur[rows[1:]] == dur[rows[:-1]]) & (not ranks)
    bad = int((same & (~one_graph | twice) & (overlap > np.maximum(0.5 * shorter, EARLY_START_US))).sum())
    share = bad / max(len(rows) - 1, 1)
    most = f"another op of their stream by half of the shorter and {EARLY_START_US:g} µs"
    if graded(share) == "ok":
        few = f"{bad:,} of {len(rows):,} GPU ops in the window overlap {most} ({tolerated(FEW)})"
        none = f"of {counted(len(rows), 'GPU op')} in the window none overlaps {most}"
        return compared(check, "ok", few if bad else none, share, FEW, reason="within-threshold" if bad else "absent")
    return compared(
        check,
        graded(share),
        f"{bad:,} of {len(rows):,} GPU ops in the window overlap {most}. Ops of a stream run in turn: the profiler "
        "merged several queues, ranks were merged, or times are damaged",
        share,
        FEW,
        record_with="give the trace of a single rank, as the profiler wrote it",
    )


def faster_than_possible(timeline: Timeline, steps: Steps, roofline: Roofline) -> Health:
    """Kernels above their roofline: where most of their bytes fit into the L2 cache, they never came from memory; else a formula or a
    rate is wrong. Nothing rests on it: rules take the lesser of both times."""
    check = "roofline"
    ops = timeline.gpu_ops
    start, dur = ops["start_us"], ops["dur_us"]
    known = steps.holds(start) & ~np.isnan(roofline.peak_us) & (dur > 0)
    if not known.any():
        return Health(check=check, status="ok", detail="no kernel's work and limit are known", touches=(), reason="nothing-to-check")
    l2 = np.array([(roofline.peaks[d].l2_mbytes or 0.0) * 1e6 if d in roofline.peaks else 0.0 for d in ops["device"].tolist()])
    above = known & (roofline.peak_us > ABOVE * dur)
    cached = above & (roofline.bytes <= l2)
    share, from_cache = (float(dur[rows].sum() / dur[known].sum()) for rows in (above & ~cached, cached))
    detail = f"{percent(share, MANY)} of the time of kernels with known work is more than {100 * (ABOVE - 1):.0f}% above the roofline ({tolerated(MANY)})"
    if from_cache >= FEW:
        detail += f"; {from_cache:.0%} more by data in the L2 cache"
    if share <= MANY:
        return compared(check, "ok", detail, share, MANY, touches=())
    worst = int(np.flatnonzero(above & ~cached)[np.argmax(roofline.peak_us[above & ~cached] / dur[above & ~cached])])
    return compared(
        check,
        "degraded",
        f"{detail}: a formula, a clock or a cache is assumed wrongly. The farthest is {str(ops['name'][worst])[:80]}, "
        f"{roofline.peak_us[worst] / dur[worst]:.1f} times as fast as the datasheet allows",
        share,
        MANY,
        touches=(),
        record_with="give the device's rates in [tool.advisor.devices]",
    )
