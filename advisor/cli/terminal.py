"""What every command does with a terminal: progress, warnings, options that they share."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.report.model import Report
    from advisor.reports._discover import Format

PROGRESS_BYTES = 20 << 20
"""A file from this size on takes long enough to read that people ask whether anything happens."""

OutputOption = Annotated[Path | None, typer.Option("--output", "-o", help="Where to write; - is standard output.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite a file that advisor did not write.")]
ConfigOption = Annotated[
    Path | None, typer.Option(help="Settings: a TOML file. Without it, [tool.advisor] of the nearest pyproject.toml.")
]
RulesOption = Annotated[
    list[Path] | None, typer.Option("--rules", help="A Python file with rules of your own; may be repeated.")
]

UnjudgedOption = Annotated[
    bool, typer.Option("--allow-unjudged", help="Pass although the trace could not be judged, or only in part.")
]


def unjudged(report: Report, allowed: bool) -> bool:
    """Whether a gate must close because nobody could look; says so."""
    head = report.headline
    if head.judged == "yes" or allowed:
        return False
    print(f"advisor: {'only part of this' if head.judged == 'partly' else 'this'} could {'' if head.judged == 'partly' else 'not '}be judged: "
          f"{head.judged_why}; --allow-unjudged passes it all the same", file=sys.stderr)
    return True


def warn_of_secrets(trace: str) -> None:
    from advisor.sources.redact import secrets_like

    found = secrets_like(Path(trace))
    if found:
        shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        print(
            f"advisor: {trace} holds what looks like secrets ({shown}); before sharing: advisor redact {trace} OUT",
            file=sys.stderr,
        )


def check_format(name: str | None, formats: Mapping[str, Format[Any]]) -> None:
    """Raises UsageError for a format that does not exist."""
    if name is not None and name not in formats:
        raise UsageError(f"there is no format {name}", f"Formats are: {', '.join(formats)}.")


def format_of(path: Path | None, formats: Mapping[str, Format[Any]]) -> str:
    """The format that a file's suffix asks for, text where it asks for none; the longest suffix that fits."""
    fits = [(len(form.SUFFIX), name) for name, form in formats.items() if path and path.name.endswith(form.SUFFIX)]
    return max(fits)[1] if fits else "text"


def html_path(trace: str) -> Path:
    """TRACE.advisor.html in the current directory."""
    name = "stdin" if trace == "-" else Path(os.path.abspath(trace)).name
    for suffix in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return Path(f"{name or 'trace'}.advisor.html")


class progress_of:
    """A progress bar on a terminal's standard error, for files that take a while; nothing elsewhere."""

    def __init__(self, trace: str) -> None:
        large = os.path.isfile(trace) and os.path.getsize(trace) >= PROGRESS_BYTES
        self._bar = None
        if (large or trace == "-") and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("reading", total=None)

    def __enter__(self) -> progress_of | None:
        if self._bar:
            self._bar.start()
        return self if self._bar else None

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, done: int, size: int | None) -> None:
        if self._bar:
            self._bar.update(self._task, completed=done, total=size)
