"""Fits fixes to the program: removes parts that ask for features which it lacks, and lists the programs for which a fix holds."""

from __future__ import annotations

import re

import msgspec

from advisor.knowledge.program_words import FRAMEWORKS, LOADER, TRAINING, needs
from advisor.report.finding import Code, Fix
from advisor.report.model import Report
from advisor.views.ranks.job import Job
from advisor.views.trace.program import Program
from advisor.views.workspace import Workspace

_SENTENCE = re.compile(r"(?<=[.;]) +")


def lacks(workspace: Workspace) -> frozenset[str]:
    """Which of training and a dataloader the program is known to lack; empty if the recording does not show the program."""
    if workspace.can_build(Program.build):
        program = workspace.get(Program)
        trains, loads = program.training or program.framework == "jax", program.loader
    elif workspace.can_build(Job.build):
        trains, loads = workspace.get(Job).trains, True
    else:
        return frozenset()
    return frozenset({*([] if trains else [TRAINING]), *([] if trains or loads else [LOADER])})


def fitted(fix: Fix, without: frozenset[str]) -> Fix | None:
    """The fix less the sentences and the code that ask for what a program is without; None if its title does, or nothing is left."""
    if not without or not without & needs(_text(fix)):
        return fix
    steps = tuple(step for step in (_kept(text, without) for text in fix.steps) if step)
    if without & needs(fix.title) or not steps:
        return None
    code = None if fix.code is None or without & needs(_of_code(fix.code)) else fix.code
    return msgspec.structs.replace(fix, steps=steps, code=code, risk=_kept(fix.risk, without))


def told(report: Report) -> Report:
    """The report; each fix names the programs for which it holds."""
    findings = tuple(msgspec.structs.replace(f, fix=msgspec.structs.replace(f.fix, holds_for=holds_for(f.fix))) for f in report.findings)
    return msgspec.structs.replace(report, findings=findings)


def holds_for(fix: Fix) -> tuple[str, ...]:
    """Which of training and the frameworks a program needs for this fix."""
    asked = needs(_text(fix))
    return tuple(name for name in (TRAINING, *FRAMEWORKS) if name in asked)


def _text(fix: Fix) -> str:
    return "\n".join((fix.title, *fix.steps, fix.risk, _of_code(fix.code) if fix.code else ""))


def _of_code(code: Code) -> str:
    return f"{code.before}\n{code.after}"


def _kept(text: str, without: frozenset[str]) -> str:
    return " ".join(sentence for sentence in _SENTENCE.split(text) if not without & needs(sentence)).rstrip(";")
