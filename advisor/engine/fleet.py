"""Many ranks reduced and merged: each trace to a summary, here, in processes, on a Dask cluster or by shards on other machines."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from advisor.engine.executors import outcomes
from advisor.engine.reduce import Judging, Outcome
from advisor.errors import TraceError, UsageError
from advisor.files import begins_as_ours, write_whole
from advisor.knowledge.release import release
from advisor.knowledge.structs import replace
from advisor.recordings.kernel_profiles import KernelProfiles
from advisor.recordings.recording import Recording
from advisor.recordings.served_load import LoadBeside
from advisor.sources.limits import DAY_NS
from advisor.sources.paths import fingerprint
from advisor.sources.ranks import JobTraces, RankTrace
from advisor.views.ranks.job import RankSummaries, UnreadRank
from advisor.views.ranks.summary import COUNTED, SCHEMA, RankSummary

SUFFIX, UNREAD_SUFFIX = ".rank", ".unread"
"""Of a summary's file, and of one that says why there is none."""

_UNFIT = re.compile(r"[^\w.=+-]+")

RankProgress = Callable[[int, int, str], None]
"""Called with how many ranks are done, of how many, and which was last."""


@dataclass(frozen=True)
class Kept:
    """Directories in which what was made of ranks stays: summaries, so that none is made again, and the ranks' own pages."""

    summaries: Path
    pages: Path | None = None


@dataclass(frozen=True)
class Reduced:
    """What became of traces: summaries in the order of the traces, and those that could not be read."""

    summaries: tuple[bytes, ...]
    unread: tuple[UnreadRank, ...] = ()


def reduced(
    recording: Recording,
    judging: Judging | None = None,
    *,
    executor: str = "",
    workers: int | None = None,
    kept: Kept | None = None,
    progress: RankProgress | None = None,
    cleared: Callable[[int], None] | None = None,
) -> Recording:
    """The job with every rank's trace reduced to its summary; other recordings, and jobs that are already reduced, are unchanged.

    Unreadable ranks are listed and left out. Arguments as of `reduce`. Pages of another job are removed, and `cleared` gets the number of removed files.
    Raises TraceError if no rank can be read, or if the ranks are not of the same job.
    """
    given = traces_of(recording)
    if given is None:
        return recording
    judging = with_measured(judging or Judging(), recording)
    found = reduce(given.traces, judging, executor=executor, workers=workers, kept=kept, progress=progress)
    job = merged(found, recording.path, given.notes, given.chosen)
    job = replace(job, parts=(*job.parts, *(part for part in recording.parts if isinstance(part, LoadBeside))))
    if kept and kept.pages:
        removed = _clear(kept, kept.pages, [_name(trace, replace(judging, pages=True)) for trace in given.traces])
        if cleared and removed:
            cleared(removed)
    return job


def traces_of(recording: Recording) -> JobTraces | None:
    """The traces of a job that are still to be reduced."""
    return next((part for part in recording.parts if isinstance(part, JobTraces)), None)


def with_measured(judging: Judging, recording: Recording) -> Judging:
    """The same with the kernels that the recording holds next to its traces."""
    return replace(judging, kernels=next((part for part in recording.parts if isinstance(part, KernelProfiles)), judging.kernels))


def reduce(
    traces: Sequence[RankTrace],
    judging: Judging,
    *,
    executor: str = "",
    workers: int | None = None,
    kept: Kept | None = None,
    progress: RankProgress | None = None,
) -> Reduced:
    """Every trace's summary, or why there is none.

    executor: "" processes of this machine (`workers` of them), "serial", or "dask://HOST:PORT". What is `kept` from before is not made again.
    """
    judging = replace(judging, pages=bool(kept and kept.pages))
    made: dict[int, bytes] = {}
    unread: list[UnreadRank] = []
    todo: list[int] = []
    # Named before they are read: of a file that changes meanwhile nothing may be kept as what it is then.
    names = [_name(trace, judging) if kept else "" for trace in traces]
    for i, trace in enumerate(traces):
        summary = _read(kept, names[i], trace) if kept else b""
        if summary:
            made[i] = summary
        else:
            todo.append(i)
    for done, (i, outcome) in enumerate(outcomes(executor, workers, [traces[i] for i in todo], judging), len(made) + 1):
        trace = traces[todo[i]]
        if outcome.summary:
            made[todo[i]] = outcome.summary
        else:
            unread.append(UnreadRank(trace.label, outcome.why))
        if kept:
            _keep(kept, names[todo[i]], trace, outcome)
        if progress:
            progress(done, len(traces), f"{trace.label} cannot be read: {outcome.why}" if outcome.why else trace.label)
    return Reduced(tuple(made[i] for i in sorted(made)), tuple(unread))


def merged(found: Reduced, path: str, notes: Sequence[str] = (), chosen: str = "") -> Recording:
    """The job of these rank summaries. Raises TraceError if they are none, or of several jobs."""
    summaries = [RankSummary.from_bytes(data) for data in found.summaries]
    if not summaries:
        why = f": {found.unread[0].label}: {found.unread[0].why}" if found.unread else ""
        raise TraceError(f"no rank of {path} could be read{why}", "Give a directory with a trace per rank, or analyze each trace separately: --each.")
    said = [*notes, *(s.facts.conflict for s in summaries if s.facts.conflict)]
    ranks = _numbered(summaries, said)
    _check_one_job(ranks)
    ranks.sort(key=lambda s: s.rank)
    return Recording("job", path, (RankSummaries(tuple(ranks), found.unread, tuple(said), chosen),))


def stored(directory: Path) -> Reduced:
    """What shards left in a directory. Raises UsageError if they left nothing."""
    found, missed = sorted(directory.glob(f"*{SUFFIX}")), sorted(directory.glob(f"*{UNREAD_SUFFIX}"))
    if not found and not missed:
        raise UsageError(f"{directory} holds no summaries of ranks (*{SUFFIX})", "Make them: advisor analyze JOB --shard 1/4 -o DIR")
    summaries, unread, at = [], [], dict[str, int]()
    for path in found:
        data = path.read_bytes()
        try:
            label = RankSummary.from_bytes(data).facts.label
            summaries.append(data)
            at[label] = max(path.stat().st_mtime_ns, at.get(label, 0))
        except TraceError as error:
            unread.append(UnreadRank(path.name, error.message))
    for path in missed:
        said = unread_rank(path)
        # A file that changed since has a summary under another name: it was read after all.
        if at.get(said.label, -1) < path.stat().st_mtime_ns:
            unread.append(said)
    return Reduced(tuple(summaries), tuple(unread))


def unread_rank(path: Path) -> UnreadRank:
    """A rank that a shard could not read, and why; where even that cannot be read, so it says."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=UnreadRank)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return UnreadRank(path.name, "the note of why it was not read is damaged")


def _numbered(summaries: Sequence[RankSummary], said: list[str]) -> list[RankSummary]:
    """Each with a rank of its own: of two traces of one rank the later stays, ranks that nobody says are counted."""
    latest: dict[int, RankSummary] = {}
    for one in summaries:
        if one.rank < 0:
            continue
        if one.rank in latest:
            said.append(f"rank {one.rank} has several traces: the latest is taken")
        if one.rank not in latest or one.facts.base_ns >= latest[one.rank].facts.base_ns:
            latest[one.rank] = one
    nameless = [one for one in summaries if one.rank < 0]
    free = (number for number in range(len(summaries)) if number not in latest)
    if nameless:
        said.append(f"{len(nameless)} traces say no rank: they are numbered in the order of their names")
    counted = [replace(one, facts=msgspec.structs.replace(one.facts, rank=n, rank_from=COUNTED)) for one, n in zip(nameless, free, strict=False)]
    return [*latest.values(), *counted]


def _check_one_job(ranks: Sequence[RankSummary]) -> None:
    """Raise TraceError where the traces are of several jobs, with what differs."""
    worlds = {s.facts.world_size: s.facts.label for s in ranks if s.facts.world_size}
    if len(worlds) > 1:
        told = " and ".join(f"{label} says {world} ranks" for world, label in sorted(worlds.items())[:4])
        raise TraceError(f"these are traces of several jobs: {told}", "Give the traces of a single job in their own directory.")
    if len(runs := sorted({s.facts.run for s in ranks} - {""})) > 1:
        raise TraceError(f"these are traces of several runs: {', '.join(runs[:4])}", "Give the traces of a single run; its shards need their own directory.")
    times = [s.facts.base_ns for s in ranks if s.facts.base_ns > 0]
    if times and max(times) - min(times) > DAY_NS:
        days = (max(times) - min(times)) / DAY_NS
        raise TraceError(f"these are traces of several runs: they were recorded {days:.0f} days apart", "Give the traces of a single run.")


def _name(trace: RankTrace, judging: Judging) -> str:
    """A summary's file name: made of the trace's name, size and time, and of the judging options, so a change of any gives a new name."""
    about = (trace.path, trace.label, fingerprint(trace.path), release(), SCHEMA, judging)
    return hashlib.sha256(repr(about).encode()).hexdigest()[:20]


def page_name(label: str) -> str:
    """The file of a rank's own page, by its trace's."""
    for suffix in (".gz", ".zst", ".json", ".trace", ".pt", ".sqlite"):
        label = label.removesuffix(suffix)
    return f"{_UNFIT.sub('-', label).strip('.')[:120] or 'rank'}.html"


def _read(kept: Kept, name: str, trace: RankTrace) -> bytes:
    """A summary that was made before, b"" if there is none that can be read, or its page is gone or, as it is younger, another job's."""
    path = kept.summaries / f"{name}{SUFFIX}"
    page = kept.pages and kept.pages / page_name(trace.label)
    if not path.is_file() or (page and not (page.is_file() and page.stat().st_mtime_ns <= path.stat().st_mtime_ns)):
        return b""
    data = path.read_bytes()
    try:
        RankSummary.from_bytes(data)
    except TraceError:
        return b""
    return data


def _keep(kept: Kept, name: str, trace: RankTrace, outcome: Outcome) -> None:
    """Keep what became of a trace, for `merge` too; one that could not be read is tried again the next time."""
    path = kept.summaries / f"{name}{SUFFIX}"
    missed = path.with_suffix(UNREAD_SUFFIX)
    if outcome.why:
        _write(missed, msgspec.json.encode(UnreadRank(trace.label, outcome.why)))
        return
    if kept.pages:
        _write(kept.pages / page_name(trace.label), outcome.page.encode())
    _write(path, outcome.summary)
    missed.unlink(missing_ok=True)


_NAMED = re.compile(rf"[0-9a-f]{{20}}({re.escape(SUFFIX)}|{re.escape(UNREAD_SUFFIX)})")


def _clear(kept: Kept, pages: Path, names: Sequence[str]) -> int:
    """Removes summaries and pages of another job, or of other options: `merge` would include them. A page is removed with its summary, unless
    somebody else wrote it later. Returns the number of removed files; files that cannot be removed stay.
    """
    current: set[str] = set()
    stale: dict[str, int] = {}
    removed = 0
    for path in sorted(kept.summaries.iterdir()):
        with contextlib.suppress(OSError):
            if not _NAMED.fullmatch(path.name) or not path.is_file():
                continue
            if path.suffix == SUFFIX:
                with contextlib.suppress(TraceError):
                    page = page_name(RankSummary.from_bytes(path.read_bytes()).facts.label)
                    if path.stem in names:
                        current.add(page)
                    else:
                        stale[page] = max(stale.get(page, 0), path.stat().st_mtime_ns)
            if path.stem not in names:
                path.unlink()
                removed += 1
    for name in stale.keys() - current:
        with contextlib.suppress(OSError):
            if (left := pages / name).is_file() and left.stat().st_mtime_ns <= stale[name] and begins_as_ours(left):
                left.unlink()
                removed += 1
    return removed


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all: a worker that dies leaves no half summary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)
