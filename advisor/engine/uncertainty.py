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
from advisor.report.finding import HIGH_SHARE, LOW_SHARE, MEDIUM_SHARE, Finding, Severity
from advisor.report.recording import Health
from advisor.views.replay.edits import Edits, changes
from advisor.views.replay.replay import Replay

AGAIN = "record again once that is fixed"

WHOLE_FILE = "the whole file"

UNSURE = 0.15
"""A fix with a low end near zero is urgent only if its expected gain is this share of the step. Of the ledger's GPU findings with severity medium or
above, a smaller expected gain and a low end below 1%, one fix in five gained nothing. Of all others, one in twenty did.
"""

EITHER_SIDE = "the fix helps only the host or only the GPU, and profiler overhead hides which of them limits the step"

ONE_STEP = "a single whole step was recorded, and the fix may gain nothing"

MORE_STEPS = "record three steps or more after the warm-up"

BY_SHAPES = "the fix may gain nothing, and shapes were not recorded to decide that"

COSTS_THE_HOST = "the fix adds host work, and profiler overhead makes it unclear whether the host has slack"


def left_open(replay: Replay, edits: Edits, most_us: float, source: Source) -> Open:
    """The gain of a GPU fix with the fastest possible host, and of a host fix with the slowest. most_us: upper limit."""
    return Open(min(replay.most_share(edits.expected) * replay.step_us, most_us), EITHER_SIDE, _decide_with(source))


def doubted(found: Judged, replay: Replay, source: Source, untold: Health | None = None, alone: bool = False) -> Judged:
    """The finding; unconfirmed if its relevance depends on host time that the profiler may have added, or that is unknown.

    untold: the check that explains this: it failed, or the device hardly works outside of repeating steps. alone: whether there is a single marked step.

    A host fix is confirmed if it saves a medium share of the step with the least host time, by the lower of both estimates (by both, if they
    contradict). A fix that costs host time, such as compiled functions, is confirmed if it gains anything with the most host time. A low end below
    `LOW_SHARE` caps severity: at low if the expected gain is below `UNSURE` (unconfirmed, if PyTorch recorded no shapes; below `HIGH_SHARE`, if there
    is a single step), else at medium for host fixes.
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


def first_seen(found: Judged, replay: Replay, brief: bool) -> Judged:
    """The finding of a first pass, at most medium: later passes spend less time there, or none. brief: of the short rest after start-up, in which
    host gains are low because the host does one-time work in many small calls.
    """
    finding, edits = found.finding, found.edits
    if not finding.loud:
        return found
    on_host = brief and edits is not None and rests_on_host(replay, found)
    severity: Severity = "low" if on_host else "medium"
    return found._replace(finding=msgspec.structs.replace(finding, severity=severity))


def paced(found: Sequence[Judged]) -> list[Judged]:
    """The findings; if one says that an external rate limits the step, the others are unconfirmed: they gain time once that is fixed."""
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
