"""How bad it is that a share of the events is wrong, and what that touches."""

from __future__ import annotations

from typing import Literal

FEW, MANY = 0.005, 0.05
"""Shares of the events that a check may find wrong: below the first they change no figure, above the second all of them."""

HOST, KERNELS = ("host",), ("kernels",)
Status = Literal["ok", "degraded", "failed"]


def graded(share: float) -> Status:
    """Of a check that finds this share of the events wrong."""
    return "failed" if share > MANY else "degraded" if share > FEW else "ok"
