"""Runs a command with the recorder inside it, without a change of its script."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from advisor.errors import TraceError, UsageError
from advisor.files import PART
from advisor.lab.find_steps import SPEC, Steps
from advisor.lab.record import CAPTURES, FILE, TRACES, Options, clear, prepare, recordings, remove_empty

# Python runs a module of this name as it starts. Ours makes way for the one that it hides, and imports advisor from where it
# stands: the command may run in an environment that has another one, or none.
_AT_START = """\
import importlib.machinery, importlib.util, os, sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [p for p in sys.path if os.path.abspath(p or os.curdir) != here]
hidden = importlib.machinery.PathFinder.find_spec("sitecustomize")
if hidden and hidden.loader:
    hidden.loader.exec_module(importlib.util.module_from_spec(hidden))
if "advisor" not in sys.modules:
    spec = importlib.util.spec_from_file_location("advisor", {init!r}, submodule_search_locations=[{package!r}])
    sys.modules["advisor"] = advisor = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(advisor)
from advisor.lab.find_steps import install

install()
"""

_STARTED = "Give a program that is on the PATH, and its arguments: python train.py, or env NAME=value python train.py."

NSYS = ("nsys", "profile", "-t", "cuda,nvtx", "--cuda-graph-trace=node", "--capture-range=cudaProfilerApi", "--capture-range-end=stop")


def launch(command: Sequence[str], directory: Path, options: Options, *, steps: Steps = "auto", keep_going: bool = False, log: Path | None = None) -> int:
    """Run `command` and record it into `directory`, where an earlier recording stays unless there is another; returns its exit code, 128 + n
    where signal n ended it.

    log: the file that takes what the command prints. Raises UsageError where the command cannot be started, TraceError where it ended
    well but nothing was recorded, or because it profiles itself.
    """
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]} cannot be started: there is no such command", _STARTED)
    if options.nsys:
        command = [*_nsys(), "--force-overwrite=true", "-o", str(directory / f"{PART}nsys"), *command]
    made = not directory.exists()
    prepare(directory)
    earlier = recordings(directory)
    package = Path(__file__).resolve().parents[1]
    with TemporaryDirectory(prefix="advisor-") as folder:
        start = Path(folder, "sitecustomize.py")
        start.write_text(_AT_START.format(init=str(package / "__init__.py"), package=str(package)), encoding="utf-8")
        refused = Path(folder, "refused.json")
        asked = {"directory": str(directory.absolute()), "steps": steps, "keep_going": keep_going, "refused": str(refused), **asdict(options)}
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        code = _run(command, {**os.environ, SPEC: json.dumps(asked), "PYTHONPATH": os.pathsep.join(paths)}, log)
        why = json.loads(refused.read_text(encoding="utf-8")) if refused.exists() else []
    recorded = dict(recordings(directory).items() - earlier.items())
    if recorded:
        _replace(directory, [path.parent for path in earlier if path not in recorded])
    for name in (FILE, *TRACES, *CAPTURES):  # what a program was killed over
        for path in (directory / f"{PART}{name}", *directory.glob(f"rank*/{PART}{name}")):
            path.unlink(missing_ok=True)
    if made and not recorded:
        remove_empty(directory)
    if code == 0 and why and not recorded:
        raise UsageError(*why)
    if code == 0 and not recorded:
        raise TraceError(
            "the program ended and no step was found in it",
            f"{f'The earlier recording in {directory} stands. ' if earlier else ''}Steps are the optimizer's, or the outermost module's forward without gradients: see --steps, or use advisor.record in the script and run it by itself.",
        )
    if options.nsys and code == 0:
        _export(directory)
    return code


def _replace(directory: Path, stale: Sequence[Path]) -> None:
    """Take away what is left of an earlier recording, that of more ranks say, and put captures in the place of its own."""
    for folder in stale:
        clear(folder)
    for name in CAPTURES:
        (directory / name).unlink(missing_ok=True)
        if (directory / f"{PART}{name}").exists():
            (directory / f"{PART}{name}").replace(directory / name)


def _run(command: Sequence[str], environment: dict[str, str], log: Path | None) -> int:
    """Run to the end; signals that ask us to stop are the command's to answer."""
    try:
        with nullcontext() if log is None else log.open("wb") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}", _STARTED) from None

    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP)}
    # The terminal sends an interrupt to both of us.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def signal_of(code: int) -> str:
    """The signal that leaves this exit code, as "SIGSEGV (segmentation fault)"; "" where none does. A program may end with such a code by itself."""
    try:
        name = signal.Signals(code - 128)
    except ValueError:
        return ""
    said = signal.strsignal(name)
    return f"{name.name} ({said.lower()})" if said else name.name


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
    saved = json.loads((directory / FILE).read_text(encoding="utf-8"))
    (directory / FILE).write_text(json.dumps({**saved, "nsys": database.name}, indent=1) + "\n", encoding="utf-8")
