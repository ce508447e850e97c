"""Runs a command and records it, without a change of its script."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Protocol

from advisor.errors import AdvisorError, TraceError, UsageError
from advisor.knowledge.patience import LOOK_S
from advisor.lab.find_steps import Steps
from advisor.lab.injection import environment
from advisor.lab.merge import Process, left_by, merge
from advisor.lab.options import Options
from advisor.lab.recorded import CAPTURES, FILE, Part, prepare, recordings, remove_empty, said, write
from advisor.report.numbers import counted

_HOW_TO_START = "Give a program that is on the PATH, and its arguments: python train.py, or env NAME=value python train.py."

NSYS = ("nsys", "profile", "-t", "cuda,nvtx", "--cuda-graph-trace=node", "--capture-range=cudaProfilerApi", "--capture-range-end=stop")


def launch(
    command: Sequence[str], directory: Path, options: Options, *, steps: Steps = "auto", keep_going: bool = False, log: Path | None = None,
    say: Callable[[str], None] = lambda line: None, base: Mapping[str, str] | None = None, told: Callable[[int], None] = lambda number: None,
) -> int:  # fmt: skip
    """Run `command` and record it into `directory`. An earlier recording there stays unless there is a new recording.
    Returns its exit code, 128 + n if signal n ended it.

    log: the file for the command's output. say: takes a line on the result of the recording, in addition to its content.
    base: its environment if not the current environment. told: as for `run_to_end`.

    Raises UsageError if the command cannot be started, or if it ended well but profiles itself, so that nothing was recorded.
    Raises TraceError if it ended well and had no steps. If the recording failed, the exit code is the program's."""
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]} cannot be started: there is no such command", _HOW_TO_START)
    made = not directory.exists()
    prepare(directory)
    earlier = recordings(directory)
    part = Part(directory)
    try:
        if options.nsys:
            command = [*_nsys(), "--force-overwrite=true", "-o", str(part.path / Path(CAPTURES[0]).stem), *command]
        asked = {"directory": str(part.path.absolute()), "steps": steps, "keep_going": keep_going, **asdict(options)}
        code = run_to_end(command, environment("lab.find_steps", json.dumps(asked), base or given()), log, _Watcher(part.path, say), told=told)
        gone = not part.path.exists()
        processes = left_by(part.path)
        placed = merge(part.path, processes, directory, earlier, options)
    finally:
        part.remove()
        if made:
            remove_empty(directory)
    _told(processes, placed, directory, gone, say)
    if not placed and not gone and not any(process.failed for process in processes):
        refused = _refused(processes, f"The earlier recording in {directory} stands. " if earlier else "")
        if code == 0:
            raise refused
        say(refused.message)  # the exit code is the program's: what it failed of may be why
    if options.nsys and code == 0:
        _export(directory)
    return code


def given() -> dict[str, str]:
    """The environment as advisor received it. Python sets LC_CTYPE in its own environment if there is no locale, and the program would inherit that."""
    given = dict(os.environ)
    with suppress(OSError):
        if not any(one.startswith(b"LC_CTYPE=") for one in Path("/proc/self/environ").read_bytes().split(b"\0")):
            given.pop("LC_CTYPE", None)
    return given


def _told(processes: Sequence[Process], placed: Sequence[Process], directory: Path, gone: bool, say: Callable[[str], None]) -> None:
    """The fate of the program and its recording, in addition to the recording's own messages."""
    if gone:
        say(f"nothing is recorded: {directory} was taken away while the program ran")
    for line in dict.fromkeys(f"{process.failed}. The program ran on" for process in processes if process.failed):
        say(line)
    if stopped := [process.steps for process in processes if process.stopped and not process.refused]:
        say(f"all was recorded after {counted(max(stopped), 'step')}, and the program was stopped there (--keep-going lets it run on)")
    for process in processes if placed else ():
        if process not in placed and not process.failed:
            say(f"of process {process.pid}, which took {counted(process.steps, 'step')}, nothing is kept: {process.ended}")


def _refused(processes: Sequence[Process], stands: str) -> AdvisorError:
    """Why a program was not recorded, and what to do if it ended well."""
    if refused := next((process.refused for process in processes if process.refused), None):
        return UsageError(*refused)
    if processes:
        most = max(processes, key=lambda process: process.steps)
        return TraceError(f"nothing is recorded: {most.ended}", f"{stands}Let the program run for longer.")
    return TraceError(
        "the program ended and no step was found in it",
        f"{stands}Steps end with the optimizer's step. Without an optimizer they end with backward, without gradients with the outermost module's forward. See --steps, or use advisor.record in the script and run it by itself. In JAX, a step ends with its jax.profiler.StepTraceAnnotation.",
    )


class _Watcher:
    """Watches the program's processes, and says once if it continues although all is recorded."""

    def __init__(self, part: Path, say: Callable[[str], None]) -> None:
        self._part = part
        self._say = say
        self._told = False

    def look(self) -> None:
        processes = [] if self._told else left_by(self._part)
        why = next((process.goes_on for process in processes if process.goes_on), "")
        if why and all(process.done for process in processes):
            self._told = True
            self._say(f"all is recorded; the program runs on, as {why}. To end it, interrupt it: what is recorded stays")


_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_FROM_KERNEL = 0x80
"""`si_code` of a signal that a terminal sends, to the program as to us."""

_HANDED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
"""Signals that ask a program to end or to do something of its own: whoever sends them to us means it."""


class Looks(Protocol):
    """Looks at a program while it runs."""

    def look(self) -> None: ...


def run_to_end(
    command: Sequence[str], environment: Mapping[str, str], log: Path | None, watcher: Looks, *, directory: Path | None = None,
    told: Callable[[int], None] = lambda number: None,
) -> int:  # fmt: skip
    """Run to the end, and return the exit code, 128 + n if signal n ended it. The command handles signals, and does not outlive advisor.

    directory: working directory. told: called with each signal sent to advisor, or sent by a terminal to both."""
    libc = ctypes.CDLL(None)
    # Held back from before the start on, so that none comes between; macOS cannot wait for them.
    awaited = {*_HANDED_ON, signal.SIGCHLD} if hasattr(signal, "sigtimedwait") else set()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)

    def begin() -> None:
        with suppress(AttributeError):  # not on Linux
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        process = _started(command, environment, log, begin, directory)
        with _handing_on(process):
            while (code := process.poll()) is None:
                if not awaited:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(LOOK_S)
                    watcher.look()
                elif (got := signal.sigtimedwait(awaited, LOOK_S)) is None:
                    watcher.look()
                elif got.si_signo != signal.SIGCHLD:
                    told(got.si_signo)
                    if got.si_code != _FROM_KERNEL:
                        process.send_signal(got.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return code if code >= 0 else 128 - code


def _started(
    command: Sequence[str], environment: Mapping[str, str], log: Path | None, begin: Callable[[], None], directory: Path | None
) -> subprocess.Popen[bytes]:
    try:
        with nullcontext() if log is None else log.open("wb") as output:
            # Files that we were given open are the command's.
            return subprocess.Popen(command, env=environment, stdout=output, stderr=output, close_fds=False, preexec_fn=begin, cwd=directory)
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}", _HOW_TO_START) from None


@contextmanager
def _handing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Signals that a thread of a library's takes before we wait for them, or that cannot be waited for."""
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return

    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    handlers = {number: signal.signal(number, forward) for number in _HANDED_ON - {signal.SIGINT} if signal.getsignal(number) != signal.SIG_IGN}
    # The terminal sends an interrupt to both of us.
    handlers[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def signal_of(code: int) -> str:
    """The signal that leaves this exit code, as "SIGSEGV (segmentation fault)"; "" if none does. A program may end with such a code by itself."""
    try:
        name = signal.Signals(code - 128)
    except ValueError:
        return ""
    told = signal.strsignal(name)
    return f"{name.name} ({told.lower()})" if told else name.name


def _nsys() -> tuple[str, ...]:
    if shutil.which("nsys") is None:
        raise UsageError("nsys is not on the PATH", "Install Nsight Systems, or record without --nsys.")
    return NSYS


def _export(directory: Path) -> None:
    """The capture as SQLite, named in the recording."""
    report, database = (directory / name for name in CAPTURES)
    done = subprocess.run(
        ["nsys", "export", "--type", "sqlite", "--force-overwrite=true", "-o", str(database), str(report)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise TraceError(f"nsys could not export {report}", done.stderr.strip()[-300:])
    if (directory / FILE).exists():
        write(directory / FILE, {**said(directory / FILE), "nsys": database.name})
