"""Findings that recording could have made: they are possible, not found, and say what would decide."""

from __future__ import annotations

import msgspec

from advisor.engine.rule import Judged
from advisor.recordings.timeline import Source
from advisor.report.model import LOW_SHARE, MEDIUM_SHARE, Finding, Severity
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import Edits, changes

OF_THE_HOST = 0.5
"""A fix of which the GPU's own work gains less than this share of its saving gains by the host's time."""


def doubted(found: Judged, replay: Replay, source: Source) -> Judged:
    """The finding; as a possible one where it matters by time of the host that recording may have added.

    It stands if its fix still saves a medium share of the step with the host's time as low as it may be, which is as low as
    the lower of the two estimates: where they contradict each other, it stands by both or not at all.
    """
    finding, edits = found.finding, found.edits
    if edits is None or finding.severity not in ("high", "medium") or not _rests_on_host(edits, replay, finding):
        return found
    if replay.share(replay.fastest, edits.expected) >= MEDIUM_SHARE:
        return found
    severity: Severity = "low" if finding.saving.expected >= LOW_SHARE * replay.step_us else "info"
    return found._replace(finding=msgspec.structs.replace(finding, status="possible", severity=severity, decide_with=_decide_with(source)))


def _rests_on_host(edits: Edits, replay: Replay, finding: Finding) -> bool:
    """Whether what the fix saves is the host's time, by what it does to the schedule."""
    made = list(changes(replay.corrected, edits.expected))
    gpu_us = sum(change.gpu_us for change in made)
    host = any(change.host_us > 0 or change.waits_removed for change in made)
    return host and gpu_us < OF_THE_HOST * finding.saving.expected


def _decide_with(source: Source) -> str:
    """The command that tells: the same analysis with a step that nobody recorded."""
    return f"advisor analyze {source.path} --step-ms MS, with MS of a step timed without the profiler; or record with: advisor record -- python SCRIPT"
