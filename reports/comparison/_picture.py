"""What the page of a comparison draws: the change as a waterfall by class of time, and as a flame graph by module and op."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from advisor.compare.model import Comparison, Row, Table
from advisor.reports.comparison._phrases import name, rows

CLASSES, DEEPEST = 10, 12
NARROWEST = 0.002
"""Of the whole width: what is narrower cannot be pointed at."""


class Bar(NamedTuple):
    """A change from `low` to `low + width`, shares of the longer of both steps."""

    name: str
    change_us: float
    low: float
    width: float


def waterfall(comparison: Comparison) -> list[Bar]:
    """From the step before, class by class, to the step after."""
    most = max(comparison.before.step_us, comparison.after.step_us)
    if most <= 0:
        return []
    moved = rows(comparison.tables[0], CLASSES)
    # The running sum may leave the steps' range where classes grow before others shrink: what shrank stands first.
    moved = sorted(moved, key=lambda row: row.change_us)
    at, bars = comparison.before.step_us, []
    for row in moved:
        low = min(at, at + row.change_us)
        bars.append(Bar(name(row), row.change_us, max(low, 0.0) / most, abs(row.change_us) / most))
        at += row.change_us
    return bars


class Box(NamedTuple):
    """A module or an op: as wide as the longer of its times, in its place among its siblings."""

    name: str
    before_us: float
    after_us: float
    depth: int
    left: float
    width: float

    @property
    def change(self) -> float:
        """From −1, all gone, to 1, all new."""
        most = max(self.before_us, self.after_us)
        return (self.after_us - self.before_us) / most if most else 0.0


@dataclass
class _Node:
    before_us: float = 0.0
    after_us: float = 0.0
    below: dict[str, _Node] = field(default_factory=dict)

    @property
    def wide(self) -> float:
        """Room for either side of all that is below: no child is wider than its parent."""
        own = sum(child.wide for child in self.below.values())
        return max(own, self.before_us, self.after_us)


def flame(comparison: Comparison) -> list[Box]:
    """Modules and ops of both sides in one tree, outermost first; empty if there is no such table."""
    table = next((table for table in comparison.tables if table.by == "module and op"), None)
    root = _tree(table) if table else _Node()
    return list(_boxes(root, "step", 0, 0.0, 1.0)) if root.wide > 0 else []


def _tree(table: Table) -> _Node:
    root = _Node()
    for row in table.rows:
        node = root
        for part in (None, *_path(row)):
            node = node if part is None else node.below.setdefault(part, _Node())
            node.before_us += row.before_us
            node.after_us += row.after_us
    return root


def _path(row: Row) -> list[str]:
    # Ops are named by namespaces, `aten::mm`; a slash parts modules.
    return re.split(r"/(?!\d)", name(row))  # `Torch-Compiled Region: 0/1` is one


def _boxes(node: _Node, title: str, depth: int, left: float, width: float) -> Iterator[Box]:
    yield Box(title, node.before_us, node.after_us, depth, left, width)
    if depth == DEEPEST:
        return
    for text, child in sorted(node.below.items(), key=lambda pair: -pair[1].wide):
        share = width * child.wide / node.wide if node.wide else 0.0
        if share >= NARROWEST:
            yield from _boxes(child, text, depth + 1, left, share)
        left += share
