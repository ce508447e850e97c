"""A report in the terms of the program that was recorded: rules word fixes and hints for PyTorch, which most programs are written in."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from advisor.knowledge.data import load
from advisor.report.model import Clear, Code, Finding, Fix, Health, Report, Skipped

_Hinted = TypeVar("_Hinted", Skipped, Health)
_OF_TORCH = re.compile(r"torch|profile\(|ProfilerActivity|schedule\(|schedule's|prof\.|with_stack|record_shapes|DataLoader")


def in_terms_of_jax(report: Report) -> Report:
    """The report of a program of JAX: its fixes and, where JAX's profiler recorded it, how to do that better."""
    recorded_by_jax = report.source.format == "jax"
    only = frozenset(load("jax_terms")["torch_only"])
    skipped = [item for item in report.skipped if item.rule not in only]
    clear = [*report.clear, *(Clear(rule=item.rule, why="") for item in report.skipped if item.rule in only)]
    made = msgspec.structs.replace(
        report,
        findings=tuple(_finding(finding) for finding in report.findings),
        clear=tuple(_clear(item, only) for item in clear),
        skipped=tuple(_hinted(item) for item in skipped) if recorded_by_jax else tuple(skipped),
        health=tuple(_hinted(check) for check in report.health) if recorded_by_jax else report.health,
    )
    return made.with_picture_of(report)


def hint_of_jax(hint: str) -> str:
    """A hint at recording better, as it is said of JAX's profiler."""
    hints: dict[str, str] = load("jax_terms")["hints"]
    return hints.get(hint, hints["otherwise"] if _OF_TORCH.search(hint) else hint)


def _finding(finding: Finding) -> Finding:
    fixes = load("jax_terms")["fixes"]
    said = fixes.get(f"{finding.rule}/{finding.cause}") or fixes.get(finding.rule)
    if said is None:
        return finding
    code = Code(before=said["before"], after=said["after"]) if "before" in said else None
    return msgspec.structs.replace(finding, fix=Fix(title=said["title"], steps=tuple(said["steps"]), code=code, url=said["url"], risk=said.get("risk", "")))


def _clear(item: Clear, only: frozenset[str]) -> Clear:
    return msgspec.structs.replace(item, why=load("jax_terms")["torch_only_why"] if item.rule in only else item.why.replace("DataLoader", "loader"))


def _hinted(item: _Hinted) -> _Hinted:
    return msgspec.structs.replace(item, record_with=hint_of_jax(item.record_with))
