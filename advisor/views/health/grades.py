"""How bad it is that a share of the events is wrong, and what that touches."""

from __future__ import annotations

from typing import Literal

from advisor.knowledge.shares import HARDLY_ANY

FEW = 0.005
"""Share of the events that a check may find wrong without a change of any figure."""
MANY = HARDLY_ANY
"""More wrong events change all figures."""

HOST, KERNELS = ("host",), ("kernels",)
Status = Literal["ok", "degraded", "failed"]


def graded(share: float) -> Status:
    """Of a check that finds this share of the events wrong."""
    return "failed" if share > MANY else "degraded" if share > FEW else "ok"
