"""A run of a program under `advisor try`, from inside of it: seeds, interventions, step times, and computed numbers."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

from .. import frameworks, profilers
from ..clock import (
    FEWEST_TIMED,
    MAX_TIMED,
    MAX_TIMED_S,
    SETTLED_STEPS,
    StepClock,
    compilations,
    device_in_use,
    device_name,
    peak_memory,
    reset_peak_memory,
    settled,
)
from ..find_steps import StepFinder
from ..guard import Guard, said_of
from ..in_program import PRIVATE, say
from ..interventions import outermost
from ..interventions.applied import Applied
from ..options import Options
from ..ranks import rank_and_world
from ..recorded import write
from .dropout import without_dropout
from .kernels import KernelCount
from .watch import Watch

FILE = "tried.json"
TIMED_S = 1.0
"""Steps are timed for at least a second."""

MOST_WARMUP = 100  # steps: whoever has not settled by then does not
RANKS_WARMUP = 30
"""Ranks warm up for as many steps each, as none may stop before another."""


def install(text: str) -> None:
    """Called once the program has imported torch. text: what to do, as JSON; see `start.Asked`."""
    asked = json.loads(text)
    folder = Path(asked["directory"])
    run = Timed(folder, asked)
    if asked["seed"] is not None:
        _seed(asked["seed"])
    run.apply()
    finder = StepFinder(folder, Options(), asked["steps"], False, begin=run.begin)
    finder.output = run.watch.output
    finder.watch()


def _seed(seed: int) -> None:
    """Seeds Python, numpy and torch before the program's first line that could draw; the program's own seeds prevail."""
    import sys

    import torch

    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    torch.manual_seed(seed)


class Timed:
    """The steps of a process, timed without a profiler. It takes the place of a recording in `StepFinder`."""

    def __init__(self, directory: Path, asked: dict[str, Any]) -> None:
        self._asked = asked
        self._process = os.getpid()
        self._started_s = time.perf_counter()
        self.watch = Watch()
        self._applied = [Applied(one["name"], asked["cores"], asked["check"]) for one in asked["apply"]]
        self._failed_to: dict[str, str] = {}
        self._folder = directory
        self._clock: StepClock | None = None
        self._ended_s: list[float] = []
        self._graphs: list[int] = []
        self._kernels: KernelCount | None = None
        self._warmup: int | None = asked["warmup"]
        self._last: int | None = asked["warmup"] + asked["timed"] if asked["warmup"] is not None else None
        self._reset_at = -1
        self._device = "cpu"
        self._peak_bytes = 0
        self._missing = 0
        """Steps that were not timed, as the device came into use after them."""
        self._thread = 0
        self.rank, self.world_size = 0, 1
        self.done = self.begun = False
        self.steps_seen = 0
        self.notes: list[str] = []
        self.gave_way = None
        self.holds_traces = True
        self._guard = Guard(self._broken)

    # What StepFinder asks of a recording.

    @property
    def failed(self) -> bool:
        return self._guard.broken

    @property
    def profiled(self) -> bool:
        return self._kernels is not None and self._kernels.started

    @property
    def in_a_thread(self) -> bool:
        return self._thread not in (0, threading.main_thread().ident)

    def begin(self, folder: Path) -> Timed:
        self._folder = folder
        self.begun = True
        self.rank, self.world_size = rank_and_world()
        return self

    def apply(self) -> None:
        """Before the program has done anything with torch."""
        self.watch.begin()
        for one, asked in zip(self._applied, self._asked["apply"], strict=True):
            self._apply(one, asked)
        if self._asked["check"]:
            without_dropout()
        if self._asked["nudge"]:
            self._nudge_at_first_step(self._asked["nudge"])

    def _apply(self, one: Applied, asked: dict[str, Any]) -> None:
        try:
            _code(asked["code"])(one, **asked["options"])
        except Exception as error:  # the run goes on, and says that nothing was applied
            self._failed_to[one.name] = said_of(error)

    def step(self) -> None:
        """Ends a step."""
        if os.getpid() == self._process and not self.done:
            self._guard(self._step)

    def _step(self) -> None:
        self._thread = threading.get_ident()
        self.steps_seen += 1
        if self._clock is None or self._clock.device == "cpu" != device_in_use():
            self._clock = StepClock(device_in_use())
            self._missing = self.steps_seen - 1
        self._clock.mark()
        self._ended_s.append(time.perf_counter() - self._started_s)
        self._graphs.append(compilations())
        if self.steps_seen == 2:
            outermost.stop_watching()
        if self._warmup is None:
            self._warmup = self._settled()
        if self._warmup is not None and self._reset_at < 0:
            reset_peak_memory(device_in_use())
            self._reset_at = self.steps_seen
        if self._warmup is not None:
            if self._kernels is not None:
                self.done = self._kernels.step()
            elif self._compiles():
                self._last = self._last and self.steps_seen + self._last - self._warmup
                self._warmup = self.steps_seen
            elif self._enough(self._warmup):
                self._last = self.steps_seen
                self._timed()
        if self.done:
            self._put()

    def _timed(self) -> None:
        """All steps are timed: the program is over, or runs a few more steps to count their kernels."""
        self._read()
        if self._asked["kernels"] and not profilers.running():
            self._kernels = KernelCount()
        else:
            self.done = True

    def _compiles(self) -> bool:
        """Whether a graph was made in the last steps, of a program that is to be timed. Ranks stop after the same step, whatever each has compiled."""
        if self.world_size > 1 or self.steps_seen > MOST_WARMUP:
            return False
        return self._graphs[-1] != self._graphs[max(0, len(self._graphs) - 1 - SETTLED_STEPS)] and self.steps_seen >= (self._warmup or 0)

    def _settled(self) -> int | None:
        """This step if it ends the warm-up, else None."""
        if self.world_size > 1:
            return self.steps_seen if self.steps_seen >= RANKS_WARMUP else None
        assert self._clock is not None
        last = self._clock.step_us(10)
        least = self._asked["least_warmup"]
        if self.steps_seen < least or self._compiles():
            return None
        return self.steps_seen if settled(last) or self.steps_seen >= MOST_WARMUP else None

    def _enough(self, warmup: int) -> bool:
        """Whether all steps are timed: the requested number, or the time limit if this run decides."""
        if self._last is not None or self.world_size > 1:
            return self.steps_seen >= (self._last or warmup + int(self._asked["timed"]))
        timed, spent_s = self.steps_seen - warmup, self._ended_s[-1] - self._ended_s[warmup - 1]
        return timed >= MAX_TIMED or (spent_s >= TIMED_S and timed >= self._asked["timed"]) or (spent_s >= MAX_TIMED_S and timed >= FEWEST_TIMED)

    def _read(self) -> None:
        self._device = device_in_use()
        if self._reset_at >= 0:
            self._peak_bytes = peak_memory(self._device)
        self.watch.stop()

    def finish(self) -> None:
        """The program ended before all steps were timed: what there is counts."""
        if not self.done and self.begun and os.getpid() == self._process:
            self._guard(self._finish)

    def _finish(self) -> None:
        self.done = True
        if self._kernels is not None:
            self._kernels.stop()
        else:
            self._read()
        self._put()

    def _put(self) -> None:
        import torch

        assert self._clock is not None
        write(
            self._folder / FILE,
            {
                "step_us": [0.0] * self._missing + [round(us, 2) for us in self._clock.step_us()],
                "ended_s": [round(s, 5) for s in self._ended_s],
                "graphs": self._graphs,
                "warmup": self._warmup,
                "last": min(self._last or self.steps_seen, self.steps_seen),
                "steps": self.steps_seen,
                "peak_memory_bytes": self._peak_bytes,
                "device_kind": self._device,
                "device": device_name(self._device),
                "capability": list(torch.cuda.get_device_capability()) if self._device == "cuda" else [],
                "torch": torch.__version__,
                "rank": self.rank,
                "world_size": self.world_size,
                "parameters": self.watch.parameters or outermost.parameters(),
                "trains": self.watch.parameters > 0,
                "applied": [one.said() for one in self._applied],
                "failed_to": self._failed_to,
                "kernels": self._kernels.counts if self._kernels else {},
                "parts_us": self._kernels.spent_us if self._kernels else {},
                **frameworks.in_use(),
                **self.watch.said(),
            },
        )

    def _nudge_at_first_step(self, size: float) -> None:
        """Each parameter is multiplied by 1 + size * r, r uniform in -1 to 1, at the first call of an outermost module: the effect of rounding of
        that size. The program's own random numbers do not change."""

        def nudge(module: Any, call: Any) -> None:
            import torch

            with torch.no_grad():
                for number, p in enumerate(module.parameters()):
                    if p.is_floating_point():
                        generator = torch.Generator(device=p.device).manual_seed(number)
                        p.mul_(1 + size * (2 * torch.rand(p.shape, generator=generator, device=p.device, dtype=torch.float32) - 1).to(p.dtype))

        outermost.wrap_outermost(nudge)

    def _broken(self, error: BaseException) -> None:
        self.done = True
        self.notes.append(f"the run could not be timed: {said_of(error)}")
        if isinstance(error, Exception):
            say(f"{self.notes[-1]}. The program runs on")


def _code(named: str) -> Any:
    """The function that a catalogue names: `module:function` in this package, or `/path/to/file.py:function`."""
    module, _, function = named.rpartition(":")
    if module.endswith(".py"):
        found: dict[str, Any] = {"__name__": "advisor_try_code", "__file__": module}
        exec(compile(Path(module).read_text(encoding="utf-8"), module, "exec"), found)
        return found[function]
    name = f"{PRIVATE}.lab.interventions.{module}"
    __import__(name)
    import sys

    return getattr(sys.modules[name], function)
