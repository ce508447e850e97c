"""Commands on jobs of many ranks: shards reduced on several machines, and merged on one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.outputs import check_target, write
from advisor.cli.terminal import ForceOption, OutputOption, check_format, format_of
from advisor.errors import UsageError


def shard(
    job: Annotated[str, typer.Argument(help="The directory, pattern or URL of the job's traces.")],
    part: Annotated[str, typer.Argument(help="Which of how many, as 3/8: every eighth trace from the third on.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A directory for the summaries; those that are there are kept.")],
    executor: Annotated[str, typer.Option(help="processes, serial, or dask://HOST:PORT of a scheduler.")] = "processes",
    workers: Annotated[int | None, typer.Option(help="Processes at once; as many as there are cores by default.")] = None,
) -> None:
    """Reduce some of a job's ranks to summaries of kilobytes, which `advisor merge` reads. Starts again where it was stopped."""
    from advisor.engine.fleet import reduced
    from advisor.sources import read

    number, _, of = part.partition("/")
    if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise UsageError(f"{part} is no part", "Give it as 3/8.")
    recording = read(job)
    if recording.kind != "job":
        raise UsageError(f"{job} is not a job of several ranks", "Give a directory with one trace a rank.")
    output.mkdir(parents=True, exist_ok=True)

    def progress(done: int, count: int, label: str) -> None:
        print(f"{done} of {count}: {label}", file=sys.stderr)

    reduced(recording, executor=executor, workers=workers, kept=output, shard=(int(number), int(of)), progress=progress)


def merge(
    summaries: Annotated[Path, typer.Argument(help="The directory that shards wrote their summaries to.")],
    format: Annotated[str | None, typer.Option("--format", "-f", help="As of analyze.")] = None,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Judge a job from the summaries of its ranks."""
    from advisor.engine.fleet import merged, stored
    from advisor.engine.rule import catalog
    from advisor.engine.run import run
    from advisor.reports import formats

    check_format(format, formats())
    target = None if output is None or str(output) == "-" else output
    if target:
        check_target(target, force, str(summaries))
    report = run(merged(stored(summaries), str(summaries)), catalog().values())
    write(formats()[format or format_of(target, formats())].render(report), target)
