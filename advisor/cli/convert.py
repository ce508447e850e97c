"""Copies of a recording: in another format (convert), or fit to give away (redact)."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.outputs import check_target
from advisor.cli.streams import say
from advisor.errors import TraceError, UsageError
from advisor.files import write_whole
from advisor.report.numbers import size


def convert(
    trace: Annotated[str, typer.Argument(help="A trace of a single process, in any format that analyze reads.")],
    output: Annotated[Path, typer.Argument(help="A new file: .trace.zst for columns, .json or .json.gz for Kineto's JSON.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a trace in another format.

    Columns (.trace.zst) take a fifth of a packed trace and open without parsing. The report is the same.
    """
    from advisor.sources import columns, load
    from advisor.sources.kineto.write import not_held, write

    as_json = output.name.endswith((".json", ".json.gz"))
    if not as_json and not columns.named_as_columns(output):
        raise UsageError(f"the name {output.name} says no format", "End it in .trace.zst for columns, in .json or .json.gz for Kineto's JSON.")
    check_target(output, True, trace)
    if os.path.lexists(output) and not force:
        raise UsageError(f"{output} is there already", "Give the path of a new file, or --force.")
    timeline = load(trace)
    data = write(timeline) if as_json else columns.encode(timeline)
    write_whole(output, gzip.compress(data, 6, mtime=0) if output.suffix == ".gz" else data)
    say(f"wrote {output} ({size(output.stat().st_size)})")
    if as_json and (lost := not_held(timeline)):
        say(f"note: Kineto's JSON has no place for {', '.join(lost)}")


def redact(
    trace: Annotated[Path, typer.Argument(help="A recording, a saved report, or a directory: of a trace per rank, of advisor record, or of JAX.")],
    output: Annotated[Path, typer.Argument(help="A new file, compressed if it ends in .gz; for a directory, a new directory.")],
) -> None:
    """Write a copy to give away, with the same analysis.

    It is without paths, hosts, users, command lines and environment.
    """
    from advisor.engine import redact_job

    if not trace.exists():
        raise TraceError(f"there is no file {trace}", "Give the path of a trace.")
    redact_job.redact(trace, output)
    say(f"wrote {output}")
