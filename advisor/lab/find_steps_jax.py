"""Finds the steps of a JAX program that does not know advisor: a step ends with its `jax.profiler.StepTraceAnnotation`."""

from __future__ import annotations

import atexit
import json
import os
from pathlib import Path
from typing import Any

from . import recorded
from .find_steps import StepFinder
from .options import Options
from .progress import Progress
from .record_jax import JaxRun, runs_jax


def install(text: str) -> None:
    """Called once the program has imported JAX. text: as for torch programs, but the requested steps have no effect here."""
    asked = json.loads(text)
    directory, steps, keep_going = Path(asked.pop("directory")), asked.pop("steps"), asked.pop("keep_going")
    MarkedSteps(directory, Options(**asked), steps, keep_going).watch()


class MarkedSteps(StepFinder):
    """See `StepFinder`. If torch is loaded too, `StepFinder` handles the program."""

    def watch(self) -> None:
        from jax.profiler import StepTraceAnnotation

        leave = StepTraceAnnotation.__exit__

        def left(mark: Any, *error: Any) -> Any:
            told = leave(mark, *error)
            if self._handles and runs_jax() and error[:1] in ((), (None,)):
                self._step()
            return told

        StepTraceAnnotation.__exit__ = left
        self._handles.append(_Undone())
        atexit.register(self._guard, self._ended)
        os.register_at_fork(after_in_child=lambda: self._guard(self._in_child))

    def _begun(self) -> JaxRun:
        folder = recorded.new_folder(self._directory / str(os.getpid()))
        self._progress = Progress(folder)
        return JaxRun(folder, self._options, lambda text: None, alone=True, marked=True)

    def _in_child(self) -> None:
        self._forked = True
        self._leave()
        self._guard.broken = True

    def _ended(self) -> None:
        if (run := self._run) is not None:
            run.finish()
            self._tell(run, ended=True)


class _Undone:
    """A handle that exists while steps are searched: later marks belong to the program alone."""

    def remove(self) -> None:
        """Nothing has to be taken away."""
