"""A report in the terms of what was recorded: rules word fixes and hints for PyTorch, which most programs are written in, and findings
for steps, which most recordings hold."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from advisor.knowledge.accelerators import Accelerator
from advisor.knowledge.data import load
from advisor.knowledge.expressions import expression
from advisor.knowledge.how_to_record import TOOLS
from advisor.report.finding import SUMMARY_CHARACTERS, Clear, Code, Finding, Fix, Skipped
from advisor.report.model import Report
from advisor.report.recording import Health

_Hinted = TypeVar("_Hinted", Skipped, Health)


def in_terms_of_jax(report: Report) -> Report:
    """The report of a program of JAX: its fixes and, where JAX's profiler recorded it, how to do that better."""
    recorded_by_jax = report.source.format == "jax"
    only = frozenset(load("jax_terms")["torch_only"])
    skipped = [item for item in report.skipped if item.rule not in only]
    clear = [*report.clear, *(Clear(rule=item.rule, why="", reason="not-applicable") for item in report.skipped if item.rule in only)]
    return msgspec.structs.replace(
        report,
        findings=tuple(_finding(finding) for finding in report.findings),
        clear=tuple(_clear(item, only) for item in clear),
        skipped=tuple(_hinted(item) for item in skipped) if recorded_by_jax else tuple(skipped),
        health=tuple(_hinted(check) for check in report.health) if recorded_by_jax else report.health,
    )


_NO_FRAMEWORK = "it looks for what modules, optimizers and loss scalers of a framework do, and none shows in this program"
_OF_NSYS = "nsys profile -t cuda,nvtx: a few steps of the same kind after a warm-up, an NVTX range around each"
_OF_ROCM = "rocprofv3 --hip-trace --kernel-trace --memory-copy-trace --marker-trace --output-format rocpd -- PROGRAM"


def in_terms_of_cuda(report: Report) -> Report:
    """The report of a program without a framework: rules that look for one are clear, and no hint asks for PyTorch's profiler."""
    only = frozenset(load("jax_terms")["torch_only"])
    skipped = [item for item in report.skipped if item.rule in only]
    return msgspec.structs.replace(
        report,
        clear=(*report.clear, *(Clear(rule=item.rule, why=_NO_FRAMEWORK, reason="not-applicable") for item in skipped)),
        skipped=tuple(_of_cuda(item) for item in report.skipped if item.rule not in only),
        health=tuple(_of_cuda(check) for check in report.health),
    )


def _of_cuda(item: _Hinted) -> _Hinted:
    """Shapes of tensors and ops of a framework are in no profile of such a program: no hint asks for them."""
    if TOOLS.get(item.missing) != "torch":
        return item
    return msgspec.structs.replace(item, record_with="" if item.missing in ("gpu-work", "shapes") else _OF_NSYS)


def in_terms_of_device(report: Report, device: Accelerator) -> Report:
    """The report of a program on a device that CUDA's tools do not see: no hint asks for them."""

    def hinted(item: _Hinted) -> _Hinted:
        if item.missing == "gpu-work":
            return msgspec.structs.replace(item, record_with=device.record)
        return msgspec.structs.replace(item, record_with="") if TOOLS.get(item.missing) == "nvidia" else item

    return msgspec.structs.replace(report, skipped=tuple(map(hinted, report.skipped)), health=tuple(map(hinted, report.health)))


def in_terms_of_rocm(report: Report) -> Report:
    """The report of a program on an AMD GPU: rocprofv3 takes the place of NVIDIA's tools."""

    def hinted(item: _Hinted) -> _Hinted:
        return msgspec.structs.replace(item, record_with=_OF_ROCM) if TOOLS.get(item.missing) == "nvidia" else item

    return msgspec.structs.replace(report, skipped=tuple(map(hinted, report.skipped)), health=tuple(map(hinted, report.health)))


_OF_A_STEP = tuple(
    (expression(pattern), said)
    for pattern, said in (
        (r"\b(?:of )?each ((?:[\d.,]+ ?)\S+) step\b", r"of the \1 traced"),
        (r"\ba step of ((?:[\d.,]+ ?)\S+)", r"\1 traced"),
        (r"\b(in )?a step\b|\bper step\b", "in all"),
        (r"\b(the|each|every|one) step\b", "the traced time"),
    )
)
"""What rules say of a step, and how it is said of a recording in which none was found."""


def in_terms_of_one_run(report: Report) -> Report:
    """The report of a recording without steps, which is one window: nothing in it happens `a step`."""
    return msgspec.structs.replace(
        report,
        findings=tuple(msgspec.structs.replace(f, title=_of_one_run(f.title), summary=_of_one_run(f.summary)) for f in report.findings),
        clear=tuple(msgspec.structs.replace(item, why=_of_one_run(item.why)) for item in report.clear),
        # A job's is that of its first finding, or counts shares of the mean rank's step.
        headline=msgspec.structs.replace(report.headline, summary=_of_one_run(report.headline.summary)) if report.kind == "job" else report.headline,
    )


def _of_one_run(text: str) -> str:
    said = text
    for pattern, replacement in _OF_A_STEP:
        said = pattern.sub(replacement, said)
    return said if len(said) <= SUMMARY_CHARACTERS else text


def _finding(finding: Finding) -> Finding:
    fixes = load("jax_terms")["fixes"]
    said = fixes.get(f"{finding.rule}/{finding.cause}") or fixes.get(finding.rule)
    if said is None:
        return finding
    code = Code(before=said["before"], after=said["after"]) if "before" in said else None
    return msgspec.structs.replace(finding, fix=Fix(title=said["title"], steps=tuple(said["steps"]), code=code, url=said["url"], risk=said.get("risk", "")))


def _clear(item: Clear, only: frozenset[str]) -> Clear:
    return msgspec.structs.replace(item, why=load("jax_terms")["torch_only_why"] if item.rule in only else item.why)


def _hinted(item: _Hinted) -> _Hinted:
    hints: dict[str, str] = load("jax_terms")["hints"]
    if TOOLS.get(item.missing) != "torch":
        return item
    return msgspec.structs.replace(item, record_with=hints.get(item.missing, hints["otherwise"]))
