"""Jobs of many ranks on the command line: what analyze does with them, and merge."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from advisor.cli.outputs import check_target, file_name, make_directory, write, write_report
from advisor.cli.streams import say
from advisor.cli.terminal import (
    ConfigOption,
    FailOnOption,
    ForceOption,
    OutputOption,
    RulesOption,
    TextFormatOption,
    UnjudgedOption,
    check_severity,
    destination,
    gate,
    rank_progress,
    selection,
    single_output,
)
from advisor.errors import TraceError, UsageError
from advisor.report.numbers import counted

if TYPE_CHECKING:
    from advisor.engine.reduce import Judging
    from advisor.recordings.recording import Recording
    from advisor.report.model import Report

INDEX, SAVED, PAGES, SUMMARIES = "index.html", "report.json", "ranks", "summaries"
"""The content of a job's directory: its page, the same as JSON, its ranks' pages, and their data."""


class JobOutput(msgspec.Struct, frozen=True):
    """How to reduce the ranks of a job. `executor` with so many `workers`. `directory`: the destination, if any. `part`: (i, n), only these traces."""

    executor: str = ""
    workers: int | None = None
    directory: Path | None = None
    part: tuple[int, int] | None = None


def part_of(text: str | None) -> tuple[int, int] | None:
    """`3/8` as numbers. Raises UsageError where it is no part."""
    if text is None:
        return None
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise UsageError(f"--shard {text} is no part", "Give it as 3/8: the third of eight.")
    return int(number), int(of)


def directory_of(outputs: Sequence[Path], shard: str | None = None) -> Path | None:
    """Which output is a directory: one that is there, or else a name without a suffix, as no file of a report has."""
    named = [path for path in outputs if path.is_dir() or not (path.suffix or path.exists() or str(path) == "-")]
    if shard is not None and not named:
        raise UsageError("--shard needs a directory for its summaries", "Give a directory with -o DIR.")
    return max(named, key=Path.is_dir, default=None)


def check_directory(directory: Path, force: bool, source: str = "") -> None:
    """Refuse the input as the place where a job's pages go, and, without `force`, to overwrite what advisor did not write there."""
    if directory.exists() and os.path.exists(source) and os.path.samefile(directory, source):
        raise UsageError(f"{directory} is the input", "Give another directory with -o.")
    for path in (directory / INDEX, directory / SAVED, *directory.glob(f"{PAGES}/*.html")):
        if path.exists():
            check_target(path, force, "")


def prints_beside(format: str | None) -> bool:
    """Whether a format is printed where a directory is written: the page is there, and none is printed."""
    return format not in (None, "html")


def reduced_job(recording: Recording, judging: Judging, how: JobOutput, named: bool = False) -> Recording:
    """The job with its ranks reduced, with a line or a bar of progress, which names the job where it is one of several."""
    from advisor.engine.fleet import Kept, reduced

    if how.directory:
        make_directory(how.directory)
    kept = Kept(how.directory / SUMMARIES, how.directory / PAGES) if how.directory else None
    removed: list[int] = []
    with rank_progress(recording.path if named else "") as progress:
        job = reduced(recording, judging, executor=how.executor, workers=how.workers, kept=kept, progress=progress, cleared=removed.append)
    for files in removed:
        say(f"note: taken away from {how.directory}: {counted(files, 'file')} of earlier runs")
    return job


def shard(recording: Recording, judging: Judging, how: JobOutput) -> None:
    """Reduce a part of a job's ranks into a directory for `merge`. Raises TraceError where none of them can be read."""
    from advisor.engine.fleet import Kept, reduce, traces_of

    given = traces_of(recording)
    if given is None:
        raise UsageError(f"{recording.path} is not a job of several ranks", "Give a directory with a trace per rank.")
    assert how.part and how.directory
    traces = given.traces[how.part[0] - 1 :: how.part[1]]
    for note in filter(None, (*given.notes, given.chosen)):  # of these `merge` knows nothing
        say(f"note: {note}")
    make_directory(how.directory)
    with rank_progress() as progress:
        made = reduce(traces, judging, executor=how.executor, workers=how.workers, kept=Kept(how.directory), progress=progress)
    part = f"part {how.part[0]} of {how.part[1]}"
    are = "is" if len(made.summaries) == 1 else "are"
    say(f"{part}: of its {counted(len(traces), 'rank')} {len(made.summaries)} {are} in {how.directory}; all parts together: advisor merge {how.directory}")
    if made.unread and not made.summaries:
        raise TraceError(f"none of {len(traces)} ranks could be read: {made.unread[0].label}: {made.unread[0].why}", "Give a directory with a trace per rank.")


def write_directory(report: Report, directory: Path, linked: bool) -> None:
    """The job's page, and the same as JSON. linked: to its ranks' pages, which were made with it; those of summaries lie elsewhere, and what
    is there under their names may be another job's."""
    import msgspec

    from advisor.engine.fleet import page_name
    from advisor.reports import formats

    make_directory(directory)
    if linked:
        ranks = (row if row.failed else msgspec.structs.replace(row, page=f"{PAGES}/{page_name(row.trace)}") for row in report.ranks)
        report = msgspec.structs.replace(report, ranks=tuple(ranks))
    for name, form in ((INDEX, "html"), (SAVED, "json")):
        write(formats()[form].render(report), directory / name)


def merge(
    summaries: Annotated[Path, typer.Argument(help="The directory with the summaries of the shards.")],
    format: TextFormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    rule: Annotated[list[str] | None, typer.Option("--rule", help="Run only this rule; may be repeated.")] = None,
    rules: RulesOption = None,
    config: ConfigOption = None,
    fail_on: FailOnOption = None,
    allow_unjudged: UnjudgedOption = False,
) -> None:
    """Report on a job from the summaries of its ranks.

    `advisor analyze --shard` writes them. An output directory (existing, or a name without a suffix) receives the page and report.json.
    """
    from advisor.engine.fleet import merged, stored
    from advisor.reports import formats

    check_severity(fail_on)
    chosen, into = selection(config, rules, rule), single_output(output)
    directory = directory_of([into] if into else [])
    page = partial(_page_of, summaries)
    form, target = destination(format, Path("-") if directory else into, formats(), page, force, str(summaries))
    if directory:
        check_directory(directory, force, str(summaries))
    recording = merged(stored(summaries), str(summaries))
    chosen.check(recording)
    made = chosen.run(recording)
    if directory:
        write_directory(made.report, directory, linked=False)
    if not directory or prints_beside(format):
        write_report(made, form, target)
    gate(made.report, fail_on, allow_unjudged)


def _page_of(summaries: Path) -> Path:
    return Path(f"{file_name(summaries.name) or 'job'}.advisor.html")


def one_path(paths: Sequence[str]) -> str:
    """What is analysed: the path that was given, or the directory of several."""
    return paths[0] if len(paths) == 1 else os.path.dirname(os.path.abspath(paths[0]))
