"""Fits fixes to the program: removes parts that ask for features which it lacks, and lists the programs for which a fix holds."""

from __future__ import annotations

from typing import get_args

import msgspec

from advisor.knowledge.features import needs
from advisor.report.finding import Advice, Code, Conditional, Feature, Fix
from advisor.report.model import Report
from advisor.views.ranks.job import Job
from advisor.views.trace.program import Program
from advisor.views.workspace import Workspace

LISTED: tuple[Feature, ...] = tuple(feature for feature in get_args(Feature) if feature != "loader")
"""Features in `holds_for`: a fix about a dataloader says so itself."""


def lacks(workspace: Workspace) -> frozenset[Feature]:
    """Which of training and a dataloader the program is known to lack; empty if the recording does not show the program."""
    if workspace.can_build(Program.build):
        program = workspace.get(Program)
        trains, loads = program.training or program.framework == "jax", program.loader
    elif workspace.can_build(Job.build):
        trains, loads = workspace.get(Job).trains, True
    else:
        return frozenset()
    missing: list[Feature] = [] if trains else ["training"] if loads else ["training", "loader"]
    return frozenset(missing)


def fitted(fix: Fix, without: frozenset[Feature]) -> Fix | None:
    """The fix in plain texts, without sentences and code for programs with a feature that this program lacks. None if nothing is left."""
    if without & {*fix.holds_for}:
        return None
    texts = [_kept(text, without) for text in (*fix.steps, fix.risk)]
    features = {feature for _, asked in texts for feature in asked} | {*fix.holds_for}
    steps = tuple(text for text, _ in texts[:-1] if text)
    if not steps:
        return None
    code = None if fix.code is None or without & needs(_of_code(fix.code)) else fix.code
    return msgspec.structs.replace(fix, steps=steps, code=code, risk=texts[-1][0], holds_for=_in_order(features))


def with_features(report: Report) -> Report:
    """The report; each fix names the programs for which it holds, as its code shows too."""
    findings = tuple(msgspec.structs.replace(f, fix=msgspec.structs.replace(f.fix, holds_for=holds_for(f.fix))) for f in report.findings)
    return msgspec.structs.replace(report, findings=findings)


def holds_for(fix: Fix) -> tuple[Feature, ...]:
    """Which of training and the frameworks a program needs for this fix."""
    return _in_order({*fix.holds_for, *(needs(_of_code(fix.code)) if fix.code else ())})


def _in_order(features: set[Feature] | set[str]) -> tuple[Feature, ...]:
    return tuple(feature for feature in LISTED if feature in features)


def _of_code(code: Code) -> str:
    return f"{code.before}\n{code.after}"


def _kept(text: str, without: frozenset[Feature]) -> tuple[str, set[Feature]]:
    """What holds of a text without these features, and the features that it then needs."""
    if not isinstance(text, Advice):
        return text, set()
    parts = [part for part in text.parts if not isinstance(part, Conditional) or part.feature not in without]
    return str(Advice(*parts)), {part.feature for part in parts if isinstance(part, Conditional)}
