"""A directory to give away: a job's ranks' traces or snapshots, what shards left of them, what `advisor record` wrote, or the log of JAX's
profiler, each file as one recording to give away is (`sources.redact`).

A rank's file is named anew, since torch and JAX name it by its machine: by its rank where its name says one, and ranks on one machine stay on one.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import msgspec

from advisor.engine.fleet import SUFFIX, UNREAD_SUFFIX, unread_rank
from advisor.errors import TraceError, UsageError
from advisor.files import PART, umask, write_whole
from advisor.knowledge.collectives import element_bytes
from advisor.knowledge.structs import replace
from advisor.report.finding import Clear, Failed, Finding, Skipped
from advisor.report.recording import Health, UnseenWork
from advisor.sources import redact as recordings
from advisor.sources import run
from advisor.sources.jax.directory import every_run, files_of
from advisor.sources.nsys.directory import is_table_of_nsys
from advisor.sources.ranks import RankTrace, latest_among, rank_traces, snapshots_among, traces_among
from advisor.sources.redact.names import Names, device, known_text
from advisor.sources.redact.report import given_away
from advisor.views.ranks.summary import RankSummary


def redact(source: Path, target: Path) -> None:
    """Write a copy of a recording, a saved report, a rank's summary or a directory of a job's ranks or one recording to give away.

    The whole copy appears at once, and never in place of something. Raises UsageError if `target` exists already, TraceError where `source` cannot be read.
    """
    if source.is_dir():
        _directory(source, target)
    elif source.suffix in (SUFFIX, UNREAD_SUFFIX):
        if os.path.lexists(target):
            raise UsageError(f"{target} is there already", "Give the path of a new file.")
        write_whole(target, _left_by_a_shard(source, Names(), 0))
    else:
        recordings.redact(source, target)


def _directory(source: Path, target: Path) -> None:
    if os.path.lexists(target):
        raise UsageError(f"{target} is there already", "Give the path of a new directory.")
    try:
        names = Names()
        files = sorted(path for path in source.iterdir() if path.is_file())
        left: list[Path] = []
        recorded: dict[str, bytes] = {}
        if run.recognises(source):
            held, step_us, in_use = run.held(source)
            traces = {name + _suffixes(path): path for name, path in held.items()}
            recorded[run.FILE] = run.told({name: name + _suffixes(path) for name, path in held.items()}, step_us, *in_use)
        elif (several := run.processes(source))[1]:
            traces, told = {}, {}
            for folder in map(Path, several[1]):  # called by rank or by number, and by nothing that names anybody
                held, step_us, in_use = run.held(folder)
                traces |= {f"{folder.name}/{name}{_suffixes(path)}": path for name, path in held.items()}
                told[folder.name] = {name: name + _suffixes(path) for name, path in held.items()}
                recorded[f"{folder.name}/{run.FILE}"] = run.told(told[folder.name], step_us, *in_use)
            recorded[run.MANIFEST] = run.told_of_processes(several[0], told)
        elif logged := every_run(log := Path(os.path.abspath(source))):  # a log's directories are known by their names, and `.` has none
            traces = _of_log(log, logged)
        else:
            paths = [str(path) for path in files]
            found = latest_among(traces_among(paths)) or snapshots_among(paths)
            traces = {_renamed(trace, i, names): Path(trace.path) for i, trace in enumerate(rank_traces(found))}
            left = [path for path in files if path.suffix in (SUFFIX, UNREAD_SUFFIX)]
        if not traces and (table := next((path for path in files if is_table_of_nsys(path)), None)):
            tables = f"{source} is an export of Nsight Systems in tables (as {table.name}), which are not redacted"
            raise TraceError(
                tables, f"Redact its SQLite export: nsys export --type sqlite -o report.sqlite REPORT.nsys-rep; advisor redact report.sqlite {target}.sqlite"
            )
        if not traces and not left:
            raise TraceError(f"{source} holds no traces", "Give a directory with a trace per rank, of shards, of advisor record, or a log of JAX.")
        names.know(*recordings.machines(traces.values()))
        part = Path(tempfile.mkdtemp(dir=target.parent, prefix=PART, suffix=".part"))
        try:
            for name, path in traces.items():
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                recordings.redact(path, part / name, names)
            for i, path in enumerate(left):
                (part / f"{i:06}{path.suffix}").write_bytes(_left_by_a_shard(path, names, i))
            for name, text in recorded.items():
                (part / name).write_bytes(text)
            part.chmod(0o777 & ~umask())
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise recordings.cannot_redact(source, target, error) from None


_DATE = re.compile(r"\d{4}(?:_\d\d){5}")


def _of_log(source: Path, logged: list[Path]) -> dict[str, Path]:
    """The files of every run of a log by their new names, in directories as before: of `profile` with itself, by which what lies below is known.
    A run is called by its date or, where any is named otherwise, by its place: the newest is known by its name. A file is called by its place:
    its name is its machine's, and a number in it says no rank."""
    within = [run.relative_to(source.parent if source.name == "profile" else source) for run in logged]
    dated = all(not run.name or _DATE.fullmatch(run.name) for run in within)
    below = [run if dated or not run.name else run.with_name(f"run{i:04}") for i, run in enumerate(within)]
    files = [(run, i, Path(file)) for run, of in zip(below, logged, strict=True) for i, file in enumerate(files_of(of))]
    return {str(run / f"trace{i}{_suffixes(file)}"): file for run, i, file in files}


def _renamed(trace: RankTrace, at: int, names: Names) -> str:
    """A trace's new name: the rank that its own says, else its place among them on the same machine as before."""
    path = Path(trace.path)
    if trace.host:
        return f"{names.given('host', trace.host)}_{at}.pt.trace.json" + (".gz" if path.suffix in _PACKED else "")
    return _label(trace.named, at) + _suffixes(path)


def _label(rank: int | None, at: int) -> str:
    """What a rank is called; one that nobody knows is not called by its place, which would be read as its rank."""
    return f"trace{at}" if rank is None or rank < 0 else f"rank{rank}"


_PACKED = (".gz", ".zst")


def _suffixes(path: Path) -> str:
    """Those of a file that say what it is; whatever packed it, the copy is packed with gzip."""
    said = "".join(suffix for suffix in path.suffixes if suffix in (".pt", ".trace", ".json", ".pickle", ".sqlite", ".xplane", ".pb"))
    return said + (".gz" if path.suffix in _PACKED else "")


_NUMBERS = re.compile(r"[\d\s,\[\]]*")


def _group(text: str, names: Names) -> str:
    """A group's name and its ranks."""
    numbers = text[len(text.rstrip("0123456789 ,[]")) :]
    members = numbers[numbers.index("[") :] if "[" in numbers and numbers.endswith("]") else ""
    name = text[: len(text) - len(members)].removesuffix(" ")
    return f"{names.group(name)} {members}".strip()


def _left_by_a_shard(path: Path, names: Names, at: int) -> bytes:
    """A rank's summary, or why there is none. Raises TraceError if the file is neither."""
    if path.suffix == UNREAD_SUFFIX:
        unread = unread_rank(path)
        (named,) = rank_traces([unread.label])
        return msgspec.json.encode(replace(unread, label=_label(named.named, at), why="it could not be read"))
    summary = RankSummary.from_bytes(path.read_bytes())
    facts = summary.facts
    host = names.given("host", facts.host) if facts.host else ""
    return replace(
        summary,
        facts=msgspec.structs.replace(
            facts, label=_label(facts.rank, at), host=host, run=names.given("run", facts.run) if facts.run else "", conflict="its name says another rank" if facts.conflict else "",
            groups=tuple(_group(group, names) for group in facts.groups), splits=tuple(known_text(_NUMBERS.fullmatch, text) for text in facts.splits),
            dtypes=tuple(known_text(element_bytes, text) for text in facts.dtypes), device=device(facts.device),
            devices=tuple((device(name), sms) for name, sms in facts.devices),
            communicators=tuple(names.given("communicator", text) if text else "" for text in facts.communicators),
            findings=msgspec.convert(given_away(facts.findings, names), tuple[Finding, ...]),
            clear=msgspec.convert(given_away(facts.clear, names), tuple[Clear, ...]),
            skipped=msgspec.convert(given_away(facts.skipped, names), tuple[Skipped, ...]),
            failed=msgspec.convert(given_away(facts.failed, names), tuple[Failed, ...]),
            health=msgspec.convert(given_away(facts.health, names), tuple[Health, ...]),
            unseen=msgspec.convert(given_away(facts.unseen, names), tuple[UnseenWork, ...]),
        ),
    ).to_bytes()  # fmt: skip
