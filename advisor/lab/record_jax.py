"""Records a program of JAX so that the recording carries its truth: steps timed without a profiler, then a short profile of a few."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ..errors import UsageError
from ..report.numbers import counted
from . import frameworks, recorded
from .clock import MAX_TIMED, SETTLED_STEPS, median, settled
from .guard import Guard, said_of
from .options import Options
from .ranks import rank_and_world

T = TypeVar("T")

PROFILE = "light.xplane.pb"

ROUNDS = 8
"""Number of timed runs of steps. Each ends with a wait for the devices: a single step's time is unknown while the host runs ahead."""

ROUND_S = 0.05
"""A run takes at least so long, that the wait at its end does not count, or as many steps as were asked for."""


def runs_jax() -> bool:
    """Whether this process uses JAX, and not torch."""
    return "jax" in sys.modules and "torch" not in sys.modules


class JaxRun:
    """A recording in progress: `step` ends a step, as in `advisor.lab.record.Run`. Nothing here raises into the program's steps."""

    def __init__(self, directory: str | os.PathLike[str], options: Options, warn: Callable[[str], None], *, alone: bool = False, marked: bool = False) -> None:
        """alone: the directory belongs to this process, and its creator moves the recording to its final place. marked: the program marks its steps itself."""
        self.directory, self.options = Path(directory), options
        self.notes: list[str] = []
        self.done = self.steady = False
        self.steps_seen = 0
        self.unprofiled_step_us: list[float] = []
        self.gave_way: UsageError | None = None
        """As in `Run`: the notes report a profiler of the program."""
        self.profiled = False
        self.rank, self.world_size = rank_and_world()
        self._alone, self._marked = alone, marked
        self._thread = 0
        self._warn = warn
        self._guard = Guard(self._failed)
        self._parts: Generator[None] | None = None
        self._profile: bytes = b""
        self._made = False
        self._usual_s = ROUND_S
        self._process = os.getpid()

    def __enter__(self) -> JaxRun:
        self._made = not self.directory.exists()
        recorded.prepare(self.directory)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.finish()

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches, each with the work done on it a step."""
        for batch in batches:
            yield batch
            self.step()

    def step(self) -> None:
        """Ends a step. Does nothing once all is recorded."""
        if not self.done and os.getpid() == self._process:
            self._guard(self._step)

    def _step(self) -> None:
        self.steps_seen += 1
        self._thread = threading.get_ident()
        self._parts = self._parts or self._record()
        next(self._parts, None)

    def finish(self) -> None:
        """Write the recording so far, and report missing parts."""
        if not self.done and os.getpid() == self._process:
            self._guard(self._finish)

    @property
    def begun(self) -> bool:
        """Whether a step was seen and more are to come."""
        return self._parts is not None and not self.done

    @property
    def holds_traces(self) -> bool:
        """Whether a profile was recorded."""
        return bool(self._profile)

    @property
    def failed(self) -> bool:
        """Whether something of ours failed."""
        return self._guard.broken

    @property
    def in_a_thread(self) -> bool:
        """Whether the steps run in a thread of the program's, which ends by itself without the program."""
        return self._thread not in (0, threading.main_thread().ident)

    def _finish(self) -> None:
        if self._parts is not None:
            self._parts.close()
        if not self.done:
            self._note(
                f"the program ended after {counted(self.steps_seen, 'step')}, before all was recorded: take more steps, or ask for fewer (warmup, timed, light)"
            )
            self._put()

    def _record(self) -> Generator[None]:
        with self._seeing_marks():
            yield from self._settle()
        yield from self._time()
        if self.options.light:
            yield from self._trace(self.options.light)
        self._put()

    @contextmanager
    def _seeing_marks(self) -> Iterator[None]:
        """While steps settle: whether the program marks its steps itself, for two marks a step would be two steps."""
        import jax

        kind = jax.profiler.StepTraceAnnotation
        leave = kind.__exit__

        def left(mark: Any, *error: Any) -> Any:
            self._marked = True
            return leave(mark, *error)

        kind.__exit__ = left
        try:
            yield
        finally:
            kind.__exit__ = leave

    def _settle(self) -> Generator[None]:
        """Each step is waited for: what compiles shows as a step that takes long."""
        o, took = self.options, list[float]()
        for step in range(o.warmup + o.settle):
            began = time.perf_counter()
            yield
            _synchronize()
            took.append((time.perf_counter() - began) * 1e6)
            self.steady = settled(took[-2 * SETTLED_STEPS :])
            if step + 1 >= o.warmup and self.steady:
                break
        self._usual_s = max(median(took[-SETTLED_STEPS:]) / 1e6, 1e-6) if took else ROUND_S
        if not self.steady and o.settle:
            self._note(f"step times did not settle in {counted(len(took), 'step')}")

    def _time(self) -> Generator[None]:
        """Steps as the program runs them, the host ahead of the devices."""
        each = min(max(self.options.timed // ROUNDS, round(ROUND_S / self._usual_s), 2), MAX_TIMED // ROUNDS)
        for _ in range(ROUNDS):
            _synchronize()
            began = time.perf_counter()
            for _ in range(each):
                yield
            _synchronize()
            self.unprofiled_step_us.append(round((time.perf_counter() - began) / each * 1e6, 3))

    def _trace(self, steps: int) -> Generator[None]:
        import jax

        with tempfile.TemporaryDirectory() as log:
            try:
                jax.profiler.start_trace(log)
            except Exception as error:  # one of the program's own is on
                self._note(f"JAX's profiler did not start: {said_of(error)}")
                return
            try:
                for _ in range(self.options.profiler_warmup):
                    yield
                # One more than asked for: the last mark only closes the window.
                for step in range(steps + 1):
                    with nullcontext() if self._marked else jax.profiler.StepTraceAnnotation("step", step_num=step):
                        yield
                _synchronize()
            finally:
                jax.profiler.stop_trace()
            found = sorted(Path(log).rglob("*.xplane.pb"))
            self._profile = found[0].read_bytes() if found else b""

    def measured(self) -> dict[str, Any]:
        """Facts of the recording; no names of people, hosts or paths."""
        import jax

        return {
            "unprofiled_step_us": self.unprofiled_step_us,
            "steady": self.steady,
            "device": jax.local_devices()[0].device_kind,
            "jax": jax.__version__,
            "options": asdict(self.options),
            **frameworks.in_use(),
        }

    def _put(self) -> None:
        """Put it in the place of an earlier recording, unless it has no profile."""
        self.done = True
        earlier = list(recorded.recordings(self.directory))
        if not self._profile and (earlier or not self.unprofiled_step_us):
            if earlier:  # it says more than times alone
                self._note(f"no profile was recorded, and the earlier recording in {self.directory} is kept")
            if self._made:
                recorded.remove_empty(self.directory)
            return
        if self._alone:
            self._write(self.directory)
            return
        part = recorded.Part(self.directory)
        try:
            self._write(part.path)
            recorded.place({"": part.path}, self.directory, earlier)
        finally:
            part.remove()

    def _write(self, folder: Path) -> None:
        if self._profile:
            (folder / PROFILE).write_bytes(self._profile)
        traces = {"light": PROFILE} if self._profile else {}
        about = {"notes": self.notes, "steps": self.steps_seen, "rank": self.rank, "world_size": self.world_size}
        recorded.write(folder / recorded.FILE, {"version": recorded.VERSION, **self.measured(), **traces, **about})

    def _failed(self, error: BaseException) -> None:
        self.done = True
        with suppress(Exception):
            if self._parts is not None:
                self._parts.close()
        if isinstance(error, Exception):
            self._note(f"the recording failed and ended there: {said_of(error)}")

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._warn(text)


def asked_of_jax(directory: str | os.PathLike[str], options: Options, warn: Callable[[str], None]) -> JaxRun:
    """A recording of this process, which runs JAX. Raises UsageError for what only torch's recordings have."""
    if options.nsys:
        raise UsageError("ranges for nsys are recorded of programs of torch", "Leave nsys out: JAX's own profiler records kernels and lines.")
    return JaxRun(directory, options, warn)


def _synchronize() -> None:
    """Wait until the devices have done all they were given: each runs its programs in order."""
    import jax

    jax.block_until_ready([jax.device_put(0.0, device) + 0.0 for device in jax.local_devices()])
