"""Commands that measure."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, cast, get_args

import typer

from advisor.errors import UsageError


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


def record(
    command: Annotated[list[str], typer.Argument(help="The program as the shell would run it, after --: python train.py …")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The directory to record into.")] = Path("recording"),
    steps: Annotated[str, typer.Option(help="What ends a step: optimizer, forward (the outermost module's) or auto.")] = "auto",
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Let the program run on once enough is recorded.")] = False,
    nsys: Annotated[bool, typer.Option("--nsys", help="Record with Nsight Systems instead of torch.profiler.")] = False,
    warmup: Annotated[int, typer.Option(help="Steps before anything is measured; more follow until they are steady.")] = 10,
    timed: Annotated[int, typer.Option(help="Steps to time without a profiler.")] = 20,
    light: Annotated[int, typer.Option(help="Steps to record with neither shapes nor stacks.")] = 5,
    deep: Annotated[int, typer.Option(help="Steps to record with shapes, stacks and memory.")] = 3,
) -> None:
    """Run a PyTorch program, time its steps without a profiler, then record a few: no change of the script.

    The program's output and exit code are its own. It ends when enough is recorded. Then: advisor analyze DIRECTORY
    """
    from advisor.lab.find_steps import Steps
    from advisor.lab.launch import launch
    from advisor.lab.record import Options

    if steps not in get_args(Steps):
        raise UsageError(f"--steps {steps} is none", f"Give one of {', '.join(get_args(Steps))}.")
    options = Options(warmup=warmup, timed=timed, light=0 if nsys else light, deep=0 if nsys else deep, nsys=light if nsys else 0)
    code = launch(command, output, options, steps=cast(Steps, steps), keep_going=keep_going)
    for line in _recorded(output):
        print(f"advisor: {line}", file=sys.stderr)
    if code:
        raise typer.Exit(code)


def _recorded(directory: Path) -> Iterator[str]:
    """What was recorded, a line each rank, and what to do next."""
    from advisor.lab.record import FILE

    for path in sorted(directory.glob(f"**/{FILE}")):
        saved = json.loads(path.read_text(encoding="utf-8"))
        times = saved["unprofiled_step_us"]
        if times:
            yield f"{len(times)} steps timed without a profiler: {median(times) / 1e3:.3g} ms each (median)"
        yield from saved["notes"]
        written = [saved[name] for name in ("light", "deep", "nsys") if name in saved]
        if written:
            yield f"wrote {' and '.join(written)} to {path.parent}; now: advisor analyze {path.parent}"
