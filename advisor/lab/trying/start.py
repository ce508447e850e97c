"""A run of a program under `advisor try`, from outside: starts it, waits, and reads its results."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from advisor.errors import Terminated, UsageError
from advisor.lab.clock import FEWEST_TIMED
from advisor.lab.find_steps import Steps
from advisor.lab.in_program import MARK
from advisor.lab.injection import environment
from advisor.lab.interventions.catalogue import Intervention
from advisor.lab.launch import given, run_to_end, signal_of
from advisor.lab.recorded import said
from advisor.lab.trying.inside import FILE
from advisor.lab.verify import STOPPED, end_of
from advisor.sources import cores

QUIET = {
    "WANDB_MODE": "disabled", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug", "CLEARML_OFFLINE_MODE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}  # fmt: skip
"""So that runs that nobody asked for are reported to nobody."""

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
"""Downloads of hubs are read from their caches: a run that downloads measures the network."""

MOST_COPIED = 2_000_000_000
"""Bytes of a working directory that is copied for each run."""


@dataclass(frozen=True)
class Program:
    """The command and its conditions. seed: of all random numbers, None to leave them alone.

    copies: whether each run gets a copy of the working directory."""

    command: Sequence[str]
    steps: Steps = "auto"
    seed: int | None = 0
    online: bool = False
    copies: bool = False
    timed: int = 20
    warmup: int = 10


@dataclass(frozen=True)
class Asked:
    """A run. apply: interventions, in order. warmup, timed: numbers of steps; None if the run decides, by when it has settled.

    check: whether to compare numbers instead of times, without dropout. nudge: relative change of each parameter at the start.

    kernels: whether they are counted at the end."""

    apply: tuple[Intervention, ...] = ()
    warmup: int | None = None
    timed: int = 20
    check: bool = False
    nudge: float = 0.0
    kernels: bool = False
    seed_shift: int = 0


@dataclass(frozen=True)
class Ran:
    """The results of a run: of several processes, those of the first rank or of the process with most steps. wall_s: of the whole run."""

    wall_s: float
    said: Mapping[str, Any] = field(default_factory=dict)
    failed: str = ""
    """Why it has no times, with the end of the program's output."""
    ranks: Sequence[Mapping[str, Any]] = ()

    def times(self, warmup: int, last: int) -> list[float]:
        """The steps from the step after `warmup` to `last`, by number from the first, in µs."""
        return list(self.said.get("step_us", ())[max(warmup - 1, 0) : max(last - 1, 0)])

    def ended_s(self, step: int) -> float:
        """When that step ended, since torch was imported."""
        ended = self.said["ended_s"]
        return float(ended[min(step, len(ended)) - 1])

    @property
    def warmup(self) -> int:
        """Steps before those that were timed; of a program that ended in its warm-up a third of what there are."""
        steps, warmup = int(self.said["steps"]), self.said["warmup"]
        return int(warmup) if warmup is not None and steps - warmup >= FEWEST_TIMED else max(1, steps // 3)

    @property
    def last(self) -> int:
        return int(self.said["last"])

    @property
    def device(self) -> str:
        return str(self.said["device_kind"])


class Runner:
    """Starts the runs of a program, each with its settings. Their files are in a directory that is removed at the end."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.program = program
        self._folder = folder
        self._count = 0
        self._signalled: list[int] = []
        if shutil.which(program.command[0]) is None:
            raise UsageError(
                f"{program.command[0]} cannot be started: there is no such command", "Give a program that is on the PATH, after --: python train.py"
            )
        if program.copies and (size := _size(Path.cwd())) > MOST_COPIED:
            raise UsageError(
                f"the working directory holds {size / 1e9:.1f} GB, which each run would copy", "Run in a smaller directory, or without --workdir copy."
            )

    def run(self, asked: Asked) -> Ran:
        """Run it once. Raises Terminated if a signal asks advisor to stop."""
        self._count += 1
        folder = self._folder / f"run{self._count}"
        folder.mkdir()
        log = folder / "log"
        text = json.dumps(self._asked(asked, folder))
        began = time.monotonic()
        with TemporaryDirectory(prefix="advisor-") as copied:
            where = _copy(Path(copied, "work")) if self.program.copies else None
            code = run_to_end(
                list(self.program.command), environment("lab.trying.inside", text, self.environment(asked)), log, _NoLook(), directory=where,
                told=self._signalled.append,
            )  # fmt: skip
        wall_s = time.monotonic() - began
        if self._signalled or code in STOPPED:
            raise Terminated(128 + self._signalled[0] if self._signalled else code)
        found = [one for path in sorted(folder.glob(f"*/{FILE}")) if (one := said(path))]
        if code:
            why = f"the program ended with exit code {code}{f', which {killed} leaves' if (killed := signal_of(code)) else ''}"
            return Ran(wall_s, failed=f"{why}\n  {end_of(log)}".rstrip())
        if not found:
            return Ran(
                wall_s,
                failed=_own_words(log)
                or "the program ended and no step was found in it\n  Steps end with the optimizer's step. Without an optimizer they end with backward, without gradients with the outermost module's forward. See --steps.",
            )
        kept = max(found, key=lambda one: (one["world_size"] > 1, -one["rank"], one["steps"]))
        if kept["steps"] < FEWEST_TIMED + 2:
            return Ran(wall_s, failed=f"the program ended after {kept['steps']} steps, of which none can be timed")
        return Ran(wall_s, kept, ranks=[one for one in found if one["world_size"] > 1])

    def _asked(self, asked: Asked, folder: Path) -> dict[str, Any]:
        seed = self.program.seed
        return {
            "directory": str(folder),
            "steps": self.program.steps,
            "seed": None if seed is None else seed + asked.seed_shift,
            "cores": cores(),
            "check": asked.check,
            "apply": [{"name": one.name, "code": one.code, "options": dict(one.options)} for one in asked.apply],
            "warmup": asked.warmup,
            "least_warmup": self.program.warmup,
            "timed": asked.timed,
            "nudge": asked.nudge,
            "kernels": asked.kernels,
        }

    def environment(self, asked: Asked) -> dict[str, str]:
        """Advisor's own environment, with defaults for steady runs unless the user set them, and with the interventions. Compilers cache into
        advisor's directory: the first run with an intervention compiles all, later runs reuse it."""
        base = given()
        made = {name: value for name, value in {**QUIET, **({} if self.program.online else OFFLINE)}.items() if name not in base}
        if asked.apply:
            cache = self._folder / "-".join(one.name for one in asked.apply)[:100]
            made |= {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "TRITON_CACHE_DIR": str(cache / "triton")}
        for one in asked.apply:
            made |= one.environment
        if self.program.seed is not None and "PYTHONHASHSEED" not in base:
            made["PYTHONHASHSEED"] = str(self.program.seed)
        return {**base, **made}


def _own_words(log: Path) -> str:
    """The last line that advisor printed inside of the program: why it stopped timing. "" if it printed none."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        own = [line.rstrip() for line in lines if line.startswith(MARK)]
    return own[-1].removeprefix(MARK) if own else ""


class _NoLook:
    def look(self) -> None:
        """The run ends by itself."""


def _size(folder: Path) -> int:
    total = 0
    for place, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if one not in _LEFT_OUT]
        total += sum(os.lstat(os.path.join(place, file)).st_size for file in files)
        if total > MOST_COPIED:
            break
    return total


_LEFT_OUT = (".git", ".venv", "venv", "__pycache__", "node_modules")
"""Large files of a working directory that a program seldom reads."""


def _copy(where: Path) -> Path:
    shutil.copytree(Path.cwd(), where, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT), ignore_dangling_symlinks=True)
    return where


def applied_in(ran: Ran, name: str) -> Mapping[str, Any]:
    """The effect of an intervention in a run."""
    return next((one for one in ran.said.get("applied", ()) if one["name"] == name), {"count": 0, "refused": {}, "sites": [], "modules": [], "made_by": []})


def not_applied_reason(ran: Ran, name: str) -> str:
    """Why an intervention did not apply in a run, "" if it did, on every rank."""
    if ran.failed:
        return ran.failed
    if failed := ran.said["failed_to"].get(name):
        return f"it could not be applied: {failed}"
    counts = [applied_in(Ran(0.0, one), name)["count"] for one in ran.ranks] or [applied_in(ran, name)["count"]]
    if all(counts):
        return ""
    if any(counts):
        return f"it applied on {sum(map(bool, counts))} of {len(counts)} ranks"
    refused = applied_in(ran, name)["refused"]
    return max(refused, key=lambda why: refused[why]) if refused else "the program does nothing that it would change"
