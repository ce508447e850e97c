"""Merges the files of a program's processes: a single recording, the ranks of a job, or several independent processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.lab import progress
from advisor.lab.options import Options
from advisor.lab.recorded import CAPTURES, FILE, holds_traces, place, said

TRACED = 3
"""The value of `Process.holds` for a process with a trace."""


@dataclass(frozen=True)
class Process:
    """The files of a process: its recording's content, and its other messages. saved is {} if it wrote nothing."""

    folder: Path
    saved: Mapping[str, Any]
    told: Mapping[str, Any]

    @property
    def pid(self) -> int:
        return int(self.told.get("pid", 0))

    @property
    def steps(self) -> int:
        """Steps it took, at least."""
        return max(int(self.told.get("steps", 0)), int(self.saved.get("steps", 0)))

    @property
    def rank(self) -> int | None:
        """Its rank, None if it is alone."""
        return int(self.saved["rank"]) if self.saved.get("world_size", 1) > 1 else None

    @property
    def done(self) -> bool:
        return bool(self.told.get("done"))

    @property
    def stopped(self) -> bool:
        """Whether it was ended because all was recorded."""
        return bool(self.told.get("stopped"))

    @property
    def goes_on(self) -> str:
        """Why it was not, "" if it was or was not to be."""
        return str(self.told.get("goes_on") or "")

    @property
    def failed(self) -> str:
        """What of ours failed in it."""
        return str(self.told.get("failed") or "") if self.told else "a process could not write what it recorded"

    @property
    def ended(self) -> str:
        """How it ended before it was recorded, in its own words."""
        return str((self.saved.get("notes") or ["it was not recorded"])[-1])

    @property
    def refused(self) -> Sequence[str] | None:
        """Why it could not be recorded, and what to do."""
        found: Sequence[str] | None = self.told.get("refused")
        return found

    @property
    def holds(self) -> int:
        """What there is of it: 3 a trace, 2 steady step times, 1 those of its first steps, 0 nothing."""
        kinds = (self.saved.get("settling_step_us"), self.saved.get("unprofiled_step_us"), holds_traces(self.saved))
        return max((i for i, kind in enumerate(kinds, 1) if kind), default=0)


def left_by(part: Path) -> list[Process]:
    """The processes that took steps, in the order in which they began."""
    try:
        folders = [folder for folder in part.iterdir() if folder.is_dir()]
        folders.sort(key=lambda folder: folder.stat().st_mtime_ns)
    except OSError:  # somebody takes the directory away
        return []
    return [Process(folder, said(folder / FILE), progress.told(folder)) for folder in folders]


def merge(part: Path, processes: Sequence[Process], directory: Path, earlier: Mapping[Path, tuple[int, int]], options: Options) -> list[Process]:
    """Put the recording into `directory` in place of the `earlier` recordings there. Returns the processes that are kept.

    Processes with the most data are kept; of several with the same rank, the last. Times alone do not replace an earlier recording if traces were asked for."""
    captured = [part / name for name in CAPTURES if (part / name).exists()]
    most = max((process.holds for process in processes), default=0)
    asked = bool(options.light or options.deep or options.nsys)
    if not most or (earlier and asked and most < TRACED and not captured):
        return []
    best = [process for process in processes if process.holds == most]
    ranks = {process.rank: process for process in best if process.rank is not None}
    alone = [process for process in best if process.rank is None]
    named = {f"rank{rank}": process for rank, process in ranks.items()}
    named |= {"": alone[0]} if len(alone) == 1 and not ranks else {f"process{i}": process for i, process in enumerate(alone)}
    place({name: process.folder for name, process in named.items()}, directory, list(earlier))
    for path in captured:
        path.replace(directory / path.name)
    return list(named.values())
