"""What the engine does differently for each kind of recording: a module a kind, named like it."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from advisor.engine.grade import Weight
from advisor.engine.outcome import Outcomes
from advisor.engine.rule import Found, Judged
from advisor.recordings.recording import Recording
from advisor.recordings.timeline import Timeline
from advisor.report.model import Kind, Report
from advisor.report.recording import Health
from advisor.views.workspace import Workspace

ABSTAINS: dict[Kind, tuple[type, str]] = {
    "tpu": (Timeline, "advice is for GPUs, and this is the profile of a TPU"),
    "collectives": (Timeline, "a flight recorder says which collectives ranks called, and not what else they did"),
}
"""Kinds of recording that advice says nothing of: whose rules abstain, by the part that they speak of, and why."""


class Judge(Protocol):
    """What a kind's module holds."""

    def health(self, workspace: Workspace, /) -> tuple[Health, ...]:
        """The questions asked of the recording before any advice; a rule abstains where one that it rests on failed."""

    def weigh(self, workspace: Workspace, found: Found, /) -> Weight:
        """What a finding gains, of what whole, and how sure such a recording lets anybody be."""

    def settle(self, workspace: Workspace, found: list[Judged], /) -> list[Judged]:
        """The findings in their order, with those that others explain marked."""

    def report(self, workspace: Workspace, recording: Recording, outcomes: Outcomes, /) -> Report:
        """All of it as a report."""


def judge(kind: Kind) -> Judge:
    """How recordings of that kind are judged."""
    return cast("Judge", importlib.import_module(f"{__name__}.{kind}"))
