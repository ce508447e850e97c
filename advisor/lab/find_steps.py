"""Finds the steps of a program that knows nothing of us: runs inside that program, started by `advisor.lab.launch`.

A step ends where an optimizer has stepped or, in a program without one, where the outermost module's forward has returned.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from advisor.lab import profilers
from advisor.lab.record import Options, Run

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer

SPEC = "ADVISOR_RECORD"
"""The environment variable with what to record, as JSON: directory, steps, keep_going, refused and `Options`."""

Steps = Literal["auto", "optimizer", "forward"]

FORWARDS = 10
"""Calls of outermost modules without gradients after which a program without an optimizer is taken for inference."""


def install() -> None:
    """Wait for the program to import torch; do nothing where no recording was asked for."""
    spec = os.environ.get(SPEC)
    if spec:
        asked = json.loads(spec)
        directory = _of_rank(Path(asked.pop("directory")))
        steps, keep_going, refused = asked.pop("steps"), asked.pop("keep_going"), Path(asked.pop("refused"))
        directory.mkdir(parents=True, exist_ok=True)
        run = Run(directory, Options(**asked), warn=lambda text: None)
        sys.meta_path.insert(0, _AfterImport("torch", lambda: StepFinder(run, steps, keep_going, refused).watch()))


def _of_rank(directory: Path) -> Path:
    """A directory of its own for each of several ranks, as launchers number them."""
    return directory / f"rank{os.environ['RANK']}" if int(os.environ.get("WORLD_SIZE") or 1) > 1 else directory


class StepFinder:
    """Tells a recording where the program's steps end. In the file `refused` it leaves why nothing could be recorded."""

    def __init__(self, run: Run, steps: Steps, keep_going: bool, refused: Path) -> None:
        self.run = run
        self._refused = refused
        self._steps = steps
        self._keep_going = keep_going
        self._process = os.getpid()
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._handles: list[Any] = []
        self._cut = False

    def watch(self) -> None:
        """Called once torch is imported."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if self._steps != "forward":
            self._handles.append(register_optimizer_step_post_hook(self._optimized))
        if self._steps != "optimizer":
            self._forwards = OutermostForwards(self._inference)
        self.run.watch()
        atexit.register(self._ended)

    def _optimized(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # Where there are several, the one that stepped first stands for all.
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
            if self._steps == "auto":
                self._forwards.stop()
        if self._optimizer() is optimizer:
            self._step()

    def _inference(self, module: Module) -> None:
        """Enough calls without gradients: where nothing is there to train with, the calls of that module are the steps."""
        from torch.optim import Optimizer

        # By type: isinstance asks a weak proxy for its class, which raises where what it stood for is gone.
        if self._steps == "auto" and any(issubclass(type(o), Optimizer) for o in gc.get_objects()):
            return
        self._handles.append(module.register_forward_hook(lambda *_: self._step(), always_call=True))

    def _step(self) -> None:
        if os.getpid() != self._process:
            return
        self.run.step()
        if self.run.done:
            self._leave()
            if not self._keep_going and not self.run.in_a_thread:  # there it would end the thread alone, and say nothing
                self._cut = True
                raise SystemExit(0)

    def _leave(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _ended(self) -> None:
        if os.getpid() != self._process:
            return
        if self.run.begun:
            self.run.finish()
        if self._cut:
            profilers.end_all()
        if self.run.gave_way and not self.run.holds_traces:
            with suppress(OSError):
                self._refused.write_text(json.dumps([self.run.gave_way.message, self.run.gave_way.hint]), encoding="utf-8")


class OutermostForwards:
    """Watches the calls of modules that no other module calls, and names the one where most time goes.

    A hook on all modules would cost each of them, and torch.compile would compile for it: it stands only while no module runs.
    """

    def __init__(self, found: Callable[[Module], None]) -> None:
        self._found = found
        self._seconds: dict[int, float] = {}
        self._calls = 0
        self._stopped = False
        self._arm()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped = True
        self._entry.remove()

    def _arm(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        self._entry = register_module_forward_pre_hook(self._entered)

    def _entered(self, module: Module, args: Any) -> None:
        import torch

        self._entry.remove()
        start, counts = time.perf_counter(), not torch.is_grad_enabled()

        def left(*_: Any) -> None:
            handle.remove()
            if self._stopped:
                return
            if counts:
                self._seconds[id(module)] = self._seconds.get(id(module), 0.0) + time.perf_counter() - start
                self._calls += 1
                if self._calls >= FORWARDS and id(module) == max(self._seconds, key=self._seconds.__getitem__):
                    self.stop()
                    self._found(module)
                    return
            self._arm()

        handle = module.register_forward_hook(left, always_call=True)


class _AfterImport:
    """Calls back when a module has been imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute, then = spec.loader.exec_module, self._then

        def exec_module(module: ModuleType) -> None:
            execute(module)
            then()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
