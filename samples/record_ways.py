"""Record public models in the ways people do, and time the same steps without a profiler.

    python samples/record_ways.py --out samples/recording
    python samples/record_ways.py --out /tmp/r --only resnet18_infer --tiny --device cpu

Every program has a process of its own. All of them prepare side by side (importing, compiling, warming up); then one after
the other has the machine for itself: it is timed bare, then recorded `light` (nothing but ops and kernels) and `deep`
(shapes, stacks, memory), some also `once` (one call in a profiler's block, no schedule). `whole` is a process of its own: a
block around the loop from its cold first iteration on, with stacks, shapes and memory, and no step marks.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
os.environ.setdefault("TEARDOWN_CUPTI", "0")

ROOT = Path(__file__).resolve().parent
OPTIONS: dict[str, dict[str, bool]] = {
    "light": {},
    "deep": {"record_shapes": True, "with_stack": True, "profile_memory": True},
}
ACTIVE = {"light": 3, "deep": 2}
WHOLE_STEPS = 4
REPEATS, REPEAT_S = 9, 0.12
PREPARE_S, MEASURE_S = 130.0, 45.0


def child(name: str, way: str, out: Path, device: str, tiny: bool) -> None:
    """One program: prepare, say so, wait for its turn, measure and record, say so, then scrub and pack."""
    import torch
    from public_models import REGISTRY
    from torch.profiler import ProfilerActivity, profile, schedule

    from workloads.base import Setup

    setup, program = Setup(torch.device(device), tiny), REGISTRY[name]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if setup.cuda else [])]

    def timed(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            step()
        setup.synchronize()
        return 1e6 * (time.perf_counter() - start) / count

    def bare() -> list[float]:
        count = 2 if tiny else max(3, min(300, round(1e6 * REPEAT_S / timed(3))))
        return [timed(count) for _ in range(2 if tiny else REPEATS)]

    step = program.make(setup)
    if way == "whole":
        if not _turn():
            return
        with profile(activities=activities, **OPTIONS["deep"]) as prof:
            for _ in range(WHOLE_STEPS):
                step()
        prof.export_chrome_trace(str(out / f"{name}.whole.raw"))
        _say("done")
        _pack(out, [f"{name}.whole"])
        return
    for _ in range(2 if tiny else 8):
        step()
    setup.synchronize()
    if not _turn():
        return
    for _ in range(2):
        step()
    times, made = bare(), []
    for kind, options in OPTIONS.items():
        with profile(
            activities=activities,
            schedule=schedule(wait=1, warmup=2, active=ACTIVE[kind], repeat=1),
            on_trace_ready=lambda prof, kind=kind: prof.export_chrome_trace(str(out / f"{name}.{kind}.raw")),
            **options,
        ) as prof:
            for _ in range(3 + ACTIVE[kind]):
                step()
                prof.step()
        made.append(f"{name}.{kind}")
    if "once" in program.also:
        with profile(activities=activities, **OPTIONS["deep"]) as prof:
            step()
        prof.export_chrome_trace(str(out / f"{name}.once.raw"))
        made.append(f"{name}.once")
    after = bare()
    _say("done")
    busy = _pack(out, made)
    entry = {
        "what": program.what,
        "bound": program.bound,
        "step_us": statistics.median(times),
        "unprofiled_step_us": [round(t, 1) for t in times],
        "profiler_loaded_step_us": round(statistics.median(after), 1),
        "gpu_busy_us": round(busy[f"{name}.light"] / ACTIVE["light"], 1),
        "device": torch.cuda.get_device_name() if setup.cuda else device,
        "torch": torch.__version__,
    }
    (out / f"{name}.json").write_text(json.dumps(entry))


def _turn() -> bool:
    """Say that everything is ready and wait for the machine; False where nobody gives it any more."""
    _say("ready")
    return bool(sys.stdin.readline())


def _say(word: str) -> None:
    print(f"@{word}", flush=True)


def _pack(out: Path, names: list[str]) -> dict[str, float]:
    """Scrub and compress what was exported; GPU time of each trace."""
    from traces import gpu_busy_us, scrub, write

    busy = {}
    for name in names:
        raw = out / f"{name}.raw"
        trace = scrub(json.loads(raw.read_text()), ROOT)
        raw.unlink()
        trace["traceName"] = f"{name}.json"
        busy[name] = gpu_busy_us(trace)
        size = write(trace, out / f"{name}.trace.zst")
        print(f"{name}: {len(trace['traceEvents'])} events, {size / 1e3:.0f} kB, GPU busy {busy[name] / 1e3:.2f} ms", flush=True)
    return busy


class Process:
    """A child and what it says."""

    def __init__(self, name: str, way: str, args: argparse.Namespace) -> None:
        self.name = f"{name} {way}"
        command = [sys.executable, __file__, "--child", name, "--way", way, "--out", str(args.out), "--device", args.device]
        self.log = (args.out / f"{name}.{way}.log").open("w")
        environment = os.environ | {"OMP_NUM_THREADS": "4", "TORCHINDUCTOR_COMPILE_THREADS": "4"}
        self.process = subprocess.Popen(
            [*command, *(["--tiny"] if args.tiny else [])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            text=True, bufsize=1, env=environment,
        )  # fmt: skip
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def wait_for(self, word: str, until: float) -> bool:
        """Whether the child says the word before it ends or time is up; what else it says is printed."""
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, until - time.time()))
            except queue.Empty:
                return False
            if line.strip() == f"@{word}":
                return True
            if not line:
                self.lines.put("")
                return False
            print(line, end="", flush=True)

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()


def conduct(programs: Iterable[tuple[str, str]], args: argparse.Namespace) -> None:
    """Prepare all, measure each alone, wait for the packing."""
    start = time.time()
    children = [Process(name, way, args) for name, way in programs]
    ready = [c for c in children if c.wait_for("ready", start + PREPARE_S)]
    print(f"{len(ready)} of {len(children)} ready after {time.time() - start:.0f} s", flush=True)
    for c in set(children) - set(ready):
        c.process.kill()
        print(f"{c.name}: not ready", flush=True)
    for c in ready:
        if time.time() - start > args.budget_s:
            print(f"{c.name}: out of time", flush=True)
            c.process.kill()
            continue
        began = time.time()
        try:
            c.go()
            done = c.wait_for("done", began + MEASURE_S)
        except BrokenPipeError:
            done = False
        print(f"{c.name}: {'measured' if done else 'FAILED'} in {time.time() - began:.1f} s", flush=True)
        if not done:
            c.process.kill()
    for c in ready:
        c.wait_for("never", time.time() + 60)
        c.process.kill()
        c.log.close()
    entries = {p.stem: json.loads(p.read_text()) for p in args.out.glob("*.json") if p.stem != "recordings"}
    (args.out / "recordings.json").write_text(json.dumps(entries, indent=1) + "\n")
    for path in args.out.glob("*.json"):
        if path.stem != "recordings":
            path.unlink()
    print(f"{len(entries)} programs in {time.time() - start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, nothing compiled")
    parser.add_argument("--budget-s", type=float, default=270.0, help="measure nothing new after this many seconds")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--way", default="main", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.child:
        child(args.child, args.way, args.out, args.device, args.tiny)
        return
    from public_models import PROGRAMS

    chosen = [p for p in PROGRAMS if not args.only or p.name in args.only.split(",")]
    conduct([(p.name, "main") for p in chosen] + [(p.name, "whole") for p in chosen if "whole" in p.also], args)


if __name__ == "__main__":
    main()
