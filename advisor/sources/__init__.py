"""Sources turn a file or a directory into a Recording. Only `read` opens paths."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from advisor.errors import TraceError, UsageError
from advisor.knowledge import formats
from advisor.knowledge.cuda_api import ApiRole, role
from advisor.knowledge.structs import replace
from advisor.recordings.captures import CapturePart, CaptureTrace, CaptureTraces
from advisor.recordings.recording import Progress, Recording, with_captures
from advisor.recordings.timeline import ReadIssue, Timeline
from advisor.recordings.tpu import TpuProfile
from advisor.report.numbers import counted
from advisor.sources import archive, run
from advisor.sources.captures import captures_in, files_in, is_capture, of_rank, read_captures
from advisor.sources.clocks import aligned
from advisor.sources.damaged import mended
from advisor.sources.graph_annotations import annotations_in, is_annotations, read_annotations
from advisor.sources.masking import without_secrets
from advisor.sources.opened import STANDARD_INPUT, STDIN, Opened, Source
from advisor.sources.paths import directories_in, is_directory, is_pattern, is_remote, names_in, open_binary, path_of
from advisor.sources.ranks import (
    JobTraces,
    each_timeline,
    head,
    holds_ranks,
    job_of,
    latest_among,
    others_left,
    recordings_among,
    snapshots_among,
    timelines_among,
    traces_among,
)
from advisor.sources.sniff import NSYS_REPORTS, SNIFF_BYTES, is_flight, is_memory, refuse_foreign, refused, source_of
from advisor.sources.stages import by_process, byproducts, front_end, joined
from advisor.sources.stream import DEFAULT_MAX_BYTES, Stream

__all__ = [
    "DEFAULT_MAX_BYTES",
    "STDIN",
    "captures_at",
    "captures_beside",
    "cores",
    "is_one_capture",
    "load",
    "load_stages",
    "read",
    "read_several",
    "separate_recordings",
]


def read(path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None, processes: int | None = None) -> Recording:
    """Read the recording at `path`: a file, a directory or pattern of a run's traces, a URL of a store, or "-" for standard input.

    The content of a file decides its kind, not its suffix. Files with more than `max_bytes` uncompressed are refused. `progress(done, size)` is called with
    bytes of the file as they are read; size is None if it is not known. `processes`: greatest number of threads that decode a large Kineto trace (default: the
    cores), or a second process without the decoder in C. The recording is the same. Raises UsageError if no path is given. Raises TraceError if nothing can be
    read, if no source knows it, or if it is empty."""
    path, told = path_of(path), ""
    processes = processes or cores()
    if path == STDIN:
        if sys.stdin is None:
            raise TraceError("standard input is closed", "Give the path of a trace.")
        return _record(sys.stdin.buffer, STANDARD_INPUT, 0, max_bytes, progress, processes)
    try:
        if os.path.isdir(path) and (tables := _tables_of_nsys(path, max_bytes)):
            one = read(tables, max_bytes=max_bytes, progress=progress, processes=processes)
            return replace(one, path=path, parts=tuple(_called(part, path) for part in one.parts))
        if os.path.isdir(path) and run.recognises(Path(path)):
            return run.record(Path(path), lambda trace: load(trace, max_bytes=max_bytes, progress=progress, processes=processes))
        if os.path.isdir(path) and (recorded := run.processes(Path(path)))[0]:
            return _of_processes(path, *recorded)
        if is_pattern(path) or is_directory(path):
            from advisor.sources.jax.directory import files_of, nearest_runs

            names, logged = names_in(path), nearest_runs(Path(path)) if os.path.isdir(path) else []
            traces = files_of(logged[-1]) if logged else traces_among(names)
            snapshots = snapshots_among(names)
            if dumps := _flight_dumps(names):
                from advisor.sources import flight

                return without_secrets(flight.of_ranks([read(name, max_bytes=max_bytes) for name in dumps], path))
            _refuse_known_directory(path, names)
            if not traces and snapshots:
                return _of_ranks(job_of(snapshots, path), max_bytes) if len(snapshots) > 1 else read(snapshots[0], max_bytes=max_bytes)
            left = [] if logged else others_left(names, [*traces, *snapshots])
            beside = "; ".join(filter(None, (_of_snapshots_left(snapshots), _of_others_left(left), byproducts(names))))
            latest = latest_among(traces)
            _refuse_most_left(path, len(latest), timelines_among(left))
            if len(latest) > 1 and len(by_process(latest)) == 1:
                return _of_stages(latest, path, max_bytes)
            if len(latest) > 1:
                told = "; ".join(filter(None, (_of_runs(logged) or _of_ranks_left(len(traces) - len(latest)), beside)))
                return job_of(latest, path, told, logged[-1].name if logged and logged[-1] != Path(path) else "")
            path = _only_trace(latest, path, names)
            told = "; ".join(filter(None, (_of_runs(logged) or _of_recordings(path, len(traces)), beside)))
        if export := _export_of_nsys(path):
            one = read(export, max_bytes=max_bytes, progress=progress, processes=processes)
            kept = f"nsys on this machine exported the report into the cache (trace-advisor/nsys/{os.path.basename(export)}), which was read"
            return replace(one, path=path, parts=tuple(_chosen(_called(part, path), "; ".join(filter(None, (told, kept)))) for part in one.parts))
        file, size = open_binary(path)
        with file, _front_end_named(path):
            one = _with_captures_beside(_record(file, path, size, max_bytes, progress, processes), path, max_bytes)
        return replace(one, parts=tuple(_chosen(part, told) for part in one.parts)) if told else one
    except FileNotFoundError:
        raise TraceError(f"there is no file {path}", "Check the path; quote it if the shell may split it.") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be opened: {error.strerror or error}", "Check its permissions.") from None


@contextmanager
def _front_end_named(path: str) -> Iterator[None]:
    """The trace of a server's front end is refused with the names of the workers' traces next to it."""
    try:
        yield
    except TraceError as error:
        beside = [os.path.basename(name) for name in traces_among(names_in(os.path.dirname(path) or "."))] if front_end(path) and not is_remote(path) else []
        beside = [name for name in beside if not front_end(name)]
        if not beside:
            raise
        more = f" and {counted(len(beside) - 3, 'other')}" if len(beside) > 3 else ""
        raise TraceError(error.message, f"It is the front end's: give the trace of a worker from the same directory: {', '.join(beside[:3])}{more}") from None


def load_stages(paths: Sequence[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> Timeline:
    """The timeline of a process with a trace per stage."""
    return joined([load(path, max_bytes=max_bytes, processes=1) for path in paths])


def _of_stages(paths: Sequence[str], path: str, max_bytes: int) -> Recording:
    """The recording of a process with a trace per stage in a directory."""
    timeline = load_stages(paths, max_bytes=max_bytes)
    timeline = replace(timeline, source=replace(timeline.source, path=path))
    return _with_captures_beside(Recording("trace", path, (timeline,)), paths[0], max_bytes)


def captures_at(directory: str, rank: int | None = None, *, max_bytes: int = DEFAULT_MAX_BYTES) -> tuple[CapturePart, ...]:
    """The traces of captures and annotations of graphs in a directory or a file: of that rank, if their names have ranks. Raises TraceError
    if there is none, or if annotations cannot be read."""
    if not os.path.isdir(directory):
        if is_annotations(directory) or is_memory(head(directory, SNIFF_BYTES)):
            return (read_annotations([directory]),)
        return (CaptureTraces((CaptureTrace(os.path.basename(directory), load(directory, max_bytes=max_bytes, processes=1)),)),)
    annotations = annotations_in([directory], rank)
    # Next to annotations the trace itself may lie: there only names tell what is a capture.
    files = captures_in(directory) if annotations else files_in(directory)
    traces = read_captures(of_rank(files, rank), lambda path: load(path, max_bytes=max_bytes, processes=1))
    found = (*filter(None, (traces,)), *([read_annotations(annotations)] if annotations else ()))
    if not found:
        told = f"{directory} holds no trace of a capture and no annotations of graphs that can be read"
        raise TraceError(told, "Give the directory that the server wrote: capture_traces or graph_capture_profile; or kernel_annotations_rank0_NAME.pkl.")
    return found


def captures_beside(path: str, timeline: Timeline, *, max_bytes: int = DEFAULT_MAX_BYTES) -> tuple[CapturePart, ...]:
    """The same next to a trace of this machine that replays graphs, for annotations also in the directory above. Files that cannot be read are left out."""
    if is_remote(path) or not any(role(str(name)) is ApiRole.GRAPH_LAUNCH for name in timeline.api_calls["name"].categories):
        return ()
    rank, directory = timeline.source.rank, os.path.dirname(path) or "."
    traces = read_captures(
        of_rank([file for file in captures_in(directory) if file.path != path], rank), lambda one: load(one, max_bytes=max_bytes, processes=1)
    )
    annotations = annotations_in([directory], rank) or annotations_in([os.path.join(directory, os.pardir)], rank)
    with suppress(TraceError):
        return (*filter(None, (traces,)), *([read_annotations(annotations)] if annotations else ()))
    return (traces,) if traces else ()


def _with_captures_beside(recording: Recording, path: str, max_bytes: int) -> Recording:
    timeline = next((part for part in recording.parts if isinstance(part, Timeline)), None)
    if recording.kind != "trace" or timeline is None or is_capture(path):
        return recording
    return with_captures(recording, *captures_beside(path, timeline, max_bytes=max_bytes))


def _of_processes(path: str, kind: str, folders: list[str]) -> Recording:
    """The job that `advisor record` recorded at once, with a directory per rank."""
    if kind == "job" and folders:
        return job_of(folders, path)
    names = ", ".join(os.path.basename(folder) for folder in folders)
    held = f"processes that are not ranks of the same job: {names}" if folders else "several processes, and no trace of any"
    raise TraceError(f"{path} holds {held}", "Give the directory of a single job, or analyze each: --each")


def read_several(paths: Sequence[str | os.PathLike[str]]) -> Recording:
    """The job with these files as its ranks' traces. Raises TraceError if a file does not exist."""
    named = [path_of(path) for path in paths]
    for path in named:
        if not is_remote(path) and not os.path.isfile(path):
            raise TraceError(f"there is no file {path}", "Give the traces of a job's ranks, or only their directory.")
    if len(set(named)) < len(named):
        raise TraceError("a trace is given twice", "Give each rank's trace once.")
    latest = latest_among(named)
    if len(named) > len(latest) == 1:
        raise TraceError("these are consecutive recordings of the same process, and no ranks of a job", "Give a single recording, or analyze each: --each")
    return job_of(latest, os.path.dirname(named[0]) or ".", _of_ranks_left(len(named) - len(latest)))


def separate_recordings(paths: Sequence[str]) -> list[str]:
    """The separate recordings of the given paths: those of a directory or a pattern, and those of directories that a pattern
    matches. Each of several directories may be a single capture, as the ranks of a job are. A directory of `advisor record` always is."""
    return [one for path in paths for one in (_recordings_at(path, len(paths) > 1) or (names_in(path) if is_pattern(path) else []) or [path])]


def _recordings_at(path: str, several: bool) -> list[str]:
    """The recordings of a directory or pattern, including the runs of a JAX log, or the path itself if it is neither. Empty if there are
    none, by the criteria of `read`. several: it is among several given paths."""
    if path == STDIN or not (is_pattern(path) or is_directory(path)) or run.recognises(Path(path)):
        return [path]
    if several and os.path.isdir(path) and is_one_capture(path):
        return [path]
    if os.path.isdir(path) and (recorded := run.processes(Path(path)))[0]:
        return recorded[1]
    from advisor.sources.jax.directory import files_of, nearest_runs, whole_profile

    logged = nearest_runs(Path(path)) if os.path.isdir(path) else []
    runs = files_of(logged[0]) if len(logged) == 1 else [str(one) for one in logged]
    names, directories = names_in(path), directories_in(path)
    beside = [one for one in recordings_among(names) if not whole_profile(one)]
    within = [one for directory in directories for one in _recordings_at(directory, several or len(names) + len(directories) > 1)]
    return [*dict.fromkeys((*runs, *beside, *within))]


def is_one_capture(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory is a single capture, not several of the same program: the ranks of a job, or a run of JAX's profiler."""
    from advisor.sources.jax.directory import newest_run

    return run.processes(Path(directory))[0] == "job" or holds_ranks(directory) or bool(newest_run(Path(directory)))


def _of_runs(logged: list[Path]) -> str:
    """Which run of a JAX log was read; "" if there is a single run."""
    if len(logged) < 2:
        return ""
    return f"the run {logged[-1].name} was read, the newest of {len(logged)} that lie there; {counted(len(logged) - 1, 'older one')} not"


def _of_recordings(path: str, given: int) -> str:
    """Which of a process's successive recordings was read; "" if there is a single recording."""
    if given < 2:
        return ""
    return f"{os.path.basename(path)} was read, the latest of {given} recordings of one process; {counted(given - 1, 'other')} not"


def _of_ranks_left(earlier: int) -> str:
    """How many traces of a job are earlier recordings of its processes; "" if none is."""
    return f"of processes that were recorded several times the latest is taken: {counted(earlier, 'trace')} left out" if earlier else ""


def _of_snapshots_left(snapshots: Sequence[str]) -> str:
    """Memory snapshots next to traces that are not read; "" if there are none."""
    if not snapshots:
        return ""
    first = os.path.basename(snapshots[0])
    many = f"{first}, a snapshot of memory, was" if len(snapshots) == 1 else f"{first} and {counted(len(snapshots) - 1, 'other')}, snapshots of memory, were"
    return f"{many} not read: give a snapshot together with a trace, with --memory"


def _of_others_left(left: Sequence[str]) -> str:
    """Recordings next to traces of another format that are not read; "" if there are none."""
    if not left:
        return ""
    many = f"{os.path.basename(left[0])} was" if len(left) == 1 else f"{os.path.basename(left[0])} and {counted(len(left) - 1, 'other')} were"
    return f"{many} not read: of a directory only traces of the same format are taken; give the others alone"


def _refuse_most_left(path: str, read: int, left: Sequence[str]) -> None:
    """Raises UsageError for a directory with more skipped than read recordings: a report would not represent it."""
    if not 0 < read < len(left):
        return
    told = (
        f"{path} holds {read + len(left)} traces of several formats, of which {counted(read, 'is', 'are')} read; {os.path.basename(left[0])} and others are not"
    )
    raise UsageError(told, "Give recordings of a single format, by a pattern or in their own directory, or analyze each: --each")


def _flight_dumps(names: Sequence[str]) -> list[str]:
    """The flight recorder dumps among files of a directory. Empty if the first candidate is no dump."""
    may = [name for name in names if Path(name).suffix in ("", ".pickle", ".pkl", ".json", ".bin") and not is_remote(name)]
    return [name for name in may if is_flight(head(name, SNIFF_BYTES))] if may and is_flight(head(may[0], SNIFF_BYTES)) else []


def _refuse_known_directory(path: str, names: Sequence[str]) -> None:
    """Raises TraceError for a directory without a recording that is what another tool writes."""
    known = formats.of_entries(os.listdir(path)) if os.path.isdir(path) else None
    if known and not recordings_among(names):
        raise refused(known, path)


def _called(part: object, path: str) -> object:
    """A timeline with the name of the given path, if a derived file was read."""
    return replace(part, source=replace(part.source, path=path)) if isinstance(part, Timeline) else part


def _chosen(part: object, told: str, check: str = "latest-recording") -> object:
    """A timeline, or a TPU's profile, with the candidates that it was chosen from."""
    issue = ReadIssue(check, told, "ok")
    if isinstance(part, Timeline):
        return replace(part, source=replace(part.source, issues=(*part.source.issues, issue)))
    return replace(part, issues=(*part.issues, issue)) if isinstance(part, TpuProfile) else part


def _of_ranks(job: Recording, max_bytes: int) -> Recording:
    """The memory snapshots of a job's ranks as a single recording."""
    from advisor.sources.memory.ranks import of_ranks

    ranks = [rank for part in job.parts if isinstance(part, JobTraces) for rank in part.traces]
    return of_ranks([read(rank.path, max_bytes=max_bytes) for rank in ranks], [rank.named for rank in ranks], job.path)


def _only_trace(traces: list[str], path: str, names: Sequence[str]) -> str:
    """The only trace of a directory or pattern, or the only file, if its kind is known. Raises TraceError if there is none."""
    if traces:
        return traces[0]
    if len(names) == 1 and (source_of(begun := head(names[0], formats.HEAD_BYTES)) or formats.of_head(begun, names[0])):
        return names[0]
    what = "the pattern" if is_pattern(path) else "the directory"
    kinds = "*.pt.trace.json, *.json or *.pickle, with .gz or .zst or not, *.sqlite, *.xplane.pb, or what advisor record wrote"
    below = [one for one in sorted(Path(path).iterdir()) if one.is_dir() and recordings_among(names_in(str(one)))] if os.path.isdir(path) else []
    hint = f"Recordings lie in {below[0]}: give that." if below else "Give the path of the recording itself: reports of Nsight Compute are read separately."
    raise TraceError(f"{what} {path} holds no trace ({kinds})", hint)


def _tables_of_nsys(path: str, max_bytes: int) -> str:
    from advisor.sources.nsys.directory import database_of

    return database_of(path, max_bytes)


def _export_of_nsys(path: str) -> str:
    if not path.endswith(NSYS_REPORTS):
        return ""
    from advisor.sources.nsys.exported import exported

    return exported(path)


def load(path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None, processes: int | None = None) -> Timeline:
    """The timeline of a process's trace; arguments as for `read`. Raises TraceError if the recording has none, or several."""
    recording = read(path, max_bytes=max_bytes, progress=progress, processes=processes)
    found = [part for part in recording.parts if isinstance(part, Timeline)]
    if recording.kind == "tpu":
        raise TraceError(f"{recording.path} is the profile of a TPU: look at it alone, advisor analyze {recording.path}", "Jobs and rules are of GPUs.")
    if recording.kind != "trace" or len(found) != 1:
        raise TraceError(f"{recording.path} holds no timeline of a single process: it is a recording of kind {recording.kind}", "Give a single trace.")
    return found[0]


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def source(name: str) -> Source:
    """The package of that name, which `sniff.SOURCES` says: imported when a file of its kind is read."""
    return cast("Source", importlib.import_module(f"{__name__}.{name}"))


def _record(file: BinaryIO, path: str, size: int, max_bytes: int, progress: Progress | None, processes: int) -> Recording:
    held = archive.unpacked(file, path, max_bytes)
    inner, size = (held.file, held.size) if held else (file, size)
    stream = Stream(inner, size or None, max_bytes, progress)
    opened = Opened(path, stream, stream.peek(SNIFF_BYTES), size, max_bytes, processes, held.command if held else "")
    if found := source_of(opened.head):
        package = source(found)
        made = without_secrets(package.record(opened))
        if not getattr(package, "CHECKED", False):
            made = each_timeline(made, lambda timeline: aligned(mended(timeline)))
        return replace(made, parts=tuple(_chosen(part, held.told, "fuller-file") for part in made.parts)) if held and held.told else made
    if stream.truncated and not opened.head:
        raise TraceError(f"{path} cannot be unpacked: {stream.truncated}", "Copy or record the file again.")
    raise refuse_foreign(stream.peek(formats.HEAD_BYTES), path)
