"""Two sides of one program, each one or several captures: what changed, where, and whether it is more than noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version

import msgspec
import numpy as np

from advisor.compare.matching import Match, match
from advisor.compare.model import (
    Applied,
    Basis,
    Comparison,
    Difference,
    FindingChange,
    Interval,
    Row,
    Side,
    Status,
    Table,
    Verdict,
)
from advisor.errors import UsageError
from advisor.intervals import Floats
from advisor.knowledge.idle import IDLE_CAUSES
from advisor.report.model import LOW_SHARE, Finding, Kind, Part, Report
from advisor.report.numbers import duration, percent, three

CAPTURES = 3
"""Captures a side from which the noise can be told: two give a range of one number."""

RESAMPLES = 10_000
FLOPS_SHARE = 0.10
"""Steps whose FLOPs differ by more than this do other work: a fix moves or fuses work, it hardly changes its amount."""

OTHER_WORK, SAME_PROGRAM = 1.5, 0.2
"""Steps of more than one and a half times the FLOPs, of whose time not a fifth is in modules or ops of the same names, are of two programs: a fix that
renames everything, as compiling does, leaves the FLOPs; a larger batch leaves the names."""

FINDING_SHARE = 0.02
"""A finding whose saving moved by less of the step is the same as it was: an unprofiled step is not known better."""

_CLASSES = {
    "compute": "computing",
    "communication": "communication that nothing hides",
    "copy": "copies that nothing hides",
    "memset": "memsets that nothing hides",
    "wait": "waiting for other ranks",
    **{cause.name: f"idle: {cause.compared}" for cause in IDLE_CAUSES},
}

PartKey = tuple[str, ...]


def compare(before: Sequence[Report], after: Sequence[Report]) -> Comparison:
    """What changed from one side to the other, per step, without what recording cost. Captures of a side are averaged.

    Raises UsageError where a side is empty or a report holds no breakdown (it was saved by an earlier version).
    """
    for side, name in ((before, "before"), (after, "after")):
        if not side:
            raise UsageError(f"there is no capture {name}", "Give at least one trace or saved report a side.")
        for report in side:
            if not report.breakdown:
                raise UsageError(f"{report.source.path} was saved without a breakdown of its step", "Analyse the trace again.")
    left, right = _Sampled(before), _Sampled(after)
    draws = _Draws.of(len(before), len(after))
    noise = draws.interval(left.steps_us, right.steps_us)
    change = float(right.steps_us.mean() - left.steps_us.mean())
    matches = match(left.parts, right.parts)
    # Of a job's ranks no kernels are kept: its step is divided by what the mean rank does.
    tables = (
        (_table("class", left, right, draws, _class_of),)
        if before[0].kind == "job"
        else (
            _table("class", left, right, draws, _class_of),
            _table("module and op", left, right, draws, _module_and_op),
            _table("family", left, right, draws, lambda p: _class_of(p) if p.kind == "idle" else p.family),
            _kernels(left, right, draws, matches),
        )
    )
    verdict = _verdict(change, noise)
    # Findings are of one capture: the one whose step is nearest to the side's mean.
    typical = before[left.typical], after[right.typical]
    return Comparison(
        kind=before[0].kind,
        advisor=version("trace-advisor"),
        before=_side(before),
        after=_side(after),
        change_us=change,
        noise=noise,
        verdict=verdict,
        summary=_summary(before[0].kind, verdict, float(left.steps_us.mean()), change, noise is None, tables[0]),
        differences=tuple(_differences(*typical)),
        tables=tables,
        kernel_time=_kernel_time(before, after, draws),
        findings=tuple(finding_changes(*typical)),
        applied=tuple(_applied(*typical)),
    )


class _Sampled:
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

    def of(self, parts: Iterable[Part]) -> Floats:
        """(captures,) time of these parts together."""
        found: Floats = sum((self.us[_key(p)] for p in parts), np.zeros(len(self.steps_us)))
        return found


def _key(part: Part) -> PartKey:
    return part.kind, part.family, part.name, part.op, part.module


class _Draws:
    """Captures drawn with replacement, the same draws for every row, so that rows keep to the total."""

    def __init__(self, before: np.ndarray | None, after: np.ndarray | None) -> None:
        self._before, self._after = before, after

    @classmethod
    def of(cls, before: int, after: int) -> _Draws:
        """None are drawn where a side has too few captures: noise is never made up."""
        if min(before, after) < CAPTURES:
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


def _class_of(part: Part) -> str:
    """What a part of a step counts as; a saved report may come from an advisor that knows other classes."""
    name = part.name if part.kind == "idle" else part.kind
    return _CLASSES.get(name, name)


def _table(by: Basis, left: _Sampled, right: _Sampled, draws: _Draws, name_of: Callable[[Part], str]) -> Table:
    names: dict[str, tuple[list[Part], list[Part]]] = {}
    for at, side in enumerate((left, right)):
        for part in side.parts:
            names.setdefault(name_of(part), ([], []))[at].append(part)
    rows = [_row(name, old, new, left, right, draws) for name, (old, new) in names.items()]
    return Table(by, _by_size(rows))


def _kernels(left: _Sampled, right: _Sampled, draws: _Draws, matches: Sequence[Match]) -> Table:
    rows = [_row(_title(m), m.before, m.after, left, right, draws, m.relation) for m in matches]
    return Table("kernel", _by_size(rows))


def _kernel_time(before: Sequence[Report], after: Sequence[Report], draws: _Draws) -> tuple[Row, ...]:
    sides = [[{k.name: (k.total_us / _steps(r), k.calls / _steps(r)) for k in r.kernels} for r in side] for side in (before, after)]
    rows = []
    for name in dict.fromkeys(name for side in sides for kernels in side for name in kernels):
        (old, calls), (new, calls_now) = (np.array([kernels.get(name, (0.0, 0.0)) for kernels in side]).T for side in sides)
        a, b = float(old.mean()), float(new.mean())
        rows.append(Row(name, a, b, b - a, draws.interval(old, new), "", float(calls.mean()), float(calls_now.mean())))
    return _by_size(rows)


def _steps(report: Report) -> int:
    """Steps that a report's times are of; kernels that were measured one by one are of one run."""
    return report.window.steps if report.window else 1


def _basis(report: Report) -> str:
    return report.window.basis if report.window else report.kind


def _by_size(rows: list[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda r: -abs(r.change_us)))


def _row(name: str, old: Sequence[Part], new: Sequence[Part], left: _Sampled, right: _Sampled, draws: _Draws, relation: str = "") -> Row:
    before, after = left.of(old), right.of(new)
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


def _module_and_op(part: Part) -> str:
    if part.kind == "idle":
        return _class_of(part)
    where = "/".join(text for text in (part.module, part.op) if text)
    return where or f"({part.family}, no op recorded)"


def _title(found: Match) -> str:
    """One kernel by its name, a few by the ops they stand for."""

    def side(parts: Sequence[Part]) -> str:
        if len(parts) == 1:
            part = parts[0]
            return _class_of(part) if part.kind == "idle" else part.name
        ops = dict.fromkeys(p.op or p.family for p in parts)
        return f"{len(parts)} kernels of {', '.join(list(ops)[:4])}{' and more' if len(ops) > 4 else ''}"

    if found.relation in ("same", "gone"):
        return side(found.before)
    return side(found.after) if found.relation == "new" else f"{side(found.before)} → {side(found.after)}"


def _verdict(change_us: float, noise: Interval | None) -> Verdict:
    if not change_us:
        return "unchanged"
    if noise is not None and not noise.beyond_noise:
        return "within noise"
    return "slower" if change_us > 0 else "faster"


def _summary(kind: Kind, verdict: Verdict, before_us: float, change_us: float, one_capture: bool, classes: Table) -> str:
    if verdict == "unchanged":
        return f"The {'measured kernels take' if kind == 'kernels' else 'step takes'} exactly as long as before."
    by = _by(before_us, change_us)
    if kind == "kernels":
        return f"The measured kernels together take {by} under the profiler."
    # The class that moved most in the direction of the step.
    most = next((r for r in classes.rows if r.change_us * change_us > 0), None)
    mostly = f", mostly {most.name} ({_signed(most.change_us)} a step)" if most else ""
    if verdict == "within noise":
        return f"No change beyond the noise: the mean step takes {by}."
    return f"The step takes {by}{mostly}" + ("; the noise is not known: that takes three captures a side." if one_capture else ".")


def _by(before_us: float, change_us: float) -> str:
    """`12% less time`, `3.20× the time`: a share of more than all would say little."""
    if before_us <= 0:
        return "some time, where it took none"
    ratio = 1 + change_us / before_us
    return f"{three(ratio)}× the time" if ratio > 2 else f"{percent(abs(change_us) / before_us)} {'more' if change_us > 0 else 'less'} time"


def _signed(us: float) -> str:
    return ("−" if us < 0 else "+") + duration(abs(us))


def _side(reports: Sequence[Report]) -> Side:
    steps = tuple(sum(p.us for p in r.breakdown) for r in reports)
    return Side(
        paths=tuple(r.source.path for r in reports),
        step_us=float(np.mean(steps)),
        steps_us=steps,
        basis=_basis(reports[0]),
        kernels=float(np.mean([r.work.kernels for r in reports])),
        kernel_us=float(np.mean([r.work.kernel_us for r in reports])),
        samples_per_s=float(np.mean([r.work.samples / us * 1e6 if us > 0 else 0.0 for r, us in zip(reports, steps, strict=True)])),
    )


def _differences(before: Report, after: Report) -> Iterable[Difference]:
    def told(what: str, of: Callable[[Report], str], advice: str, serious: bool = False) -> Iterable[Difference]:
        sides = of(before), of(after)
        if sides[0] != sides[1]:
            yield Difference(what, *sides, serious, advice)

    if _named(before) and _named(after):
        yield from told("device", _devices, "Record both on the same GPU.", serious=True)
    yield from told("number of ranks", lambda r: str(sum(not rank.failed for rank in r.ranks)), "Compare jobs of as many ranks.", serious=True)
    yield from told("number of devices", lambda r: str(len(r.devices)), "Record both with the same number of GPUs.", serious=True)
    yield from told("what was recorded", lambda r: r.kind, "Compare recordings of one kind.", serious=True)
    marked = (_basis(before) == "whole") == (_basis(after) == "whole")
    steps = "Mark the steps of both in the same way: prof.step() after each."
    yield from told("what a step is", _basis, steps, serious=not marked)
    if _basis(before) == _basis(after) == "whole":
        kernels = [f"{r.work.kernels:,.0f} kernels" for r in (before, after)]
        yield Difference("amount of work in two unmarked recordings", kernels[0], kernels[1], False, steps)
    if before.kind != "kernels":  # a report and its pages are of one profiler
        yield from told("profiler", lambda r: r.source.format, "Each profiler slows the host in its own way: use one.")
    yield from told("what was recorded", _recorded, "Shapes and stacks slow the host: record both alike.")
    flops = before.work.flops, after.work.flops
    if min(flops) > 0 and max(flops) > OTHER_WORK * min(flops) and (shared := _in_common(before, after)) < SAME_PROGRAM:
        told_work = [f"{_flop(f)} a step" for f in flops]
        advice = f"Only {shared:.0%} of their time is in modules or ops of the same names: these are two programs."
        yield Difference("program", told_work[0], told_work[1], True, advice)
    elif min(flops) > 0 and abs(flops[1] - flops[0]) > FLOPS_SHARE * max(flops):
        texts = [f"{_flop(f)} a step" for f in flops]
        yield Difference("work", texts[0], texts[1], False, "If batch or model changed, compare the time per sample instead.")


def _named(report: Report) -> bool:
    """Whether the devices' names are known: a CSV page of Nsight Compute may leave them out."""
    return report.kind != "kernels" or any(d.name for d in report.devices)


def _in_common(before: Report, after: Report) -> float:
    """The share of the steps' busy time that is in modules (of programs that record them; else in ops) of names that both have."""
    sides = [[part for part in report.breakdown if part.kind != "idle"] for report in (before, after)]
    modules = all(sum(p.us for p in side if p.module) > 0.5 * sum(p.us for p in side) for side in sides)
    times: list[dict[str, float]] = []
    for side in sides:
        whole = sum(p.us for p in side) or 1.0
        found: dict[str, float] = {}
        for part in side:
            name = (part.module if modules else part.op) or part.name
            found[name] = found.get(name, 0.0) + part.us / whole
        times.append(found)
    return sum(min(share, times[1].get(name, 0.0)) for name, share in times[0].items())


def _flop(count: float) -> str:
    """`3.63 GFLOP`, `3.88 TFLOP`."""
    scale, unit = next((pair for pair in ((1e15, "P"), (1e12, "T"), (1e9, "G")) if count >= 0.9995 * pair[0]), (1e6, "M"))
    return f"{three(count / scale)} {unit}FLOP"


def _devices(report: Report) -> str:
    return " and ".join(sorted({d.name for d in report.devices})) or "no GPU"


def _recorded(report: Report) -> str:
    recorded = report.source.recorded
    kinds = [name for name in ("shapes", "stacks", "memory") if getattr(recorded, name)]
    return ", ".join(kinds) or "neither shapes nor stacks"


def _by_rule(report: Report) -> Mapping[str, Finding]:
    """The first finding of each rule; of measured kernels of each rule and kernel."""
    found: dict[str, Finding] = {}
    for finding in report.findings:
        about = f"{finding.rule}: {finding.evidence[0].label}" if report.kind == "kernels" else finding.rule
        found.setdefault(about, finding)
    return found


def _share(finding: Finding | None, report: Report) -> float | None:
    return None if finding is None else report.share(finding)


def finding_changes(before: Report, after: Report) -> Iterable[FindingChange]:
    """What became of each rule's first finding."""
    old, new = _by_rule(before), _by_rule(after)
    for rule in dict.fromkeys((*old, *new)):
        a, b = _share(old.get(rule), before), _share(new.get(rule), after)
        yield FindingChange(rule, (new.get(rule) or old[rule]).title, _status(a, b), a, b)


def _status(before: float | None, after: float | None) -> Status:
    if before is None:
        return "new"
    if after is None:
        return "gone"
    if abs(after - before) < FINDING_SHARE:
        return "same"
    return "better" if after < before else "worse"


def _applied(before: Report, after: Report) -> Iterable[Applied]:
    new = _by_rule(after)
    for rule, finding in _by_rule(before).items():
        left = _share(new.get(rule), after)
        worth = (_share(finding, before) or 0.0) >= LOW_SHARE
        if worth and not finding.folded_into and (left is None or left < LOW_SHARE):
            yield Applied(rule, finding.title, finding.saving)
