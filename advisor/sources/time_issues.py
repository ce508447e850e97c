"""Messages of every reader about events with impossible times."""

from __future__ import annotations

from advisor.recordings.timeline import ReadIssue
from advisor.report.numbers import counted


def time_issues(bad_times: int, bad_durations: int) -> list[ReadIssue]:
    """Message about events that were left out because they lack a valid start, and about durations that became 0."""
    found = []
    if bad_durations:
        detail = f"took a negative or impossible duration as 0 in {counted(bad_durations, 'event')}"
        found.append(ReadIssue("durations", detail, events=bad_durations))
    if bad_times:
        detail = f"left out {counted(bad_times, 'event')} without a valid start time"
        found.append(ReadIssue("timestamps", detail, events=bad_times))
    return found
