"""The command line. Only this package prints, exits or picks colours."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from advisor.cli import compare
from advisor.cli.terminal import (
    ConfigOption,
    ForceOption,
    OutputOption,
    RulesOption,
    check_format,
    check_target,
    format_of,
    html_path,
    progress_of,
    warn_of_secrets,
    write,
)
from advisor.errors import AdvisorError, RuleError, TraceError, UsageError

if TYPE_CHECKING:
    from advisor.report.model import Report

app = typer.Typer(
    help="Reads a GPU profile and says what makes the program slow, what to change, and what that gains.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

GIB = 1 << 30
FormatOption = Annotated[
    str | None, typer.Option("--format", "-f", help="text, html, markdown, json, perfetto, sarif, junit or gitlab.", show_default="text and an HTML file")
]


@app.command()
def analyze(
    trace: Annotated[
        str,
        typer.Argument(
            help="A PyTorch profiler trace (.json, .json.gz), an nsys export (.sqlite), a TensorBoard log directory, or - for standard input."
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
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 if a rule breaks.")] = False,
    max_gib: Annotated[float, typer.Option(help="Refuse a trace that unpacks to more than this many GiB.")] = 16.0,
    step_ms: Annotated[
        float | None, typer.Option(help="The step time without a profiler, in ms, to correct for what recording cost.")
    ] = None,
) -> None:
    """Say what makes the traced program slow and what to change.

    Alone, it prints a summary and writes TRACE.advisor.html into the current directory.
    """
    from advisor.engine import settings
    from advisor.engine.rule import catalog
    from advisor.engine.run import run, worst
    from advisor.report.model import SEVERITIES
    from advisor.reports import formats
    from advisor.sources import load

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
        timeline = load(trace, max_bytes=int(max_gib * GIB), progress=progress)
    warn_of_secrets(trace)
    report = run(timeline, chosen, chosen_settings.options, chosen_settings.allow, step_ms)
    _write(report, format or (format_of(target, formats())), target)
    if html:
        _write(report, "html", html)
    if strict and report.failed:
        raise RuleError(
            f"rule {report.failed[0].rule} failed: {report.failed[0].error}", "Without --strict the others' findings stand."
        )
    level = worst(report.findings)
    if fail_on and level and SEVERITIES.index(level) <= [*SEVERITIES].index(fail_on):
        raise typer.Exit(1)


@app.command()
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


@app.command(name="rules")
def list_rules(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print every rule's page as Markdown.")] = False,
) -> None:
    """List the rules, one a line."""
    from advisor.engine.rule import catalog, pages_as_markdown

    rules = sorted(catalog().values(), key=lambda r: r.id)
    print(pages_as_markdown(rules) if markdown else "\n".join(f"{item.id:28} {item.title}" for item in rules))


@app.command()
def explain(
    rule: Annotated[str, typer.Argument(help="A rule's id, as `advisor rules` lists it.")],
    trace: Annotated[str | None, typer.Argument(help="A trace: say what the rule sees there, and why it is quiet if it is.")] = None,
    rules: RulesOption = None,
    config: ConfigOption = None,
) -> None:
    """Print a rule's page, or what the rule says of one trace: the value, the threshold, and what it rests on."""
    from advisor.engine import settings
    from advisor.engine.rule import catalog

    chosen_settings = settings.load(config)
    known = catalog((*chosen_settings.rules, *(rules or ())))
    if rule not in known:
        raise UsageError(f"there is no rule {rule}", f"Rules are: {', '.join(sorted(known))}.")
    found = known[rule]
    options = {**found.options, **chosen_settings.options.get(rule, {})}
    if trace is not None:
        from advisor.engine.run import run
        from advisor.reports.report._why import why
        from advisor.sources import load

        with progress_of(trace) as progress:
            timeline = load(trace, progress=progress)
        report = run(timeline, [found], chosen_settings.options, chosen_settings.allow)
        print(why(report, options, found.relies_on))
        return
    print(f"{rule}: {found.page}")
    if options:
        print("\nOptions")
        for name, value in options.items():
            print(f"{name} = {value}")


@app.command()
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


@app.command()
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


app.command()(compare.diff)
app.command()(compare.check)
app.command()(compare.history)


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"advisor {installed('trace-advisor')}")
        raise typer.Exit


def _write(report: Report, name: str, target: Path | None) -> None:
    """Text is as wide as the terminal that it goes to, and coloured there."""
    from advisor.reports import formats
    from advisor.reports.report import text

    if name == text.NAME and target is None and sys.stdout.isatty():
        width = os.get_terminal_size().columns
        write(text.render(report, width=width, color="NO_COLOR" not in os.environ), None)
    else:
        write(formats()[name].render(report), target)


def _fail(error: AdvisorError) -> NoReturn:
    print(f"advisor: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"  {error.hint}", file=sys.stderr)
    raise SystemExit(error.exit_code)


def main() -> None:
    """Entry point: every known error becomes a message, a hint and its exit code."""
    try:
        app()
    except AdvisorError as error:
        _fail(error)
    except BrokenPipeError:
        # The reader of our output went away (head, less): no error of ours, and nothing more to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
