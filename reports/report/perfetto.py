"""A Chrome trace for https://ui.perfetto.dev: the representative step and its launch queue, with the findings as tracks of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from advisor.engine.analysis import Analysis, picture_in, report_in
from advisor.report.charts import Cut, Lane, Moment, QueueCurve
from advisor.report.finding import BytesSaved, Finding
from advisor.report.model import Report
from advisor.report.wording import source_line, unseen
from advisor.reports._clean import visible
from advisor.reports.report._queue import points

NAME = "perfetto"
SUFFIX = ".perfetto.json"
DRAWS = True

_FINDINGS, _GPU, _IDLE = 10_000_000, 20_000_000, 30_000_000
"""Processes of the findings, and of each device with its number added. Linux has none above 4,194,304, Perfetto reads 32 bits."""
_BITS = 0x7FFF_FFFF


def render(shown: Analysis | Report) -> str:
    """Chrome trace JSON, in the trace's own time. A saved report holds no step: its findings alone are written."""
    report, picture = report_in(shown), picture_in(shown)
    events = [*_cut(picture.step)] if picture and picture.step else []
    if picture and picture.step:
        events += [event for curve in picture.queues for event in _queue(curve, picture.step)]
    moments = picture.moments if picture else ()
    # Of a snapshot beside a trace, the moments are not the trace's.
    told = [at for at, finding in enumerate(report.findings) if report.kind != "trace" or not isinstance(finding.saving, BytesSaved)]
    for number, at in enumerate(told):
        events += _finding(number, report.findings[at], moments[at] if at < len(moments) else None)
    head = {"advisor": report.advisor, "trace": visible(report.source.path), "bottleneck": report.headline.bottleneck}
    head |= {"unseen": visible(left)} if (left := unseen(report)) else {}
    lines = ",\n".join(json.dumps(event, separators=(",", ":"), allow_nan=False) for event in events)
    return f'{{"displayTimeUnit": "ns", "trace-advisor": {json.dumps(head)}, "traceEvents": [\n{lines}\n]}}\n'


def _process(lane: Lane) -> int:
    return (lane.process & _BITS) + {"host": 0, "gpu": _GPU, "idle": _IDLE}[lane.side]


def _names(process: int, name: str, order: int) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": order}}


def _cut(cut: Cut) -> Iterator[dict[str, Any]]:
    """Lanes as processes and threads, slices, and an arrow from each launch to its work."""
    known: set[int] = set()
    for lane in cut.lanes:
        process = _process(lane)
        if process not in known:
            known.add(process)
            label = {"host": "host", "gpu": f"GPU {lane.process}", "idle": f"GPU {lane.process}, why it idles"}[lane.side]
            yield from _names(process, label, {"host": 1, "idle": 2, "gpu": 3}[lane.side])
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": lane.track & _BITS, "args": {"name": visible(lane.label)}}
    names = [visible(name) for name in cut.names]
    rows = zip(
        cut.lane.tolist(), cut.name.tolist(), cut.kind.tolist(), cut.slice_start_us.tolist(), cut.slice_dur_us.tolist(),
        cut.op.tolist(), cut.launched_by.tolist(), strict=True,
    )  # fmt: skip
    starts, lanes = cut.slice_start_us.tolist(), cut.lane.tolist()
    for row, (at, name, kind, start, dur, op, call) in enumerate(rows):
        lane = cut.lanes[at]
        args = {"op": names[op]} if op >= 0 else {}
        place = {"pid": _process(lane), "tid": lane.track & _BITS}
        yield {"ph": "X", "name": names[name], "cat": cut.kinds[kind], "ts": start, "dur": dur, **place, "args": args}
        if call >= 0:
            caller = cut.lanes[lanes[call]]
            yield {
                "ph": "s",
                "name": "launch",
                "cat": "launch",
                "id": row,
                "ts": starts[call],
                "pid": _process(caller),
                "tid": caller.track & _BITS,
            }
            yield {"ph": "f", "bp": "e", "name": "launch", "cat": "launch", "id": row, "ts": start, **place}


_COUNTS = 20_000
"""Of a counter: every change of a step of ten thousand ops."""


def _queue(curve: QueueCurve, step: Cut) -> Iterator[dict[str, Any]]:
    """How many ops of a device are launched and have not begun, as a counter of its process."""
    place = {"ph": "C", "name": "launch queue", "cat": "launch", "pid": _process(Lane("", "gpu", curve.device, 0))}
    found = points(curve, step.start_us, step.end_us, _COUNTS)
    for time, length in zip(found.time_us.tolist(), found.most.tolist(), strict=True):
        yield {**place, "ts": time, "args": {"ops": length}}


def _finding(number: int, finding: Finding, moment: Moment | None) -> Iterator[dict[str, Any]]:
    """A track a finding: its marked places, or each evidence's first place and mean length."""
    if number == 0:
        yield from _names(_FINDINGS, "findings", 0)
    yield {
        "ph": "M",
        "name": "thread_name",
        "pid": _FINDINGS,
        "tid": number,
        "args": {"name": f"{finding.rule}: {visible(finding.title)}"},
    }
    args = {
        "summary": visible(finding.summary),
        f"saves_{finding.saving.unit}": finding.saving.expected,
        "fix": visible(finding.fix.title),
        "severity": finding.severity,
        "confidence": finding.confidence,
    }
    places = [(mark.start_us, mark.end_us, visible(moment.label), args) for mark in moment.marks] if moment else []
    for evidence in finding.evidence[1:] if moment else finding.evidence:
        end = evidence.start_us + evidence.dur_us / max(evidence.count, 1)
        more = {**args, "count": evidence.count, "total_us": evidence.dur_us, "source": visible(source_line(evidence))}
        places.append((evidence.start_us, end, visible(evidence.label), more))
    # Slices of one track nest or do not touch; of two that overlap the first is kept.
    free = float("-inf")
    for start, end, name, said in sorted(places, key=lambda place: place[:2]):
        if start >= free:
            place = {"pid": _FINDINGS, "tid": number}
            yield {"ph": "X", "name": name, "cat": "finding", "ts": start, "dur": end - start, **place, "args": said}
            free = end
