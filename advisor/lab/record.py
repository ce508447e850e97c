"""Records a program so that the recording carries its truth: steps timed without a profiler, then two short traces."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet, ref

from advisor.errors import UsageError, require
from advisor.files import PART
from advisor.lab import profilers
from advisor.lab.clock import (
    SETTLED_STEPS,
    StepClock,
    compilations,
    device_in_use,
    device_name,
    peak_memory,
    reset_peak_memory,
    settled,
    synchronize,
)
from advisor.lab.export import export
from advisor.report.numbers import duration, interval

if TYPE_CHECKING:
    from torch.profiler import profile

T = TypeVar("T")

FILE = "recording.json"
TRACES = ("light.json.gz", "deep.json.gz")
CAPTURES = ("nsys.nsys-rep", "nsys.sqlite")
"""What Nsight Systems writes beside it."""
VERSION = 1
TIMED_S = 0.3
"""Steps are timed for at least this long, so that the clock's own jitter does not count."""

LOCKSTEP_SETTLE = 20
"""Steps that ranks wait beyond the warm-up, all as many, whether or not they have settled before."""

MAX_TIMED = 500
MAX_TIMED_S = 20.0
FEWEST_TIMED = 5

PATIENCE_S = 60.0
"""A thread that ends the recording waits at most so long for what the steps' own thread writes between two steps."""


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


_under_way: WeakSet[Run] = WeakSet()
"""Recordings of this process that are not over."""

_of_thread = threading.local()
"""Its values are gone when their thread ends, while that thread still runs."""


class Run:
    """One recording under way. Every call of `step` ends a step; what happens between them is the state of `_parts`."""

    def __init__(self, directory: str | os.PathLike[str], options: Options, warn: Callable[[str], None] | None = None) -> None:
        self.directory = Path(directory)
        self.options = options
        self.notes: list[str] = []
        """What kept the recording from being whole or steady."""
        self.done = False
        """Whether all is recorded; the program runs on as if nothing were there."""
        self.steady = False
        self.unprofiled_step_us: list[float] = []
        self.gave_way: UsageError | None = None
        """What profiled beside this recording, which ended there, or why it was not kept; and what to do."""
        self._warn = warn or _warn
        # Ranks wait for each other: one that counts its steps by its own clock would stop while another goes on.
        self._lockstep = int(os.environ.get("WORLD_SIZE") or 1) > 1
        self._traces: dict[str, str] = {}
        self._profiler: profile | None = None
        self._over = False
        """Whether what was recorded is written: nothing more is."""
        self._between_steps = threading.RLock()
        """Held while a step ends, since a program may end the recording from another thread."""
        self._thread = 0
        """The one that torch's profiler must be stepped and stopped in, as long as it is on: elsewhere that ends the program."""
        self._made = False
        self._step_us = 0.0
        self._steps_before_timed = max(options.warmup, 2 * SETTLED_STEPS * (options.settle > 0)) + 2
        self._device = "cpu"
        self._peak_bytes = 0
        self._parts: Generator[None] | None = None

    def __enter__(self) -> Run:
        # A trace of theirs is a profiler that is on, until they have given way.
        for other in tuple(_under_way):
            other.give_way(
                UsageError(
                    f"the program began a recording with advisor.record, into {self.directory}",
                    f"Take one of the two out. Where that one is wanted, run the program by itself, then: advisor analyze {self.directory}",
                )
            )
        if profilers.running():
            raise UsageError("a profiler is on already, and two cannot run at once", "Record outside of it, or analyze the trace that it writes.")
        self._made = not self.directory.exists()
        prepare(self.directory)
        self.watch()
        return self

    def watch(self) -> None:
        """From here on the recording gives way to every other of the process, and to profilers of the program's own."""
        _under_way.add(self)
        profilers.watch(self._profiler_started)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # After an error of the program the device may be lost: what can still be written is, and the error goes on.
        with suppress(*([RuntimeError] if error is not None else [])):
            self.finish()

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches, each with the work done on it a step. Call it again for the next epoch."""
        for batch in batches:
            yield batch
            self.step()

    def step(self) -> None:
        """One step ends here. Does nothing once all is recorded."""
        with self._between_steps:
            if self.done:
                self._close()
            elif self._parts is None and profilers.running():
                self.give_way(_profiles_itself())
            elif self._in_its_thread():
                self._parts = self._parts or self._record()
                self._thread = threading.get_ident()
                next(self._parts, None)
                if self.done:
                    self._leave()

    def finish(self) -> None:
        """Write what was recorded so far. Warns where the program ended before all was, or where steps never settled.

        A trace that another thread is recording is lost; its profiler goes off at that thread's next step, or at its end.
        """
        if self.done:
            return
        self._end()
        missing = [name for name in ("light", "deep") if getattr(self.options, name) and name not in self._traces]
        if missing:
            self._note(f"the program ended before the {' and '.join(missing)} trace: {self._what_is_needed()}")
        if not self._traces and (missing or self.options.nsys) and (self.directory / FILE).exists():  # an earlier one says more than times alone
            self.gave_way = UsageError(f"nothing was traced, and the earlier recording in {self.directory} is kept", "Let the program run for longer.")
            self._note(self.gave_way.message)
        else:
            self._save()

    def give_way(self, to: UsageError) -> None:
        """Something else profiles in this process: end here, and keep what was recorded if it can be analysed."""
        if self.done:
            return
        self.gave_way = to
        self._end()
        self._note(f"{to.message}: the recording ended there. {to.hint}")
        if self._traces:
            self._save()
        else:
            self._remove_empty()

    @property
    def holds_traces(self) -> bool:
        """Whether a trace was recorded."""
        return bool(self._traces)

    @property
    def in_a_thread(self) -> bool:
        """Whether the steps run in a thread of the program's, which ends by itself without the program."""
        return self._thread not in (0, threading.main_thread().ident)

    def _profiler_started(self, started: Any) -> None:
        if self._profiler is None or started is not self._profiler.profiler:
            self.give_way(_profiles_itself())

    def _in_its_thread(self) -> bool:
        return self._profiler is None or self._thread == threading.get_ident()

    def _end(self) -> None:
        self.done = True
        self._leave()
        self._close()
        self._over = True

    def _close(self) -> None:
        """End the part under way, unless it is a trace in another thread, which does so itself."""
        if self._between_steps.acquire(timeout=PATIENCE_S):
            try:
                if self._parts is not None and self._in_its_thread():
                    self._parts.close()
            finally:
                self._between_steps.release()

    def _thread_ends(self) -> None:
        self.finish()
        self._close()

    def _leave(self) -> None:
        _under_way.discard(self)
        profilers.unwatch(self._profiler_started)

    @property
    def begun(self) -> bool:
        """Whether a step was seen and more are to come."""
        return self._parts is not None and not self.done

    @property
    def steps_needed(self) -> int:
        """Steps that a recording takes, by what its steps have told so far; before the first, where they settle at once and take long."""
        o = self.options
        traces = [steps + o.profiler_warmup for steps in (o.light, o.deep, o.nsys) if steps]
        return self._steps_before_timed + self._steps_to_time() + sum(traces)

    def _steps_to_time(self) -> int:
        if self._lockstep or not self._step_us:
            return self.options.timed
        least, most = (math.ceil(seconds * 1e6 / self._step_us) for seconds in (TIMED_S, MAX_TIMED_S))
        return min(max(self.options.timed, min(least, MAX_TIMED)), max(most, FEWEST_TIMED))

    def _what_is_needed(self) -> str:
        to_time, asked = self._steps_to_time(), self.options.timed
        why = f" (steps of {duration(self._step_us)} are timed for {TIMED_S:g} s, {MAX_TIMED} at most)" if to_time > asked else ""
        fewer = "warmup, light, deep" if to_time > asked else "warmup, timed, light, deep"
        return f"{self.steps_needed} steps or more are needed{why}, or ask for fewer ({fewer})"

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._warn(text)

    def _record(self) -> Generator[None]:
        """The parts one after another; each yield is one step of the program."""
        yield from self._settle()
        yield from self._time()
        o = self.options
        if o.light:
            yield from self._trace("light", o.light)
        if o.deep:
            yield from self._trace("deep", o.deep, deep=True)
        if o.nsys:
            yield from self._ranges(o.nsys)
        self._save()
        self.done = True

    def _settle(self) -> Generator[None]:
        o = self.options
        clock = StepClock(device_in_use())
        graphs = [compilations()]
        step = -1
        for step in range(o.warmup + (min(o.settle, LOCKSTEP_SETTLE) if self._lockstep else o.settle)):
            if clock.device == "cpu" != device_in_use():
                clock = StepClock(device_in_use())
            clock.mark()
            yield
            graphs.append(compilations())
            # Reading the times waits for the device: a host that runs far ahead would else see no time at all.
            compiled = graphs[-1] != graphs[max(0, len(graphs) - 1 - SETTLED_STEPS)]
            last = clock.step_us(2 * SETTLED_STEPS)
            self._step_us = median(last) if last else 0.0
            self.steady = not compiled and settled(last)
            if step + 1 >= o.warmup and self.steady and not self._lockstep:
                break
        self._steps_before_timed = step + 3
        self._device = device_in_use()
        if not self.steady and o.settle and (last := clock.step_us(2 * SETTLED_STEPS)):
            self._note(f"step times did not settle in {step + 1} steps: the last {len(last)} took {interval(min(last), max(last))}")

    def _time(self) -> Generator[None]:
        """Time steady steps without a profiler, synchronising at the ends alone; the first, which finds an empty queue, is dropped."""
        synchronize(self._device)
        reset_peak_memory(self._device)
        yield
        clock = StepClock(self._device)
        clock.mark()
        start = time.perf_counter()
        try:
            while True:
                yield
                clock.mark()
                spent = time.perf_counter() - start
                enough = len(clock) >= self.options.timed and (self._lockstep or spent >= TIMED_S or len(clock) >= MAX_TIMED)
                if enough or (len(clock) >= FEWEST_TIMED and spent >= MAX_TIMED_S and not self._lockstep):
                    break
        finally:
            self.unprofiled_step_us = [round(us, 3) for us in clock.step_us()]
            self._step_us = sum(self.unprofiled_step_us) / len(clock) if len(clock) else self._step_us
            self._peak_bytes = peak_memory(self._device)

    def _trace(self, name: str, steps: int, deep: bool = False) -> Generator[None]:
        from torch.profiler import ProfilerActivity, profile, schedule

        # CUPTI crashes or loses CUDA-graph kernels where it is torn down and loaded again between two profiles; left loaded after
        # the last, it slows every launch of the rest of the run.
        os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
        os.environ["TEARDOWN_CUPTI"] = "1" if deep or not self.options.deep else "0"
        activities = [ProfilerActivity.CPU]
        if self._device != "cpu":
            activities.append(getattr(ProfilerActivity, self._device.upper()))
        warmup = self.options.profiler_warmup

        def ready(profiler: profile) -> None:
            if self._over:
                return
            export(profiler, self.directory / f"{PART}{name}.json.gz", self.measured())
            self._traces[name] = f"{name}.json.gz"

        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=warmup, active=steps, repeat=1),
            on_trace_ready=ready,
            record_shapes=deep,
            with_stack=deep,
            profile_memory=deep,
        )
        with _at_threads_end(self._thread_ends), self._profiler as profiler:
            for _ in range(warmup + steps):
                yield
                profiler.step()
        self._profiler = None

    def _ranges(self, steps: int) -> Generator[None]:
        """A range a step for nsys, which captures between the two calls of the CUDA profiler."""
        import torch

        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        try:
            for _ in range(self.options.profiler_warmup):
                yield
            for _ in range(steps):
                with torch.cuda.nvtx.range("step"):
                    yield
            synchronize(self._device)
        finally:
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]

    def measured(self) -> dict[str, Any]:
        """What a trace carries of it: step times, device, version, options; nothing that names people, hosts or paths."""
        import torch

        return {
            "unprofiled_step_us": self.unprofiled_step_us,
            "steady": self.steady,
            "peak_memory_bytes": self._peak_bytes,
            "device": device_name(self._device),
            "torch": torch.__version__,
            "options": asdict(self.options),
        }

    def _save(self) -> None:
        if self.unprofiled_step_us or self._traces:
            text = json.dumps({"version": VERSION, **self.measured(), **self._traces, "notes": self.notes}, indent=1)
            (self.directory / f"{PART}{FILE}").write_text(text + "\n", encoding="utf-8")
            for earlier in recordings(self.directory):  # not before all that takes its place is written
                clear(earlier.parent)
            for name in (*self._traces.values(), FILE):
                (self.directory / f"{PART}{name}").replace(self.directory / name)
        else:
            self._remove_empty()

    def _remove_empty(self) -> None:
        if self._made:
            remove_empty(self.directory)


def record(directory: str | os.PathLike[str], **options: int) -> Run:
    """Record steady steps of a program into `directory`, which `advisor analyze` reads.

        with advisor.record("out/") as run:
            for batch in run.steps(loader):
                train(batch)

    After warm-up, some 20 steps are timed without a profiler, then 5 recorded lightly and 3 with shapes, stacks and memory.
    The loop goes on afterwards; `run.done` says that it may end. `options` are those of `Options`, in steps.
    Writes `light.json.gz`, `deep.json.gz` and `recording.json`; an earlier recording there is replaced once there is another. Raises UsageError where
    the directory holds such files that are none of ours.
    """
    require("torch", extra="lab")
    return Run(directory, Options(**options))


class _Guard:
    """Calls back when it is thrown away."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then: Callable[[], None] | None = then

    def __del__(self) -> None:
        if self.then:
            self.then()


@contextmanager
def _at_threads_end(then: Callable[[], None]) -> Iterator[None]:
    """Call `then` where this thread ends inside of the block: a profiler that outlives the thread it was started in ends the program."""
    _of_thread.guard = _Guard(then)
    guard = ref(_of_thread.guard)  # the thread alone holds it
    try:
        yield
    finally:
        if held := guard():
            held.then = None


def _profiles_itself() -> UsageError:
    return UsageError(
        "the program started a profiler of its own before all was recorded, and two cannot run at once",
        "Take that profiler out while you record, or analyze the traces that it writes.",
    )


_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep


def _warn(text: str) -> None:
    """Warn of the line outside of advisor from which all began."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and os.path.realpath(frame.f_code.co_filename).startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"advisor: {text}", stacklevel=level)


def remove_empty(directory: Path) -> None:
    """Take away a directory that was made for a recording that did not come about, and those of its ranks."""
    for folder in (*directory.glob("rank*/"), directory):
        with suppress(OSError):  # it holds something
            folder.rmdir()


def prepare(directory: Path) -> None:
    """Make the directory; an earlier recording in it stays until another takes its place. Raises UsageError where files there are none of ours."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file", "Give the path of a directory.")
    directory.mkdir(parents=True, exist_ok=True)
    captures = [directory / name for name in CAPTURES if (directory / name).exists()]
    if captures and not recordings(directory):
        raise UsageError(f"{captures[0]} is no recording of advisor's", "Give another directory.")
    for folder in (directory, *directory.glob("rank*/")):
        present = [folder / name for name in TRACES if (folder / name).exists()]
        if present and not (folder / FILE).exists():
            raise UsageError(f"{present[0]} is no recording of advisor's", "Give another directory.")
        if (folder / FILE).exists() and b'"unprofiled_step_us"' not in (folder / FILE).read_bytes()[:4096]:
            raise UsageError(f"{folder / FILE} was not written by advisor", "Give another directory.")


def recordings(directory: Path) -> dict[Path, tuple[int, int]]:
    """The file of the recording in a directory and those of its ranks', each with what tells it from one that was written later."""
    files = [path for path in (directory / FILE, *sorted(directory.glob(f"rank*/{FILE}"))) if path.exists()]
    return {path: (status.st_ino, status.st_mtime_ns) for path, status in zip(files, map(Path.stat, files), strict=True)}


def clear(folder: Path) -> None:
    """Take a recording that `prepare` has seen out of its folder."""
    for name in (FILE, *TRACES, *CAPTURES):
        (folder / name).unlink(missing_ok=True)
