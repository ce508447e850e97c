"""Time, then record, pairs of runs of the engine whose difference is known.

    python samples/serving/record.py --out samples/serving                          (one GPU)
    torchrun --nproc-per-node 2 samples/serving/record.py --out samples/serving --only tensor_parallel
    python samples/serving/record.py --out samples/serving/captured --captures      (one GPU: graphs with traces of their capture)
    python samples/serving/record.py --out /tmp/s --tiny --device cpu               (no GPU: shows that every pair runs)

Both sides are timed without a profiler, by turns; then some steps of each are recorded, as the engines record: from one moment on, without a schedule.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
os.environ.setdefault("TEARDOWN_CUPTI", "0")

import torch
import torch.distributed as dist
from engine import TINY, Engine, Model, Options, Request, Shape
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from traces import scrub, write

ROOT = Path(__file__).resolve().parents[1]
WARM, TIMED, ROUNDS, RECORDED = 6, 40, 9, 7

SMALL, WIDE = Shape(), Shape(layers=12, hidden=4096, heads=32, inner=14_336)


@dataclass(frozen=True)
class Pair:
    """requests: that decode at once, from `cached` tokens on. prompt: tokens of a prompt that comes in after every `every` steps, 0 for none."""

    name: str
    rule: str
    what: str
    fix: str
    slow: Options
    fixed: Options
    requests: int = 16
    cached: int = 1024
    shape: Shape = SMALL
    prompt: int = 0
    every: int = 12
    ranks: int = 1
    gains: bool = True


CAPTURED = Options(captured=(16,))
LATER = Options(read="later")
PAIRS = (
    Pair("eager_decode", "graph-coverage", "decode steps are launched kernel by kernel", "a graph of the batch", Options(), CAPTURED),
    Pair(
        "beyond_largest", "graph-coverage", "24 requests decode, and the largest captured size is 16: every step runs eagerly", "capture 24 as well",
        Options(captured=(1, 2, 4, 8, 16), marks="sglang"), Options(captured=(1, 2, 4, 8, 16, 24), marks="sglang"), 24,
    ),
    Pair("eager_at_4", "graph-coverage", "decode steps of 4 requests are launched kernel by kernel", "a graph of the batch", Options(), Options(captured=(4,)), 4, 512),
    Pair(
        "beyond_32", "graph-coverage", "40 requests decode, and the largest captured size is 32: every step runs eagerly", "capture 40 as well",
        Options(captured=(8, 16, 32), marks="sglang", read="later"), Options(captured=(8, 16, 32, 40), marks="sglang", read="later"), 40, 256,
    ),
    Pair(
        "piecewise_decode", "graph-coverage", "attention stays outside of the graphs of decode steps", "one graph of the whole step",
        Options(captured=(8,), piecewise=True), Options(captured=(8,)), 8,
    ),
    Pair(
        "padded_to_16", "padding-waste", "9 requests run in a graph of 16 rows", "capture 9", Options(captured=(16,), marks="sglang"), Options(captured=(9,), marks="sglang"), 9,
        gains=False,
    ),
    Pair(
        "padded_to_512", "padding-waste", "264 requests run in a graph of 512 rows", "capture 264", replace(LATER, captured=(512,)), replace(LATER, captured=(264,)),
        264, 128, WIDE,
    ),
    Pair(
        "padded_to_256", "padding-waste", "136 requests run in a graph of 256 rows", "capture 136", replace(LATER, captured=(256,)), replace(LATER, captured=(136,)),
        136, 128, WIDE,
    ),
    Pair(
        "sparse_sizes", "padding-waste", "320 requests run in a graph of 512 rows: powers of two are captured", "capture multiples of 64",
        replace(LATER, captured=(256, 512)), replace(LATER, captured=(256, 320, 384)), 320, 96, WIDE,
    ),
    Pair(
        "whole_texts", "step-gap", "between steps each request's text is made anew from all of its tokens", "append the new word",
        replace(CAPTURED, whole_texts=True), CAPTURED,
    ),
    Pair(
        "sampled_one_by_one", "step-gap", "the host reads the token of one request after the other", "read all at once", replace(CAPTURED, read="each"), CAPTURED,
    ),
    Pair(
        "read_before_next", "step-gap", "the host reads a step's tokens before it launches the next", "read them while the next step runs",
        replace(CAPTURED, marks="sglang"), replace(CAPTURED, marks="sglang", read="later"),
    ),
    Pair(
        "prompt_alone", "", "a prompt of 4,096 tokens is a step by itself, for which all others wait", "512 tokens of it beside each decode step",
        Options(captured=(16,)), Options(captured=(16,), chunk=512), prompt=4096,
    ),
    Pair(
        "tensor_parallel", "graph-coverage", "decode steps on two GPUs are launched kernel by kernel", "a graph of the batch, all-reduces in it", Options(), CAPTURED, ranks=2,
    ),
)  # fmt: skip


@dataclass
class Side:
    """A run under way."""

    pair: Pair
    options: Options
    engine: Engine
    synchronize: Callable[[], None]

    def begin(self) -> None:
        """All requests at their first step, with what they read in the cache."""
        self.engine.clear()
        words = self.engine.model.shape.words
        for n in range(self.pair.requests):
            self.engine.begun(Request([(7 * n + k) % words for k in range(self.pair.cached)], 4096))

    def run(self, steps: int) -> list[float]:
        """When each step ended, in ms from the beginning."""
        start, ended = time.perf_counter(), []
        words = self.engine.model.shape.words
        for at in range(steps):
            if self.pair.prompt and at % self.pair.every == 0:
                self.engine.add(Request([k % words for k in range(self.pair.prompt)], 1))
            self.engine.step()
            ended.append(1e3 * (time.perf_counter() - start))
        self.synchronize()
        ended[-1] = 1e3 * (time.perf_counter() - start)
        return ended


def measured(sides: dict[str, Side], rounds: int, timed: int) -> dict[str, Any]:
    """ms a step of each side, the median of rounds by turns; where prompts come in, the longest step of a round too."""
    mean: dict[str, list[float]] = {name: [] for name in sides}
    longest: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            side.begin()
            side.run(WARM)
            ended = side.run(timed)
            mean[name].append(ended[-1] / timed)
            longest[name].append(max(b - a for a, b in zip([0.0, *ended], ended, strict=False)))
    found = {f"{name}_ms": statistics.median(times) for name, times in mean.items()}
    found |= {f"{name}_spread": (max(times) - min(times)) / statistics.median(times) for name, times in mean.items()}
    if next(iter(sides.values())).pair.prompt:
        found |= {f"{name}_longest_ms": statistics.median(times) for name, times in longest.items()}
    return found


def recorded(side: Side, cuda: bool, stacks: bool = False, steps: int = RECORDED) -> dict[str, Any]:
    """The trace of some steps, as the engines record: started and stopped while requests run."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    side.begin()
    side.run(WARM)
    with profile(activities=activities):  # the first that is recorded starts what records
        side.run(2)
    side.begin()
    side.run(WARM)
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        with profile(activities=activities, record_shapes=True, with_stack=stacks) as prof:
            side.run(side.pair.every + 1 if side.pair.prompt else steps)
        prof.export_chrome_trace(str(path))
        return scrub(json.loads(path.read_text()), ROOT)


def made(pair: Pair, model: Model, device: torch.device) -> dict[str, Side]:
    synchronize = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    tokens = pair.cached + WARM + TIMED + 64
    return {
        name: Side(pair, options, Engine(model, options, max(pair.requests + 8, *options.captured, 0), max(tokens, pair.prompt + 64)), synchronize)
        for name, options in (("slow", pair.slow), ("fixed", pair.fixed))
    }


def tiny(pair: Pair) -> Pair:
    return replace(pair, requests=min(pair.requests, 4), cached=20, shape=TINY, prompt=min(pair.prompt, 40))


def record(pair: Pair, device: torch.device, out: Path, rank: int, is_tiny: bool) -> dict[str, Any]:
    model = Model(pair.shape, device, torch.bfloat16 if device.type == "cuda" else torch.float32, pair.ranks)
    sides = made(pair, model, device)
    with torch.inference_mode():
        times = measured(sides, 1 if is_tiny else ROUNDS, 4 if is_tiny else TIMED)
        files = {}
        for name, side in sides.items():
            trace = recorded(side, device.type == "cuda")
            path = f"{pair.name}.{name}{f'.rank{rank}' if pair.ranks > 1 else ''}.json.gz"
            size = write(trace, out / path)
            files[name] = path
            print(f"{path}: {len(trace['traceEvents'])} events, {size / 1e3:.0f} kB", flush=True)
    described = {"rule": pair.rule, "what": pair.what, "fix": pair.fix, "gains": pair.gains, "requests": pair.requests, "cached": pair.cached}
    return {**described, "shape": asdict(pair.shape), **{key: round(value, 4) for key, value in times.items()}, "kineto": files}


CAPTURES = {
    "full": (Options(captured=(8, 16)), 12),
    "piecewise": (Options(captured=(8, 16), piecewise=True, marks="sglang"), 12),
    "eager": (Options(), 16),
}
"""Graphs whose captures are traced, with the requests that run in them; and the same work without graphs, which says what each kernel is of."""


def record_captures(device: torch.device, out: Path, is_tiny: bool) -> None:
    """NAME/trace.json.gz with NAME/capture_traces beside it."""
    shape = TINY if is_tiny else Shape(layers=4)
    model = Model(shape, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    for name, (options, requests) in CAPTURES.items():
        pair = Pair(name, "", "", "", options, options, requests, 64 if is_tiny else 512, shape)
        folder = out / name
        with torch.inference_mode():
            side = made(replace(pair, fixed=replace(options, capture_traces=str(folder / "capture_traces"))), model, device)["fixed"]
            trace = recorded(side, device.type == "cuda", stacks=name == "eager", steps=3)
        folder.mkdir(parents=True, exist_ok=True)
        print(name, write(trace, folder / "trace.json.gz"), flush=True)
        for path in folder.glob("capture_traces/*.json.gz"):
            print(path, write(scrub(json.loads(gzip.decompress(path.read_bytes())), ROOT), path), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of pairs, separated by commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--captures", action="store_true")
    args = parser.parse_args()
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device(args.device, rank) if args.device == "cuda" else torch.device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if args.captures:
        record_captures(device, args.out, args.tiny)
        return
    chosen = [pair for pair in PAIRS if pair.ranks == ranks and (not args.only or pair.name in args.only.split(","))]
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "manifest.json"
    cases = json.loads(path.read_text())["cases"] if path.exists() else {}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    for pair in chosen:
        try:
            cases[pair.name] = record(tiny(pair) if args.tiny else pair, device, args.out, rank, args.tiny)
        except Exception as error:  # one that breaks costs the others nothing
            print(f"{pair.name} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        if rank == 0:
            path.write_text(json.dumps({"recorded": f"{name}, torch {torch.__version__}; medians of {ROUNDS} runs of {TIMED} steps", "cases": cases}, indent=1) + "\n")
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
