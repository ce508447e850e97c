"""Seconds and peak memory of a process and all that it starts."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SUBJECTS = Path(__file__).with_name("subjects.py")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_POLL_S = 0.02


@dataclass(frozen=True)
class Cost:
    """The smallest of several runs. `why` says what went wrong where there is no figure."""

    seconds: float = float("inf")
    peak_bytes: float = float("inf")
    why: str = ""

    def best(self, other: Cost) -> Cost:
        return Cost(min(self.seconds, other.seconds), min(self.peak_bytes, other.peak_bytes), self.why or other.why)


def as_installed(*without: str) -> dict[str, str]:
    """The environment in which a program runs once it is installed: its compiled modules are kept. without: other variables to leave out."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", *without)}


def run(subject: str, path: Path, python: str = sys.executable) -> Cost:
    """Run a subject once, in an interpreter of its own."""
    return run_command([python, str(SUBJECTS), subject, str(path)])


def run_command(command: list[str]) -> Cost:
    """Run a command; the seconds are those that it prints last, of the whole process where it prints none."""
    started = time.perf_counter()
    # Files, since a full pipe would stop a talkative peer.
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=log, stderr=errors, env=as_installed())
        peak = _watch(process)
        seconds = time.perf_counter() - started
        out, err = (file.seek(0) or file.read() for file in (log, errors))
    if process.returncode:
        return Cost(why=err.decode(errors="replace").strip().splitlines()[-1] if err.strip() else f"exit {process.returncode}")
    last = out.decode(errors="replace").rpartition("seconds ")
    return Cost(float(last[2]) if last[1] else seconds, peak)


def watched(process: subprocess.Popen[bytes]) -> tuple[int, resource.struct_rusage]:
    """Peak of its memory as in `_watch`, and what it and all that it waited for used."""
    peak = 0
    while True:
        peak = max(peak, sum(map(_resident, _family(process.pid))))
        time.sleep(_POLL_S)
        done, status, spent = os.wait4(process.pid, os.WNOHANG)
        if done:
            process.returncode = os.waitstatus_to_exitcode(status)
            return peak, spent


def _watch(process: subprocess.Popen[bytes]) -> int:
    """Peak of the resident memory of the process and its descendants; pages that they share count for each of them."""
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(_resident, _family(process.pid))))
        time.sleep(_POLL_S)
    return peak


def _family(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        found += _children(parent)
    return found


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    except OSError:
        return []  # it ended meanwhile


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def side_by_side(subjects: dict[str, str], path: Path, repeats: int, once: frozenset[str] = frozenset()) -> dict[str, Cost]:
    """Costs of subjects (name to interpreter), interleaved so that noise of the machine meets all; `once` for the slow ones."""
    costs: dict[str, Cost] = {name: Cost() for name in subjects}
    for i in range(repeats):
        for name, python in subjects.items():
            if i == 0 or (name not in once and not costs[name].why):
                costs[name] = costs[name].best(run(name, path, python))
    return costs
