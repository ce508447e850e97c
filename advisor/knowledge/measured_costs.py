"""Measured costs, rates and shares (`measured_costs.toml`), by name."""

from __future__ import annotations

from typing import Any

from advisor.knowledge import data


def cost(name: str) -> float:
    """One number, in the unit that its entry says."""
    return _entry(name)["value"]


def costs(name: str) -> tuple[float, ...]:
    """Several, in the order that its entry says."""
    return tuple(_entry(name)["values"])


def _entry(name: str) -> dict[str, Any]:
    return data.load("measured_costs")[name]
