"""Commands on one capture: analyze, report (a saved one, rendered again) and redact."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.outputs import check_target, write
from advisor.cli.terminal import (
    ConfigOption,
    ForceOption,
    OutputOption,
    RulesOption,
    UnjudgedOption,
    check_format,
    format_of,
    html_path,
    progress_of,
    unjudged,
    warn_of_secrets,
)
from advisor.errors import RuleError, TraceError, UsageError

if TYPE_CHECKING:
    from advisor.report.model import Report

GIB = 1 << 30
FormatOption = Annotated[
    str | None, typer.Option("--format", "-f", help="text, html, markdown, json, perfetto, sarif, junit or gitlab.", show_default="text and an HTML file")
]


def analyze(
    trace: Annotated[
        str,
        typer.Argument(
            help="A PyTorch profiler trace (.json, .json.gz), an nsys export (.sqlite), a report or CSV page of Nsight Compute (.ncu-rep, .csv), a memory snapshot (.pickle, .prof), a TensorBoard log directory, a directory or pattern of a job's ranks, or - for standard input."
        ),
    ],
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    rule: Annotated[list[str] | None, typer.Option("--rule", help="Run only this rule; may be repeated.")] = None,
    rules: RulesOption = None,
    config: ConfigOption = None,
    fail_on: Annotated[
        str | None, typer.Option(help="Exit with 1 if a finding is at least this severe: high, medium or low.")
    ] = None,
    allow_unjudged: UnjudgedOption = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 if a rule breaks.")] = False,
    max_gib: Annotated[float, typer.Option(help="Refuse a trace that unpacks to more than this many GiB.")] = 16.0,
    kernels: Annotated[
        str | None, typer.Option(help="A report of Nsight Compute of the same program, whose kernels are found in the trace.")
    ] = None,
    step_ms: Annotated[
        float | None, typer.Option(help="The step time without a profiler, in ms, to correct for what recording cost.")
    ] = None,
    executor: Annotated[str, typer.Option(help="Where the ranks of a job are read: processes, serial, or dask://HOST:PORT.")] = "processes",
) -> None:
    """Say what makes the traced program slow and what to change.

    Alone, it prints a summary and writes TRACE.advisor.html into the current directory.
    """
    from advisor.engine import settings
    from advisor.engine.fleet import Judging, reduced
    from advisor.engine.rule import catalog
    from advisor.engine.run import run, worst
    from advisor.recording import with_kernels
    from advisor.report.model import SEVERITIES
    from advisor.reports import formats
    from advisor.sources import read

    if fail_on is not None and fail_on not in SEVERITIES:
        raise UsageError(f"--fail-on {fail_on} is no severity", f"Give one of {', '.join(SEVERITIES)}.")
    if max_gib <= 0:
        raise UsageError(f"--max-gib {max_gib} is not a size", "Give a number of GiB above 0.")
    chosen_settings = settings.load(config)
    known = catalog((*chosen_settings.rules, *(rules or ())))
    chosen_settings.check(known)
    unknown = [r for r in rule or () if r not in known]
    if unknown:
        raise UsageError(f"there is no rule {', '.join(unknown)}", f"Rules are: {', '.join(sorted(known))}.")
    chosen = (
        [known[r] for r in dict.fromkeys(rule)] if rule else [r for r in known.values() if r.id not in chosen_settings.disable]
    )
    check_format(format, formats())
    target = None if output is None or str(output) == "-" else output
    if target:
        check_target(target, force, trace)
    html = None
    if format == "html" and output is None:
        target = html_path(trace)
        check_target(target, force, trace)
    elif format is None and output is None:
        html = html_path(trace)
        check_target(html, force, trace)
    with progress_of(trace) as progress:
        recording = read(trace, max_bytes=int(max_gib * GIB), progress=progress)
    warn_of_secrets(trace)
    if kernels:
        recording = with_kernels(recording, read(kernels, max_bytes=int(max_gib * GIB)))
    if recording.kind == "job":
        names = tuple(r.id for r in chosen)
        paths = tuple(str(p) for p in (*chosen_settings.rules, *(rules or ())))
        recording = reduced(recording, Judging(names, paths, chosen_settings.options, int(max_gib * GIB)), executor=executor)
    report = run(recording, chosen, chosen_settings.options, chosen_settings.allow, step_ms)
    _write(report, format or (format_of(target, formats())), target)
    if html:
        _write(report, "html", html)
    if strict and report.failed:
        raise RuleError(
            f"rule {report.failed[0].rule} failed: {report.failed[0].error}", "Without --strict the others' findings stand."
        )
    level = worst(report.findings)
    if fail_on and unjudged(report, allow_unjudged):
        raise typer.Exit(1)
    if fail_on and level and SEVERITIES.index(level) <= [*SEVERITIES].index(fail_on):
        raise typer.Exit(1)


def report(
    saved: Annotated[Path, typer.Argument(help="A report saved with --format json.")],
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Render a saved JSON report in another format."""
    from advisor.report.saved import read_report
    from advisor.reports import formats

    check_format(format, formats())
    loaded = read_report(saved)
    target = None if output is None or str(output) == "-" else output
    if format == "html" and output is None:
        target = Path(f"{saved.stem}.html")
    if target:
        check_target(target, force, str(saved))
    _write(loaded, format or (format_of(target, formats())), target)


def redact(
    trace: Annotated[Path, typer.Argument(help="A PyTorch profiler trace or an nsys export.")],
    output: Annotated[Path, typer.Argument(help="A new file; one that ends in .gz is compressed.")],
) -> None:
    """Write a copy to give away: without paths, hosts, users, command lines and environment, with the same analysis."""
    from advisor.sources import redact as redaction

    if not trace.is_file():
        raise TraceError(f"there is no file {trace}", "Give the path of a trace.")
    redaction.redact(trace, output)
    print(f"wrote {output}", file=sys.stderr)


def _write(report: Report, name: str, target: Path | None) -> None:
    """Text is as wide as the terminal that it goes to, and coloured there."""
    from advisor.reports import formats
    from advisor.reports.report import text

    if name == text.NAME and target is None and sys.stdout.isatty():
        width = os.get_terminal_size().columns
        write(text.render(report, width=width, color="NO_COLOR" not in os.environ), None)
    else:
        write(formats()[name].render(report), target)
