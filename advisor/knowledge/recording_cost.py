"""What recording costs the host, per recorded event, with the options that a trace was recorded with."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.knowledge import data
from advisor.timeline import Source


@dataclass(frozen=True)
class ProfilerCost:
    """µs per event (recording_cost.toml). launch_us: a call that launches. max_share: of any stretch of time, at most."""

    op_us: float
    python_call_us: float
    api_call_us: float
    launch_us: float
    max_share: float

    @classmethod
    def of(cls, source: Source) -> ProfilerCost:
        """For a trace; a format that is not listed is taken for the framework's own profiler."""
        known = data.load("recording_cost")
        rates = known.get(source.format, known["kineto"])
        op = rates["cpu_op_us"]
        for recorded, more in ((source.shapes, "shapes"), (source.memory, "memory"), (source.stacks, "stack")):
            op += rates[f"with_{more}_us"] if recorded else 0.0
        each = rates["in_programs"]
        return cls(
            op_us=each * op,
            python_call_us=each * rates["python_call_us"],
            api_call_us=each * rates["api_call_us"],
            launch_us=each * rates["launch_us"],
            max_share=known["limits"]["max_share"],
        )
