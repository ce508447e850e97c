"""CPU time of a step, as rows that every format shows."""

from __future__ import annotations

from advisor.report.model import Report
from advisor.report.numbers import cut, duration, mean, percent
from advisor.report.wording.headlines import PHASES

_LINES = 5
"""Ops and lines that a terminal shows."""

TITLE = "CPU time of a step"
NOTE = (
    "Phases are of the thread that runs the program, and sum to the step. The program waits for collectives while some are in flight and no op runs. "
    "Ops are counted on all threads, without the ops inside them. A function's time includes the libraries that it calls, not the program's own functions."
)


def phases(report: Report) -> list[tuple[str, str, str, float]]:
    """Of each phase its name, its time per step and its share, in words and as a number."""
    host = report.host_time
    return [(PHASES[part.phase], duration(part.us), percent(part.share), part.share) for part in host.parts] if host else []


def ops(report: Report) -> list[tuple[str, str, str, str]]:
    """Of each op its name, calls, time and share, per step."""
    host = report.host_time
    return [(op.name, mean(op.calls), duration(op.us), percent(op.share)) for op in host.ops] if host else []


def line_kind(report: Report) -> str:
    """What `lines` holds."""
    return "function" if report.host_time and any(line.function for line in report.host_time.lines) else "line"


def lines(report: Report) -> list[tuple[str, str, str]]:
    """Of each function or line of the program its place, time and share, per step."""
    host = report.host_time
    return [(f"{line.file}:{line.line} {line.function}".rstrip(), duration(line.us), percent(line.share)) for line in host.lines] if host else []


def in_text(report: Report) -> list[str]:
    """The same for a terminal; empty if a device did work."""
    if report.host_time is None:
        return []
    made = [f"{TITLE}:", *(f"{share:>6} {us:>9}  {name}" for name, us, share, _ in phases(report))]
    if places := lines(report)[:_LINES]:
        made += [f"Most CPU time by {line_kind(report)} of your program:", *(f"{share:>6} {us:>9}  {cut(place, 100)}" for place, us, share in places)]
    if found := ops(report)[:_LINES]:
        made += ["Most CPU time by op:", *(f"{share:>6} {us:>9}  {cut(name, 60)} ({calls} per step)" for name, calls, us, share in found)]
    return made
