"""A report in the terms of what was recorded: rules word hints for PyTorch's profiler, which records most programs.

`in_words_of` words fixes for a framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec

from advisor.knowledge.accelerators import Accelerator
from advisor.knowledge.data import load
from advisor.knowledge.how_to_record import TOOLS, Tool
from advisor.report.finding import Clear, Skipped
from advisor.report.model import Report
from advisor.report.recording import Health

_Hinted = TypeVar("_Hinted", Skipped, Health)


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a program of one kind is recorded, and what it has not. tool: whose hints are another's there, "" if all hold. otherwise: what they say then, and
    hints, by what is missing. not_applicable: why rules that look for what PyTorch's modules, optimizers and loss scalers do are clear; "" where they apply."""

    tool: Tool | Literal[""] = ""
    otherwise: str = ""
    hints: Mapping[str, str] = {}
    not_applicable: str = ""

    def hinted(self, item: _Hinted) -> _Hinted:
        """A check, or a rule that is skipped, with the hint that holds there."""
        if item.missing not in self.hints and TOOLS.get(item.missing, "other") != self.tool:
            return item
        return msgspec.structs.replace(item, record_with=self.hints.get(item.missing, self.otherwise))


def terms(program: str, recorded_by: str = "") -> Terms:
    """Those of a program of JAX, of one without a framework ("cuda"), or of one on an AMD GPU ("rocm"). Of JAX hints are others where its own profiler recorded."""
    known = load("terms")[program]
    return msgspec.convert(known if program != "jax" or recorded_by == "jax" else {"not_applicable": known["not_applicable"]}, Terms)


def terms_of_device(device: Accelerator) -> Terms:
    """Those of a program on a device that CUDA's tools do not see: no hint asks for them."""
    return Terms(tool="nvidia", hints={"gpu-work": device.record})


def in_terms(report: Report, of: Terms) -> Report:
    """The report of such a program: no hint asks for a tool that does not see it, and rules that look for what it cannot have are clear."""
    only = frozenset(load("terms")["torch_only"] if of.not_applicable else ())
    clear = [*report.clear, *(Clear(rule=item.rule, why="", reason="not-applicable") for item in report.skipped if item.rule in only)]
    return msgspec.structs.replace(
        report,
        clear=tuple(msgspec.structs.replace(item, why=of.not_applicable) if item.rule in only else item for item in clear),
        skipped=tuple(of.hinted(item) for item in report.skipped if item.rule not in only),
        health=tuple(map(of.hinted, report.health)),
    )
