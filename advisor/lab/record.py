"""Records a program so that the recording carries its truth: steps timed without a profiler, then two short traces."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from ..errors import UsageError, require
from ..report.numbers import counted, duration, interval
from . import frameworks, profilers, recorded
from .clock import (
    FEWEST_TIMED,
    MAX_TIMED,
    MAX_TIMED_S,
    SETTLED_STEPS,
    StepClock,
    compilations,
    device_in_use,
    device_name,
    median,
    peak_memory,
    reset_peak_memory,
    settled,
    synchronize,
)
from .export import export, unseen
from .guard import Guard, said_of
from .options import Options
from .ranks import rank_and_world
from .record_jax import JaxRun, asked_of_jax, runs_jax

if TYPE_CHECKING:
    from torch.profiler import profile

T = TypeVar("T")

TIMED_S = 0.3
"""Steps are timed for at least this long, so that the clock's own jitter does not count."""

LOCKSTEP_SETTLE = 20
"""Steps that ranks wait beyond the warm-up, all as many, whether or not they have settled before."""

PATIENCE_S = 60.0
"""Maximum wait of a thread that ends the recording, for writes of the steps' own thread between two steps."""


_of_thread = threading.local()
"""Its values are gone when their thread ends, while that thread still runs."""


class Run:
    """A recording in progress. Every call of `step` ends a step; the state between calls is in `_parts`.

    Nothing here raises into the program's steps: an error ends the recording, and is reported in `notes` and by `warn`. Recorded data are written to
    disk at once, with the messages for the case that the process ends now, since it may end without notice."""

    def __init__(self, directory: str | os.PathLike[str], options: Options, warn: Callable[[str], None] | None = None, *, alone: bool = False) -> None:
        self.directory = Path(directory)
        self.options = options
        self.notes: list[str] = []
        """What kept the recording from being whole or steady."""
        self.done = False
        """Whether all is recorded; the program runs on as if nothing were there."""
        self.steady = False
        self.steps_seen = 0
        self.unprofiled_step_us: list[float] = []
        self.settling_step_us: list[float] = []
        """Those of the first steps: all there is of a program that ends before they are steady."""
        self.gave_way: UsageError | None = None
        """What profiled next to this recording, which ended there, or why it was not kept; and what to do."""
        self._process = os.getpid()
        self._warn = warn or _warn
        self._guard = Guard(self._failed)
        # Ranks wait for each other: one that counts its steps by its own clock would stop while another goes on.
        self.rank, self.world_size = rank_and_world()
        self._alone = alone
        """Whether the directory belongs to this process, and its creator moves the recording to its final place."""
        self._part: recorded.Part | None = None
        self._earlier: dict[Path, tuple[int, int]] = {}
        self._traces: dict[str, str] = {}
        self._profiler: profile | None = None
        self._profiled = False
        self._frameworks: dict[str, Any] = {}
        self._over = False
        """Whether the recording is written: nothing more is added."""
        self._between_steps = threading.RLock()
        """Held while a step ends, since a program may end the recording from another thread."""
        self._thread = 0
        """The thread in which torch's running profiler must be stepped and stopped: in another thread that ends the program."""
        self._made = False
        self._step_us = 0.0
        self._steps_before_timed = max(options.warmup, 2 * SETTLED_STEPS * (options.settle > 0)) + 2
        self._device = "cpu"
        self._peak_bytes = 0
        self._parts: Generator[None] | None = None

    def __enter__(self) -> Run:
        # A trace of theirs is a profiler that is on, until they have given way.
        for other in tuple(profilers.seen().recordings):
            other.give_way(_records_itself(self))
        if profilers.running():
            raise UsageError("a profiler is on already, and two cannot run at once", "Record outside of it, or analyze the trace that it writes.")
        self._made = not self.directory.exists()
        recorded.prepare(self.directory)
        self._earlier = recorded.recordings(self.directory)
        self.watch()
        return self

    def watch(self) -> None:
        """From here on the recording gives way to every other of the process, and to profilers of the program's own."""
        for other in tuple(profilers.seen().recordings):
            self.give_way(_records_itself(other))
        profilers.seen().recordings.add(self)
        profilers.watch(self._profiler_started)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # After an error of the program the device may be lost: what can still be written is, and the error goes on.
        self.finish()

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches, each with the work done on it a step. Call it again for the next epoch."""
        for batch in batches:
            yield batch
            self.step()

    def step(self) -> None:
        """Ends a step. Does nothing once all is recorded."""
        if os.getpid() != self._process:  # a process that forked is not the one that is recorded
            return
        with self._between_steps:
            if self.done:
                self._close()
            else:
                self._guard(self._step)

    def _step(self) -> None:
        if self._parts is None and profilers.running():
            self.give_way(profiles_itself())
        elif self._in_its_thread():
            self.steps_seen += 1
            self._parts = self._parts or self._record()
            self._thread = threading.get_ident()
            next(self._parts, None)
            if self.done:
                self._leave()

    def finish(self) -> None:
        """Write the recording so far. Warns if the program ended before all was recorded, or if steps never settled.

        A trace that another thread is recording is lost; its profiler stops at that thread's next step, or at its end."""
        if not self.done and os.getpid() == self._process:
            self._guard(self._finish)

    def _finish(self) -> None:
        self._end()
        if missing := self._missing():
            self._note(missing)
        self._put()

    def give_way(self, to: UsageError) -> None:
        """Another profiler runs in this process: end here, and keep the recording if it can be analyzed."""
        if not self.done:
            self._guard(self._give_way, to)

    def _give_way(self, to: UsageError) -> None:
        self.gave_way = to
        self._end()
        self._note(f"{to.message}: the recording ended there. {to.hint}")
        if self._traces:
            self._put()
        else:
            self._remove()

    def _failed(self, error: BaseException) -> None:
        """Advisor's code has failed, or a signal handler interrupted it: keep the recorded data, and continue."""
        self.done = True
        self._leave()
        with suppress(Exception):
            self._close()
        self._over = True
        if isinstance(error, Exception):
            self._note(f"the recording failed and ended there: {said_of(error)}")
        self._put()

    @property
    def failed(self) -> bool:
        """Whether something of ours failed, or was broken off."""
        return self._guard.broken

    @property
    def holds_traces(self) -> bool:
        """Whether a trace was recorded."""
        return bool(self._traces)

    @property
    def profiled(self) -> bool:
        """Whether torch's profiler was started: its threads in C stay until the process ends."""
        return self._profiled

    @property
    def in_a_thread(self) -> bool:
        """Whether the steps run in a thread of the program's, which ends by itself without the program."""
        return self._thread not in (0, threading.main_thread().ident)

    def _profiler_started(self, started: Any) -> None:
        if self._profiler is None or started is not self._profiler.profiler:
            self.give_way(profiles_itself())

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
        with suppress(Exception):
            self.finish()
            self._close()

    def _leave(self) -> None:
        profilers.seen().recordings.discard(self)
        profilers.unwatch(self._profiler_started)

    @property
    def begun(self) -> bool:
        """Whether a step was seen and more are to come."""
        return self._parts is not None and not self.done

    @property
    def steps_needed(self) -> int:
        """Number of steps of a recording, from its steps so far. Before the first step: for long steps that settle at once."""
        o = self.options
        traces = [steps + o.profiler_warmup for steps in (o.light, o.deep, o.nsys) if steps]
        return self._steps_before_timed + self._steps_to_time() + sum(traces)

    def _steps_to_time(self) -> int:
        if self.world_size > 1 or not self._step_us:
            return self.options.timed
        least, most = (math.ceil(seconds * 1e6 / self._step_us) for seconds in (TIMED_S, MAX_TIMED_S))
        return min(max(self.options.timed, min(least, MAX_TIMED)), max(most, FEWEST_TIMED))

    def _missing(self, at_least: str = "") -> str:
        """The part that is missing if the program ends here, "" if none is."""
        missing = [name for name in ("light", "deep") if getattr(self.options, name) and name not in self._traces]
        if not missing:
            return ""
        to_time, asked = self._steps_to_time(), self.options.timed
        why = f" (steps of {duration(self._step_us)} are timed for {TIMED_S:g} s, {MAX_TIMED} at most)" if to_time > asked else ""
        fewer = "warmup, light, deep" if to_time > asked else "warmup, timed, light, deep"
        saw = f"the program ended after {at_least}{counted(self.steps_seen, 'step')}, before the {' and '.join(missing)} trace"
        return f"{saw}: {self.steps_needed} steps or more are needed{why}, or ask for fewer ({fewer})"

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._warn(text)

    def _record(self) -> Generator[None]:
        """The parts in order; each yield is a step of the program."""
        self.rank, self.world_size = rank_and_world()  # by now the program has formed its process group
        self._keep()
        yield from self._settle()
        yield from self._time()
        self._frameworks = frameworks.in_use()
        self._keep()
        o = self.options
        if o.light:
            yield from self._trace("light", o.light)
            self._keep()
        if o.deep:
            yield from self._trace("deep", o.deep, deep=True)
        if o.nsys:
            yield from self._ranges(o.nsys)
        self.done = True
        self._put()

    def _settle(self) -> Generator[None]:
        o = self.options
        clock = StepClock(device_in_use())
        graphs = [compilations()]
        step = -1
        lockstep = self.world_size > 1
        try:
            for step in range(o.warmup + (min(o.settle, LOCKSTEP_SETTLE) if lockstep else o.settle)):
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
                if step + 1 >= o.warmup and self.steady and not lockstep:
                    break
        finally:
            self.settling_step_us = _rounded(clock.step_us())
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
        lockstep = self.world_size > 1
        start = time.perf_counter()
        try:
            while True:
                yield
                clock.mark()
                spent = time.perf_counter() - start
                enough = len(clock) >= self.options.timed and (lockstep or spent >= TIMED_S or len(clock) >= MAX_TIMED)
                if enough or (len(clock) >= FEWEST_TIMED and spent >= MAX_TIMED_S and not lockstep):
                    break
        finally:
            self.unprofiled_step_us = _rounded(clock.step_us())
            self._step_us = sum(self.unprofiled_step_us) / len(clock) if len(clock) else self._step_us
            self._peak_bytes = peak_memory(self._device)

    def _trace(self, name: str, steps: int, deep: bool = False) -> Generator[None]:
        from torch.profiler import ProfilerActivity, profile, schedule

        activities = [ProfilerActivity.CPU]
        if self._device != "cpu":
            activities.append(getattr(ProfilerActivity, self._device.upper()))
        warmup = self.options.profiler_warmup

        def ready(profiler: profile) -> None:
            if self._over:
                return
            export(profiler, self._folder / f"{name}.json.gz", self.measured())
            self._traces[name] = f"{name}.json.gz"

        self._profiled = True
        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=warmup, active=steps, repeat=1),
            on_trace_ready=ready,
            record_shapes=deep,
            with_stack=deep,
            profile_memory=deep,
        )
        # CUPTI crashes or loses CUDA-graph kernels where it is torn down and loaded again between two profiles; left loaded after
        # the last, it slows every launch of the rest of the run.
        last = deep or not self.options.deep
        settings = {"DISABLE_CUPTI_LAZY_REINIT": "1", "TEARDOWN_CUPTI": "1" if last else "0"}
        with unseen(settings, deep), _at_threads_end(self._thread_ends), self._profiler as profiler:
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
        """Facts of the recording in a trace: step times, device, version, options; no names of people, hosts or paths."""
        import torch

        return {
            "unprofiled_step_us": self.unprofiled_step_us,
            "steady": self.steady,
            "peak_memory_bytes": self._peak_bytes,
            "device": device_name(self._device),
            "torch": torch.__version__,
            "options": asdict(self.options),
            **self._frameworks,
        }

    @property
    def _folder(self) -> Path:
        """Directory for files until the recording is whole."""
        if self._alone:
            return self.directory
        if self._part is None:
            self._part = recorded.Part(self.directory)
        return self._part.path

    def _keep(self) -> None:
        """Write the recording so far, readable if nothing more comes."""
        if not self._over:
            self._write(self._missing("at least "))

    def _write(self, *notes: str) -> None:
        told = {
            "version": recorded.VERSION, **self.measured(), **self._traces, "notes": [*self.notes, *filter(None, notes)],
            "settling_step_us": self.settling_step_us, "steps": self.steps_seen, "device_kind": self._device, "rank": self.rank, "world_size": self.world_size,
        }  # fmt: skip
        recorded.write(self._folder / recorded.FILE, told)

    def _put(self) -> None:
        """All is recorded that will be: write it, and put it in the place of an earlier recording."""
        self._over = True
        if self._alone:
            self._write()
        elif not self._traces and self._earlier and (self.options.light or self.options.deep or self.options.nsys):
            # An earlier one says more than times alone.
            self.gave_way = UsageError(f"nothing was traced, and the earlier recording in {self.directory} is kept", "Let the program run for longer.")
            self._note(self.gave_way.message)
            self._remove()
        elif self.settling_step_us or self.unprofiled_step_us or self._traces:
            self._place()
        else:
            self._remove()

    def _place(self) -> None:
        there = recorded.recordings(self.directory)
        stale = [path for path, one in there.items() if self._earlier.get(path) == one]
        name = ""
        if len(stale) < len(there):
            # Another process of the program has recorded here meanwhile: neither is lost.
            name = f"process{os.getpid()}"
            self._note(f"another process recorded into {self.directory} too: this one's recording is in {name} there. Give each a directory of its own")
        self._write()
        recorded.place({name: self._folder}, self.directory, stale)
        self._remove()

    def _remove(self) -> None:
        if self._part is not None:
            self._part.remove()
        if self._made:
            recorded.remove_empty(self.directory)


def record(directory: str | os.PathLike[str], **options: int) -> Run | JaxRun:
    """Record steady steps of a program into `directory`, which `advisor analyze` reads.

        with advisor.record("out/") as run:
            for batch in run.steps(loader):
                train(batch)

    After warm-up, some 20 steps are timed without a profiler, then 5 recorded lightly and 3 with shapes, stacks and memory.
    The loop continues afterwards; `run.done` says that it may end. `options` are those of `Options`, in steps.
    Writes `light.json.gz`, `deep.json.gz` and `recording.json`; a new recording replaces an earlier recording. Raises UsageError if
    the directory holds files of these names from another program. A JAX program gets its times and a single profile, `light.xplane.pb`."""
    if runs_jax():
        return asked_of_jax(directory, Options(**options), _warn)
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
    """Call `then` if this thread ends inside of the block: a profiler that outlives its thread ends the program."""
    _of_thread.guard = _Guard(then)
    guard = ref(_of_thread.guard)  # the thread alone holds it
    try:
        yield
    finally:
        if held := guard():
            held.then = None


def _rounded(step_us: list[float]) -> list[float]:
    return [round(us, 3) for us in step_us]


def _records_itself(other: Run) -> UsageError:
    return UsageError(
        f"the program began a recording with advisor.record, into {other.directory}",
        f"Remove either of the two. To use the other, run the program alone, then: advisor analyze {other.directory}",
    )


def profiles_itself() -> UsageError:
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
