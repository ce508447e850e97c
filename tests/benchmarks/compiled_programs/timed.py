"""One program, eager and compiled, forward alone and in training: compiles, says so, and measures once it is told that its turn has come.

python timed.py NAME OUT MODE [MODE]        "go" on standard input starts the timing; results are a line of JSON, traces of the eager steps files in OUT
"""

import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
os.environ.setdefault("TEARDOWN_CUPTI", "0")

import torch
from models import DEVICE, PROGRAMS
from torch.profiler import ProfilerActivity, profile, schedule

ROUNDS, ROUND_S = 12, 0.06
SIDES = ("eager", "compiled", "eager again")


def forward(model, data):
    def step():
        with torch.no_grad():
            return model(*data)

    return step


def training(model, data):
    update = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        model(*data).float().square().mean().backward()
        update.step()
        update.zero_grad()

    return step


WRAPS = {"forward": forward, "training": training}


def timed(step, count):
    """µs a step, with one synchronize() at the end; and of the host alone, until the last call returns."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    issued = time.perf_counter()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - start) / count, 1e6 * (issued - start) / count


def issued(step):
    """µs until a step that meets an idle device has been issued."""
    return min(timed(step, 1)[1] for _ in range(3))


def recorded(step, path):
    """Kernels a step, of three consecutive ones, as a user would record them."""
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=2, active=3, repeat=1),
        on_trace_ready=lambda made: made.export_chrome_trace(str(path)),
        record_shapes=True,
    ) as profiler:
        for _ in range(6):
            step()
            profiler.step()
    events = json.loads(path.read_text())["traceEvents"]
    kernels = [event["name"] for event in events if event.get("cat") == "kernel"]
    return len(kernels) / 3, sum("triton" in name for name in kernels) / 3, sum(event["dur"] for event in events if event.get("cat") == "kernel") / 3


def measured(steps):
    counts = {side: max(3, min(400, round(1e6 * ROUND_S / timed(step, 3)[0]))) for side, step in steps.items()}
    us = {side: [] for side in steps}
    alone = {side: [] for side in steps}
    order, chance = list(steps), random.Random(0)
    for _ in range(ROUNDS):
        for side in order:
            timed(steps[side], 1)
            us[side].append(timed(steps[side], counts[side])[0])
            alone[side].append(issued(steps[side]))
        chance.shuffle(order)
    return {side: (statistics.median(us[side]), statistics.median(alone[side])) for side in steps}


def main():
    name, out, modes = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    made = {}
    for mode in modes:
        model, data = PROGRAMS[name]()
        model = model.to(DEVICE).train(mode == "training")
        if mode == "training" and not list(model.parameters()):
            continue
        try:
            steps = {"eager": WRAPS[mode](model, data)}
            steps["compiled"] = WRAPS[mode](torch.compile(model), data)
            for step in steps.values():
                timed(step, 5)
            made[mode] = {**steps, "eager again": steps["eager"]}, sum(1 for _ in model.parameters())
        except Exception as error:
            print(json.dumps({"name": name, "mode": mode, "error": f"{type(error).__name__}: {error}"[:300]}), flush=True)
    print("ready", flush=True)
    sys.stdin.readline()
    for mode, (steps, parameters) in made.items():
        for step in steps.values():
            timed(step, 10)
        row = {"name": name, "mode": mode, "parameters": parameters, "us": measured(steps)}
        made[mode] = steps, row
    # Every step is timed before any is profiled, since CUPTI, once loaded, slows launches.
    for mode, (steps, row) in made.items():
        for side in ("eager", "compiled"):
            kernels, generated, gpu_us = recorded(steps[side], out / f"{name}.{mode}.{side}.json")
            row[f"{side} kernels"], row[f"{side} generated"], row[f"{side} gpu_us"] = kernels, generated, gpu_us
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
