"""Many ranks reduced and merged: each trace to a summary, here, in processes, on a Dask cluster or by shards on other machines."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec

from advisor.engine.rule import catalog
from advisor.errors import AdvisorError, TraceError, UsageError
from advisor.recording import Recording
from advisor.sources import DEFAULT_MAX_BYTES, load
from advisor.sources.ranks import JobTraces, RankTrace
from advisor.views.ranks.job import RankSummaries, UnreadRank
from advisor.views.ranks.summary import RankSummary
from advisor.views.workspace import Workspace

SUFFIX = ".rank"
"""Of a summary's file."""

KEPT_FINDINGS = 12
"""Findings of one rank that its job looks at."""

RankProgress = Callable[[int, int, str], None]
"""Called with how many ranks are done, of how many, and which was last."""


@dataclass(frozen=True)
class Judging:
    """What a worker needs to judge a rank by itself. rules: ids, None for all; paths: files with a team's own rules."""

    rules: tuple[str, ...] | None = None
    paths: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    max_bytes: int = DEFAULT_MAX_BYTES


def summarize(trace: RankTrace, judging: Judging) -> bytes:
    """One rank's summary, packed. Pure: the same trace gives the same bytes wherever it runs. Raises AdvisorError."""
    from advisor.engine.run import run

    timeline = trace.timeline or load(trace.path, max_bytes=judging.max_bytes, processes=1)
    known = catalog(Path(p) for p in judging.paths)
    chosen = known.values() if judging.rules is None else [known[r] for r in judging.rules]
    report = run(timeline, chosen, judging.options)
    summary = Workspace(timeline).get(RankSummary)
    named = summary.facts.rank if summary.facts.rank >= 0 else trace.named
    facts = msgspec.structs.replace(
        summary.facts,
        rank=-1 if named is None else named,
        rank_from="distributedInfo" if summary.facts.rank >= 0 else "name" if named is not None else "",
        conflict=f"{trace.label} says rank {trace.named} by its name, {summary.facts.rank} inside"
        if summary.facts.rank >= 0 and trace.named is not None and trace.named != summary.facts.rank
        else "",
        findings=report.findings[:KEPT_FINDINGS],
        health=tuple(check for check in report.health if check.status != "ok"),
    )
    return replace(summary, facts=facts).to_bytes()


def reduced(
    recording: Recording,
    judging: Judging | None = None,
    *,
    executor: str = "",
    workers: int | None = None,
    kept: Path | None = None,
    shard: tuple[int, int] = (1, 1),
    progress: RankProgress | None = None,
) -> Recording:
    """The job with every rank's trace reduced to its summary; a recording of another kind as it is.

    executor: "" processes of this machine (`workers` of them), "serial", or "dask://HOST:PORT". kept: a directory in which
    summaries stay; one that is there already is not made again. shard: (i, n) takes every n-th trace from the i-th on.
    A rank that cannot be read is left out and said. Raises TraceError where none can, or where they are no ranks of one job.
    """
    given = next((part for part in recording.parts if isinstance(part, JobTraces)), None)
    if given is None:
        return recording
    judging = judging or Judging()
    traces = given.traces[shard[0] - 1 :: shard[1]]
    made: dict[int, bytes] = {}
    unread: list[UnreadRank] = []
    todo: list[int] = []
    for i, trace in enumerate(traces):
        stored = _stored(kept, trace)
        if stored and stored.is_file():
            made[i] = stored.read_bytes()
        else:
            todo.append(i)
    for done, (i, outcome) in enumerate(_run(executor, workers, [traces[i] for i in todo], judging), len(made) + 1):
        at = todo[i]
        if isinstance(outcome, bytes):
            made[at] = outcome
            stored = _stored(kept, traces[at])
            if stored:
                _write(stored, outcome)
        else:
            unread.append(UnreadRank(traces[at].label, outcome))
        if progress:
            progress(done, len(traces), traces[at].label)
    return merged([made[i] for i in sorted(made)], recording.path, unread, given.notes)


def merged(packed: Sequence[bytes], path: str, unread: Sequence[UnreadRank] = (), notes: Sequence[str] = ()) -> Recording:
    """The job whose ranks' summaries these are. Raises TraceError where they are none, or of several jobs."""
    summaries = [RankSummary.from_bytes(data) for data in packed]
    if not summaries:
        why = f": {unread[0].label}: {unread[0].why}" if unread else ""
        raise TraceError(f"no rank of {path} could be read{why}", "Give a directory with one trace a rank.")
    said = [*notes, *(s.facts.conflict for s in summaries if s.facts.conflict)]
    ranks = _numbered(summaries, said)
    _check_one_job(ranks)
    ranks.sort(key=lambda s: s.rank)
    return Recording("job", path, (RankSummaries(tuple(ranks), tuple(unread), tuple(said)),))


def stored(directory: Path) -> list[bytes]:
    """The summaries that shards left in a directory. Raises UsageError where there are none."""
    found = sorted(directory.glob(f"*{SUFFIX}"))
    if not found:
        raise UsageError(f"{directory} holds no summaries of ranks (*{SUFFIX})", "Make them: advisor analyze JOB --shard 1/4 -o DIR")
    return [path.read_bytes() for path in found]


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
    counted = [replace(one, facts=msgspec.structs.replace(one.facts, rank=n, rank_from="order")) for one, n in zip(nameless, free, strict=False)]
    return [*latest.values(), *counted]


DAY_NS = 86_400 * 10**9
"""Ranks of one job are recorded at the same time: a day apart they are different runs."""


def _check_one_job(ranks: Sequence[RankSummary]) -> None:
    """Raise TraceError where the traces are of several jobs, with what differs."""
    worlds = sorted({s.facts.world_size for s in ranks if s.facts.world_size})
    if len(worlds) > 1:
        raise TraceError(
            f"these are traces of several jobs: some say {worlds[0]} ranks, some {worlds[-1]}", "Give the traces of one job in a directory of their own."
        )
    times = [s.facts.base_ns for s in ranks if s.facts.base_ns > 0]
    if times and max(times) - min(times) > DAY_NS:
        days = (max(times) - min(times)) / DAY_NS
        raise TraceError(f"these are traces of several runs: they were recorded {days:.0f} days apart", "Give the traces of one run.")


def _stored(kept: Path | None, trace: RankTrace) -> Path | None:
    """Where a trace's summary stays: named by the file, its size and time, so that a new recording makes a new one."""
    if kept is None or trace.timeline is not None:
        return None
    try:
        about = os.stat(trace.path)
        mark = f"{about.st_size}:{about.st_mtime_ns}"
    except OSError:
        mark = ""
    return kept / f"{hashlib.sha256(f'{trace.path}:{mark}'.encode()).hexdigest()[:20]}{SUFFIX}"


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all: a worker that dies leaves no half summary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)


Outcome = bytes | str


def _run(executor: str, workers: int | None, traces: Sequence[RankTrace], judging: Judging) -> Iterable[tuple[int, Outcome]]:
    """Each trace's position with its summary, or with why there is none; in the order in which they are done."""
    if executor.startswith("dask://"):
        return _on_dask(executor, traces, judging)
    workers = workers or min(len(traces), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if executor == "serial" or workers < 2 or len(traces) < 2:
        return ((i, _tried(trace, judging)) for i, trace in enumerate(traces))
    if executor not in ("", "processes"):
        raise UsageError(f"there is no executor {executor}", "Give processes, serial, or dask://HOST:PORT of a scheduler.")
    return _in_processes(workers, traces, judging)


def _tried(trace: RankTrace, judging: Judging) -> Outcome:
    try:
        return summarize(trace, judging)
    except AdvisorError as error:
        return error.message


def _in_processes(workers: int, traces: Sequence[RankTrace], judging: Judging) -> Iterator[tuple[int, Outcome]]:
    # Fresh processes: a fork would copy the locks of whatever threads the caller has.
    with ProcessPoolExecutor(min(workers, len(traces)), mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(_tried, trace, judging): i for i, trace in enumerate(traces)}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _on_dask(address: str, traces: Sequence[RankTrace], judging: Judging) -> Iterator[tuple[int, Outcome]]:
    try:
        from distributed import Client
        from distributed import as_completed as completed
    except ImportError:
        raise UsageError("a Dask cluster needs the package distributed", "Install it: pip install 'trace-advisor[fleet]'") from None
    with Client(address.replace("dask://", "tcp://")) as client:
        futures = client.map(_tried, list(traces), judging=judging, pure=False)
        position = {future.key: i for i, future in enumerate(futures)}
        for future, outcome in completed(futures, with_results=True):
            yield position[future.key], outcome
