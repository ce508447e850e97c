"""What every command does with a terminal: progress, warnings, options that they share."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from advisor.cli.outputs import check_target, file_name
from advisor.cli.streams import say, visible
from advisor.errors import UsageError, unknown_name
from advisor.knowledge.structs import replace
from advisor.recordings.garbage import importing, uncollected

if TYPE_CHECKING:
    from advisor.engine.analysis import Analysis
    from advisor.engine.reduce import Judging
    from advisor.engine.rule import Rule
    from advisor.engine.settings import Settings
    from advisor.recordings.recording import Recording
    from advisor.report.model import Report
    from advisor.reports._discover import Format

PROGRESS_BYTES = 20 << 20
"""A file from this size on takes long enough to read that people ask whether anything happens."""


def completed_words(*words: str) -> Callable[[str], list[str]]:
    """Completes an option that takes one of these, in the user's shell."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def _frameworks() -> list[str]:
    from advisor.knowledge.stacks import packs

    return list(packs())


def format_option(*names: str, alone: str | bool = False) -> Any:
    """`--format`, which takes one of these. alone: what is written where none is asked for."""
    said = f"{', '.join(names[:-1])} or {names[-1]}."
    return typer.Option("--format", "-f", help=said, show_default=alone, autocompletion=completed_words(*names))


def given_path(text: str) -> Path:
    """A path as it was given: `-` alone is a standard stream, and `./-` a file, of which pathlib would make `-`."""
    path = Path(text)
    return path if text == "-" or str(path) != "-" else path.absolute()


OutputOption = Annotated[list[Path] | None, typer.Option("--output", "-o", parser=given_path, metavar="<path>", help="The output file; - is standard output.")]
"""For commands that write a single file: `single_output` raises an error for two outputs. Click would use the last."""
OutputsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--output",
        "-o",
        help="The output file; - is standard output. May be repeated, each file in the format of its suffix: .html, .json, .md, .sarif and so on.",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite a file that advisor did not write.")]
FrameworkOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[=VERSION]",
        help="Framework of the program, such as transformers, lightning or vllm=0.33.0; it overrides the recording.",
        autocompletion=lambda incomplete: [name for name in _frameworks() if name.startswith(incomplete)],
    ),
]
ConfigOption = Annotated[Path | None, typer.Option(help="Settings: a TOML file. Without it, the table tool.advisor of the nearest pyproject.toml.")]
RulesOption = Annotated[list[Path] | None, typer.Option("--rules", help="A Python file with rules of your own; may be repeated.")]

BriefOption = Annotated[bool, typer.Option("--brief", help="With -f json: the bottleneck and the three things to do, in 2 kB.")]
UnjudgedOption = Annotated[bool, typer.Option("--allow-unjudged", help="Pass although the trace could not be judged, or only in part.")]

_FORMATS = ("text", "html", "markdown", "json", "perfetto", "sarif", "junit", "gitlab")
FormatOption = Annotated[str | None, format_option(*_FORMATS, alone="text and an HTML file")]
TextFormatOption = Annotated[str | None, format_option(*_FORMATS, alone="text")]
FailOnOption = Annotated[
    str | None,
    typer.Option(
        help="Exit with 1 if a finding is at least this severe: high, medium, low or info.", autocompletion=completed_words("high", "medium", "low", "info")
    ),
]
ExecutorOption = Annotated[
    str, typer.Option(help="The executor for the ranks of a job: processes (unless all are small together), serial, or dask://HOST:PORT.", show_default=False)
]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Ranks of a job that are read in parallel; by default as many as cores.")]


class Selection(NamedTuple):
    """Rules to run and the settings they run with. paths: files with a team's own rules. named: whether each rule was asked for by name."""

    rules: list[Rule]
    settings: Settings
    paths: tuple[Path, ...]
    named: bool = False

    def check(self, recording: Recording) -> None:
        """Raises UsageError for a rule that was asked for and does not look at such a recording."""
        from advisor.engine.rule_applicability import check_fits

        if self.named:
            check_fits(recording, self.rules)

    @uncollected()
    def run(self, recording: Recording, step_ms: float | None = None, waits: bool = False) -> Analysis:
        """The analysis of a recording by these rules and settings; raises as `engine.run.analysis`."""
        from advisor.engine.run import analysis

        return analysis(recording, self.rules, self.settings.options, self.settings.allow, step_ms, self.settings.devices, waits, self.settings.framework)

    def judging(self) -> Judging:
        """The same for the traces of a job's ranks, each read by a worker."""
        from advisor.engine.reduce import Judging

        return Judging(tuple(rule.id for rule in self.rules), tuple(map(str, self.paths)), self.settings.options, devices=self.settings.devices)


@importing()
def selection(config: Path | None, paths: list[Path] | None, only: list[str] | None = None, framework: str | None = None) -> Selection:
    """The rules that a team's settings leave, or `only` these; with the framework that is named, if one is. Raises UsageError where one does not exist."""
    from advisor.engine import settings
    from advisor.engine.rule import catalog

    chosen = settings.load(config)
    if framework is not None:
        chosen = replace(chosen, framework=settings.framework_named(framework, "--framework: "))
    files = (*chosen.rules, *(paths or ()))
    known = catalog(files)
    chosen.check(known)
    unknown = [r for r in only or () if r not in known]
    if unknown:
        raise unknown_name("rule", unknown[0], known, listed_by="advisor rules")
    rules = [known[r] for r in dict.fromkeys(only)] if only else [r for r in known.values() if r.id not in chosen.disable]
    return Selection(rules, chosen, files, bool(only))


def check_executor(executor: str) -> None:
    """Raises UsageError for an executor that does not exist, of one trace too, which needs none."""
    if executor:  # the default, which is none, needs no modules of jobs
        from advisor.engine import executors

        executors.check(executor)


def check_severity(fail_on: str | None) -> None:
    """Raises UsageError for a severity that does not exist."""
    from advisor.report.finding import SEVERITIES

    if fail_on is not None and fail_on not in SEVERITIES:
        raise UsageError(f"--fail-on {fail_on} is no severity", f"Give {', '.join(SEVERITIES[:-1])} or {SEVERITIES[-1]}.")


def gate(report: Report, fail_on: str | None, allow_unjudged: bool) -> None:
    """Exit with 1 where a finding is as severe as was said, or where a gate was asked and nobody could look."""
    from advisor.engine.run import worst
    from advisor.report.finding import SEVERITIES

    if fail_on is None:
        return
    level, order = worst(report.findings), [str(severity) for severity in SEVERITIES]
    if unjudged(report, allow_unjudged) or (level and order.index(level) <= order.index(fail_on)):
        raise typer.Exit(1)


def rule_names(incomplete: str) -> list[str]:
    """Rules that begin so, for the shell's completion."""
    from advisor.engine.rule import catalog

    return [name for name in sorted(catalog()) if name.startswith(incomplete)]


def unjudged(report: Report, allowed: bool) -> bool:
    """Whether a gate must close because nobody could look; says so."""
    head = report.headline
    if head.judged == "yes" or allowed:
        return False
    say(
        f"advisor: {'only part of this' if head.judged == 'partly' else 'this'} could {'' if head.judged == 'partly' else 'not '}be judged: "
        f"{head.judged_why}; --allow-unjudged passes it all the same"
    )
    return True


def warn_of_secrets(trace: str) -> None:
    """Say on standard error where a trace holds what looks like secrets."""
    from advisor.sources.secrets_in import secrets_like

    found = secrets_like(Path(trace))
    if found:
        shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        say(f"advisor: {trace} holds what looks like secrets ({shown}); before sharing: advisor redact {trace} OUT")


def check_format(name: str | None, formats: Mapping[str, Format[Any]]) -> None:
    """Raises UsageError for a format that does not exist."""
    if name is not None and name not in formats:
        raise unknown_name("format", name, formats)


_HELD_TOO = {"json": ("perfetto", "sarif", "gitlab"), "text": ("markdown",)}
"""Formats that are also of another kind, and may use its suffix."""


def format_into(name: str | None, path: Path | None, suffixes: Mapping[str, str]) -> str:
    """The format that is asked for: by its name, else by the file's suffix, the longest that fits; text where neither says one. Raises UsageError
    for a suffix of no format, and where name and suffix say two: one of them is not meant."""
    said = max(((len(suffix), one) for one, suffix in suffixes.items() if path and path.name.endswith(suffix)), default=(0, ""))[1]
    if name and said and said != name and name not in _HELD_TOO.get(said, ()):
        raise UsageError(f"--format {name} contradicts {path}: its suffix means {said}", f"Leave --format out, or name the file *{suffixes[name]}.")
    if path and path.suffix and not (name or said):
        raise UsageError(f"{path} has the suffix of no format", f"Use the suffix {', '.join(suffixes.values())}, or name the format with --format.")
    return name or said or "text"


def single_output(outputs: list[Path] | None) -> Path | None:
    """The output of a command that writes one. Raises UsageError where several are given."""
    if outputs and len(outputs) > 1:
        raise UsageError(f"this command writes a single file, and {len(outputs)} outputs are given", "Give a single -o, and run it again for the other.")
    return outputs[0] if outputs else None


def html_path(trace: str) -> Path:
    """TRACE.advisor.html in the current directory; with the folders' names before it where a report of another trace stands there."""
    whole = Path("stdin" if trace == "-" else os.path.abspath(trace))
    name = whole.name
    for suffix in (".gz", ".zst", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    name = file_name(name) or "trace"
    path = Path(f"{name}.advisor.html")
    for folder in whole.parents:
        if not _of_another(path, trace) or not folder.name:
            break
        name = file_name(f"{folder.name}-{name}")
        path = Path(f"{name}.advisor.html")
    return path


def _of_another(path: Path, trace: str) -> bool:
    """Whether a page of ours stands there that is of another trace."""
    from advisor.reports._names import trace_id

    if not path.is_file():
        return False
    with path.open("rb") as file:
        found = _TRACE_ID.search(file.read(4096))
    return found is not None and found[1].decode() != trace_id("standard input" if trace == "-" else trace)


_TRACE_ID = re.compile(rb'<meta name="trace-id" content="([0-9a-f]{16})">')


def destination(
    name: str | None, output: Path | None, formats: Mapping[str, Format[Any]], page: Callable[[], Path], force: bool, *sources: str
) -> tuple[str, Path | None]:
    """The format, and the file it goes to, None for standard output: a page alone is never printed, but written to `page()`.

    Raises UsageError for a format that does not exist or that the file's suffix contradicts, and for a file that is not to be overwritten.
    """
    check_format(name, formats)
    target = None if output is None or str(output) == "-" else output
    chosen = format_into(name, target, {one: form.SUFFIX for one, form in formats.items()} if target else {})
    if chosen == "html" and output is None:
        target = page()
    for source in sources:
        if target is not None:
            check_target(target, force, source)
    return chosen, target


OpenOption = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


def page_of(paths: Iterable[Path | None]) -> Path:
    """Which of the files that are written is the page to open. Raises UsageError where none is."""
    found = next((path for path in paths if path and path.suffix == ".html"), None)
    if found is None:
        raise UsageError("--open opens a page, and none is written", "Leave --format out, or give --format html.")
    return found


def show_page(path: Path) -> None:
    """Open a written page in the user's browser."""
    import webbrowser

    webbrowser.open(path.absolute().as_uri())


class progress_of:
    """A progress bar on a terminal's standard error, for files that take a while; nothing elsewhere."""

    def __init__(self, trace: str) -> None:
        large = os.path.isfile(trace) and os.path.getsize(trace) >= PROGRESS_BYTES
        self._bar = None
        if (large or trace == "-") and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(file=sys.__stderr__), transient=True)
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
def rank_progress(job: str = "") -> Iterator[Callable[[int, int, str], None]]:
    """Called with how many ranks are done, of how many, and what is said of the last: a bar on a terminal's standard error, a line
    for each elsewhere. job: which, where a command reads several."""
    of = f" of {job}" if job else ""
    if not sys.stderr.isatty():
        yield lambda done, count, said: say(f"{done} of {count}{of}: {said}")
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(file=sys.__stderr__), transient=True) as bar:
        task = bar.add_task("ranks", total=None)

        def progress(done: int, count: int, said: str) -> None:
            bar.update(task, completed=done, total=count, description=escape(visible(f"{done} of {count} ranks{of}")))
            if " cannot be read: " in said:
                bar.console.print(visible(said), markup=False, highlight=False)

        yield progress
