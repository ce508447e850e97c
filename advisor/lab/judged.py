"""How reports on other people's traces were judged by hand, set by set: a page and a chart of the tables that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.lab import tables
from advisor.lab.svg import BLUE, CELL, MARGIN, PLOT, RED, opened

SETS, WRONG = "judged-sets.csv", "judged-findings.csv"


@dataclass(frozen=True)
class JudgedSet:
    """Verdicts on a set of traces, before anything was changed for them. what: the kind of verdicts, and advisor's version."""

    set: int
    what: str
    judged: int
    right: int
    partly: int
    wrong: int

    @property
    def of_findings(self) -> bool:
        """Whether of findings, not of headlines and refusals."""
        return self.what.startswith("findings")

    @property
    def older_version(self) -> bool:
        """Whether of the older of two versions that were judged on the same traces."""
        return "before" in self.what


@dataclass(frozen=True)
class WrongFinding:
    """Results that were judged wrong. set: None for verdicts that were made with reports known."""

    set: int | None
    trace: str
    said: str
    wrong_because: str
    what_changed: str


def sets(directory: Path) -> list[JudgedSet]:
    """Raises TraceError."""
    return tables.read(directory / SETS, JudgedSet)


def as_markdown(judged: Sequence[JudgedSet], wrong: int) -> str:
    """The results, set by set. wrong: number of verdicts in the table of wrong results."""
    newest = [one for one in judged if not one.older_version]
    lines = [
        "# Findings on other people's traces, judged",
        "",
        "A rule that is right on our own samples may be wrong on a new trace. So eleven sets of public traces were judged blind. Scripts that share no",
        "code with `advisor` determined the bottleneck and the expected findings from raw events, before any report was read. Then each headline,",
        "and each finding of medium or above, was compared with that. Each set led to changes before the next set.",
        "",
        "![Verdicts by set](judged-findings.svg)",
        "",
        "| Set | Headlines: right | partly | wrong | Findings: right | partly | wrong |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for number in sorted({one.set for one in newest}):
        cells = []
        for of_findings in (False, True):
            (one,) = (one for one in newest if one.set == number and one.of_findings == of_findings)
            cells += [f"{one.right} of {one.judged}", str(one.partly), str(one.wrong)]
        lines.append(f"| {number} | {' | '.join(cells)} |")
    lines += [
        "",
        "The data behind this table:",
        "",
        f"- [`corpus/judged-findings.csv`](../corpus/judged-findings.csv): the {wrong} verdicts that seemed wrong, with reason and change",
        "- [`corpus/judged-sets.csv`](../corpus/judged-sets.csv): the counts, for two versions if both were judged",
        "- [`corpus/judged.md`](../corpus/judged.md): the sets, the partly right verdicts, and the open points",
        "- [judged-traces.md](judged-traces.md): the traces",
    ]
    return "\n".join(lines)


_WIDE, _HIGH = 3 * CELL, PLOT // 2


def as_svg(judged: Sequence[JudgedSet]) -> str:
    """Two bars a set, headlines and findings, parted into right, partly right and wrong."""
    newest = [one for one in judged if not one.older_version]
    numbers = sorted({one.set for one in newest})
    wide = 2 * MARGIN + _WIDE * len(numbers)
    lines = [
        opened(wide, _HIGH + 2 * MARGIN),
        f'<text x="{MARGIN}" y="20">Verdicts by set, headlines left, findings right: right (blue), partly (grey), wrong (red)</text>',
    ]
    for one in newest:
        x, y = MARGIN + _WIDE * numbers.index(one.set) + CELL * one.of_findings, float(MARGIN + _HIGH)
        for count, colour in ((one.right, BLUE), (one.partly, "#bbb"), (one.wrong, RED)):
            high = _HIGH * count / one.judged
            y -= high
            lines.append(f'<rect x="{x}" y="{y:.1f}" width="{CELL - 2}" height="{high:.1f}" fill="{colour}"/>')
        if not one.of_findings:
            lines.append(f'<text x="{x + CELL - 1}" y="{MARGIN + _HIGH + 16}" text-anchor="middle">{one.set}</text>')
    return "\n".join([*lines, "</svg>"])
