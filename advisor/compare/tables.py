"""Where two sides differ: their parts by class, by module and op, by family, kernel by kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from advisor.compare.matching import Match, spelled
from advisor.compare.model import Basis, Interval, Row, Table
from advisor.intervals import Floats
from advisor.knowledge.counts import RESAMPLES, RUNS
from advisor.knowledge.demangled import same_name
from advisor.knowledge.idle import IDLE_CAUSES
from advisor.report.kernels import KernelRow
from advisor.report.model import Report
from advisor.report.step import Part

_CLASSES = {
    "compute": "computing",
    "communication": "communication that nothing hides",
    "copy": "copies that nothing hides",
    "memset": "memsets that nothing hides",
    "wait": "waiting for other ranks",
    **{cause.name: f"idle: {cause.compared}" for cause in IDLE_CAUSES},
}

PartKey = tuple[str, ...]


class Sampled:
    """One side: the time of each distinct part in each capture. Parts in the order of the first capture that has them."""

    def __init__(self, reports: Sequence[Report]) -> None:
        rows: dict[PartKey, tuple[Part, Floats, Floats]] = {}
        for n, report in enumerate(reports):
            for part in report.breakdown:
                _, us, calls = rows.setdefault(_key(part), (part, np.zeros(len(reports)), np.zeros(len(reports))))
                us[n] += part.us
                calls[n] += part.calls
        self.steps_us = np.array([sum(p.us for p in r.breakdown) for r in reports])
        self.us = {key: us for key, (_, us, _) in rows.items()}
        self.parts = [msgspec.structs.replace(part, us=float(us.mean()), calls=float(calls.mean())) for part, us, calls in rows.values()]

    @property
    def typical(self) -> int:
        """The capture whose step is nearest to the mean."""
        return int(np.abs(self.steps_us - self.steps_us.mean()).argmin())

    def time_of(self, parts: Iterable[Part]) -> Floats:
        """(captures,) time of these parts together."""
        return sum((self.us[_key(p)] for p in parts), np.zeros(len(self.steps_us)))


def _key(part: Part) -> PartKey:
    return part.kind, part.family, part.name, part.op, part.module


class Draws:
    """Captures drawn with replacement, the same draws for every row, so that rows keep to the total."""

    def __init__(self, before: np.ndarray | None, after: np.ndarray | None) -> None:
        self._before, self._after = before, after

    @classmethod
    def create(cls, before: int, after: int) -> Draws:
        """None are drawn if a side has too few captures: noise is never made up."""
        if min(before, after) < RUNS:
            return cls(None, None)
        # A fixed seed: the same captures give the same interval.
        random = np.random.default_rng(0)
        return cls(random.integers(before, size=(RESAMPLES, before)), random.integers(after, size=(RESAMPLES, after)))

    def interval(self, before_us: Floats, after_us: Floats) -> Interval | None:
        """95 % of the differences of means over the draws."""
        if self._before is None or self._after is None:
            return None
        changes = after_us[self._after].mean(axis=1) - before_us[self._before].mean(axis=1)
        low, high = np.percentile(changes, (2.5, 97.5))
        return Interval(float(low), float(high))


def class_of(part: Part) -> str:
    """What a part of a step counts as; a saved report may come from an advisor that knows other classes."""
    name = part.name if part.kind == "idle" else part.kind
    return _CLASSES.get(name, name)


def module_and_op(part: Part) -> str:
    """Where a part comes from in the program; of idle time its cause."""
    if part.kind == "idle":
        return class_of(part)
    where = "/".join(text for text in (part.module, part.op) if text)
    return where or f"({part.family}, no op recorded)"


def table(by: Basis, left: Sampled, right: Sampled, draws: Draws, name_of: Callable[[Part], str]) -> Table:
    """Parts of both sides under the names that `name_of` gives them, largest change first."""
    names: dict[str, tuple[list[Part], list[Part]]] = {}
    for at, side in enumerate((left, right)):
        for part in side.parts:
            names.setdefault(name_of(part), ([], []))[at].append(part)
    rows = [_row(name, old, new, left, right, draws) for name, (old, new) in names.items()]
    return Table(by, _by_size(rows))


def kernels_table(left: Sampled, right: Sampled, draws: Draws, matches: Sequence[Match]) -> Table:
    """Kernels of both sides as they were matched, largest change first."""
    rows = [_row(_title(m), m.before, m.after, left, right, draws, m.relation) for m in matches]
    return Table("kernel", _by_size(rows))


def kernel_time(before: Sequence[Report], after: Sequence[Report], draws: Draws) -> tuple[Row, ...]:
    """Kernels by name, with their calls a step, largest change first."""
    # Only what has no name of the other side is looked up by spelling, which leaves namespaces out.
    names = {k.name for report in before for k in report.kernels}
    often = Counter(map(same_name, names))
    spellings = {same: name for name in names if often[same := same_name(name)] == 1}

    def named(kernel: KernelRow) -> str:
        return kernel.name if kernel.name in names else spellings.get(same_name(kernel.name), kernel.name)

    sides = [[_by_kernel(report, named) for report in side] for side in (before, after)]
    rows = []
    for name in dict.fromkeys(name for side in sides for kernels in side for name in kernels):
        (old, calls), (new, calls_now) = (np.array([kernels.get(name, (0.0, 0.0)) for kernels in side]).T for side in sides)
        a, b = float(old.mean()), float(new.mean())
        rows.append(Row(name, a, b, b - a, draws.interval(old, new), "", float(calls.mean()), float(calls_now.mean())))
    return _by_size(rows)


def _by_kernel(report: Report, named: Callable[[KernelRow], str]) -> Mapping[str, tuple[float, float]]:
    """Time and calls a step of each kernel."""
    found: dict[str, tuple[float, float]] = {}
    for row in report.kernels:
        us, calls = found.get(name := named(row), (0.0, 0.0))
        found[name] = us + row.total_us / _steps(report), calls + row.calls / _steps(report)
    return found


def _steps(report: Report) -> int:
    """Steps that a report's times are of; separately measured kernels are of a single run."""
    return report.window.steps if report.window else 1


def _by_size(rows: list[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda r: -abs(r.change_us)))


def _row(name: str, old: Sequence[Part], new: Sequence[Part], left: Sampled, right: Sampled, draws: Draws, relation: str = "") -> Row:
    before, after = left.time_of(old), right.time_of(new)
    return Row(
        name=name,
        before_us=float(before.mean()),
        after_us=float(after.mean()),
        change_us=float(after.mean() - before.mean()),
        noise=draws.interval(before, after),
        relation=relation,
        calls_before=sum(p.calls for p in old),
        calls_after=sum(p.calls for p in new),
    )


def _title(found: Match) -> str:
    """One kernel by its name, a few by the ops they represent."""

    def side(parts: Sequence[Part]) -> str:
        part = parts[0]
        if len({spelled(p) for p in parts}) == 1:
            return class_of(part) if part.kind == "idle" else part.name
        ops = dict.fromkeys(p.op or p.family for p in parts)
        return f"{len(parts)} kernels of {', '.join(list(ops)[:4])}{' and more' if len(ops) > 4 else ''}"

    if found.relation in ("same", "gone"):
        return side(found.before)
    return side(found.after) if found.relation == "new" else f"{side(found.before)} → {side(found.after)}"
