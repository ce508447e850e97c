"""For people who keep their own torch.profiler: the steps that it does not record, timed, in its trace."""

from __future__ import annotations

import os
import re
import secrets
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.errors import require
from advisor.lab.clock import MAX_TIMED, StepClock, device_in_use, device_name, without_start_up
from advisor.lab.export import METADATA_KEY, export
from advisor.lab.frameworks import in_use
from advisor.lab.guard import Guard, said_of
from advisor.sources.ranks import head

if TYPE_CHECKING:
    from torch.profiler import profile

KEPT = MAX_TIMED
"""Number of step times that are kept: a training loop may wait for days."""


def trace_handler(directory: str | os.PathLike[str]) -> Callable[[profile], None]:
    """For `torch.profiler.profile(on_trace_ready=advisor.trace_handler("out/"))`: writes each trace with the step time in it.

    Steps that the schedule waits for are timed, without the program's start-up. Warm-up steps are kept separately, since the profiler may already slow them.
    Let it wait for ten steps or more. Later cycles of the schedule are `trace-1.json.gz` and so on, which `advisor analyze out/` reads as a single process, the
    latest. Files of another handler under these names are replaced, so give each a directory of its own."""
    require("torch", extra="lab")
    return _Handler(Path(directory))


class _Handler:
    """Writes traces, and times the steps in which the profiler records nothing.

    torch.profiler calls a handler only when a trace is ready, so `profile.step` is watched for the profilers with this handler."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.written = 0
        self._token = secrets.token_hex(8)
        self._spans: deque[tuple[str, StepClock]] = deque(maxlen=KEPT)
        self._open: StepClock | None = None
        self._cold = True
        self._guard = Guard(self._failed)
        _watch_profilers()

    def __call__(self, profiler: profile) -> None:
        self._guard(self._write, profiler)

    def _failed(self, error: BaseException) -> None:
        warnings.warn(f"advisor: no trace is written to {self.directory}: {said_of(error)}", stacklevel=2)

    def _write(self, profiler: profile) -> None:
        if not self.written:
            _clear(self.directory)
        name = "trace.json.gz" if not self.written else f"trace-{self.written}.json.gz"
        export(profiler, self.directory / name, self._measured(profiler))
        self.written += 1
        self._cold = True

    def begin(self) -> None:
        """A step begins."""
        self._guard(self._begin)

    def end(self, profiler: profile) -> None:
        """The step ends, and the profiler's activity during it is known."""
        self._guard(self._end, profiler)

    def _begin(self) -> None:
        self._open = StepClock(device_in_use())
        self._open.mark()

    def _end(self, profiler: profile) -> None:
        if self._open is None:
            return
        if self._cold:
            # The first step pays for what later ones do not: allocation, choice of algorithms, compilation, an empty queue.
            self._cold = False
            return
        self._open.mark()
        self._spans.append((profiler.current_action.name, self._open))

    def _measured(self, profiler: profile) -> dict[str, Any]:
        import torch

        times = {kind: [us for action, clock in self._spans if action == kind for us in clock.step_us()] for kind in ("NONE", "WARMUP")}
        return {
            "profiler": self._token,
            "cycle": self.written,
            "unprofiled_step_us": [round(us, 3) for us in without_start_up(times["NONE"])],
            "warmup_step_us": [round(us, 3) for us in times["WARMUP"]],
            "device": device_name(device_in_use()),
            "torch": torch.__version__,
            "options": {
                "record_shapes": profiler.record_shapes, "with_stack": profiler.with_stack, "profile_memory": profiler.profile_memory,
            },
            **in_use(),
        }  # fmt: skip


_LATER = re.compile(r"trace-\d+\.json\.gz")


def _clear(directory: Path) -> None:
    """Remove the later cycles of an earlier handler, which would be read as cycles of this handler; only files that a handler wrote."""
    for path in directory.iterdir():
        if not _LATER.fullmatch(path.name) or not path.is_file():
            continue
        begins = head(str(path))
        # `advisor record` writes no times of warm-up steps.
        if f'"{METADATA_KEY}"'.encode() in begins and b'"warmup_step_us"' in begins:
            path.unlink()


def _watch_profilers() -> None:
    """Call advisor's handlers when a step of their profiler begins and ends."""
    from torch.profiler import profile

    original = profile.step
    if getattr(original, "tells_advisor", False):
        return

    def step(self: profile) -> None:
        handler = self.on_trace_ready if isinstance(self.on_trace_ready, _Handler) else None
        if handler:
            handler.end(self)
        original(self)
        if handler:
            handler.begin()

    step.tells_advisor = True  # type: ignore[attr-defined]
    profile.step = step  # type: ignore[method-assign]
