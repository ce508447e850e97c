"""The traces for ablation: program, date of recording, and measured gains of its fixes."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from advisor.errors import TraceError
from advisor.knowledge import data
from advisor.lab import ledger
from advisor.lab.ablation.mechanisms import Mechanism
from advisor.lab.accuracy import timed_fixes
from advisor.lab.stability.events import traces_below
from advisor.report.model import Report


@dataclass(frozen=True)
class Fix:
    """A fix that was timed. rules: that may name it; measured: the share of the step that it gained, 0 if it gained nothing."""

    rules: tuple[str, ...]
    measured: float

    def predicted(self, report: Report) -> float:
        """The share of the step that a report expects, 0 if no such rule speaks."""
        return ledger.of_report(report, self.rules)[1]


@dataclass(frozen=True)
class Trace:
    """A trace, its program, and the fixes of it that were timed, none if nothing was."""

    path: Path
    program: str
    fixes: tuple[Fix, ...] = ()


def traces_of(directory: Path, sample: int | None = None, seed: int = 0, mechanisms: Sequence[Mechanism] = ()) -> list[Trace]:
    """The traces below a directory, or some of them: those with timed fixes if a ledger or manifests name any. Raises TraceError.

    They come in random order. Those that most mechanisms had seen come last, as they give the least information for their cost."""
    found = [trace for trace in _of_ledger(directory) or _of_manifests(directory) if trace.path.exists()]
    if not found:
        found = [Trace(path, path.name.partition(".")[0]) for path in traces_below(directory)]
    if not found:
        raise TraceError(f"{directory} holds no trace", "Give a directory with traces, as samples/ is.")
    # Each has its own place in the lot: a larger sample begins with a smaller one, and traces that come or go leave the others' order as it is.
    lot = sorted(found, key=lambda trace: sha256(f"{seed} {trace.program} {trace.path.name}".encode()).digest())
    return sorted(lot, key=lambda trace: 2 * len(chosen(mechanisms, trace.program)) < len(mechanisms))[:sample]


def _of_ledger(directory: Path) -> list[Trace]:
    """The traces of a corpus that are here; none without a ledger."""
    if not (directory / ledger.FILE).exists():
        return []
    fixes: dict[tuple[str, str], list[Fix]] = {}
    for row in ledger.read(directory):
        if row.trace and not row.way:
            fixes.setdefault((row.trace, row.program), []).append(Fix((row.rule, *row.others.split()), max(0.0, row.measured)))
    return [Trace(directory / path, program, tuple(several)) for (path, program), several in fixes.items()]


def _of_manifests(directory: Path) -> list[Trace]:
    return [trace for path in sorted([*directory.glob("manifest.json"), *directory.glob("*/manifest.json")]) for trace in _of_manifest(path)]


def _of_manifest(path: Path) -> Iterator[Trace]:
    """As `accuracy.validate` reads it."""
    try:
        cases: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")).get("cases", {})
    except (OSError, ValueError, AttributeError) as error:
        raise TraceError(f"{path} is no list of pairs: {error}", "See samples/README.md for its shape.") from None
    for name, case in cases.items():
        paths = case.get("kineto") or case.get("nsys") or case.get("jax") or {}
        if "slow" in paths and "slow_ms" in case and (case.get("saving", True) or "trap" in case):
            fixes = [Fix(tuple(rules), max(0.0, 1 - ms / case["slow_ms"])) for rules, ms in timed_fixes(case)]
            if fixes:
                yield Trace(path.parent / paths["slow"], name, tuple(fixes))


@cache
def recorded() -> dict[str, int]:
    """Which set each program of this repository came with, counted from the first."""
    return {program: at for at, one in enumerate(_sets().values()) for program in one["programs"]}


def unseen(mechanism: Mechanism, program: str) -> bool:
    """Whether a program was recorded after the mechanism was written. The set that came next was at hand while it was written, so it is no test either.

    Programs of other people's traces were at nobody's hand.
    """
    at_hand = bisect_right(list(_sets()), mechanism.until)
    return recorded().get(program, len(_sets())) > at_hand


@cache
def _sets() -> dict[str, Any]:
    return dict(sorted(data.read(Path(__file__).with_name("programs.toml")).items()))


def seen_by(mechanism: Mechanism) -> int:
    """How many programs were at hand."""
    return sum(not unseen(mechanism, program) for program in recorded())


def chosen(several: Iterable[Mechanism], program: str) -> list[Mechanism]:
    """The mechanisms that had not seen a program."""
    return [one for one in several if unseen(one, program)]
