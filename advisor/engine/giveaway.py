"""A job to give away: its ranks' traces, or what shards left of them, as one recording to give away is (`sources.redact`).

A rank's file is named anew, since torch names it by its machine; ranks on one machine stay on one.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec

from advisor.engine.fleet import SUFFIX, UNREAD_SUFFIX, unread_rank
from advisor.errors import TraceError, UsageError
from advisor.files import PART, write_whole
from advisor.knowledge.collectives import element_bytes
from advisor.report.finding import Clear, Failed, Finding, Skipped
from advisor.report.recording import Health
from advisor.sources import redact as recordings
from advisor.sources.ranks import RankTrace, traces_among
from advisor.sources.redact.names import Names, device, one_of
from advisor.sources.redact.report import given_away
from advisor.views.ranks.summary import RankSummary


def redact(source: Path, target: Path) -> None:
    """Write a copy of a recording, a saved report, a rank's summary or a directory of a job's ranks to give away.

    The whole copy appears at once, and never in place of something. Raises UsageError where `target` exists already, TraceError where
    `source` cannot be read.
    """
    if source.is_dir():
        _directory(source, target)
    elif source.suffix in (SUFFIX, UNREAD_SUFFIX):
        if os.path.lexists(target):
            raise UsageError(f"{target} is there already", "Give the path of a new file.")
        write_whole(target, _left_by_a_shard(source, Names(), source.name))
    else:
        recordings.redact(source, target)


def _directory(source: Path, target: Path) -> None:
    if os.path.lexists(target):
        raise UsageError(f"{target} is there already", "Give the path of a new directory.")
    names = Names()
    files = sorted(path for path in source.iterdir() if path.is_file())
    traces = traces_among([str(path) for path in files])
    left = [path for path in files if path.suffix in (SUFFIX, UNREAD_SUFFIX)]
    if not traces and not left:
        raise TraceError(f"{source} holds no traces", "Give a directory with one trace a rank, or one that shards wrote.")
    try:
        part = Path(tempfile.mkdtemp(dir=target.parent, prefix=PART, suffix=".part"))
        try:
            for i, trace in enumerate(map(Path, traces)):
                recordings.redact(trace, part / _renamed(trace, i, names), names)
            for i, path in enumerate(left):
                (part / f"{i}{path.suffix}").write_bytes(_left_by_a_shard(path, names, f"rank{i}"))
            part.chmod(0o755)
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise recordings.cannot_redact(source, target, error) from None


def _renamed(path: Path, at: int, names: Names) -> str:
    """A trace's new name: its place among them, on the same machine as before."""
    host = RankTrace(str(path), path.name).host
    if host:
        return f"{names.given('host', host)}_{at}.pt.trace.json" + (".gz" if path.suffix == ".gz" else "")
    return f"rank{at}" + ("".join(s for s in path.suffixes if s in (".pt", ".trace", ".json", ".gz", ".sqlite")))


_NUMBERS = re.compile(r"[\d\s,\[\]]*")


def _group(text: str, names: Names) -> str:
    """A group's name and its ranks."""
    numbers = text[len(text.rstrip("0123456789 ,[]")) :]
    members = numbers[numbers.index("[") :] if "[" in numbers and numbers.endswith("]") else ""
    name = text[: len(text) - len(members)].removesuffix(" ")
    return f"{names.group(name)} {members}".strip()


def _left_by_a_shard(path: Path, names: Names, label: str) -> bytes:
    """A rank's summary, or why there is none. Raises TraceError where the file is neither."""
    if path.suffix == UNREAD_SUFFIX:
        return msgspec.json.encode(replace(unread_rank(path), label=label, why="it could not be read"))
    summary = RankSummary.from_bytes(path.read_bytes())
    facts = summary.facts
    host = names.given("host", facts.host) if facts.host else ""
    return replace(
        summary,
        facts=msgspec.structs.replace(
            facts, label=label, host=host, conflict="its name says another rank" if facts.conflict else "",
            groups=tuple(_group(group, names) for group in facts.groups), splits=tuple(one_of(_NUMBERS.fullmatch, text) for text in facts.splits),
            dtypes=tuple(one_of(element_bytes, text) for text in facts.dtypes), device=device(facts.device),
            devices=tuple((device(name), sms) for name, sms in facts.devices),
            communicators=tuple(names.given("communicator", text) if text else "" for text in facts.communicators),
            findings=msgspec.convert(given_away(facts.findings, names), tuple[Finding, ...]),
            clear=msgspec.convert(given_away(facts.clear, names), tuple[Clear, ...]),
            skipped=msgspec.convert(given_away(facts.skipped, names), tuple[Skipped, ...]),
            failed=msgspec.convert(given_away(facts.failed, names), tuple[Failed, ...]),
            health=msgspec.convert(given_away(facts.health, names), tuple[Health, ...]),
        ),
    ).to_bytes()  # fmt: skip
