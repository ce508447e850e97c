"""Commands that write a report. analyze: of a trace, of each of several, or of a job's ranks. report: of a saved report."""

# Annotations are evaluated here, once: typer evaluates the text of each several times, which takes as long as a tenth of numpy's import.
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer

from advisor.cli.fleet import INDEX, PAGES, SAVED, JobOutput, check_directory, directory_of, one_path, part_of, prints_beside, reduced_job, write_directory
from advisor.cli.fleet import shard as shard_of
from advisor.cli.outputs import check_brief, check_target, file_name, write_brief, write_report
from advisor.cli.terminal import (
    BriefOption,
    ConfigOption,
    ExecutorOption,
    FailOnOption,
    ForceOption,
    FormatOption,
    FrameworkOption,
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
    page_of,
    progress_of,
    rule_names,
    selection,
    show_page,
    single_output,
    warn_of_secrets,
)
from advisor.errors import RuleError, UsageError
from advisor.knowledge import formats
from advisor.knowledge.structs import replace
from advisor.recordings.garbage import uncollected

if TYPE_CHECKING:
    from advisor.cli.terminal import Selection
    from advisor.engine.analysis import Analysis
    from advisor.engine.reduce import Judging
    from advisor.recordings.recording import Recording

GIB = 1 << 30  # bytes


def analyze(
    trace: Annotated[
        list[str],
        typer.Argument(
            help=f"{formats.read_in_a_sentence()}; a TensorBoard log directory; or - for standard input. Ranks of a job: their directory, a pattern, a URL of a store (s3://…), or all traces."
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
        str | None, typer.Option(help="A memory snapshot of the same program: why the allocator calls the driver, and the tensors at the peak.")
    ] = None,
    kernels: Annotated[str | None, typer.Option(help="A report of Nsight Compute of the same program; its kernels are matched with the trace.")] = None,
    capture: Annotated[
        str | None,
        typer.Option(
            help="Traces of the capture of its CUDA graphs, with the ops and shapes of their kernels, or annotations by torch.cuda: a directory or a file. Those next to a trace are found automatically."
        ),
    ] = None,
    serving: Annotated[
        str | None,
        typer.Option(help="Measurements of the traced server: the JSON of vllm bench serve or of bench_serving in SGLang, or the text of its /metrics."),
    ] = None,
    compile_log: Annotated[
        str | None,
        typer.Option(
            help="Log of torch.compile of the same run (TORCH_TRACE=DIR: the directory or a log): graph breaks and recompilations by line, with their cost."
        ),
    ] = None,
    waits: Annotated[
        bool, typer.Option("--waits", help="List every call that waits for the GPU, by line, with its replacement; in text, Markdown and JSON.")
    ] = False,
    brief: BriefOption = False,
    framework: FrameworkOption = None,
    step_ms: Annotated[float | None, typer.Option(help="The step time without a profiler, in ms, to correct for profiler overhead.")] = None,
    each: Annotated[bool, typer.Option("--each", help="Analyze each trace separately instead of as ranks of a job.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print the summary or the output paths.")] = False,
    open: OpenOption = False,
    executor: ExecutorOption = "",
    workers: WorkersOption = None,
    shard: Annotated[str | None, typer.Option(help="Reduce only a part of the ranks of a job, as 3/8, into the directory -o; then: advisor merge.")] = None,
) -> None:
    """Report what makes the traced program slow and what to change.

    By default, print a summary and write TRACE.advisor.html into the current directory. For a job, -o DIR writes its page and every
    rank's page, and resumes an interrupted run.
    """
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
            "--serving": serving,
            "--compile-log": compile_log,
            "--brief": brief,
            "--open": open,
        }
        if asked := ", ".join(option for option, given in of_a_report.items() if given):
            raise UsageError(f"--shard writes summaries and judges nothing: {asked} would do nothing", "Leave it out; advisor merge writes and judges.")
    _check_several(outputs, directory, format, each, shard)
    if not 0 < max_gib <= 1e9:
        raise UsageError(f"--max-gib {max_gib} is not a size", "Give a number of GiB above 0.")
    check_executor(executor)
    check_format(format, formats())
    request = _Request(
        chosen=selection(config, rules, rule, framework),
        format=format, outputs=tuple(outputs), force=force, quiet=quiet, open=open, fail_on=fail_on, allow_unjudged=allow_unjudged, strict=strict,
        max_bytes=int(max_gib * GIB), memory=memory, kernels=kernels, capture=capture, serving=serving, compile_log=compile_log, waits=waits, brief=brief, step_ms=step_ms, executor=executor,
        workers=workers, part=part_of(shard),
    )  # fmt: skip
    if each:
        _analyze_each(trace, request)
    else:
        _analyze_together(trace, request)


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """The options' effect on every trace. part: (i, n), the ranks of a job to reduce."""

    chosen: "Selection"
    format: str | None
    outputs: tuple[Path, ...]
    force: bool
    quiet: bool
    open: bool
    fail_on: str | None
    allow_unjudged: bool
    strict: bool
    max_bytes: int
    memory: str | None
    kernels: str | None
    capture: str | None
    serving: str | None
    compile_log: str | None
    waits: bool
    brief: bool
    step_ms: float | None
    executor: str
    workers: int | None
    part: tuple[int, int] | None

    def judging(self, recording: "Recording") -> "Judging":
        """How each rank of a job is judged by itself."""
        from advisor.engine.fleet import with_measured

        return with_measured(replace(self.chosen.judging(), max_bytes=self.max_bytes, captures=self.capture or ""), recording)


_Target: TypeAlias = "tuple[str, Path | None]"
"""A format, and the file that it is written to; None is standard output."""


class _Outputs(msgspec.Struct, frozen=True):
    """The destination of the reports of some traces: files, or a `directory` for a job."""

    trace: list[str]
    request: _Request

    @property
    def directory(self) -> Path | None:
        return directory_of(self.request.outputs)

    @property
    def files(self) -> list[Path]:
        return [path for path in self.request.outputs if path != self.directory]

    def target(self, form: str | None, path: Path | None) -> _Target:
        """Raises UsageError where the file is not to be written."""
        from advisor.reports import formats

        inputs = (*self.trace, *filter(None, (self.request.memory, self.request.kernels, self.request.capture, self.request.serving, self.request.compile_log)))
        return destination(form, path, formats(), self._page, self.request.force, *inputs)

    def _page(self) -> Path:
        return html_path(one_path(self.trace))

    def targets(self) -> list[_Target]:
        """All but what is written into a directory; alone, a summary and the page. Raises UsageError."""
        asked = self.request
        if asked.outputs:
            found = [self.target(asked.format, path) for path in self.files]
        elif asked.format:
            found = [self.target(asked.format, None)]
        else:
            check_target(self._page(), asked.force, one_path(self.trace))
            found = [*([] if asked.quiet else [self.target(None, None)]), self.target("html", None)]
        if asked.brief:
            check_brief(found)
        if asked.open and not self.directory:  # which a job fills with its pages
            page_of(path for _, path in found)
        return found


def _analyze_each(traces: list[str], request: _Request) -> None:
    """Each trace by itself, and where the output is a directory into a file of its own there. Exits with the highest code of any."""
    from advisor.reports import formats
    from advisor.sources import separate_recordings

    paths, output = separate_recordings(traces), request.outputs[0] if request.outputs else None
    suffix = formats()[request.format or "html"].SUFFIX
    codes: list[int] = []
    used: set[str] = set()
    for path in paths:
        into = output
        if output and output.is_dir():
            name = html_path(path).with_suffix(suffix).name
            if name in used:  # of two of one name, the folder tells which
                name = f"{file_name(Path(path).absolute().parent.name)}-{name}"
            if name in used:
                raise UsageError(f"two of the traces would be {output / name}", "Give each a name of its own.")
            used.add(name)
            into = output / name
        elif len(paths) > 1 and output is not None and str(output) != "-":
            raise UsageError(f"{len(paths)} traces cannot go to the file {output}", "Give -o an existing directory, or leave it out.")
        try:
            _analyze_together([path], replace(request, outputs=(into,) if into else ()))
        except typer.Exit as stopped:
            codes.append(stopped.exit_code)
    if any(codes):
        raise typer.Exit(max(codes))


def _analyze_together(trace: list[str], request: _Request) -> None:
    """One trace, or one job: which it is, only reading tells."""
    outputs = _Outputs(trace, request)
    if request.part:
        _shard(_read(trace, request), outputs)
        return
    targets = outputs.targets()
    recording = _read(trace, request)
    if recording.kind == "job":
        _job(recording, outputs, targets)
    else:
        _trace(recording, outputs, targets)


def _shard(recording: "Recording", outputs: _Outputs) -> None:
    """Summaries of a part of a job's ranks, into a directory for `merge`."""
    request = outputs.request
    shard_of(recording, request.judging(recording), JobOutput(request.executor, request.workers, outputs.directory, request.part))


def _trace(recording: "Recording", outputs: _Outputs, targets: list[_Target]) -> None:
    """The report of one recording, into files."""
    if outputs.directory and outputs.directory.exists():
        raise UsageError(f"{outputs.directory} is a directory, and {one_path(outputs.trace)} is no job of several ranks", "Give the path of a file.")
    if outputs.directory:  # a name without a suffix, and no job: a file
        targets = [*targets, outputs.target(outputs.request.format, outputs.directory)]
        if outputs.request.brief:
            check_brief(targets)
        if outputs.request.open:
            page_of(path for _, path in targets)
    request = outputs.request
    _write_all(request.chosen.run(recording, request.step_ms, request.waits), targets, request)


def _job(recording: "Recording", outputs: _Outputs, targets: list[_Target]) -> None:
    """The report of a job, whose ranks are reduced first; its page with every rank's into a directory."""
    request, directory = outputs.request, outputs.directory
    if directory:
        if request.brief:
            raise UsageError(f"--brief is a form of JSON, and {directory} would hold pages", "Give -o a file named *.json, or -f json alone.")
        check_directory(directory, request.force)
        if second := directory_of(outputs.files):
            raise UsageError(f"{second} would be a second directory, in addition to {directory}", "Give a file a name with a suffix.")
        if prints_beside(request.format):
            targets = [*targets, outputs.target(request.format, Path("-"))]
    reduced = reduced_job(recording, request.judging(recording), JobOutput(request.executor, request.workers, directory))
    made = request.chosen.run(reduced, request.step_ms, request.waits)
    if directory:
        write_directory(made.report, directory, linked=True)
    _write_all(made, targets, request, page=directory and directory / INDEX)


def _write_all(made: "Analysis", targets: Iterable[_Target], request: _Request, page: Path | None = None) -> None:
    """Write what was asked for, then exit as it was asked. page: one that is written already."""
    for form, path in targets:
        if request.brief:
            write_brief(made, path, request.quiet)
        else:
            write_report(made, form, path, request.quiet)
    if request.open:
        show_page(page_of((page, *(path for _, path in targets))))
    if request.strict and made.report.failed:
        first = made.report.failed[0]
        raise RuleError(f"rule {first.rule} failed: {first.error}", "Without --strict the report has the other rules' findings.")
    gate(made.report, request.fail_on, request.allow_unjudged)


def _check_several(outputs: list[Path], directory: Path | None, format: str | None, each: bool, shard: str | None) -> None:
    """Raises UsageError for several outputs where there can be but one, and for two that are one file."""
    if len(outputs) < 2:
        return
    given = f"and {len(outputs)} outputs are given"
    if format is not None:
        raise UsageError(f"--format {format} is a single format, {given}", "Leave it out: the suffix of each file names its format.")
    if each:
        raise UsageError(f"--each writes into a single directory, {given}", "Give a single -o with an existing directory.")
    if shard is not None:
        raise UsageError(f"--shard writes into a single directory, {given}", "Give a single -o; advisor merge writes the other formats.")
    taken = {_place(directory / name) for name in (INDEX, SAVED)} if directory else set()
    for path in outputs:
        if _place(path) in taken or (directory and _place(path).parent == _place(directory / PAGES)):
            raise UsageError(f"{path} is given twice", "Give each output a path of its own; a job's directory has files of its own.")
        taken.add(_place(path))


def _place(path: Path) -> Path:
    """Where a file is written, by whatever path: a link of that name is replaced, those on the way are followed."""
    return Path(os.path.realpath(path.parent), path.name)


@uncollected()
def _read(traces: list[str], request: _Request) -> "Recording":
    """What was recorded, with the memory snapshot and the measured kernels that were given beside it. Raises UsageError for a rule that does
    not look at such a recording."""
    from advisor.recordings.recording import with_captures, with_compile_logs, with_kernels, with_load, with_memory
    from advisor.recordings.timeline import Timeline
    from advisor.sources import captures_at, read, read_several

    if len(traces) > 1:
        recording = read_several(traces)
    else:
        with progress_of(traces[0]) as progress:
            recording = read(traces[0], max_bytes=request.max_bytes, progress=progress)
        warn_of_secrets(traces[0])
    if request.memory:
        recording = with_memory(recording, read(request.memory, max_bytes=request.max_bytes))
    if request.kernels:
        recording = with_kernels(recording, read(request.kernels, max_bytes=request.max_bytes))
    timeline = next((part for part in recording.parts if isinstance(part, Timeline)), None)
    rank = timeline.source.rank if timeline else None
    if request.capture and recording.kind != "job":
        recording = with_captures(recording, *captures_at(request.capture, rank, max_bytes=request.max_bytes))
    if request.serving:
        from advisor.sources.served_load import read_load

        recording = with_load(recording, read_load(request.serving))
    if request.compile_log:
        from advisor.sources.compile_log import read_compile_logs

        recording = with_compile_logs(recording, read_compile_logs(request.compile_log, rank))
    request.chosen.check(recording)
    return recording


def report(
    saved: Annotated[Path, typer.Argument(help="A report saved with --format json.")],
    format: TextFormatOption = None,
    output: OutputOption = None,
    brief: BriefOption = False,
    force: ForceOption = False,
) -> None:
    """Render a saved JSON report in another format."""
    from advisor.report.saved import read_report
    from advisor.reports import formats

    loaded = read_report(saved)
    form, target = destination(format, single_output(output), formats(), lambda: Path(f"{file_name(saved.stem)}.html"), force, str(saved))
    if brief:
        check_brief([(form, target)])
        write_brief(loaded, target)
    else:
        write_report(loaded, form, target)
