"""`advisor try`: the gain of each fix, measured on the user's own program."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from advisor.cli.lab import check_measured, write_measured
from advisor.cli.outputs import check_target, write
from advisor.cli.streams import say
from advisor.cli.terminal import ForceOption, OutputOption, format_option
from advisor.errors import UsageError

FORMATS = {"text": ".txt", "json": ".json", "markdown": ".md", "html": ".html"}
WORKDIRS = ("here", "copy")
_BUDGET = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}  # a unit of time


def try_(
    command: Annotated[list[str] | None, typer.Argument(help="The program as the shell would run it, after --: python train.py …")] = None,
    budget: Annotated[str, typer.Option(help="Begin no run that would end later: 90s, 10m or 1h.")] = "10m",
    finding: Annotated[str | None, typer.Option(help="Try the fix of this finding alone: its id, or the id of its rule.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Try this alone, whether or not a finding names it; may be given again. --list names all.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the changes that can be applied from outside, and run nothing.")] = False,
    apply: Annotated[Path | None, typer.Option(help="Write the kept changes as a patch to this file. No source is changed.")] = None,
    workdir: Annotated[str, typer.Option(help="The directory of the runs: here, or copy for a copy of the working directory in each run.")] = "here",
    seed: Annotated[bool, typer.Option("--seed/--no-seed", help="Seed random numbers before the program does.")] = True,
    online: Annotated[bool, typer.Option("--online", help="Let the program download from hubs.")] = False,
    steps: Annotated[str, typer.Option(help="What ends a step: optimizer, backward, forward (of the outermost module) or auto.")] = "auto",
    timed: Annotated[int, typer.Option(min=5, help="Steps timed in each run at least.")] = 20,
    warmup: Annotated[int, typer.Option(min=3, help="Steps before them at least; more follow until they are steady.")] = 10,
    runs: Annotated[int, typer.Option(min=1, help="Runs with each fix at most; three are the fewest that say something.")] = 8,
    ledger: Annotated[Path | None, typer.Option(help="Append predictions and measurements to this ledger, which advisor validate reads.")] = None,
    format: Annotated[str | None, format_option("text", "json", "markdown", "html", alone="text")] = None,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Measure the gain of each fix on your own program.

    The program stays as it is. It runs several times: as it is, once recorded, and with the fixes that its report names applied from outside, by turns. Printed is predicted beside measured,
    and whether the losses are equal.
    """
    from advisor.lab.find_steps import Steps
    from advisor.lab.trying import words
    from advisor.lab.trying.adopt import as_patch
    from advisor.lab.trying.result import append
    from advisor.lab.trying.session import tried
    from advisor.lab.trying.start import Program

    if listed:
        write("\n".join(_listed()), None)
        return
    if not command:
        raise UsageError("there is no program to run", "Give it after --: advisor try -- python train.py")
    if workdir not in WORKDIRS:
        raise UsageError(f"--workdir {workdir} is not known", f"Give any of {', '.join(WORKDIRS)}.")
    if steps not in get_args(Steps):
        raise UsageError(f"--steps {steps} is not known", f"Give any of {', '.join(get_args(Steps))}.")
    form, target = check_measured(format, output, force, FORMATS)
    if apply is not None:
        check_target(apply, force, "", "--apply")
    program = Program(command, cast(Steps, steps), 0 if seed else None, online, workdir == "copy", timed, warmup)
    found = tried(
        program, only=only or (), finding=finding, budget_s=seconds(budget), runs=runs, say=lambda line: say(f"advisor: {line}"), progress=lambda what: say(f"advisor: run: {what}"),
    )  # fmt: skip
    if form == "markdown":
        write(("<!-- trace-advisor -->\n" if target else "") + words.as_markdown(found), target)
    elif form == "json":
        write(json.dumps(found.to_dict(), indent=1, allow_nan=False), target)
    else:
        write_measured("try", words.as_text(found), found.to_json(), words.as_html(found) if form == "html" else "", form, target)
    if apply is not None:
        write(as_patch(found), apply)
    if ledger is not None:
        say(f"advisor: {append(ledger, found)} rows appended to {ledger}")


def seconds(budget: str) -> float:
    """A time as --budget takes it. Raises UsageError."""
    found = _BUDGET.fullmatch(budget.strip()[:40])
    if found is None or not 0 < (value := float(found[1]) * _SECONDS[found[2] or "s"]) < 1e7:
        raise UsageError(f"--budget {budget} is no time", "Give a time such as 90s, 10m or 1h.")
    return value


def _listed() -> list[str]:
    from advisor.lab.interventions.catalogue import interventions

    lines = []
    for name, one in interventions().items():
        needs = f"; needs {', '.join(one.needs)}" if one.needs else ""
        group = f"; only one of {one.group}" if one.group else ""
        lines += [f"{name}: {one.what}{' (a what-if)' if one.what_if else ''}", f"    numbers: {one.numerics}{needs}{group}", f"    it cannot see {one.unseen}"]
    return lines
