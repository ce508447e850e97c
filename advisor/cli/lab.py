"""Commands that measure."""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args

import typer

from advisor.cli.outputs import check_target, make_directory, write
from advisor.cli.streams import say, visible
from advisor.cli.terminal import ForceOption, OutputOption, format_into, format_option, single_output
from advisor.errors import Terminated, UsageError, unknown_name
from advisor.integrations import status
from advisor.knowledge.release import release

T = TypeVar("T")


def validate(
    directory: Annotated[
        Path, typer.Argument(help="A directory with ledger.csv (corpus/) or manifest.json (samples/) and traces, or a ledger that verify wrote.")
    ],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the whole ledger as Markdown.")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="Print predicted against measured as a scatter plot.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Print the result of every rule for every trace, as Markdown.")] = False,
    steps: Annotated[bool, typer.Option("--steps", help="Print true steps against those timed without a profiler, as Markdown.")] = False,
    stability: Annotated[
        bool, typer.Option("--stability", help="Change the traces below the directory without changing their meaning, and print the findings that flip.")
    ] = False,
    ablate: Annotated[bool, typer.Option("--ablate", help="Disable each mechanism on unseen traces below the directory, and print the changes.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="With --ablate: this mechanism alone; may be given again.")] = None,
    resume: Annotated[Path | None, typer.Option(help="With --ablate: a file of earlier results, to resume an interrupted run.")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="With --stability or --ablate: this many random traces.")] = None,
    seed: Annotated[int, typer.Option(help="With --stability or --ablate: the seed of random choices.")] = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="With --stability: traces changed in parallel; by default as many as cores.")] = None,
    format: Annotated[str | None, format_option("text", "json", "markdown", alone="text")] = None,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Compare predicted savings with measured savings.

    Over pairs with known step times; of jobs the replay against the recorded step too. With --stability, reports of traces against those of the same traces,
    changed. With --ablate, reports with each mechanism against those without it.
    """
    if ablate:
        form, target = check_measured(format, output, force, STABILITY_FORMATS)
        _ablate(directory, only or [], resume, sample, seed, form, target)
        return
    if alone := next((option for option, value in {"--only": only, "--resume": resume}.items() if value), None):
        raise UsageError(f"{alone} is for --ablate", "Add --ablate, or leave it out.")
    if stability:
        form, target = check_measured(format, output, force, STABILITY_FORMATS)
        _stability(directory, sample, seed, workers, form, target)
        return
    given = {"--sample": sample, "--seed": seed or None, "--workers": workers, "--format": format, "--output": output}
    if alone := next((option for option, value in given.items() if value is not None), None):
        raise UsageError(f"{alone} is for --stability and --ablate", "Add either, or leave it out.")
    from advisor.lab import accuracy, accuracy_page, coverage, jobs, true_steps
    from advisor.lab.accuracy_chart import as_svg
    from advisor.report.numbers import counted

    if jobs.is_jobs(directory):
        print(jobs.as_markdown(jobs.judged(directory), str(directory)))
        return
    if steps:
        print(true_steps.as_markdown(true_steps.held(directory), str(directory)))
        return
    if table:
        said = coverage.cells(coverage.samples(directory), coverage.reasons(directory))
        print(coverage.as_markdown(said, str(directory)))
        return
    if directory.suffix == ".jsonl":
        pairs = accuracy.read_ledger(directory)
        found = accuracy.Validated(pairs, 0, len(pairs))
    else:
        found = accuracy.validate(directory)
    if markdown or svg:
        print(accuracy_page.as_markdown(found, str(directory)) if markdown else as_svg(found.pairs))
        return
    for p in sorted(found.pairs, key=lambda p: (p.rule, p.name)):
        mark = "" if p.in_interval else "  outside"
        print(f"{p.rule:26} {p.name:26} predicted {p.expected:4.0%} [{p.low:4.0%}, {p.high:4.0%}]  measured {p.measured:4.0%}{mark}")
    inside = sum(p.in_interval for p in found.pairs) / len(found.pairs)
    correlation = accuracy.rank_correlation(found.pairs)
    ranked = "unknown" if math.isnan(correlation) else f"{correlation:.2f}"
    print(f"\n{counted(len(found.pairs), 'pair')}: rank correlation {ranked}, {inside:.0%} inside the interval")
    if found.anew and found.kept:
        print(
            f"{counted(found.anew, 'prediction')} made just now, of traces that are here; {counted(found.kept, 'prediction')} kept, of programs whose trace is not"
        )


def _stability(directory: Path, sample: int | None, seed: int, workers: int | None, form: str, target: Path | None) -> None:
    from advisor.lab.stability import held, shown
    from advisor.sources import cores

    paths = held.drawn(directory, sample, seed)
    lot = f" --sample {sample} --seed {seed}" if sample else f" --seed {seed}" if seed else ""
    changes, left = _tracked(len(paths), lambda step: held.held(directory, paths, seed=seed, workers=workers or cores(), progress=step))
    found = shown.Stability(f"advisor validate {directory}{lot} --stability -f markdown", len(paths) - len(left), left, changes)
    if form == "markdown":
        write(("<!-- trace-advisor -->\n" if target else "") + shown.as_markdown(found), target)
    else:
        write_measured("stability", shown.as_text(found), json.dumps(found.as_data()), "", form, target)


def _ablate(directory: Path, only: list[str], resume: Path | None, sample: int | None, seed: int, form: str, target: Path | None) -> None:
    from advisor.lab.ablation import run, shown
    from advisor.lab.ablation.mechanisms import MECHANISMS
    from advisor.lab.ablation.traces import traces_of

    known = {one.name: one for one in MECHANISMS}
    if other := next((name for name in only if name not in known), None):
        raise unknown_name("mechanism", other, known)
    mechanisms = [one for one in MECHANISMS if not only or one.name in only]
    traces = traces_of(directory, sample, seed, mechanisms)
    tried = _tracked(len(traces), lambda step: run.ablated(traces, mechanisms, seed, resume, progress=step))
    lot = "".join([*(f" --only {name}" for name in only), f" --sample {sample}" if sample else "", f" --seed {seed}" if seed else ""])
    found = shown.summed(mechanisms, tried, f"advisor validate {directory}{lot} --ablate -f markdown", seed)
    if form == "json":
        write(json.dumps(found.as_data(), indent=1), target)
    elif form == "markdown":
        write(("<!-- trace-advisor -->\n" if target else "") + shown.as_markdown(found), target)
    else:
        write((f"advisor {release()} \u00b7 ablation\n" if target else "") + shown.as_text(found), target)


def record(
    command: Annotated[list[str], typer.Argument(help="The program as the shell would run it, after --: python train.py …")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The directory to record into.")] = Path("recording"),
    steps: Annotated[str, typer.Option(help="The end of a step: optimizer, backward, forward (of the outermost module) or auto.")] = "auto",
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Let the program continue after recording.")] = False,
    nsys: Annotated[bool, typer.Option("--nsys", help="Record with Nsight Systems instead of torch.profiler.")] = False,
    warmup: Annotated[int, typer.Option(help="Steps before anything is measured; more follow until they are steady.")] = 10,
    timed: Annotated[int, typer.Option(help="Steps to time without a profiler.")] = 20,
    light: Annotated[int, typer.Option(help="Steps to record with neither shapes nor stacks.")] = 5,
    deep: Annotated[int, typer.Option(help="Steps to record with shapes, stacks and memory.")] = 3,
) -> None:
    """Run a PyTorch program, time its steps, then record a few.

    The script stays as it is, and steps are timed without a profiler. The program's output and exit code are its own. It ends when enough is recorded. Then: advisor analyze DIRECTORY
    """
    from advisor.lab.find_steps import Steps
    from advisor.lab.launch import launch, signal_of
    from advisor.lab.options import Options
    from advisor.lab.recorded import recordings, said

    _check_steps(steps)
    options = Options(warmup=warmup, timed=timed, light=0 if nsys else light, deep=0 if nsys else deep, nsys=light if nsys else 0)
    earlier = recordings(output)
    code = launch(command, output, options, steps=cast(Steps, steps), keep_going=keep_going, say=lambda line: say(f"advisor: {line}"))
    recorded = [path for path, one in recordings(output).items() if earlier.get(path) != one]
    for line in _recorded(output, {path: said(path) for path in recorded}):
        say(f"advisor: {line}")
    if earlier and not recorded:
        say(f"advisor: nothing was recorded, and the earlier recording in {output} stands")
    if killed := signal_of(code):
        say(f"advisor: the program ended with exit code {code}, which {killed} leaves")
    if code:
        raise typer.Exit(code)


def _recorded(directory: Path, recordings: Mapping[Path, Mapping[str, Any]]) -> Iterator[str]:
    """What was recorded, by process where there are several, and what to do next."""
    from statistics import median

    from advisor.report.numbers import duration

    several = len(recordings) > 1
    for path, saved in recordings.items():
        lines = [f"{len(times)} steps timed without a profiler: {duration(median(times))} each (median)"] if (times := saved["unprofiled_step_us"]) else []
        lines += saved["notes"]
        written = " and ".join(saved[name] for name in ("light", "deep", "nsys") if name in saved)
        lines += [f"wrote {written} to {path.parent}"] if written else []
        yield from (f"{path.parent.name}: {line}" if several else line for line in lines)
    traced = [path.parent for path, saved in recordings.items() if {"light", "deep", "nsys"} & saved.keys()]
    # As a job are read ranks, by what their devices do.
    job = all(saved.get("world_size", 1) > 1 and saved.get("device_kind") != "cpu" for saved in recordings.values())
    if traced:
        yield f"now: advisor analyze {directory if several and job else traced[0]}"


def bench(
    targets: Annotated[list[str], typer.Argument(help="module:function, called without arguments; several are compared.")],
    batch: Annotated[str, typer.Option(help="Batch sizes, as 1,2,4: module:function is called with each and returns the function to time.")] = "",
    sizes: Annotated[str, typer.Option(help="Sizes, in the same form, to compare the targets at each.")] = "",
    limit_ms: Annotated[float | None, typer.Option(help="With --batch: find the largest batch with a p95 below this.")] = None,
    flush_l2: Annotated[bool, typer.Option("--flush-l2", help="Overwrite the L2 cache before each call.")] = False,
    format: Annotated[str | None, format_option("text", "json", "html")] = None,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Time functions, or a function over several batch sizes.

    On the device that they use.
    """
    from advisor.lab.bench_batches import bench_batches
    from advisor.lab.bench_many import bench_all, bench_sizes
    from advisor.lab.page import lines, page, preformatted

    if batch and (sizes or len(targets) > 1):
        raise UsageError("--batch is for a single function", "Compare several with --sizes.")
    if limit_ms is not None and not batch:
        raise UsageError("--limit-ms looks for a batch size, and none is given", "Give the sizes to try: --batch 1,2,4")
    if twice := next((target for target in targets if targets.count(target) > 1), None):
        raise UsageError(f"{twice} is given twice", "Give each function once. Its row shows the variation of its times.")
    form, target = check_measured(format, output, force)
    made_for = [1] if batch or sizes else []  # what is named makes the function for a size
    functions = {target: _imported(target, *made_for) for target in targets}
    theirs = _of_user(*targets)
    if batch:
        with theirs:
            found = bench_batches(functions[targets[0]], _numbers("--batch", batch), limit_ms=limit_ms)
        points = {"p50 ms": [(r.batch, r.p50_ms) for r in found.rows], "p95 ms": [(r.batch, r.p95_ms) for r in found.rows]}
        html = page(f"{targets[0]} by batch size", preformatted(str(found)), lines(points, "batch", "ms"))
        write_measured("bench", str(found), found.to_json(), html, form, target)
        return
    if not sizes:
        with theirs:
            table = _tracked(len(functions), lambda step: bench_all(functions, flush_l2=flush_l2, progress=step))
        write_measured("bench", str(table), table.to_json(), page("Timings", table._repr_html_()), form, target)
        return
    with theirs:
        tables = bench_sizes(functions, _numbers("--sizes", sizes), flush_l2=flush_l2)
    text = "\n\n".join(f"Size {size}\n{table}" for size, table in tables.items())
    saved = json.dumps({"sizes": {size: json.loads(table.to_json()) for size, table in tables.items()}})
    series = {name: [(size, table.timings[i].device_us) for size, table in tables.items()] for i, name in enumerate(functions)}
    write_measured("bench", text, saved, page("Timings by size", preformatted(text), lines(series, "size", "\u00b5s")), form, target)


def attention(
    seq_lengths: Annotated[str, typer.Option(help="Sequence lengths.")] = "128,256,512,1024,2048",
    impl: Annotated[str, typer.Option(help="Implementations to compare: naive,compile,sdpa,flash.")] = "naive,compile,sdpa,flash",
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32.")] = "bf16",
    d_model: Annotated[int, typer.Option(help="Channels of the layer.")] = 512,
    num_heads: Annotated[int, typer.Option(help="Heads; they divide the channels.")] = 8,
    batch: Annotated[int, typer.Option(help="Sequences per batch.")] = 8,
    causal: Annotated[bool, typer.Option("--causal", help="Each position sees earlier positions only.")] = False,
    format: Annotated[str | None, format_option("text", "json", "html")] = None,
    output: OutputOption = None,
    output_dir: Annotated[Path | None, typer.Option(help="The directory for plots, as SVG.")] = None,
    force: ForceOption = False,
) -> None:
    """Measure attention on this machine, and what makes it faster.

    Baseline, profile, cause, fixes, gains. Changes nothing.
    """
    from advisor.lab.attention import session as lab
    from advisor.lab.page import page, preformatted

    kinds = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    if dtype not in kinds:
        raise UsageError(f"--dtype {dtype} is not known", f"Give any of {', '.join(kinds)}.")
    form, target = check_measured(format, output, force)
    if output_dir:
        make_directory(output_dir)
        for name in lab.CHARTS:
            check_target(output_dir / name, force, "", "--output-dir")
    lengths = _numbers("--seq-lengths", seq_lengths)
    session = _tracked(
        len(lengths),
        lambda step: lab.attention_session(
            lengths, impl.split(","), dtype=kinds[dtype], d_model=d_model, num_heads=num_heads, batch=batch, causal=causal, progress=step
        ),
    )
    charts = dict(lab.session_charts(session))
    html = page("Attention, measured", session._repr_html_(), *charts.values(), preformatted(str(session)))
    write_measured("attention", str(session), session.to_json(), html, form, target)
    if output_dir:
        for name, svg in charts.items():
            write(f"<!-- trace-advisor -->\n{svg}", output_dir / name)


def verify(
    before: Annotated[str, typer.Option("--before", help="The command before the change, as the shell would run it.")],
    after: Annotated[str, typer.Option("--after", help="The command after it.")],
    runs: Annotated[int, typer.Option(help="Runs of each, alternating.")] = 3,
    timed: Annotated[int, typer.Option(help="Steps timed in each run.")] = 30,
    warmup: Annotated[int, typer.Option(help="Warm-up steps; more follow until they are steady.")] = 10,
    steps: Annotated[str, typer.Option(help="The end of a step: optimizer, backward, forward or auto.")] = "auto",
    finding: Annotated[str | None, typer.Option(help="report.json#finding, or trace#finding: compare the gain with the prediction.")] = None,
    ledger: Annotated[Path, typer.Option(help="With --finding: the file to append the result to.")] = Path("accuracy.jsonl"),
    format: Annotated[str | None, format_option("text", "json", "html")] = None,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Measure the gain of a change on this machine.

    Both programs run by turns, steps timed without a profiler.
    """
    from advisor.lab import verify as lab
    from advisor.lab.page import page

    _check_steps(steps)
    form, target = check_measured(format, output, force)
    predicted = lab.prediction(finding) if finding else None
    found = _tracked(2 * runs, lambda step: lab.verify_commands(before, after, runs=runs, timed=timed, warmup=warmup, steps=steps, progress=step))
    if predicted:
        found = lab.with_prediction(found, predicted)
        if found.held is not None:  # what another device does would be no error of the prediction
            lab.append(ledger, found)
    write_measured("verify", str(found), found.to_json(), page("Verified", found._repr_html_()), form, target)


def _check_steps(steps: str) -> None:
    from advisor.lab.find_steps import Steps

    if steps not in get_args(Steps):
        raise UsageError(f"--steps {steps} is not known", f"Give any of {', '.join(get_args(Steps))}.")


def _numbers(option: str, text: str) -> list[int]:
    """Whole numbers above 0, separated by commas."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UsageError(f"{option} {text} is no list of sizes", "Give whole numbers, separated by commas: 1,2,4")
    return found


def _imported(target: str, *arguments: int) -> Callable[..., Any]:
    """What `module:function` names; the current directory is looked in too, as `python -m` does. Raises UsageError where it cannot be called
    with such arguments."""
    import importlib
    import inspect

    module, _, name = target.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)
    except Terminated:
        raise
    except (Exception, SystemExit) as error:
        raise _failure(f"{target} cannot be imported", error, "Give it as module:function, from where the module can be imported.") from error
    finally:
        sys.path.remove("")
    if not callable(found):
        raise UsageError(f"{target} is no function", "Give a function without parameters.")
    try:
        inspect.signature(found).bind(*arguments)
    except TypeError as error:
        called = "with one argument, a size" if arguments else "without arguments"
        raise UsageError(f"{target} is called {called}: {error}", "Give a function that takes no more, such as a lambda around it.") from None
    except ValueError:  # of a builtin nothing says what it takes
        pass
    return cast(Callable[..., Any], found)


@contextmanager
def _of_user(*targets: str) -> Iterator[None]:
    """What fails in what is timed is said, and is no error of ours."""
    from advisor.lab.measured import is_theirs

    try:
        yield
    except (Exception, SystemExit) as error:
        if not is_theirs(error):
            raise
        raise _failure(f"{', '.join(targets)} failed", error, "Call it by itself until it runs, then measure it.") from error


def _failure(told: str, error: BaseException, hint: str) -> UsageError:
    """The error that tells of one in code of the user's, and where. That one's traceback is printed from the first frame there; what is compiled has none."""
    frames = list(dropwhile(_leads_there, traceback.extract_tb(error.__traceback__)))
    where = f" ({frames[0].filename}:{frames[0].lineno})" if frames else ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({error.filename}:{error.lineno})"
    if frames:
        shown = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])
        print(visible(f"Traceback:\n{shown}\n", lines=True), end="", file=sys.stderr)
    kind = type(error).__name__
    return UsageError(f"{told}: {kind}: {error}{where}" if str(error) else f"{told}: {kind}{where}", hint)


def _leads_there(frame: traceback.FrameSummary) -> bool:
    """Whether a frame is ours, or of the import of a module."""
    import importlib

    return frame.filename.startswith((os.path.join(str(Path(__file__).parents[1]), ""), "<frozen importlib", importlib.__file__))


FORMATS = {"text": ".txt", "json": ".json", "html": ".html"}
STABILITY_FORMATS = {"text": ".txt", "json": ".json", "markdown": ".md"}


def check_measured(name: str | None, outputs: list[Path] | None, force: bool, formats: dict[str, str] = FORMATS) -> tuple[str, Path | None]:
    """The format, as asked for or as the file's suffix says, and the file, None for standard output. Refuses a format that does not exist
    and a target that is somebody's, before minutes are spent measuring."""
    if name is not None and name not in formats:
        raise unknown_name("format", name, formats)
    output = single_output(outputs)
    target = None if output is None or str(output) == "-" else output
    if target:
        check_target(target, force, "")
    return format_into(name, target, formats), target


def write_measured(what: str, text: str, as_json: str, html: str, name: str, target: Path | None) -> None:
    """One of the three, as `check_measured` says. A file begins as `files.is_ours` knows it, so that the next run may overwrite it."""
    saved = json.dumps({"advisor": release(), "measured": what, **json.loads(as_json)}, indent=1)
    headed = f"advisor {release()} \u00b7 {what}\n{text}" if target else text
    write({"text": headed, "json": saved, "html": html}[name], target)


def _tracked(total: int, work: Callable[[Callable[[object], None]], T]) -> T:
    """Do the work with a progress bar on a terminal's standard error, else told to who started us; each call of what it is given is one part begun."""
    if not sys.stderr.isatty():
        parts = iter(range(total))
        return work(lambda what: status.tell(doing=str(what), done=next(parts, total), total=total))
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.__stderr__), transient=True) as bar:
        task = bar.add_task("measuring", total=total)
        begun = iter(range(total))

        def step(what: object) -> None:
            bar.update(task, description=str(what), completed=next(begun, total))

        return work(step)
