"""Record the samples that need two GPUs: rank 0 of a data-parallel training, slow and fixed.

    torchrun --nproc-per-node 2 samples/record_ranks.py --out samples

As in record.py, every step is timed before any is profiled. Each rank runs the same number of steps, or none would end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from record import ROOT, SCHEDULE
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from traces import gpu_busy_us, scrub, write

RULE = "missed-overlap"
WARMUP_STEPS, STEPS, REPEATS = 10, 20, 7


class Tower(nn.Module):
    """Blocks whose products are large enough to hide the sum of their own gradients."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def steps(width: int, depth: int, batch: int) -> dict[str, Callable[[], None]]:
    """Gradients averaged one by one after the backward pass, and in buckets beside it."""
    device = torch.device("cuda", dist.get_rank())
    x = torch.randn(batch, width, device=device, dtype=torch.bfloat16)

    def training(model: nn.Module, average: Callable[[], None]) -> Callable[[], None]:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)

        def step() -> None:
            optimizer.zero_grad()
            model(x).float().square().mean().backward()
            average()
            optimizer.step()

        return step

    bare = Tower(width, depth).to(device, torch.bfloat16)

    def after_backward() -> None:
        for parameter in bare.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    wrapped = DistributedDataParallel(Tower(width, depth).to(device, torch.bfloat16), gradient_as_bucket_view=True)
    return {"slow": training(bare, after_backward), "fixed": training(wrapped, lambda: None)}


CASES = {
    "allreduce_after_backward": ({"width": 8192, "depth": 6, "batch": 1024}, "Gradients are averaged one by one after backward()."),
    "narrow_allreduce": ({"width": 2048, "depth": 48, "batch": 4096}, "The same, with many small parameters."),
    "large_batch_allreduce": ({"width": 8192, "depth": 6, "batch": 4096}, "The same, with products that take most of the step."),
}
FIX = "DistributedDataParallel, which averages buckets beside the backward pass"


def step_time_ms(step: Callable[[], None]) -> float:
    def timed(count: int) -> float:
        torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start) / count

    timed(WARMUP_STEPS)
    return statistics.median(timed(STEPS) for _ in range(REPEATS))


def trace_of(step: Callable[[], None]) -> dict[str, object]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
            schedule=schedule(**SCHEDULE, repeat=1),
            on_trace_ready=lambda prof: prof.export_chrome_trace(str(path)),
            record_shapes=True,
        ) as prof:
            for _ in range(sum(SCHEDULE.values())):
                step()
                prof.step()
        return json.loads(path.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    made = {name: steps(**sizes) for name, (sizes, _) in CASES.items()}
    times = {name: {side: step_time_ms(step) for side, step in sides.items()} for name, sides in made.items()}
    cases = {}
    for n, (name, sides) in enumerate(made.items()):
        files = {side: f"{RULE}/{side}.json.gz" if n == 0 else f"{RULE}/{name}.{side}.trace.zst" for side in sides}
        gpu_ms = {}
        for side, step in sides.items():
            trace = trace_of(step)
            if dist.get_rank() == 0:
                trace = scrub(trace, ROOT)
                trace["traceName"] = Path(files[side]).name.removesuffix(".gz")
                gpu_ms[side] = gpu_busy_us(trace) / 1e3 / SCHEDULE["active"]
                write(trace, out / files[side])
        cases[name] = {
            "rule": RULE, "top": [RULE], "what": CASES[name][1], "fix": FIX, "slow_ms": times[name]["slow"],
            "fixed_ms": times[name]["fixed"], "fixed_quiet": True, "saving": True, "step": True, "kineto": files, "gpu_ms": gpu_ms,
        }  # fmt: skip
    if dist.get_rank() == 0:
        path = out / "manifest.json"
        manifest = json.loads(path.read_text()) if path.exists() else {"cases": {}}
        manifest["cases"] |= cases
        path.write_text(json.dumps(manifest, indent=1) + "\n")
        print(json.dumps(times))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
