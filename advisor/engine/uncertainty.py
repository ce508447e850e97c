"""Findings that rest on the host's time as recording leaves it open: they are possible, not found, and say what would decide."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.engine.folding import at_most_low
from advisor.engine.grade import Open
from advisor.engine.outcome import rests_on_host
from advisor.engine.rule import Judged
from advisor.knowledge.how_to_record import RECORD_SHAPES
from advisor.knowledge.interval_margins import of_the_gpu
from advisor.recordings.timeline import Source
from advisor.report.finding import HIGH_SHARE, LOW_SHARE, MEDIUM_SHARE, Finding, Saving, Severity
from advisor.report.recording import Health
from advisor.views.replay.edits import Edits, changes
from advisor.views.replay.replay import Replay

AGAIN = "record again once that is fixed"

WHOLE_FILE = "the whole file"

UNSURE = 0.15
"""A fix that may gain nothing is nothing to drop other work for unless it likely gains this share of the step: of the ledger's findings on the GPU's work of
medium or above that likely gain less and whose interval begins below a hundredth, one fix in five gained nothing, of all others one in twenty."""

EITHER_SIDE = "profiler overhead makes it unclear whether the host or the GPU limits the step, and the fix helps only the host or only the GPU"

ONE_STEP = "a single whole step was recorded, and the fix may gain nothing"

MORE_STEPS = "record three steps or more after the warm-up"

BY_SHAPES = "the fix may gain nothing, and shapes were not recorded to decide that"

COSTS_THE_HOST = "the fix adds host work, and profiler overhead makes it unclear whether the host has slack"


def left_open(replay: Replay, edits: Edits, most_us: float, source: Source) -> Open:
    """What a fix of the GPU's work gains with the host as fast as it may be, and one of the host's with it as slow; most_us: no more than that."""
    return Open(min(replay.most_share(edits.expected) * replay.step_us, most_us), EITHER_SIDE, _decide_with(source))


def doubted(found: Judged, replay: Replay, source: Source, untold: Health | None = None, alone: bool = False) -> Judged:
    """The finding; as a possible one where whether it matters depends on time of the host that recording may have added, or that cannot
    be told at all. untold: a check that tells why, because it failed or because the device hardly works in what does not repeat. alone: whether one
    marked step is all there is.

    One that gains the host's time stands if its fix still saves a medium share of the step with that time as low as it may be, which is
    as low as the lower of the two estimates: where they contradict each other, it stands by both or not at all. One whose fix costs the
    host something, as compiled functions do, stands if it gains anything with that time as high as it may be. One whose interval begins below
    `LOW_SHARE` is low where it likely gains less than `UNSURE` (possible, where a profiler of PyTorch recorded no shapes, and of a single step up to
    `HIGH_SHARE`), and no more than medium where it gains the host's time: high is for what is sure to matter.
    """
    finding, edits = found.finding, found.edits
    if edits is None or not finding.loud:
        return found
    made = list(changes(replay.corrected, edits.expected))
    why, by, on_host = "", _decide_with(source), rests_on_host(replay, found)
    if on_host and untold:
        told = f"the trace fails {untold.check}" if untold.status == "failed" else "no step is marked or repeats, and the GPU hardly works"
        why, by = f"the fix saves host time, and {told}", untold.record_with or AGAIN
    elif any(change.host_us < 0 for change in made) and replay.share(replay.slowest, edits.expected) < LOW_SHARE:
        why = COSTS_THE_HOST
    elif not on_host or replay.share(replay.fastest, edits.expected) >= MEDIUM_SHARE:
        likely = finding.saving.expected >= (HIGH_SHARE if alone else UNSURE) * replay.step_us
        if finding.saving.low >= LOW_SHARE * replay.step_us or not (on_host or (of_the_gpu(finding.rule) and not likely)):
            return found
        if alone and not likely:
            return found._replace(finding=msgspec.structs.replace(finding, status="possible", severity="low", possible_why=ONE_STEP, decide_with=MORE_STEPS))
        if not (on_host or source.shapes) and source.takes_shapes:
            return found._replace(
                finding=msgspec.structs.replace(finding, status="possible", severity="low", possible_why=BY_SHAPES, decide_with=RECORD_SHAPES.text)
            )
        return found._replace(finding=msgspec.structs.replace(finding, severity="medium" if likely else "low"))
    severity: Severity = "low" if finding.saving.expected >= LOW_SHARE * replay.step_us else "info"
    possible = msgspec.structs.replace(finding, status="possible", severity=severity, possible_why=why, decide_with=by)
    return found._replace(finding=possible)


def cut_short(found: Judged) -> Judged:
    """The finding of a file that was cut, as a possible one: kernels that are missing would fill the gaps, or make the step longer."""
    finding = found.finding
    if finding.status == "possible":
        return found
    why = "the file is truncated, and kernels may be missing"
    return found._replace(finding=msgspec.structs.replace(finding, status="possible", severity=at_most_low(finding), possible_why=why, decide_with=WHOLE_FILE))


def clocked(found: Sequence[Judged]) -> list[Judged]:
    """The findings of a program that keeps the pace of something outside, as possible ones: a shorter step then only waits longer."""
    return [_clocked(f) for f in found]


def _clocked(found: Judged) -> Judged:
    finding = found.finding
    if not finding.loud or not finding.shortens or not isinstance(finding.saving, Saving):
        return found
    why = "steps have a fixed period, so a timer or another process seems to limit the rate"
    saving = msgspec.structs.replace(finding.saving, low_us=0.0)
    unsure = msgspec.structs.replace(finding, status="possible", severity="low", saving=saving, possible_why=why, decide_with=BY_HAND)
    return found._replace(finding=unsure)


def first_seen(found: Judged, replay: Replay, brief: bool) -> Judged:
    """The finding of a first pass, no more than medium: what it is a part of, later passes do in less time or not at all. brief: of what little is
    left behind a start, where a gain of the host's time is low: the host does there what it does once, in many small calls."""
    finding, edits = found.finding, found.edits
    if not finding.loud:
        return found
    on_host = brief and edits is not None and rests_on_host(replay, found)
    severity: Severity = "low" if on_host else "medium"
    return found._replace(finding=msgspec.structs.replace(finding, severity=severity))


BY_HAND = "time the program with that change, or record the host with nsys --sample=process-tree and osrt tracing"


def paced(found: Sequence[Judged]) -> list[Judged]:
    """The findings; where one says that the step keeps the pace of something else, the others gain once that one is fixed, and are possible."""
    pace = next((f for f in found if f.paces and f.finding.loud), None)
    return [f if pace is None or f is pace else _failed_check(f, pace.finding) for f in found]


def _failed_check(found: Judged, pace: Finding) -> Judged:
    finding = found.finding
    if finding.status == "possible" or not finding.loud or not finding.shortens:
        return found
    why = f"until {pace.rule} is fixed, a shorter step only waits longer"
    return found._replace(finding=msgspec.structs.replace(finding, status="possible", severity="low", possible_why=why, decide_with=AGAIN))


def _decide_with(source: Source) -> str:
    """The command that tells: the same analysis with a step that nobody recorded."""
    return f"advisor analyze {source.path} --step-ms MS, with MS of a step timed without the profiler; or record with: advisor record -- python SCRIPT"
