"""What every command does with a terminal: progress, warnings, options that they share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.engine.rule import Rule
    from advisor.engine.settings import Settings
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

FormatOption = Annotated[
    str | None, typer.Option("--format", "-f", help="text, html, markdown, json, perfetto, sarif, junit or gitlab.", show_default="text and an HTML file")
]
FailOnOption = Annotated[
    str | None, typer.Option(help="Exit with 1 if a finding is at least this severe: high, medium or low.")
]
ExecutorOption = Annotated[str, typer.Option(help="Where the ranks of a job are read: processes, serial, or dask://HOST:PORT.")]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Ranks of a job read at once; as many as there are cores by default.")]


class Selection(NamedTuple):
    """Rules to run and the settings they run with. paths: files with a team's own rules."""

    rules: list[Rule]
    settings: Settings
    paths: tuple[Path, ...]


def selection(config: Path | None, paths: list[Path] | None, only: list[str] | None = None) -> Selection:
    """The rules that a team's settings leave, or `only` these. Raises UsageError where one does not exist."""
    from advisor.engine import settings
    from advisor.engine.rule import catalog

    chosen = settings.load(config)
    files = (*chosen.rules, *(paths or ()))
    known = catalog(files)
    chosen.check(known)
    unknown = [r for r in only or () if r not in known]
    if unknown:
        raise UsageError(f"there is no rule {', '.join(unknown)}", f"Rules are: {', '.join(sorted(known))}.")
    rules = [known[r] for r in dict.fromkeys(only)] if only else [r for r in known.values() if r.id not in chosen.disable]
    return Selection(rules, chosen, files)


def check_severity(fail_on: str | None) -> None:
    """Raises UsageError for a severity that does not exist."""
    from advisor.report.model import SEVERITIES

    if fail_on is not None and fail_on not in SEVERITIES:
        raise UsageError(f"--fail-on {fail_on} is no severity", f"Give one of {', '.join(SEVERITIES)}.")


def gate(report: Report, fail_on: str | None, allow_unjudged: bool) -> None:
    """Exit with 1 where a finding is as severe as was said, or where a gate was asked and nobody could look."""
    from advisor.engine.run import worst
    from advisor.report.model import SEVERITIES

    if fail_on is None:
        return
    level, order = worst(report.findings), [str(severity) for severity in SEVERITIES]
    if unjudged(report, allow_unjudged) or (level and order.index(level) <= order.index(fail_on)):
        raise typer.Exit(1)


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


@contextmanager
def rank_progress() -> Iterator[Callable[[int, int, str], None]]:
    """Called with how many ranks are done, of how many, and what is said of the last: a bar on a terminal's standard error, a line
    for each elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, count, said: print(f"{done} of {count}: {_visible(said)}", file=sys.stderr)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("ranks", total=None)

        def progress(done: int, count: int, said: str) -> None:
            bar.update(task, completed=done, total=count, description=f"{done} of {count} ranks")
            if " cannot be read: " in said:
                bar.console.print(_visible(said), markup=False, highlight=False)

        yield progress


def _visible(text: str) -> str:
    from advisor.reports._clean import visible

    return visible(text)
