"""What the README shows of outputs, as they are now."""

from __future__ import annotations

import re

import advisor
from advisor.reports.report import text
from tests.paths import ROOT

README = ROOT / "README.md"
_BLOCK = re.compile(r"```text\n(.*?)```", re.DOTALL)


def current(readme: str) -> str:
    """The README with what its first command prints, up to its first finding."""
    told = text.render(advisor.analyze(ROOT / "samples" / "launch-gap" / "slow.json.gz").report)
    head = told.partition("\n\n")[2].partition("\n\n2 ")[0]
    return _BLOCK.sub(lambda block: f"```text\n{head.rstrip()}\n```", readme)
