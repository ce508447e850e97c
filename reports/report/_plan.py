"""Which views and rules a report was made of, from what, and how long each took: for `advisor explain --views TRACE`."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.report.plan import Made
from advisor.reports._clean import visible

_WIDTH = 7


def plan(made: Sequence[Made]) -> str:
    """The tree as text: a line a view or rule, its own wall time in ms, what it takes, and below it what it needed first."""
    total_ms = sum(one.own_ms for one in made)
    lines = [f"{len(made)} views and rules in {total_ms:,.1f} ms, without what they need of each other; a view stands where it was first needed.", ""]
    lines += [f"{'ms':>{_WIDTH}}  view or rule ← what it takes"]
    return "\n".join([*lines, *map(_line, made)])


def _line(one: Made) -> str:
    needs = f" ← {', '.join(one.needs)}" if one.needs else ""
    return f"{one.own_ms:{_WIDTH}.1f}  {'  ' * one.depth}{one.name}{needs}{f' · missing: {visible(one.missing)}' if one.missing else ''}"
