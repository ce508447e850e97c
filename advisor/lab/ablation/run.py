"""Analyzes traces with each mechanism and without it: changed predictions, flipped findings, and flips under changes of the trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec

from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.errors import RuleError, TraceError, UsageError
from advisor.lab.ablation.mechanisms import Mechanism
from advisor.lab.ablation.reuse import Kept
from advisor.lab.ablation.switch import switched_off, watched
from advisor.lab.ablation.traces import Trace, chosen
from advisor.lab.stability import events
from advisor.lab.stability.changes import CHANGES, Change
from advisor.lab.stability.held import compared
from advisor.recordings.garbage import uncollected
from advisor.recordings.recording import Recording
from advisor.report.model import Report
from advisor.sources import read

MOST_TRACES = 25
"""Maximum number of traces per mechanism: more of them narrow the interval little for their cost."""


class Prediction(msgspec.Struct, frozen=True):
    """A timed fix, in shares of the step: measured gain, and predictions with the mechanism and without."""

    rule: str
    measured: float
    on: float
    off: float


class Effect(msgspec.Struct, frozen=True):
    """The effect on a trace of disabling a mechanism.

    flips: rules with findings of medium or above only with it, or only without it. A rule occurs once per finding.

    changed: findings of the trace under all changes. flips_on, flips_off: those that flip by the changes, with the mechanism and without."""

    mechanism: str
    predictions: list[Prediction]
    flips: list[str]
    changed: int = 0
    flips_on: int = 0
    flips_off: int = 0


class Tried(msgspec.Struct, frozen=True):
    """A trace.

    tried: the mechanisms that were active on it. effects: of those that had an effect.

    left: why it could not be analyzed, "" if it was."""

    trace: str
    seed: int
    tried: list[str]
    effects: list[Effect]
    left: str = ""


def ablated(
    traces: Sequence[Trace],
    mechanisms: Sequence[Mechanism],
    seed: int = 0,
    kept: Path | None = None,
    most: int = MOST_TRACES,
    progress: Callable[[object], None] = lambda what: None,
) -> list[Tried]:
    """Every trace with the mechanisms that had not seen it.

    kept: a file of earlier results, to which new results are added, so that a run can be resumed."""
    done = {one.trace: one for one in _read(kept) if one.seed == seed}
    often: Counter[str] = Counter()
    found = []
    for trace in traces:
        progress(trace.path.name)
        name = str(trace.path)
        wanted = [one for one in chosen(mechanisms, trace.program) if often[one.name] < most]
        had = done.get(name, Tried(name, seed, [], []))
        if missing := [one for one in wanted if one.name not in had.tried]:
            made = _tried(trace, missing, seed)
            had = Tried(name, seed, [*had.tried, *made.tried], [*had.effects, *made.effects], made.left)
            _add(kept, had)
        names = {one.name for one in wanted}
        found.append(Tried(name, seed, [one for one in had.tried if one in names], [one for one in had.effects if one.mechanism in names], had.left))
        often.update(effect.mechanism for effect in found[-1].effects)
    return found


def _read(kept: Path | None) -> list[Tried]:
    """A later line of a trace contains all of its earlier lines. Raises UsageError if the file is of another kind."""
    if kept is None or not kept.exists():
        return []
    try:
        return msgspec.json.Decoder(Tried).decode_lines(kept.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{kept} holds no ablation: {error}", "Give the file of an earlier run with --resume, or a new file.") from None


def _add(kept: Path | None, one: Tried) -> None:
    if kept is not None:
        with kept.open("ab") as file:
            file.write(msgspec.json.encode(one) + b"\n")


@uncollected()
def _tried(trace: Trace, mechanisms: Sequence[Mechanism], seed: int) -> Tried:
    names = [one.name for one in mechanisms]
    try:
        recording = read(trace.path)
        kept = Kept()
        with watched(mechanisms) as seen, kept.filled():  # in this order: what is kept is not what was tried to compare
            base = _report(recording)
    except TraceError as error:
        return Tried(str(trace.path), seed, names, [], error.message)
    active = [one for one in mechanisms if one.name in seen]
    without = {one.name: _report_without(recording, one, kept) for one in active}
    effects = {name: effect_of(trace, base, report, name) for name, report in without.items()}
    for change, changed in _changed(trace, seed) if active else ():
        kept = Kept()
        with kept.filled():
            with_it = compared(trace.program, change, base, _report(changed))
        for one in active:
            without_it = compared(trace.program, change, without[one.name], _report_without(changed, one, kept))
            was = effects[one.name]
            effects[one.name] = msgspec.structs.replace(
                was, changed=was.changed + with_it.findings, flips_on=was.flips_on + with_it.flips, flips_off=was.flips_off + without_it.flips
            )
    return Tried(str(trace.path), seed, names, list(effects.values()))


def _report(recording: Recording, without: str = "") -> Report:
    report = run(recording, catalog().values())
    if report.failed:
        told = f"rule {report.failed[0].rule} failed on {recording.path}{f' without {without}' if without else ''}: {report.failed[0].error}"
        raise RuleError(told, "A switch must leave everything else working.")
    return report


def _report_without(recording: Recording, mechanism: Mechanism, kept: Kept) -> Report:
    """The report without a mechanism; unaffected results are copied from the analysis with it."""
    with kept.reused(mechanism), switched_off(mechanism):
        return _report(kept.unchanged_views(mechanism, recording), mechanism.name)


def effect_of(trace: Trace, on: Report, without: Report, name: str) -> Effect:
    """The effect of a mechanism, from the reports with it and without."""
    predictions = [Prediction(fix.rules[0], fix.measured, fix.predicted(on), fix.predicted(without)) for fix in trace.fixes]
    before, after = (Counter(finding.rule for finding in report.findings if finding.loud) for report in (on, without))
    return Effect(name, predictions, sorted(((before - after) + (after - before)).elements()))


def _changed(trace: Trace, seed: int) -> Iterator[tuple[Change, Recording]]:
    """The trace as a change of `stability` makes it, drawn by lot among those that apply: further traces tell more than further changes."""
    lot = Random(f"{seed} {trace.program}")
    with TemporaryDirectory(prefix="advisor-ablation-") as folder:
        path = Path(folder, "trace.json")
        recorded = events.read(trace.path)
        if recorded is None:
            return
        for change in lot.sample(CHANGES, len(CHANGES)):
            other = change.apply(recorded, Random(f"{seed} {change.name} {trace.program}"))
            if other is None:
                continue
            other.write(path)
            try:
                changed = read(path)
            except TraceError:  # whether a change leaves a trace readable is what `stability` asks
                continue
            yield change, changed
            return
