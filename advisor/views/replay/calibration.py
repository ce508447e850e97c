"""What is known of the program beside the trace."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.recordings.timeline import Timeline


@dataclass(frozen=True)
class Calibration:
    """steps_us: step times measured without a profiler; empty where nobody measured any."""

    steps_us: tuple[float, ...] = ()

    @classmethod
    def build(cls, timeline: Timeline) -> Calibration:
        """What the recorder measured and wrote into the trace."""
        return cls(timeline.source.unprofiled_step_us)
