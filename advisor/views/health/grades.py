"""How bad it is that a share of the events is wrong, and what that touches."""

from __future__ import annotations

from typing import Literal

from advisor.knowledge.how_to_record import Missing
from advisor.knowledge.shares import HARDLY_ANY
from advisor.report.recording import Health, HealthReason, Unit

FEW = 0.005
"""Share of the events that a check may find wrong without a change of any figure."""
MANY = HARDLY_ANY
"""More wrong events change all figures."""

HOST, KERNELS = ("host",), ("kernels",)
Status = Literal["ok", "degraded", "failed"]


def graded(share: float) -> Status:
    """Of a check that finds this share of the events wrong."""
    return "failed" if share > MANY else "degraded" if share > FEW else "ok"


def compared(
    check: str,
    status: Status,
    detail: str,
    measured: float,
    threshold: float,
    unit: Unit = "share",
    *,
    touches: tuple[str, ...] = (*HOST, *KERNELS),
    record_with: str = "",
    missing: Missing = "",
    reason: HealthReason = "",
) -> Health:
    """A check of a value against its threshold. Without a reason, the status gives it."""
    reason = reason or ("within-threshold" if status == "ok" else "beyond-threshold")
    return Health(check, status, detail, touches, record_with, missing, reason=reason, measured=measured, threshold=threshold, unit=unit)
