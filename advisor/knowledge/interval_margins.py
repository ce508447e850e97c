"""Margins at both ends of a saving's range, so that four of five measured savings are inside.

They are quantiles of the distance of measured savings from the rules' own ranges (conformalized quantile regression, Romano et al. 2019), per family of rules.
Each workload is left out of the quantile that judges it. docs/accuracy.md shows both. interval_margins.toml has the figures and their sources.
"""

from __future__ import annotations

from advisor.knowledge.data import load


def of_the_gpu(rule: str) -> bool:
    """Whether a rule's savings are of the GPU's work: how long other kernels would take."""
    return rule in load("interval_margins")["gpu"]["rules"]


def interval_margins(rule: str) -> tuple[float, float]:
    """Shares of the step by which the low end goes down and the high end up; wider for a rule with few pairs in the ledger."""
    known = load("interval_margins")
    family = next((known[name] for name in ("gpu", "host") if rule in known[name]["rules"]), known["other"])
    factor = known["few"]["factor"] if rule in known["few"]["rules"] else 1.0
    return factor * family["below"], factor * family["above"]
