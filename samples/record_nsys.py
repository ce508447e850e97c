"""Record sample programs with Nsight Systems.

    python samples/record_nsys.py --out /tmp/n --only encoder_infer,focal_loss      (needs nsys; --nsys PATH if not on the PATH)
    python samples/record_nsys.py --out /tmp/n --only prefill_graphs --graphs graph    (graphs as one event each)
    python samples/record_nsys.py --step encoder_infer slow                         (what nsys runs)

Each side becomes `<name>.<side>.sqlite`; give it through `advisor redact` before it leaves the machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

STEPS, WARMUP = 5, 10
OPTIONS = ["-t", "cuda,nvtx", "--sample=none", "--cpuctxsw=none", "-c", "cudaProfilerApi", "--capture-range-end=stop"]


def run_steps(name: str, side: str) -> None:
    """Run one side of a program; the profiler captures `STEPS` steps, each a range."""
    import torch

    from workloads import REGISTRY, Setup

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    step = REGISTRY[name].sides()[side](Setup(torch.device("cuda")))
    for _ in range(WARMUP):
        step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    for i in range(STEPS):
        with torch.cuda.nvtx.range(f"step {i}"):
            step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def record(name: str, side: str, out: Path, nsys: str, graphs: str) -> bool:
    report = out / (f"{name}.{side}" if graphs == "node" else f"{name}.{side}.{graphs}")
    program = [sys.executable, str(Path(__file__)), "--step", name, side]
    commands = (
        [nsys, "profile", *OPTIONS, f"--cuda-graph-trace={graphs}", "--force-overwrite=true", "-o", str(report), *program],
        [nsys, "export", "--type", "sqlite", "--force-overwrite=true", "-o", f"{report}.sqlite", f"{report}.nsys-rep"],
    )
    return all(subprocess.run(command, check=False).returncode == 0 for command in commands)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", nargs=2, metavar=("NAME", "SIDE"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="encoder_infer,cpu_tolist_in_loop,serial_pinned,focal_loss")
    parser.add_argument("--nsys", default="nsys")
    parser.add_argument("--graphs", choices=("node", "graph"), default="node", help="kernels of CUDA graphs one by one, or a graph as a whole")
    args = parser.parse_args()
    if args.step:
        run_steps(*args.step)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    from workloads import REGISTRY

    sides = [(name, side) for name in args.only.split(",") for side in REGISTRY[name].sides()]
    done = [record(name, side, args.out, args.nsys, args.graphs) for name, side in sides]
    sys.exit(0 if all(done) else 1)


if __name__ == "__main__":
    main()
