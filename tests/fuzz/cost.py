"""What recordings of one shape each cost: `python -m tests.fuzz.cost [SHAPE …] [--mb 1]`.

Each shape is analysed to JSON and HTML at a quarter, a half and the whole of a size. A law is broken where the whole takes more than `MOST_CPU_S`
or `MOST_MB`, or where CPU time beyond start-up grows faster than the size to the power of `MOST_EXPONENT`.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from math import log2
from pathlib import Path

from tests.fuzz.shapes import SHAPES

MOST_CPU_S, MOST_MB, MOST_EXPONENT = 5.0, 300.0, 1.35
"""CPU time and memory as the project promises them of a megabyte. The exponent leaves room for sorting and for noise of a second's measurement."""

MORE = {
    "a device a kernel": (60.0, 300.0),
    "JAX: a plane a kernel": (60.0, 300.0),
    "Nsight Compute: kernels": (10.0, 800.0),
}
"""CPU seconds and MB of shapes that may take more. Idle time is divided device by device, some 6 ms each: a megabyte holds 3,500 devices, a machine
16. A kernel without counters takes 100 bytes of a report of Nsight Compute and 5 kB of JSON; one as it is measured takes 30 kB of the report."""

TELLING_S = 0.4
"""Less CPU time than this beyond start-up says nothing of growth."""

HANGS_S = 120
PARTS = (0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Spent:
    """A command's CPU seconds, with those of its children, and its largest resident size."""

    cpu_s: float
    peak_mb: float


@dataclass(frozen=True)
class Cost:
    """One shape at each of `PARTS`. start_s: what an analysis of next to nothing takes."""

    shape: str
    size_mb: float
    spent: tuple[Spent, ...]
    start_s: float

    @property
    def exponent(self) -> float | None:
        """How CPU time beyond start-up grows with size; None where it is too little to tell."""
        first, *_, last = (one.cpu_s - self.start_s for one in self.spent)
        return log2(last / max(first, 0.05)) / log2(PARTS[-1] / PARTS[0]) if last > TELLING_S else None

    @property
    def broken(self) -> str:
        """The laws that do not hold, in words; empty where all do."""
        whole, grows = self.spent[-1], self.exponent
        most_s, most_mb = MORE.get(self.shape, (MOST_CPU_S, MOST_MB))
        laws = {
            f"{whole.cpu_s:.1f} s of CPU": whole.cpu_s > most_s,
            f"{whole.peak_mb:.0f} MB": whole.peak_mb > most_mb,
            f"exponent {grows or 0:.2f}": grows is not None and grows > MOST_EXPONENT,
        }
        return ", ".join(law for law, is_broken in laws.items() if is_broken)


def of_size(make: Callable[[int], bytes], size: float) -> bytes:
    """The shape made about as large as `size` bytes."""
    few, more = len(make(512)), len(make(4096))
    return make(max(4, round((4096 - 512) * (size - few) / (more - few)) + 512))


def spent(recording: bytes, folder: Path) -> Spent:
    """What `advisor analyze` takes of it. A command that hangs is ended, and its time so far counts."""
    path = folder / "recording"
    path.write_bytes(recording)
    command = [sys.executable, "-c", "from advisor.cli import main; main()", "analyze", str(path), "--force"]
    outputs = [part for name in ("o.json", "o.html") for part in ("-o", str(folder / name))]
    process = subprocess.Popen(
        [*command, *outputs], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (HANGS_S, HANGS_S)),
    )  # fmt: skip
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0  # waited for above
    return Spent(used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3)


def measured(shape: str, size: float) -> Cost:
    """The cost of one shape of about `size` bytes."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        start = min(spent(SHAPES[shape](4), folder).cpu_s for _ in range(2))
        each = [of_size(SHAPES[shape], size * part) for part in PARTS]
        return Cost(shape, len(each[-1]) / 1e6, tuple(spent(recording, folder) for recording in each), start)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", nargs="*", help="all by default")
    parser.add_argument("--mb", type=float, default=1.0)
    given = parser.parse_args()
    broken = 0
    print("| Shape | MB | CPU s | Peak MB | Exponent | |\n|---|--:|--:|--:|--:|---|", flush=True)
    for shape in given.shape or SHAPES:
        cost = measured(shape, given.mb * 1e6)
        whole, grows = cost.spent[-1], cost.exponent
        said = "" if grows is None else f"{grows:.2f}"
        print(f"| {shape} | {cost.size_mb:.1f} | {whole.cpu_s:.1f} | {whole.peak_mb:.0f} | {said} | {cost.broken} |", flush=True)
        broken += bool(cost.broken)
    print(f"{broken} of {len(given.shape or SHAPES)} break a law")
    return bool(broken)


if __name__ == "__main__":
    raise SystemExit(main())
