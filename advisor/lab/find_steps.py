"""Finds the steps of a program that does not know advisor: runs inside that program, started by `advisor.lab.launch`.

A step ends after an optimizer's step. In a program without an optimizer it ends with `backward` or, if it computes no gradients, when the outermost
module's forward returns."""

from __future__ import annotations

import atexit
import builtins
import gc
import json
import os
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..errors import UsageError
from . import profilers, recorded
from .backwards import Backwards
from .ending import end_program
from .forwards import FORWARDS, OutermostForwards
from .guard import Guard, said_of
from .in_program import say
from .module_calls import wrap
from .options import Options
from .progress import Progress
from .ranks import all_stop
from .record import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn import Module
    from torch.optim import Optimizer

Steps = Literal["auto", "optimizer", "backward", "forward"]


class Recorder(Protocol):
    """What takes the steps of a process: a recording, or what only times them."""

    done: bool
    steps_seen: int
    notes: list[str]
    world_size: int

    @property
    def gave_way(self) -> UsageError | None: ...
    @property
    def holds_traces(self) -> bool: ...
    @property
    def failed(self) -> bool: ...
    @property
    def profiled(self) -> bool: ...
    @property
    def in_a_thread(self) -> bool: ...
    @property
    def begun(self) -> bool: ...
    def step(self) -> None: ...
    def finish(self) -> None: ...


def install(text: str) -> None:
    """Called once the program has imported torch. text: what to record, as JSON: directory, steps, keep_going and `Options`."""
    asked = json.loads(text)
    directory, steps, keep_going = Path(asked.pop("directory")), asked.pop("steps"), asked.pop("keep_going")
    StepFinder(directory, Options(**asked), steps, keep_going).watch()


class StepFinder:
    """Marks the ends of this process's steps for a recording, and ends the program once all is recorded.

    The recording begins with the first step, in a directory of its own: a process without steps leaves nothing."""

    def __init__(self, directory: Path, options: Options, steps: Steps, keep_going: bool, begin: Callable[[Path], Recorder] | None = None) -> None:
        """begin: makes the object that takes the steps, once there are any, in a directory of its own. The default is a recording of `options`."""
        self.output: Callable[[Any], None] = lambda value: None
        """Called with the output of the outermost module, if its calls are the steps."""
        self._begin = begin or self._recording
        self._directory = directory
        self._options = options
        self._steps = steps
        self._keep_going = keep_going
        self._guard = Guard(self._failed)
        self._run: Recorder | None = None
        self._progress: Progress | None = None
        self._forked = False
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._handles: list[Any] = []
        self._forwards: OutermostForwards | None = None
        self._backwards: Backwards | None = None
        self._cut = False

    def watch(self) -> None:
        """From here on steps are looked for, in this process and those that fork from it."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if self._steps in ("auto", "optimizer"):
            self._handles.append(register_optimizer_step_post_hook(self._optimized))
        if self._steps in ("auto", "forward"):
            self._forwards = OutermostForwards(lambda module: self._guard(self._inference, module))
        if self._steps in ("auto", "backward"):
            self._backwards = Backwards(self._differentiated, FORWARDS if self._steps == "auto" else 0)
        if self._steps == "auto":
            self._stop_at_optimizers()
        profilers.seen()
        atexit.register(self._guard, self._ended)
        os.register_at_fork(after_in_child=self._forked_child)

    def _stop_at_optimizers(self) -> None:
        """If there is an optimizer, its steps are the program's. Nothing else is watched then, or shows in tracebacks."""
        from torch.optim import Optimizer

        prepare = getattr(Optimizer, "_patch_step_function", None)  # called for each that is made
        if prepare is None:
            return

        def made(optimizer: Optimizer) -> None:
            self._stop_others()
            prepare(optimizer)

        Optimizer._patch_step_function = made  # type: ignore[assignment, method-assign]
        self._handles.append(_Undo(lambda: setattr(Optimizer, "_patch_step_function", prepare)))

    def _stop_others(self) -> None:
        for one in (self._forwards, self._backwards):
            if one is not None:
                one.stop()

    def _optimized(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # Where there are several, the one that stepped first stands for all.
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
            if self._steps == "auto":
                self._stop_others()
        if self._optimizer() is optimizer:
            self._step()

    def _differentiated(self) -> None:
        """Gradients are there, and no optimizer that could use them: the program has its own."""
        if self._forwards is not None:
            self._forwards.stop()
        self._step()

    def _inference(self, module: Module) -> None:
        """Enough calls without gradients: if nothing is there to train with, the calls of that module are the steps."""
        from torch.optim import Optimizer

        # By type: isinstance asks a weak proxy for its class, which raises where what it stood for is gone.
        if self._steps == "auto" and any(issubclass(type(o), Optimizer) for o in gc.get_objects()):
            return

        def ending_a_step(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                result = None
                try:
                    result = call(*args, **kwargs)
                    return result
                finally:
                    self.output(result)
                    self._step()

            return called

        self._handles.append(_Undo(wrap(module, ending_a_step)))

    def _step(self) -> None:
        if self._guard(self._recorded):
            end_program()

    def _recorded(self) -> bool:
        """A step ended: whether the program is to end here."""
        run = self._run = self._run or self._begun()
        run.step()
        self._tell(run)
        if not run.done:
            return False
        self._leave()
        if not self._keep_going:
            kept = self._kept_alive(run)
            self._cut = all_stop(not kept) and not kept
            self._tell(run, stopped=self._cut, goes_on="" if self._cut else kept or "not all of its ranks could end after the same step")
            if self._cut:
                _end_workers()
        return self._cut

    def _begun(self) -> Recorder:
        folder = recorded.new_folder(self._directory / str(os.getpid()))
        self._progress = Progress(folder)
        return self._begin(folder)

    def _recording(self, folder: Path) -> Recorder:
        run = Run(folder, self._options, warn=lambda text: None, alone=True)
        run.watch()
        return run

    def _tell(self, run: Recorder, **more: Any) -> None:
        """Facts for the launcher, in case this process dies. Steps are written at powers of two: it is a file, and most steps are short."""
        if self._progress is not None and (run.done or more or run.steps_seen & (run.steps_seen - 1) == 0):
            why = [run.gave_way.message, run.gave_way.hint] if run.gave_way and not run.holds_traces else None
            failed = run.notes[-1] if run.failed and run.notes else ""
            self._progress.tell(steps=run.steps_seen, done=run.done, refused=why, failed=failed, **more)

    def _kept_alive(self, run: Recorder) -> str:
        """Why this process is not ended from within, "" if it can be."""
        if run.failed or (run.gave_way and run.world_size > 1):
            return "it could not be recorded"
        if run.in_a_thread:
            return "its steps run in a thread"  # which would end alone, and say nothing
        if hasattr(builtins, "__IPYTHON__") or hasattr(sys, "ps1"):
            return "its steps run in a notebook or at a prompt"
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            # A pool or a queue would wait for the answer for ever; ranks end together, and who started them waits for their end.
            return "" if run.world_size > 1 else "its steps run in a process that it started"
        return "its steps run in a process that was forked" if self._forked else ""  # what would be unwound is the parent's

    def _leave(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._stop_others()

    def _forked_child(self) -> None:
        if self._run is not None and self._run.profiled:
            with suppress(Exception):
                _end_without_kineto()
        self._guard(self._in_child)

    def _in_child(self) -> None:
        """In a process that has just forked: the parent's recording is not its own."""
        self._forked = True
        if self._run is not None:
            self._leave()
            self._guard.broken = True
            profilers.forget()

    def _ended(self) -> None:
        run = self._run
        if run is None:
            return
        if run.begun:
            run.finish()
        if self._cut:
            profilers.end_all()
        self._tell(run, ended=True)

    def _failed(self, error: BaseException) -> None:
        """Something outside of the recording itself failed."""
        self._leave()
        if self._run is not None:
            self._run.finish()
            all_stop(False)
        if not isinstance(error, Exception) or not self._directory.exists():  # nobody is there any more to be told
            return
        told = f"the recording failed: {said_of(error)}"
        try:
            if self._progress is None:
                raise error
            self._progress.tell(failed=told)
        except Exception:
            say(f"{told}. The program runs on")


def _end_workers() -> None:
    """Ask the dataloaders' workers to end, as the program is about to. The exception that ends it holds the loop's iterator, which would otherwise
    ask them. Torch would then wait five seconds for each."""
    loading = sys.modules.get("torch.utils.data.dataloader")
    kind = getattr(loading, "_MultiProcessingDataLoaderIter", None)
    for one in [one for one in gc.get_objects() if type(one) is kind] if kind else ():
        with suppress(Exception):
            one._shutdown_workers()


def _end_without_kineto() -> None:
    """For a process that forked after torch's profiler had started. When C ends, Kineto's destructor waits forever for a thread that only
    the parent has. `on_exit` of glibc passes the exit code to `_exit` before that. Exit functions that C registers later still run."""
    import ctypes

    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)
        atexit.register(libc.fflush, None)


class _Undo:
    """Something to be undone, as the handles of torch's hooks are."""

    def __init__(self, remove: Any) -> None:
        self.remove = remove
