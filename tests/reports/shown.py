"""One of everything that a format can show, with a nasty name in place of every text of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import cache
from itertools import cycle
from typing import Any, get_type_hints

import msgspec

import advisor
from advisor.compare import compare
from advisor.compare.across import compare_programs
from advisor.compare.history import Entry, Trend
from advisor.compare.memory import compare_memory
from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.recordings.recording import Recording
from advisor.report.model import Kind, Report
from advisor.views.ranks.job import RankSummaries
from tests.memory_build import trained
from tests.paths import ROOT
from tests.reports.examples import NASTY, memory_bound
from tests.views.ranks.build import rank_timeline, summary_of

SAMPLES = ROOT / "samples"
SLOW, FIXED = "launch-gap/slow.json.gz", "launch-gap/fixed.json.gz"


def poisoned(value: Any, bad: Iterator[str], hint: Any = str) -> Any:
    """The same, every text of it the next nasty one, but for those of which the model lists the few that there are."""
    if isinstance(value, str):
        return value if "Literal" in str(hint) or "datetime" in str(hint) else next(bad)
    if isinstance(value, tuple):
        return tuple(poisoned(item, bad, hint) for item in value)
    if isinstance(value, dict):
        return {key: poisoned(item, bad, hint) for key, item in value.items()}
    struct = isinstance(value, msgspec.Struct)
    if not struct and not dataclasses.is_dataclass(value):
        return value
    hints = get_type_hints(type(value))
    names = value.__struct_fields__ if struct else [field.name for field in dataclasses.fields(value)]
    made = {name: poisoned(getattr(value, name), bad, hints[name]) for name in names}
    if "summary" in made and isinstance(made["summary"], str):
        made["summary"] = made["summary"].replace("\n", " ").replace("\r", " ")[:240]
    return msgspec.structs.replace(value, **made) if struct else dataclasses.replace(value, **made)


def of_parts(kind: Kind, *parts: Any) -> Report:
    return run(Recording(kind, kind, parts), built_in().values())


def of_memory(activation: int) -> Report:
    return of_parts("memory", trained(layers=8, activation=activation).snapshot())


@cache
def sample(name: str) -> Report:
    return advisor.analyze(SAMPLES / name).report


def reports() -> list[Report]:
    """One of each kind."""
    work = [[[300.0, 200.0]] * 4, [[900.0, 200.0]] * 4]
    job = RankSummaries(tuple(summary_of(rank_timeline(rank, own, work)) for rank, own in enumerate(work)))
    return [sample(SLOW), of_memory(512), sample("kernels/pairs_raw.csv.gz"), of_parts("job", job)]


def trend() -> Trend:
    at = datetime(2026, 1, 2, tzinfo=timezone.utc)
    return Trend((Entry(at, "0123456789ab", sample(SLOW)), Entry(at, "ba9876543210", memory_bound())), ())


MAKERS: dict[str, Callable[[], list[Any]]] = {
    "report": reports,
    "comparison": lambda: [compare([sample(SLOW)], [sample(FIXED)])],
    "across": lambda: [compare_programs(sample(SLOW), sample(FIXED))],
    "memory_comparison": lambda: [compare_memory([of_memory(512)], [of_memory(256)])],
    "history": lambda: [trend()],
}
"""By the package of the formats that show it."""


def shown(package: str) -> list[Any]:
    """What the formats of that package show, nasty throughout."""
    return [poisoned(made, cycle(NASTY)) for made in MAKERS[package]()]
