"""How many steps each part of a recording takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..errors import UsageError


@dataclass(frozen=True)
class Options:
    """Number of steps of each part.

    warmup: least number before any measurement. settle: greatest number of further steps, until compilation is over and step times repeat. timed: least number
    without a profiler (fewer only if five took 20 s). light, deep: number in each trace, after `profiler_warmup` discarded steps that the profiler's start
    slows. 0 leaves a trace out. nsys: number of ranges for `nsys profile --capture-range=cudaProfilerApi`."""

    warmup: int = 10
    settle: int = 90
    timed: int = 20
    light: int = 5
    deep: int = 3
    nsys: int = 0
    profiler_warmup: int = 2

    def __post_init__(self) -> None:
        below = [name for name, steps in asdict(self).items() if steps < (name == "timed")]
        if below:
            raise UsageError(f"{below[0]} is {getattr(self, below[0])} steps", f"Give {int(below[0] == 'timed')} or more.")
