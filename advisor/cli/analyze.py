"""Commands on one capture: analyze, report (a saved one, rendered again) and redact."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.fleet import INDEX, PAGES, SAVED, JobOutput, check_directory, directory_of, one_path, part_of, prints_beside, reduced_job, write_directory
from advisor.cli.fleet import shard as shards
from advisor.cli.outputs import check_target, file_name, write
from advisor.cli.streams import say
from advisor.cli.terminal import (
    ConfigOption,
    ExecutorOption,
    FailOnOption,
    ForceOption,
    FormatOption,
    OpenOption,
    OutputOption,
    OutputsOption,
    RulesOption,
    TextFormatOption,
    UnjudgedOption,
    WorkersOption,
    check_executor,
    check_format,
    check_severity,
    destination,
    gate,
    html_path,
    only_one,
    page_of,
    pandas_alone,
    progress_of,
    rule_names,
    selection,
    show_page,
    warn_of_secrets,
)
from advisor.errors import RuleError, TraceError, UsageError

if TYPE_CHECKING:
    from advisor.recordings.recording import Recording
    from advisor.report.model import Report

GIB = 1 << 30  # bytes


def analyze(
    trace: Annotated[
        list[str],
        typer.Argument(
            help="A PyTorch profiler trace (.json, .json.gz), an nsys export (.sqlite), a report or CSV page of Nsight Compute (.ncu-rep, .csv), a memory snapshot (.pickle, .prof), a TensorBoard log directory, or - for standard input. Ranks of one job: their directory, a pattern, a URL of a store (s3://…), or one trace after the other."
        ),
    ],
    format: FormatOption = None,
    output: OutputsOption = None,
    force: ForceOption = False,
    rule: Annotated[list[str] | None, typer.Option("--rule", help="Run only this rule; may be repeated.", autocompletion=rule_names)] = None,
    rules: RulesOption = None,
    config: ConfigOption = None,
    fail_on: FailOnOption = None,
    allow_unjudged: UnjudgedOption = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 if a rule breaks.")] = False,
    max_gib: Annotated[float, typer.Option(help="Refuse a trace that unpacks to more than this many GiB.")] = 16.0,
    memory: Annotated[
        str | None, typer.Option(help="A memory snapshot of the same program: why the allocator asks the driver, and what holds the peak.")
    ] = None,
    kernels: Annotated[str | None, typer.Option(help="A report of Nsight Compute of the same program, whose kernels are found in the trace.")] = None,
    waits: Annotated[
        bool, typer.Option("--waits", help="List every call that waits for the GPU, by line, with what stands in for it; in text, Markdown and JSON.")
    ] = False,
    step_ms: Annotated[float | None, typer.Option(help="The step time without a profiler, in ms, to correct for what recording cost.")] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Several traces, or those of a directory, are no job: analyse each by itself, one after the other.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no summary beside the page, nor what is written.")] = False,
    open: OpenOption = False,
    executor: ExecutorOption = "",
    workers: WorkersOption = None,
    shard: Annotated[str | None, typer.Option(help="Reduce only a part of the ranks of a job, as 3/8, into the directory -o; then: advisor merge.")] = None,
) -> None:
    """Say what makes the traced program slow and what to change.

    Alone, it prints a summary and writes TRACE.advisor.html into the current directory. Of a job, -o DIR writes its page with every
    rank's own page beside it, and goes on there where it was stopped.
    """
    pandas_alone()
    from advisor.reports import formats

    check_severity(fail_on)
    outputs = output or []
    directory = directory_of(outputs, shard)
    if shard is not None:
        of_a_report = {
            "--format": format,
            "--fail-on": fail_on,
            "--allow-unjudged": allow_unjudged,
            "--strict": strict,
            "--step-ms": step_ms,
            "--waits": waits,
            "--open": open,
        }
        if asked := ", ".join(option for option, given in of_a_report.items() if given):
            raise UsageError(f"--shard writes summaries and judges nothing: {asked} would do nothing", "Leave it out; advisor merge writes and judges.")
    _check_several(outputs, directory, format, each, shard)
    if each:
        from advisor.sources import each_of

        def one(path: str, into: Path | None) -> None:
            analyze(
                [path], format, [into] if into else None, force, rule, rules, config, fail_on, allow_unjudged, strict, max_gib, memory, kernels, waits, step_ms,
                quiet=quiet, open=open, executor=executor, workers=workers, shard=shard,
            )  # fmt: skip

        _one_by_one(each_of(trace), outputs[0] if outputs else None, formats()[format or "html"].SUFFIX, one)
        return
    if not 0 < max_gib <= 1e9:
        raise UsageError(f"--max-gib {max_gib} is not a size", "Give a number of GiB above 0.")
    chosen = selection(config, rules, rule)
    name, max_bytes = one_path(trace), int(max_gib * GIB)
    check_executor(executor)
    how = JobOutput(executor, workers, directory, part_of(shard))
    page = partial(html_path, name)
    inputs = (*trace, *filter(None, (memory, kernels)))

    def into(form: str | None, path: Path | None) -> tuple[str, Path | None]:
        return destination(form, path, formats(), page, force, *inputs)

    check_format(format, formats())
    files = [path for path in outputs if path != directory]
    if outputs:
        targets = [into(format, path) for path in files]
    elif format:
        targets = [into(format, None)]
    else:
        check_target(page(), force, name)
        targets = [*([] if quiet else [into(None, None)]), into("html", None)]
    if open and not directory:  # which a job fills with its pages
        page_of(path for _, path in targets)
    recording = _read(trace, max_bytes, memory, kernels)
    chosen.check(recording)
    if how.part or recording.kind == "job":
        from advisor.engine.fleet import with_measured

        judging = replace(chosen.judging(), max_bytes=max_bytes)
        if how.part:
            shards(recording, with_measured(judging, recording), how)
            return
        if directory:
            check_directory(directory, force)
            if second := directory_of(files):
                raise UsageError(f"{second} would be a second directory beside {directory}", "Give a file a name with a suffix.")
            if prints_beside(format):
                targets.append(into(format, Path("-")))
        recording = reduced_job(recording, judging, how)
    elif directory and directory.exists():
        raise UsageError(f"{directory} is a directory, and {name} is no job of several ranks", "Give the path of a file.")
    elif directory:  # a name without a suffix, and no job: a file
        targets.append(into(format, directory))
        directory = None
        if open:
            page_of(path for _, path in targets)
    report = chosen.run(recording, step_ms, waits)
    if directory:
        write_directory(report, directory, linked=True)
    for form, path in targets:
        _write(report, form, path, quiet)
    if open:
        show_page(page_of((directory and directory / INDEX, *(path for _, path in targets))))
    if strict and report.failed:
        raise RuleError(f"rule {report.failed[0].rule} failed: {report.failed[0].error}", "Without --strict the others' findings stand.")
    gate(report, fail_on, allow_unjudged)


def _check_several(outputs: list[Path], directory: Path | None, format: str | None, each: bool, shard: str | None) -> None:
    """Raises UsageError for several outputs where there can be but one, and for two that are one file."""
    if len(outputs) < 2:
        return
    given = f"and {len(outputs)} outputs are given"
    if format is not None:
        raise UsageError(f"--format {format} is one format, {given}", "Leave it out: the suffix of each tells its format.")
    if each:
        raise UsageError(f"--each writes into one directory, {given}", "Give one -o, a directory that is there.")
    if shard is not None:
        raise UsageError(f"--shard writes into one directory, {given}", "Give one -o; what else is wanted, advisor merge writes.")
    taken = {_place(directory / name) for name in (INDEX, SAVED)} if directory else set()
    for path in outputs:
        if _place(path) in taken or (directory and _place(path).parent == _place(directory / PAGES)):
            raise UsageError(f"{path} is given twice", "Give each output a path of its own; a job's directory has files of its own.")
        taken.add(_place(path))


def _place(path: Path) -> Path:
    """Where a file is written, by whatever path: a link of that name is replaced, those on the way are followed."""
    return Path(os.path.realpath(path.parent), path.name)


def _one_by_one(traces: list[str], output: Path | None, suffix: str, analyze_one: Callable[[str, Path | None], None]) -> None:
    """Each trace by itself, and where `output` is a directory into a file of its own there. Exits with the highest code of any."""
    codes: list[int] = []
    used: set[str] = set()
    for path in traces:
        into = output
        if output and output.is_dir():
            name = html_path(path).with_suffix(suffix).name
            if name in used:  # of two of one name, the folder tells which
                name = f"{file_name(Path(path).absolute().parent.name)}-{name}"
            if name in used:
                raise UsageError(f"two of the traces would be {output / name}", "Give each a name of its own.")
            used.add(name)
            into = output / name
        elif len(traces) > 1 and output is not None and str(output) != "-":
            raise UsageError(f"{len(traces)} traces cannot go to one {output}", "Give -o a directory that is there, or leave it out.")
        try:
            analyze_one(path, into)
        except typer.Exit as stopped:
            codes.append(stopped.exit_code)
    if any(codes):
        raise typer.Exit(max(codes))


def _read(traces: list[str], max_bytes: int, memory: str | None, kernels: str | None) -> Recording:
    """What was recorded, with the memory snapshot and the measured kernels that were given beside it."""
    from advisor.recordings.recording import with_kernels, with_memory
    from advisor.sources import read, read_several

    if len(traces) > 1:
        recording = read_several(traces)
    else:
        with progress_of(traces[0]) as progress:
            recording = read(traces[0], max_bytes=max_bytes, progress=progress)
        warn_of_secrets(traces[0])
    if memory:
        recording = with_memory(recording, read(memory, max_bytes=max_bytes))
    if kernels:
        recording = with_kernels(recording, read(kernels, max_bytes=max_bytes))
    return recording


def report(
    saved: Annotated[Path, typer.Argument(help="A report saved with --format json.")],
    format: TextFormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Render a saved JSON report in another format."""
    from advisor.report.saved import read_report
    from advisor.reports import formats

    loaded = read_report(saved)
    form, target = destination(format, only_one(output), formats(), lambda: Path(f"{file_name(saved.stem)}.html"), force, str(saved))
    _write(loaded, form, target)


def redact(
    trace: Annotated[Path, typer.Argument(help="A recording, a saved report, or a directory with one trace a rank, of advisor record or of JAX.")],
    output: Annotated[Path, typer.Argument(help="A new file; one that ends in .gz is compressed. Of a directory a new directory.")],
) -> None:
    """Write a copy to give away, with the same analysis.

    It is without paths, hosts, users, command lines and environment.
    """
    from advisor.engine import redact_job as giveaway

    if not trace.exists():
        raise TraceError(f"there is no file {trace}", "Give the path of a trace.")
    giveaway.redact(trace, output)
    say(f"wrote {output}")


def _write(report: Report, name: str, target: Path | None, quiet: bool = False) -> None:
    """Text is as wide as the terminal that it goes to, and coloured there."""
    from advisor.reports import formats

    if name == "text" and target is None and sys.stdout.isatty():
        from advisor.reports.report import text

        width = os.get_terminal_size().columns
        write(text.render(report, width=width, color="NO_COLOR" not in os.environ), None)
    else:
        write(formats()[name].render(report), target, quiet)
