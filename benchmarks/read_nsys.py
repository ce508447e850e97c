"""Time and memory of reading an nsys export, against a plain copy of all its rows through sqlite3, in one run.

    python benchmarks/read_nsys.py [--kernels 1000000]

Prints seconds and peak memory of each in a process of its own, their ratio, and bytes of memory for each byte of file.
"""

from __future__ import annotations

import argparse
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

STEP = 200


def rows(n: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """A call and the kernel that it launches, 10 µs apart, over 64 names."""
    pid = 1 << 48 | 77 << 24
    for i in range(n):
        at = 10_000 * i
        yield (at, at + 4000, 0, pid | 5, i, 100), (at + 6000, at + 9000, 0, 1, 7, i, pid, i % 64, i % 64, 128, 1, 1, 256, 1, 1)


def generate(path: Path, kernels: int) -> None:
    """A self-consistent export: names, calls, kernels, a range a step."""
    db = sqlite3.connect(path)
    db.executescript("""
        CREATE TABLE StringIds (id INTEGER, value TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
            correlationId INTEGER, nameId INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER,
            correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER,
            gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER);
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
    """)
    db.executemany("INSERT INTO StringIds VALUES (?,?)", [(i, f"void kernel_{i}<float>(float*, int)") for i in range(64)] + [(100, "cudaLaunchKernel_v7000")])
    batch: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for row in rows(kernels):
        batch.append(row)
        if len(batch) == 50_000:
            insert(db, batch)
            batch.clear()
    insert(db, batch)
    tid = 1 << 48 | 77 << 24 | 5
    marks = [(10_000 * i, 10_000 * (i + STEP) - 10, 59, f"step {i // STEP}", tid, None) for i in range(0, kernels, STEP)]
    db.executemany("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?)", marks)
    db.commit()
    db.close()


def insert(db: sqlite3.Connection, batch: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?,?)", (call for call, _ in batch))
    db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * 15)})", (kernel for _, kernel in batch))


def measured(what: str, path: Path) -> tuple[float, float]:
    """Seconds, and peak MB of a fresh process."""
    done = subprocess.run([sys.executable, __file__, "--worker", what, str(path)], capture_output=True, text=True, check=True)
    seconds, peak = done.stdout.split()[-2:]
    return float(seconds), float(peak)


def worker(what: str, path: str) -> None:
    start = time.perf_counter()
    if what == "rows":
        db = sqlite3.connect(path)
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"):
            for _ in db.execute(f"SELECT * FROM {table}"):
                pass
    elif what == "load":
        from advisor import load

        load(path)
    else:
        from advisor import analyze

        analyze(path)
    print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--worker", nargs=2)
    args = parser.parse_args()
    if args.worker:
        worker(*args.worker)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.sqlite"
        generate(path, args.kernels)
        size = path.stat().st_size / 1e6
        print(f"{args.kernels:,} kernels, {size:.0f} MB")
        base, _ = measured("rows", path)
        print(f"{'all rows through sqlite3':28} {base:6.2f} s")
        for what in ("load", "analyze"):
            seconds, peak = measured(what, path)
            print(f"{what:28} {seconds:6.2f} s  {seconds / base:5.2f} x   peak {peak:6.0f} MB, {peak / size:4.2f} of the file")


if __name__ == "__main__":
    main()
