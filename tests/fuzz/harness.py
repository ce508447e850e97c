"""Runs targets: one input after another, each said by its number, in bounded time and memory; what breaks is kept."""

from __future__ import annotations

import contextlib
import json
import random
import resource
import signal
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from tests.fuzz.targets import TARGETS, Target

SLOWEST_CPU_S = 60
"""Of processor time for one small input: beyond it is a hang."""
MOST_MEMORY_BYTES = 6 << 30
"""Of address space, for a process that runs for hours: an input of kilobytes that needs more is a bomb."""

KEPT = Path(__file__).with_name("seeds")
"""Every input that was ever found to break a law, by target: they are tried first, and in the tests."""


class Hang(Exception):
    """An input took too long."""


@dataclass
class Progress:
    """How far a target has come. next: the number of its next input. refused: inputs that were answered with an error. seconds: of processor time, making
    the inputs included; longest_s: of the one that took longest. most_mb: the most memory that the process held by then; a target that runs alone has its own.
    broken: by where it broke, the first input."""

    next: int = 0
    refused: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0
    most_mb: int = 0
    broken: dict[str, int] = field(default_factory=dict)


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """A warning is an error, a hang is one, memory has a limit."""

    def hang(_number: int, _frame: FrameType | None) -> None:
        raise Hang(f"more than {SLOWEST_CPU_S} s")

    before = signal.signal(signal.SIGVTALRM, hang)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, hard))


def made(target: Target, number: int) -> bytes:
    """The input of that number: the same on any machine of the same Python."""
    return target.make(random.Random(f"{target.name} {number}"))


def tried(target: Target, data: bytes) -> str:
    """Check one input: "" where all laws hold, else what broke and where."""
    return _tried(target, data)[1]


def _tried(target: Target, data: bytes) -> tuple[bool, str]:
    """Whether an input was read rather than refused, and what broke."""
    signal.setitimer(signal.ITIMER_VIRTUAL, SLOWEST_CPU_S)
    try:
        return target.check(data), ""
    except Exception:
        return False, traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def signature(broken: str) -> str:
    """What tells one defect from another: the innermost line of ours, and the kind of error."""
    lines = broken.strip().splitlines()
    ours = [line.strip() for line in lines if line.startswith('  File "') and "/site-packages/" not in line and "/lib/python" not in line]
    place = ours[-1].split(", ") if ours else ["?", "?", "?"]
    return f"{place[0].rsplit('/', 1)[-1].strip(chr(34))}:{place[1]}: {lines[-1].split(':')[0]}"


def run(targets: list[Target], out: Path, seconds: float, slice_s: float = 5.0) -> dict[str, Progress]:
    """Go on with each target where `out/progress.json` says that it was, by turns, until all have reached their goal or the time is over."""
    out.mkdir(parents=True, exist_ok=True)
    at = read_progress(out)
    end = time.monotonic() + seconds
    with strict():
        while time.monotonic() < end and (left := [t for t in targets if at[t.name].next < t.goal]):
            for target in left:
                _some(target, at[target.name], out, min(end, time.monotonic() + slice_s))
                _write(out, at)
    return at


def _some(target: Target, progress: Progress, out: Path, until: float) -> None:
    began = time.process_time()
    while time.monotonic() < until and progress.next < target.goal:
        number = progress.next
        data = made(target, number)
        before = time.process_time()
        read, broken = _tried(target, data)
        progress.longest_s = max(progress.longest_s, time.process_time() - before)
        progress.next += 1
        progress.refused += not read and not broken
        if broken and (name := signature(broken)) not in progress.broken:
            progress.broken[name] = number
            (out / f"{target.name}-{number}.bin").write_bytes(data)
            (out / f"{target.name}-{number}.txt").write_text(broken)
            print(f"{target.name} {number}: {name}", flush=True)
    progress.seconds += time.process_time() - began
    progress.most_mb = max(progress.most_mb, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)


def read_progress(out: Path) -> dict[str, Progress]:
    """How far each target has come, as `run` has written it."""
    with contextlib.suppress(OSError):
        said = json.loads((out / "progress.json").read_text())
        return {t.name: Progress(**said[t.name]) if t.name in said else Progress() for t in TARGETS}
    return {t.name: Progress() for t in TARGETS}


def _write(out: Path, at: dict[str, Progress]) -> None:
    part = out / "progress.json.part"
    part.write_text(json.dumps({name: asdict(progress) for name, progress in at.items()}, indent=1))
    part.replace(out / "progress.json")
