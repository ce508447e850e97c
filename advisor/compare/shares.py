"""What part of a step goes where, as it runs when nobody records."""

from __future__ import annotations

from advisor.report.model import Report

_OF_JOBS = {"idle_us": ("data_loading", "host", "unknown"), "exposed_copy_us": ("copy",), "exposed_comm_us": ("transfer", "wait"), "wait_us": ("wait",)}
"""The same of a job: parts of the mean rank's step. A rank's device that waits for other ranks spins, and counts as communication."""


def share(report: Report, field: str) -> float | None:
    """The share of all devices' time that a field of `DeviceTime` holds; of a job its ranks' too. None if nothing tells it."""
    if report.kind == "job":
        whole = sum(part.us for part in report.breakdown)
        return sum(part.us for part in report.breakdown if part.name in _OF_JOBS[field]) / whole if whole > 0 else None
    devices = report.time or ()
    added = sum(report.added_us(time) for time in devices)
    window = sum(time.window_us for time in devices) - added
    spent = sum(getattr(time, field) for time in devices) - (added if field == "idle_us" else 0.0)
    return spent / window if window > 0 else None
