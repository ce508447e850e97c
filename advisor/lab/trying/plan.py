"""Which interventions are tried on a program: those that its report's fixes name, as far as they fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from advisor.knowledge.shares import HARDLY_ANY, NO_DIFFERENCE
from advisor.lab.interventions.arithmetic import AMPERE
from advisor.lab.interventions.catalogue import Intervention, intervention, interventions
from advisor.lab.trying.result import Elsewhere, Predicted
from advisor.lab.trying.start import Ran
from advisor.report.finding import Finding, Saving
from advisor.report.model import Report


@dataclass(frozen=True)
class Candidate:
    """An intervention, the finding that names it and further findings, and why it does not fit ("" if it does)."""

    intervention: Intervention
    predicted: Predicted | None = None
    also: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """The names of the finding's ops in its evidence."""
    unfit: str = ""


def candidates(report: Report | None, ran: Ran, only: Sequence[str], finding: str | None) -> list[Candidate]:
    """In the order in which they are tried. only: these interventions alone; finding: that of this id or rule alone. Without a report that advises, all that is no what-if and
    fits a program of its kind."""
    findings = [one for one in report.findings if one.shortens and finding in (None, one.id, one.rule)] if report else []
    named: dict[str, list[Finding]] = {}
    for one in findings:
        for name in _names(one):
            named.setdefault(name, []).append(one)
    if only:
        wanted = list(only)
    elif report is not None:
        wanted = sorted(named, key=lambda name: -max(_expected(one) for one in named[name]) / intervention(name).cost)
        wanted.sort(key=lambda name: not any(one.fix.intervention == name for one in named[name]))
    else:
        wanted = _of_any_program(ran)
    return [_candidate(intervention(name), named.get(name, []), report, ran) for name in wanted]


def _of_any_program(ran: Ran) -> list[str]:
    """Without a report: interventions on parts of the step that take more than the noise of runs, largest part per cost first. Each group has a
    single intervention."""
    shares = {"": UNMARKED, **_parts(ran)}
    fit = [one for one in interventions().values() if not one.what_if and not unfit(one, ran) and shares.get(one.part, 1.0) >= NO_DIFFERENCE]
    fit.sort(key=lambda one: -shares.get(one.part, 1.0) / one.cost)
    groups = {one.group or one.name: one for one in reversed(fit)}
    return [one.name for one in fit if groups[one.group or one.name] is one]


UNMARKED = HARDLY_ANY
"""Share of a step that an intervention without a mark of torch may gain: so small that interventions on known large parts come first."""


def _parts(ran: Ran) -> dict[str, float]:
    """The shares of a step by part, as torch marks them; {} if they were not counted. Time in neither dataloader nor optimizer is the model's."""
    spent = ran.said.get("parts_us") or {}
    if not spent.get("step"):
        return {}
    marked = {part: min(spent[part] / spent["step"], 1.0) for part in ("loader", "optimizer")}
    return {**marked, "model": max(0.0, 1 - sum(marked.values()))}


def _names(finding: Finding) -> Iterator[str]:
    """The intervention of a finding's fix, and other ways to the same."""
    if finding.fix.intervention:
        yield finding.fix.intervention
        yield from intervention(finding.fix.intervention).instead


def _expected(finding: Finding) -> float:
    return finding.saving.expected


def _candidate(chosen: Intervention, findings: list[Finding], report: Report | None, ran: Ran) -> Candidate:
    why = unfit(chosen, ran)
    if not findings or report is None:
        return Candidate(chosen, unfit=why)
    first = max(findings, key=_expected)
    labels = tuple(one.label for one in first.evidence)
    return Candidate(chosen, predicted(first, report), tuple(one.id for one in findings if one is not first), labels, why)


def predicted(finding: Finding, report: Report) -> Predicted:
    """As shares of the step."""
    step = report.headline.step_us or 1.0
    assert isinstance(finding.saving, Saving)
    return Predicted(finding.id or finding.rule, finding.rule, *(getattr(finding.saving, end) / step for end in ("low", "expected", "high")))


def elsewhere(report: Report | None) -> list[Elsewhere]:
    """Findings that ask for something that no intervention does."""
    if report is None:
        return []
    found = [one for one in report.findings if one.shortens and not one.fix.intervention and not one.folded_into]
    return [
        Elsewhere(one.id or one.rule, one.rule, one.fix.title, predicted(one, report).expected, *((one.fix.code.before, one.fix.code.after) if one.fix.code else ("", "")))
        for one in found
    ]  # fmt: skip


def unfit(chosen: Intervention, ran: Ran) -> str:
    """Why an intervention cannot apply to what ran, "" if it may."""
    said = ran.said
    has = {
        "cuda": (said["device_kind"] == "cuda", "it needs a CUDA device, and the program used none"),
        "ampere": (said["device_kind"] == "cuda" and tuple(said["capability"]) >= AMPERE, "it needs a GPU of compute capability 8.0 or more"),
        "training": (said["trains"], "the program has no optimizer"),
        "loader": (True, ""),
        "ranks": (said["world_size"] > 1, "the program has one rank"),
        "transformers": ("transformers" in said["frameworks"], "the program does not import transformers"),
        "accelerate": ("accelerate" in said["frameworks"], "the program does not import accelerate"),
    }
    return next((why for need in chosen.needs for fits, why in [has[need]] if not fits), "")
