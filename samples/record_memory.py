"""Record memory snapshots on a GPU, each program in a process of its own, with the peaks that torch measures.

    python samples/record_memory.py --out samples/memory
    python samples/record_memory.py --out samples/memory --only fp32_logits,kept_losses
    python samples/record_memory.py --out /tmp/m --tiny --device cpu      (no GPU: shows that every program runs)

The history starts before a program makes its model, so that each byte has its stack; `late` programs start it later.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

MAX_EVENTS = 20_000
TIMED_STEPS = 5


def record(name: str, side: str, out: Path, device: str, tiny: bool) -> dict[str, Any]:
    """Run one side of a program and write its snapshot. Returns what torch measured, in bytes, and a step in ms."""
    import torch
    from memory_workloads import REGISTRY, Setup

    workload, setup = REGISTRY[name], Setup(torch.device(device), tiny)
    torch.manual_seed(0)
    if device != "cuda":
        step = workload.sides()[side](setup)
        for _ in range(2):
            step()
        return {}
    torch.cuda.init()
    history = {"max_entries": MAX_EVENTS, "stacks": workload.stacks}
    if not workload.late:
        torch.cuda.memory._record_memory_history(**history)
    step = workload.sides()[side](setup)
    for _ in range(workload.late):
        step()
    if workload.late:
        torch.cuda.memory._record_memory_history(**history)
        torch.cuda.reset_peak_memory_stats()
    for _ in range(workload.steps):
        step()
    torch.cuda.synchronize()
    measured = {"peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved()}
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    path = out / f"{name}.{side}.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(scrubbed(snapshot)), compresslevel=9, mtime=0))
    start = time.perf_counter()
    for _ in range(TIMED_STEPS):
        step()
    torch.cuda.synchronize()
    return {**measured, "step_ms": (time.perf_counter() - start) / TIMED_STEPS * 1e3, "file": path.name}


def scrubbed(snapshot: Any) -> Any:
    """The snapshot with each path relative, as `traces.scrub` does, and equal frames and stacks stored once."""
    from traces import scrub

    snapshot = scrub(snapshot, ROOT)
    frames: dict[Any, Any] = {}
    stacks: dict[Any, Any] = {}

    def shared(stack: list[dict[str, Any]]) -> list[dict[str, Any]]:
        one = [frames.setdefault((f["filename"], f["line"], f["name"]), f) for f in stack]
        return stacks.setdefault(tuple(map(id, one)), one)

    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    for entry in [*blocks, *snapshot["segments"], *(event for trace in snapshot["device_traces"] for event in trace)]:
        if "frames" in entry:
            entry["frames"] = shared(entry["frames"])
    return snapshot


def in_process(name: str, side: str, args: argparse.Namespace) -> dict[str, Any] | None:
    """The same in a process of its own; None where it fails or takes too long."""
    from memory_workloads import REGISTRY

    conf = REGISTRY[name].fixed_conf if side == "fixed" else ""
    command = [sys.executable, __file__, "--out", str(args.out), "--device", args.device, "--one", name, side]
    command += ["--tiny"] if args.tiny else []
    try:
        done = subprocess.run(
            command, env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf}, capture_output=True, text=True, timeout=args.timeout_s
        )
    except subprocess.TimeoutExpired:
        print(f"{name} {side}: more than {args.timeout_s} s", flush=True)
        return None
    if done.returncode:
        print(f"{name} {side} failed:\n{done.stderr[-1500:]}", flush=True)
        return None
    print(f"{name} {side}: {done.stdout.strip()}", flush=True)
    measured: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write snapshots and manifest.json to")
    parser.add_argument("--only", default="", help="names of programs, separated by commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes")
    parser.add_argument("--jobs", type=int, default=3, help="programs at a time; peaks are of a process, times are then rough")
    parser.add_argument("--timeout-s", type=float, default=90.0, help="of one side of a program")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SIDE"), help="run one side here")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.one:
        print(json.dumps(record(*args.one, args.out, args.device, args.tiny)))
        return 0
    from memory_workloads import REGISTRY

    names = [name for name in args.only.split(",") if name] or list(REGISTRY)
    todo = [(name, side) for name in names for side in REGISTRY[name].sides()]
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda one: in_process(*one, args), todo))
    cases: dict[str, Any] = {}
    for (name, side), measured in zip(todo, results, strict=True):
        if measured:
            w = REGISTRY[name]
            case = cases.setdefault(name, {"rule": [w.rule, *w.other_rules] if w.rule else None, "what": w.what, "fix": w.fix, "bytes": w.bytes})
            case[side] = measured
    (args.out / "manifest.json").write_text(json.dumps({"recorded": "peaks by torch.cuda", "cases": cases}, indent=1) + "\n")
    return 0 if all(r is not None for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
