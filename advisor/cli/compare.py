"""Commands that hold traces against each other or against limits: diff, check and history."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.fleet import JobOutput, reduced_job
from advisor.cli.outputs import file_name, write
from advisor.cli.streams import say
from advisor.cli.terminal import (
    ConfigOption,
    ForceOption,
    OutputOption,
    RulesOption,
    UnjudgedOption,
    destination,
    format_option,
    given_path,
    progress_of,
    selection,
    single_output,
    unjudged,
)
from advisor.errors import UsageError
from advisor.report.numbers import counted

if TYPE_CHECKING:
    from advisor.compare.model import Comparison
    from advisor.report.model import Report

_CAPTURE = "a trace, a saved JSON report, the directory of a job's ranks, or a directory of captures of the same program"
AnywayOption = Annotated[bool, typer.Option("--anyway", help="Compare even if the sides are not comparable, with a note.")]


def diff(
    before: Annotated[Path, typer.Argument(parser=given_path, help=f"The side before: {_CAPTURE}.")],
    after: Annotated[Path, typer.Argument(parser=given_path, help="The side after, the same.")],
    more_before: Annotated[
        list[Path] | None, typer.Option("--before", parser=given_path, metavar="<path>", help="A further capture before; may be repeated.")
    ] = None,
    more_after: Annotated[
        list[Path] | None, typer.Option("--after", parser=given_path, metavar="<path>", help="A further capture after; may be repeated.")
    ] = None,
    format: Annotated[str | None, format_option("text", "html", "markdown", "json")] = None,
    output: OutputOption = None,
    force: ForceOption = False,
    anyway: AnywayOption = False,
    across: Annotated[
        bool, typer.Option("--across", help="The same program on two devices or frameworks: compare each with its own peaks, without a verdict.")
    ] = False,
    rules: RulesOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the changes between two traces.

    This shows the step, the time by cause, and the findings. Three captures or more per side also give the noise.
    """
    from advisor.compare.memory import compare_memory
    from advisor.reports import memory_comparison
    from advisor.reports.comparison import formats

    page = partial(Path, f"{_stem(before)}-{_stem(after)}.diff.html")
    name, target = destination(format, single_output(output), formats(), page, force, *map(str, (before, after, *(more_before or ()), *(more_after or ()))))
    old, new = (_reports([first, *(more or ())], rules, config) for first, more in ((before, more_before), (after, more_after)))
    if across:
        from advisor.compare import across as two
        from advisor.reports import across as across_formats

        if len(old) > 1 or len(new) > 1:
            raise UsageError("--across takes a single capture per side", "Give two traces.")
        write(across_formats.formats()[name].render(two.compare_programs(old[0], new[0])), target)
        return
    if {report.kind for report in (*old, *new)} == {"memory"}:
        write(memory_comparison.formats()[name].render(compare_memory(old, new)), target)
        return
    compared = _compared(old, new, anyway)
    if name == "text" and target is None and sys.stdout.isatty():
        from advisor.reports.comparison import text

        write(text.render(compared, width=os.get_terminal_size().columns), None)
        return
    write(formats()[name].render(compared), target)


def check(
    trace: Annotated[Path, typer.Argument(parser=given_path, help=f"{_CAPTURE[0].upper()}{_CAPTURE[1:]}.")],
    baseline: Annotated[
        list[Path] | None, typer.Option("--baseline", parser=given_path, metavar="<path>", help="The reference for the step; may be repeated.")
    ] = None,
    anyway: AnywayOption = False,
    allow_unjudged: UnjudgedOption = False,
    rules: RulesOption = None,
    config: ConfigOption = None,
) -> None:
    """Check a trace against budgets; exit with 1 if any is crossed.

    Budgets are in [tool.advisor.budgets]. An unknown value fails too. Only regression_percent needs a --baseline.
    """
    from advisor.compare import budgets
    from advisor.engine import settings
    from advisor.engine.rule import catalog
    from advisor.report import saved
    from advisor.reports._clean import visible
    from advisor.sources import is_one_capture

    chosen = settings.load(config)
    known = catalog((*chosen.rules, *(rules or ())))
    limits = budgets.parse(chosen.budgets, known.keys(), chosen.path)
    if baseline and budgets.REGRESSION not in limits:
        raise UsageError("--baseline is given, but no budget says how much slower is too slow", f"Set {budgets.REGRESSION} in [tool.advisor.budgets].")
    if not baseline and [*limits] == [budgets.REGRESSION]:  # a check that holds nothing against anything is no success
        raise UsageError(f"{budgets.REGRESSION} is the only budget, and nothing is given to hold the step against", "Give --baseline, or set another budget.")
    reports = _reports([trace], rules, config)
    against = _compared(_reports(baseline, rules, config), reports, anyway) if baseline else None
    verdicts = budgets.check_all(limits, dict(zip(saved.names(trace, is_one_capture), reports, strict=True)), against)
    for verdict in verdicts:
        print(visible(f"{verdict.status:11}  {verdict.budget}: {verdict.detail}"))
    crossed = [verdict for verdict in verdicts if not verdict.passes]
    unheld = sum(verdict.status == "not checked" for verdict in verdicts)
    say(f"{len(verdicts) - len(crossed) - unheld} of {counted(len(verdicts), 'budget')} pass" + (f", {unheld} not checked" if unheld else ""))
    if crossed or any(unjudged(report, allow_unjudged) for report in reports):
        raise typer.Exit(1)


def history(
    directory: Annotated[Path, typer.Argument(help="The directory of reports, a file per commit.")],
    add: Annotated[Path | None, typer.Option("--add", parser=given_path, metavar="<path>", help="A trace or a saved report to keep under --commit.")] = None,
    commit: Annotated[str | None, typer.Option(help="The commit that was measured; without it, HEAD of this repository.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="Gains measured by verify or try. Without it: accuracy.jsonl of the directory.")] = None,
    format: Annotated[str | None, format_option("text", "html")] = None,
    output: OutputOption = None,
    force: ForceOption = False,
    rules: RulesOption = None,
    config: ConfigOption = None,
) -> None:
    """Show step and findings from commit to commit."""
    from advisor.compare import history as kept
    from advisor.report.saved import captures
    from advisor.reports.history import formats

    if commit is not None and add is None:
        raise UsageError("--commit names what --add keeps", "Say what to keep: --add TRACE")
    name, target = destination(
        format, single_output(output), formats(), lambda: Path(f"{file_name(directory.name) or 'history'}.history.html"), force, str(directory)
    )
    if add is not None:
        from advisor.sources import is_one_capture

        there = {path.name for path in directory.glob("*.json")} if directory.is_dir() else set()
        if (several := len(captures(add, is_one_capture))) > 1:
            raise UsageError(f"{add} holds {several} captures, but a commit has a single report", "Give the path of a single capture.")
        path = kept.add(directory, _reports([add], rules, config)[0], commit)
        replaced = there - {one.name for one in directory.glob("*.json")} or there & {path.name}
        say(f"kept {path}" + (f", in place of {', '.join(replaced)} of the same commit" if replaced else ""))
    trend = kept.read(directory, ledger)
    if trend.skipped:
        say(f"advisor: {directory} holds other files than --add kept, which are left out: {kept.listed(trend.skipped)}")
    write(formats()[name].render(trend), target)


def _stem(path: Path) -> str:
    return file_name(path.name.split(".", 1)[0]) or "side"


def _reports(paths: list[Path], rules: list[Path] | None, config: Path | None) -> list[Report]:
    """A report of every capture; traces are analysed with the team's settings."""
    from advisor.report import saved
    from advisor.sources import is_one_capture, read

    chosen = selection(config, rules)

    def analyze(path: Path) -> Report:
        with progress_of(str(path)) as progress:
            recording = read(str(path), progress=progress)
        return chosen.run(reduced_job(recording, chosen.judging(), JobOutput(), named=True)).report

    return saved.reports(paths, analyze, is_one_capture)


def _compared(before: list[Report], after: list[Report], anyway: bool) -> Comparison:
    from advisor.compare import compare

    comparison = compare(before, after)
    serious = [d for d in comparison.differences if d.serious]
    if serious and not anyway:
        first = serious[0]
        raise UsageError(
            f"these captures are not comparable: {first.what} is {first.before} before and {first.after} after",
            f"{first.advice} To compare anyway: --anyway; the same program on two devices: --across",
        )
    return comparison
