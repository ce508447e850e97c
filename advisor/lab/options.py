"""How many steps each part of a recording takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..errors import UsageError


@dataclass(frozen=True)
class Options:
    """How many steps each part takes.

    warmup: at least so many before anything is measured. settle: at most so many more until compilation is over and step times
    repeat. timed: at least so many without a profiler (fewer only where five took 20 s). light, deep: so many in each trace,
    after `profiler_warmup` that its start slows and that are thrown away; 0 leaves a trace out. nsys: so many as ranges for
    `nsys profile --capture-range=cudaProfilerApi`.
    """

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
