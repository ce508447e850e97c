"""Saved reports by commit, and how step time and findings moved from one to the next."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from advisor.compare import measured_fixes
from advisor.compare.differences import differences_between
from advisor.compare.measured_fixes import MeasuredFix
from advisor.compare.model import Difference
from advisor.errors import OutputError, UsageError
from advisor.files import write_whole
from advisor.report.model import Report
from advisor.report.saved import read_report

_NAME = re.compile(r"(?P<time>\d{8}T\d{6}Z)-(?P<commit>[0-9A-Za-z][0-9A-Za-z._-]{0,63})\.json$")
_STAMP = "%Y%m%dT%H%M%SZ"
_COMMIT = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")


TOLD = (
    "schema", "advisor", "kind", "source", "devices", "window", "time", "headline", "findings", "breakdown", "work", "memory", "ranks", "collectives",
)  # fmt: skip
"""Fields of a report that a history says or compares: half of its bytes."""


@dataclass(frozen=True)
class Entry:
    """One saved report, as far as `TOLD`: when its commit was made, and which."""

    time: datetime
    commit: str
    report: Report


@dataclass(frozen=True)
class Trend:
    """Saved reports, oldest first. skipped: files of the directory that are none of ours. measured: fixes whose gain was measured."""

    entries: tuple[Entry, ...]
    skipped: tuple[str, ...]
    measured: tuple[MeasuredFix, ...] = ()

    @property
    def rules(self) -> tuple[str, ...]:
        """Rules that found something in any of them, in the order in which they first did."""
        return tuple(dict.fromkeys(f.rule for e in self.entries for f in e.report.findings))

    @cached_property
    def breaks(self) -> tuple[Difference | None, ...]:
        """Per entry, the reason that its step cannot be compared with earlier entries, by the rules of a diff; None without one. It is compared with its
        predecessor and with the first entry since the last break, from which a summary counts. Reports of earlier versions without a breakdown are skipped.
        """
        found: list[Difference | None] = []
        first: Entry | None = None
        before: Entry | None = None
        for entry in self.entries:
            whole = bool(entry.report.breakdown)
            found.append((_break(before, entry) or _break(first, entry)) if whole and first and before else None)
            if whole:
                first, before = (entry if found[-1] else first or entry), entry
        return tuple(found)

    @property
    def stretch_start(self) -> int:
        """The position of the entry with which the last stretch without a break begins."""
        return max((at for at, found in enumerate(self.breaks) if found), default=0)


def _break(before: Entry, after: Entry) -> Difference | None:
    return next((found for found in differences_between([before.report], [after.report]) if found.serious), None)


def read(directory: Path, ledger: Path | None = None) -> Trend:
    """The history of a directory. ledger: of measured fixes; without it, the directory's `accuracy.jsonl`, if it is there.

    Raises UsageError if it is no directory or holds no report, TraceError for a damaged ledger.
    """
    if not directory.is_dir():
        raise UsageError(f"there is no directory {directory}", "Add a first report: advisor history DIR --add REPORT.json")
    entries, skipped = [], []
    here = directory / measured_fixes.FILE
    for path in sorted(directory.iterdir()):
        if path == here:
            continue
        if (named := _named(path)) is None:
            skipped.append(path.name)
            continue
        entry = Entry(*named, read_report(path, TOLD))
        _check(entry.report, str(path))
        entries.append(entry)
    if not entries:
        left = f", only {listed(skipped)}" if skipped else ""
        raise UsageError(f"{directory} holds no history{left}", "Add a first report: advisor history DIR --add REPORT.json")
    kinds = sorted({entry.report.kind for entry in entries})
    if len(kinds) > 1:
        raise UsageError(
            f"{directory} holds reports of kind {' and '.join(kinds)}: their steps are no history of a program", "Keep each kind in a directory of its own."
        )
    kept = ledger or (here if here.exists() else None)
    return Trend(tuple(entries), tuple(skipped), measured_fixes.read(kept) if kept else ())


def listed(names: Sequence[str]) -> str:
    """The first of the files that are none of a history's, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _named(path: Path) -> tuple[datetime, str] | None:
    """The time and the commit that a file's name says, None for what is none of a history's."""
    match = _NAME.fullmatch(path.name)
    try:
        return (datetime.strptime(match["time"], _STAMP).replace(tzinfo=timezone.utc), match["commit"]) if match else None
    except ValueError:  # digits that are no date
        return None


def _check(report: Report, path: str) -> None:
    """Raises UsageError for a report of what has no step."""
    if report.headline.step_us is None:
        raise UsageError(
            f"{path} is of a recording of kind {report.kind}, which has no step",
            "A history is of the steps of traces and jobs. Peaks and kernels are held by: advisor check, advisor diff",
        )


def _check_beside(directory: Path, report: Report) -> None:
    """Raises UsageError if the directory keeps reports of another kind."""
    held = next(filter(_named, sorted(directory.glob("*.json"))), None) if directory.is_dir() else None
    if held is not None and (kind := read_report(held).kind) != report.kind:
        raise UsageError(f"{directory} keeps reports of kind {kind}, and {report.source.path} is of kind {report.kind}", "Give another directory.")


def add(directory: Path, report: Report, commit: str | None = None, time: datetime | None = None) -> Path:
    """Save a report under its commit: HEAD of the working directory, and its date, if none is given.

    A commit that is there already is replaced: the newest measurement of it stands. Raises UsageError for a commit that is
    no name, and if none is given outside a repository.
    """
    _check(report, report.source.path)
    _check_beside(directory, report)
    commit = commit or _git("rev-parse", "--short=12", "HEAD")
    if not commit:
        raise UsageError("no commit is given and this is no git repository", "Say which: --commit NAME")
    if not _COMMIT.fullmatch(commit):
        raise UsageError(f"{commit!r} is no name of a commit", "Give letters, digits, dots, dashes and underscores.")
    made = _git("show", "-s", "--format=%cI", commit, "--")
    when = time or (datetime.fromisoformat(made) if made else datetime.now(timezone.utc))
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{directory} cannot be made: {error.strerror}", "Give another directory.") from None
    target = directory / f"{when.astimezone(timezone.utc).strftime(_STAMP)}-{commit}.json"
    write_whole(target, report.to_json())
    for old in directory.glob(f"*-{commit}.json"):
        if old != target and (match := _NAME.fullmatch(old.name)) and match["commit"] == commit:
            old.unlink()
    return target


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
