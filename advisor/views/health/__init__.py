"""Questions asked of the trace before any advice: can it carry it?"""

from __future__ import annotations

import msgspec

from advisor.recordings.timeline import Timeline
from advisor.report.recording import Health
from advisor.views.health.cost import recording_cost, replayed
from advisor.views.health.events import causality, faster_than_possible, links, stream_order
from advisor.views.health.reading import as_read, complete, graphs, open_ranges, poorer_format, recorded_links, runtime, several, start_times, unnamed
from advisor.views.health.steps import start_up, step_marks
from advisor.views.health.unrecorded import failed_calls, gpu_events, unread_spans, unseen_work
from advisor.views.replay.replay import Replay
from advisor.views.time.roofline import Roofline
from advisor.views.trace.launches import Launches
from advisor.views.trace.program import Program
from advisor.views.trace.python_frames import PythonFrames
from advisor.views.trace.startup import StartUp
from advisor.views.trace.steps import Steps
from advisor.views.trace.unseen import Unseen


class TraceHealth(msgspec.Struct, frozen=True):
    """Every check with its answer, in a fixed order."""

    results: tuple[Health, ...]

    @property
    def failed(self) -> tuple[Health, ...]:
        """Checks that leave nothing to trust: no rule may speak."""
        return tuple(h for h in self.results if h.status == "failed")

    @classmethod
    def build(
        cls,
        timeline: Timeline,
        launches: Launches,
        steps: Steps,
        replay: Replay,
        startup: StartUp,
        roofline: Roofline,
        program: Program,
        unseen: Unseen,
        frames: PythonFrames,
    ) -> TraceHealth:
        return cls(
            (
                complete(timeline),
                start_times(timeline),
                graphs(timeline),
                as_read(timeline, "durations", "no event has a negative duration or lasts more than a week", "record with another version of the profiler"),
                causality(timeline, launches, steps),
                links(timeline, launches, steps),
                gpu_events(timeline, steps, unseen, program),
                unseen_work(timeline, launches, steps, startup),
                stream_order(timeline, steps),
                step_marks(timeline, steps),
                start_up(steps, startup),
                faster_than_possible(timeline, steps, roofline),
                recording_cost(replay, steps),
                replayed(timeline, replay),
                *several(timeline),
                *failed_calls(unseen),
                *unread_spans(timeline, unseen, program),
                *unnamed(timeline),
                *open_ranges(timeline),
                *recorded_links(timeline, frames),
                *poorer_format(timeline),
                *runtime(program),
            )
        )
