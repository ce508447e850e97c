"""Writes the table of interventions into docs/try.md, as the catalogue has it.

python docs/try_page.py
"""

from __future__ import annotations

from pathlib import Path

from advisor.lab.interventions.catalogue import interventions

PAGE = Path(__file__).with_name("try.md")
BEGIN, END = "<!-- interventions -->\n", "<!-- end of interventions -->\n"


def table() -> str:
    """A row an intervention."""
    head = "| Name | What is applied | Needs | Numbers |\n|---|---|---|---|\n"
    rows = [
        f"| `{name}` | {one.what}{' (what-if)' if one.what_if else ''} | {', '.join(one.needs) or '–'} | {one.numerics} |"
        for name, one in interventions().items()
    ]
    return f"\n{head}" + "\n".join(rows) + "\n\n"


def written(text: str) -> str:
    """The page with the table anew."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
