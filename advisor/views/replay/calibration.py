"""What is known of the program beside the trace."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Calibration:
    """step_us: the step time measured without a profiler, None where nobody measured it."""

    step_us: float | None = None

    @classmethod
    def build(cls) -> Calibration:
        return cls()
