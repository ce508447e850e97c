"""Commands that measure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def validate(
    directory: Annotated[Path, typer.Argument(help="A directory with manifest.json and traces, as samples/ has.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the whole ledger as Markdown.")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="Print predicted against measured as a scatter plot.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Print what every rule says of every trace, as Markdown.")] = False,
) -> None:
    """Hold predicted savings against measured ones, over pairs with known step times."""
    from advisor.engine.rule import catalog
    from advisor.lab import accuracy as ledger
    from advisor.lab import coverage

    if table:
        found = coverage.samples(directory, catalog().values())
        print(coverage.as_markdown(found, coverage.reasons(directory), str(directory)))
        return
    pairs = ledger.validate(directory, catalog().values())
    if markdown or svg:
        print(ledger.as_markdown(pairs, str(directory)) if markdown else ledger.as_svg(pairs))
        return
    for p in sorted(pairs, key=lambda p: (p.rule, p.name)):
        mark = "" if p.inside else "  outside"
        print(
            f"{p.rule:26} {p.name:26} predicted {p.expected:4.0%} [{p.low:4.0%}, {p.high:4.0%}]  measured {p.measured:4.0%}{mark}"
        )
    inside = sum(p.inside for p in pairs) / len(pairs)
    print(f"\n{len(pairs)} pairs: rank correlation {ledger.rank_correlation(pairs):.2f}, {inside:.0%} inside the interval")
