"""How views are built: each once, below what needed it first, with its own time."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from advisor.errors import Unavailable
from advisor.reports.report._plan import plan
from advisor.views.workspace import Workspace


@dataclass(frozen=True)
class Part:
    part_of = "trace"


@dataclass(frozen=True)
class Slow:
    @classmethod
    def build(cls, part: Part) -> Slow:
        time.sleep(0.05)
        return cls()


@dataclass(frozen=True)
class Quick:
    @classmethod
    def build(cls, part: Part, slow: Slow) -> Quick:
        return cls()


@dataclass(frozen=True)
class Lacking:
    @classmethod
    def build(cls, slow: Slow) -> Lacking:
        raise Unavailable("no \x1b shapes were recorded", "profile(record_shapes=True)")


def a_rule(quick: Quick, slow: Slow, lacking: Lacking | None) -> str:
    return "found"


def another_rule(lacking: Lacking) -> str:
    return "found"


def made() -> Workspace:
    workspace = Workspace(Part())
    assert workspace.call(a_rule) == "found"
    with pytest.raises(Unavailable):
        workspace.call(another_rule)
    return workspace


def test_a_view_stands_once_below_what_needed_it_first() -> None:
    assert [(one.depth, one.name, one.needs) for one in made().plan()] == [
        (0, "a-rule", ("Quick", "Slow", "Lacking")),
        (1, "Quick", ("Part", "Slow")),
        (2, "Slow", ("Part",)),
        (1, "Lacking", ("Slow",)),
        (0, "another-rule", ("Lacking",)),
        (1, "Lacking", ("Slow",)),
    ]


def test_time_is_counted_where_it_is_spent() -> None:
    own = {one.name: one.own_ms for one in made().plan()}
    assert own["Slow"] >= 50 and own["Quick"] < own["Slow"] and own["a-rule"] < own["Slow"]


def test_what_is_missing_is_said_and_cannot_act() -> None:
    text = plan(made().plan())
    assert text.count("missing: no \\x1b shapes were recorded") == 3 and "\x1b" not in text
    assert "      Slow ← Part" in text
