"""A report in the words of the framework that the user runs: its own switch in place of a fix's first step and code. The finding stays what it is."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from advisor.knowledge.stacks import Asked, Option, Pack, packs
from advisor.report.finding import Code, Finding, Fix, StackOption
from advisor.report.model import Report
from advisor.report.recording import FrameworkInfo
from advisor.views.trace.stack import Framework


def in_words_of(report: Report, frameworks: Iterable[Framework], kind: str) -> Report:
    """The report with each fix in the words of the first of these frameworks that has a switch for it. kind: of the program."""
    frameworks = tuple(frameworks)
    if not frameworks:
        return report
    first = frameworks[0]
    named = FrameworkInfo(packs()[first.package].name, first.version, first.sure)
    findings = tuple(_said(finding, frameworks, kind) for finding in report.findings)
    return msgspec.structs.replace(report, framework=named, findings=findings)


def _said(finding: Finding, frameworks: tuple[Framework, ...], kind: str) -> Finding:
    if (own := finding.fix.stack) is not None:
        # It names the switch for what was found, as a size; which version it is of the stack tells, and whether that spells it so.
        one = next((one for one in frameworks if packs()[one.package].name == own.framework), None)
        version = one.version if one else ""
        if one is None or packs()[one.package].spells(own.option, version):
            return msgspec.structs.replace(
                finding, fix=msgspec.structs.replace(finding.fix, stack=msgspec.structs.replace(own, version=own.version or version))
            )
    code = f"{finding.fix.code.before}\n{finding.fix.code.after}" if finding.fix.code else ""
    for one in frameworks:
        asked = Asked(finding.rule, finding.cause, code, kind, one.loops, one.version, frozenset(one.defaults))
        pack = packs()[one.package]
        if option := pack.option_for(asked):
            return msgspec.structs.replace(finding, fix=_in_own_words(switched(finding.fix, pack, one.version, option), finding, frameworks, kind))
    return msgspec.structs.replace(finding, fix=_in_own_words(finding.fix, finding, frameworks, kind))


def _in_own_words(fix: Fix, finding: Finding, frameworks: tuple[Framework, ...], kind: str) -> Fix:
    """The fix, with the frameworks' own words in the steps that are left of the plain fix."""
    steps = list(fix.steps)
    for one in frameworks:
        asked = Asked(finding.rule, finding.cause, None, kind, one.loops, one.version)
        steps = [packs()[one.package].in_own_words(step, asked) if step in finding.fix.steps else step for step in steps]
    return msgspec.structs.replace(fix, steps=tuple(steps))


def switched(fix: Fix, pack: Pack, version: str, option: Option) -> Fix:
    """The fix with the framework's switch in place of its first step and its code. A fix that has the switch already, with its own figures, keeps them.
    Of what is said for PyTorch nothing is left in a program of JAX."""
    since = f" Since {pack.name} {option.since}." if option.since else ""
    stack = StackOption(pack.name, version, option.option)
    if fix.code and option.stands_in(fix.code.after):
        said = fix.steps[0].removesuffix(since)
        return msgspec.structs.replace(fix, steps=(f"{said}{since}", *fix.steps[1:]), stack=stack)
    leave = (option.leave,) if option.leave else ()
    other = pack.of == "jax"
    # A default that is one cause stands beside the others, which what was there mends.
    kept = () if option.alone or other else fix.steps if option.seen else fix.steps[1:]
    return msgspec.structs.replace(
        fix,
        title=option.title or fix.title,
        steps=(f"{option.does}{since}", *leave, *option.then, *kept),
        code=_with_lines(option, fix.code) if option.after else fix.code,
        url=option.url,
        intervention=option.intervention or (None if other else fix.intervention),
        risk=option.effects if other else " ".join(filter(None, (option.effects, fix.risk))),
        holds_for=("jax",) if other else fix.holds_for,
        stack=stack,
    )


def _with_lines(option: Option, plain: Code | None) -> Code:
    """The option's code, with those lines of the plain code that stay beside it."""

    def joined(own: str, other: str) -> str:
        return "\n".join([own, *(line for line in other.splitlines() if option.beside and option.beside in line)])

    return Code(joined(option.before, plain.before), joined(option.after, plain.after)) if plain else Code(option.before, option.after)
