"""Chooses the traces of this corpus: a third of all timed programs by lot, and what covers whatever a report can say.

    python corpus/cover.py FOLDER... [--facts FOLDER] [--into FOLDER]

A FOLDER has manifest.json, or folders that have one, or traces/ as this one. Each trace is analysed once; with --facts what it shows is kept
there, so that a second run is quick. Prints a chosen trace a line with why it is in; with --into writes each there as columns.

The lot falls on programs, whatever they show, so that accuracy stays a measurement. Then further traces are taken, one at a time, the one that adds
most for its bytes, until every fact that any trace shows is shown by one that is in: each rule with each outcome, each pair of loud rules, each
bottleneck, and each thing that a view recognised.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from advisor.engine import evaluate
from advisor.engine.run import report_of
from advisor.lab import ledger
from advisor.report.model import Report
from advisor.sources import columns, load
from advisor.views.workspace import Workspace

SEED = 20261128

LARGE_BYTES = 1_600_000
"""Of a trace as it was recorded, packed. One program in ten has a larger one, and together they would take two fifths of the corpus."""

Facts = frozenset[str]


def drawn(programs: Mapping[str, tuple[str, int]]) -> list[str]:
    """A third of the programs, each given with its set and the bytes of its trace: of every three of a set that are next in size, one by lot.

    So each is in with the same chance, and short and long traces alike. Of those with a large trace every second leaves, by lot again.
    """
    lot, ordered = random.Random(SEED), sorted(programs, key=lambda name: (*programs[name], name))
    first = [lot.choice(ordered[at : at + 3]) for at in range(0, len(ordered), 3)]
    large = [name for name in first if programs[name][1] > LARGE_BYTES]
    return sorted({*first} - {*lot.sample(large, len(large) // 2)})


def analysed(trace: Path) -> tuple[Report, Workspace]:
    """The report of a trace, and the views that it was made of."""
    made: list[Workspace] = []

    class Kept(Workspace):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)
            made.append(self)

    with patch.object(evaluate, "Workspace", Kept):
        return report_of(trace), made[0]


def shown(report: Report, views: Iterable[object]) -> Facts:
    """What a trace shows: each rule with its outcome, each pair of loud rules, the bottleneck, and each thing that a view found in it."""
    facts = {f"bottleneck {report.headline.bottleneck}", f"judged {report.headline.judged}"}
    for finding in report.findings:
        outcome = "folded" if finding.folded_into else finding.status
        facts.add(f"rule {finding.rule} {finding.severity} {outcome}")
    facts |= {f"rule {one.rule} clear" for one in report.clear} | {f"rule {one.rule} skipped" for one in report.skipped}
    loud = sorted({finding.rule for finding in report.findings if finding.loud})
    facts |= {f"pair {one} {other}" for one, other in combinations(loud, 2)}
    return frozenset(facts | {f"view {name}" for view in views for name in _found(view)})


def _found(view: object) -> Iterator[str]:
    """The fields of a view that hold something: of a recogniser, what it recognised."""
    if not is_dataclass(view) or not type(view).__module__.startswith("advisor.views."):
        return
    for field in fields(view):
        if _holds(getattr(view, field.name)):
            yield f"{type(view).__module__.removeprefix('advisor.views.')}.{type(view).__name__}.{field.name}"


def _holds(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.any()) if value.dtype == bool else value.size > 0
    if isinstance(value, (bool, str, tuple, list, dict, set, frozenset)):
        return bool(value)
    return value is not None


def cover(facts: Mapping[str, Facts], sizes: Mapping[str, int], chosen: Iterable[str] = ()) -> dict[str, Facts]:
    """Traces to take beside the chosen ones so that every fact is shown, and what each adds: greedily, most facts a byte first."""
    left = frozenset().union(*facts.values()) - frozenset().union(*(facts[name] for name in chosen))
    taken: dict[str, Facts] = {}
    while left:
        best = max(sorted(facts), key=lambda name: len(facts[name] & left) / sizes[name])
        taken[best] = facts[best] & left
        left -= taken[best]
    return taken


def listed(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Program, side and file of each trace of one process that a folder, or one within it, lists."""
    for trace in sorted((folder / "traces").glob(f"*{columns.SUFFIX}")):
        program, _, side = trace.name.removesuffix(columns.SUFFIX).rpartition(".")
        yield program, side, trace
    for manifest in (path for pattern in ("manifest.json", "*/manifest.json") for path in sorted(folder.glob(pattern))):
        for program, case in json.loads(manifest.read_text(encoding="utf-8")).get("cases", {}).items():
            for side, path in (case.get("kineto") or case.get("jax") or {}).items():
                yield program, side, manifest.parent / path


def facts_of(trace: Path, kept: Path | None) -> Facts:
    """What a trace shows, from the file that keeps it where there is one."""
    if kept is not None and kept.exists():
        return frozenset(json.loads(kept.read_text(encoding="utf-8")))
    report, workspace = analysed(trace)
    facts = shown(report, workspace.views)
    if kept is not None:
        kept.write_text(json.dumps(sorted(facts), indent=0), encoding="utf-8")
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--facts", type=Path, help="a folder that keeps what each trace shows")
    parser.add_argument("--into", type=Path, help="a folder to write the chosen traces to, as columns")
    args = parser.parse_args()
    traces = {f"{program}.{side}": path for folder in args.folders for program, side, path in listed(folder)}
    sets = {row.program: row.set for row in ledger.read(Path(__file__).parent)}
    sizes = {name: path.stat().st_size for name, path in traces.items()}
    lot = [f"{name}.slow" for name in drawn({name: (sets[name], sizes[f"{name}.slow"]) for name in sets if f"{name}.slow" in traces})]
    facts = {name: facts_of(path, args.facts and args.facts / f"{name}.json") for name, path in traces.items()}
    added = cover(facts, sizes, lot)
    print(f"{len(lot)} of {len(sets)} timed programs by lot, of seed {SEED}; {len(added)} traces more for what those do not show")
    for name in sorted({*lot, *added}):
        print(f"{name:44} {'by lot' if name in lot else '; '.join(sorted(added[name]))}")
        if args.into:
            (args.into / f"{name}{columns.SUFFIX}").write_bytes(columns.encode(load(str(traces[name]))))


if __name__ == "__main__":
    main()
