"""Record jobs of two and four ranks whose fault is known, and the same jobs without it.

    torchrun --nproc-per-node 4 samples/record_jobs.py --out samples/jobs --family ddp
    torchrun --nproc-per-node 2 samples/record_jobs.py --out /tmp/j --family ddp --tiny      (no GPU: shows that it runs)

Each job is timed without a profiler before any is recorded. One family a process: one that breaks costs the others nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, IterableDataset
from traces import scrub, write

ROOT = Path(__file__).resolve().parent
SCHEDULE = {"wait": 1, "warmup": 2, "active": 3}
CUDA = torch.cuda.is_available()
TINY = "--tiny" in sys.argv
DTYPE = torch.bfloat16 if CUDA else torch.float32
WIDTH, DEPTH, BATCH = (64, 4, 32) if TINY else (4096, 8, 4096)
STEPS, REPEATS = (2, 1) if TINY else (15, 7)
HOST_MS = 2 if TINY else 12

Step = Callable[[], None]


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def busy(ms: float) -> None:
    """Work of the host in Python, which holds its thread as real code does."""
    end = time.perf_counter() + ms / 1e3
    while time.perf_counter() < end:
        sum(range(200))


def tower(width: int = 0, depth: int = 0) -> nn.Sequential:
    width, depth = width or WIDTH, depth or DEPTH
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth))).to(device(), DTYPE)


def batch(rows: int = 0, width: int = 0) -> Tensor:
    return torch.randn(rows or BATCH, width or WIDTH, device=device(), dtype=DTYPE)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    # Fused SGD knows no sharded parameters.
    sharded = any(hasattr(parameter, "device_mesh") for parameter in model.parameters())
    return torch.optim.SGD(model.parameters(), lr=1e-4, fused=CUDA and not sharded)


@dataclass(frozen=True)
class Fault:
    """What one rank does that the others don't."""

    rank: int = -1
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    host_ms: float = 0.0
    input_ms: float = 0.0
    extra_products: int = 0
    rows: float = 1.0
    copied_mb: int = 0
    jitter_ms: float = 0.0

    def here(self) -> Fault:
        everywhere, nowhere = self.rank == -2, self.rank == -1
        return self if everywhere or (not nowhere and self.rank % dist.get_world_size() == dist.get_rank()) else Fault()


class Pausing(nn.Module):
    """A block whose host part takes longer, forward or backward, and which may compute more."""

    def __init__(self, block: nn.Module, fault: Fault) -> None:
        super().__init__()
        self.block, self.fault = block, fault

    def forward(self, x: Tensor) -> Tensor:
        fault = self.fault
        if fault.forward_ms:
            busy(fault.forward_ms)
        with torch.no_grad():
            for _ in range(fault.extra_products):
                torch.mm(x.detach(), self.block[0].weight.detach())
        x = self.block(x)
        if fault.backward_ms and x.requires_grad:
            x.register_hook(lambda _: busy(fault.backward_ms))
        return x


class Samples(IterableDataset):
    """Rows that take their time to be read."""

    def __init__(self, rows: int, ms: float) -> None:
        self.rows, self.ms = rows, ms

    def __iter__(self) -> Iterator[Tensor]:
        made = torch.randn(self.rows, WIDTH, dtype=DTYPE)
        made = made.pin_memory() if CUDA else made
        while True:
            if self.ms:
                time.sleep(self.ms / 1e3)
            yield made


def training(model: nn.Module, fault: Fault, *, loaded: bool = False, accumulate: int = 1, sync_every: bool = False) -> Step:
    """A step of training with the fault of this rank in it."""
    fault = fault.here()
    optimizer = optimizer_of(model)
    rows = int(BATCH * fault.rows)
    fixed = batch(rows)
    loader = iter(DataLoader(Samples(rows, fault.input_ms), batch_size=None)) if loaded else None
    pageable = torch.empty(fault.copied_mb << 20, dtype=torch.uint8) if fault.copied_mb else None
    noise = random.Random(dist.get_rank())

    def step() -> None:
        x = next(loader).to(device(), non_blocking=True) if loader is not None else fixed
        if pageable is not None:
            pageable.to(device())
        if fault.host_ms:
            busy(fault.host_ms)
        if fault.jitter_ms and noise.random() < 1 / dist.get_world_size():
            busy(fault.jitter_ms * dist.get_world_size())
        optimizer.zero_grad()
        for part in range(accumulate):
            last = part == accumulate - 1
            with nullcontext() if last or sync_every or accumulate == 1 else model.no_sync():
                model(x).float().square().mean().backward()
        optimizer.step()

    return step


def ddp(fault: Fault, **how: Any) -> Step:
    model = tower()
    model[DEPTH // 2] = Pausing(model[DEPTH // 2], fault.here())
    return training(DistributedDataParallel(model, device_ids=[device()] if CUDA else None, gradient_as_bucket_view=True), fault, **how)


def fsdp(fault: Fault, **how: Any) -> Step:
    from torch.distributed.fsdp import fully_shard

    model = tower()
    model[DEPTH // 2] = Pausing(model[DEPTH // 2], fault.here())
    for block in model:
        fully_shard(block)
    fully_shard(model)
    return training(model, fault, **how)


class Reduced(torch.autograd.Function):
    """The sum over ranks on the way forward, as after a row-parallel product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Copied(torch.autograd.Function):
    """Its counterpart: the sum over ranks on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class TensorParallel(nn.Module):
    """A block whose inner width is divided among the ranks."""

    def __init__(self, width: int, share: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, share), nn.Linear(share, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + Reduced.apply(self.down(torch.relu(self.up(Copied.apply(x)))))


def tensor_parallel(fault: Fault) -> Step:
    share = 4 * WIDTH // dist.get_world_size()
    blocks = [TensorParallel(WIDTH, share).to(device(), DTYPE) for _ in range(DEPTH // 2)]
    blocks = [nn.Sequential(b) for b in blocks]
    model = nn.Sequential(*blocks)
    here = fault.here()
    if here != Fault():
        model[1] = Pausing(nn.Sequential(model[1][0]), here) if not here.extra_products else nn.Sequential(Heavier(model[1][0], here.extra_products))
    return training(model, fault)


class Heavier(nn.Module):
    def __init__(self, block: nn.Module, products: int) -> None:
        super().__init__()
        self.block, self.products = block, products

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for _ in range(self.products):
                torch.mm(x.detach(), self.block.up.weight.detach().t())
        return self.block(x)


def pipeline(micro: int, heavier: int = -1) -> Step:
    """GPipe by hand: forward of all micro-batches, then backward of all; `heavier` is a stage with twice the layers."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = tower(depth=DEPTH // 2 * (2 if rank == heavier else 1))
    optimizer = optimizer_of(model)
    rows = 4 * BATCH // micro
    x = batch(rows)

    def moved(tensor: Tensor, peer: int, send: bool) -> Tensor:
        op = dist.P2POp(dist.isend if send else dist.irecv, tensor, peer)
        for work in dist.batch_isend_irecv([op]):
            work.wait()
        return tensor

    def step() -> None:
        optimizer.zero_grad()
        kept = []
        for _ in range(micro):
            made = x if rank == 0 else moved(torch.empty_like(x), rank - 1, False)
            made = made.detach().requires_grad_(rank > 0)
            out = model(made)
            kept.append((made, out))
            if rank < world - 1:
                moved(out.detach(), rank + 1, True)
        for made, out in kept:
            if rank == world - 1:
                out.float().square().mean().backward()
            else:
                out.backward(moved(torch.empty_like(out), rank + 1, False))
            if rank > 0:
                moved(made.grad, rank - 1, True)
        optimizer.step()

    return step


def experts(hot: float) -> Step:
    """A mixture of experts, one a rank: tokens travel to their expert and back; rank 1's draws `hot` times its share."""
    rank, world = dist.get_rank(), dist.get_world_size()
    shares = [hot if r == 1 else 1.0 for r in range(world)]
    total = BATCH * 2
    sent = [int(total * s / sum(shares)) // 8 * 8 for s in shares]
    got = [sent[rank]] * world
    layers = [tower(depth=2) for _ in range(DEPTH // 4)]
    dense = [tower(depth=1) for _ in layers]
    optimizer = optimizer_of(nn.ModuleList([*layers, *dense]))
    x = batch(sum(sent))

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor, out: list[int], back: list[int]) -> Tensor:
            ctx.sizes = back, out
            made = t.new_empty(sum(back), t.shape[1])
            dist.all_to_all_single(made, t.contiguous(), back, out)
            return made

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
            return Exchange.apply(grad, *ctx.sizes), None, None

    def step() -> None:
        optimizer.zero_grad()
        y = x
        for expert, shared in zip(layers, dense, strict=True):
            y = shared(y)
            y = y + Exchange.apply(expert(Exchange.apply(y, sent, got)), got, sent)
        y.float().square().mean().backward()
        optimizer.step()

    return step


def measured_metrics(every: bool) -> Step:
    """Training that reads a metric averaged over ranks, after every block or once."""
    model = tower()
    wrapped = DistributedDataParallel(model, device_ids=[device()] if CUDA else None, gradient_as_bucket_view=True)
    optimizer, x = optimizer_of(model), batch()

    def step() -> None:
        optimizer.zero_grad()
        loss = wrapped(x).float().square().mean()
        loss.backward()
        optimizer.step()
        for p in model.parameters() if every else ():
            norm = p.grad.float().norm()
            dist.all_reduce(norm)
            norm.item()

    return step


def small_reduces(merged: bool) -> Step:
    """Many small parameters, each averaged on its own after the backward pass, or all at once."""
    model = tower(width=WIDTH // 8, depth=DEPTH * 8)
    optimizer, x = optimizer_of(model), batch(width=WIDTH // 8)

    def step() -> None:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        grads = [p.grad for p in model.parameters()]
        if merged:
            flat = torch.cat([g.view(-1) for g in grads])
            dist.all_reduce(flat)
            for g, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
                g.copy_(part.view_as(g))
        else:
            for g in grads:
                dist.all_reduce(g)
        optimizer.step()

    return step


@dataclass(frozen=True)
class Job:
    """A step, what is known of it, and which job is the same without the fault."""

    build: Callable[[], Step]
    note: str
    truth: dict[str, Any] = field(default_factory=dict)
    fixed: str = ""


def straggler(rank: int, why: str) -> dict[str, Any]:
    return {"cause": "straggler", "rule": ["straggler", "load-imbalance"], "culprit": rank, "why": why}


CONTROL = {"control": True}
FAMILIES: dict[str, dict[str, Job]] = {
    "ddp": {
        "ddp_even": Job(lambda: ddp(Fault()), "every rank does the same", CONTROL),
        "ddp_forward_host": Job(lambda: ddp(Fault(1, forward_ms=HOST_MS)), "rank 1 computes on the host in its forward pass", straggler(1, "host"), "ddp_even"),
        "ddp_backward_host": Job(lambda: ddp(Fault(2, backward_ms=HOST_MS)), "rank 2 computes on the host in a hook of its backward pass", straggler(2, "host"), "ddp_even"),
        "ddp_more_compute": Job(lambda: ddp(Fault(3, extra_products=24)), "rank 3 computes more products in its forward pass", straggler(3, "compute"), "ddp_even"),
        "ddp_longer_batch": Job(lambda: ddp(Fault(0, rows=2.0)), "rank 0 has twice the rows", straggler(0, "imbalance"), "ddp_even"),
        "ddp_jitter": Job(lambda: ddp(Fault(-2, jitter_ms=HOST_MS / 2)), "now this rank is late, now that one", {"jitter": True}, "ddp_even"),
    },
    "input": {
        "input_even": Job(lambda: ddp(Fault(), loaded=True), "every rank reads as fast", CONTROL),
        "input_slow_read": Job(lambda: ddp(Fault(2, input_ms=HOST_MS * 1.5), loaded=True), "rank 2 reads its batches slowly", straggler(2, "data-loading"), "input_even"),
        "input_copies": Job(lambda: ddp(Fault(1, copied_mb=1 if TINY else 192), loaded=True), "rank 1 copies 192 MB more from pageable memory", straggler(1, "copy"), "input_even"),
        "accumulate_synced": Job(lambda: ddp(Fault(), accumulate=4, sync_every=True), "four micro-batches, averaged after each", {"cause": "redundant-communication", "rule": ["redundant-communication"]}, "accumulate_no_sync"),
        "accumulate_no_sync": Job(lambda: ddp(Fault(), accumulate=4), "four micro-batches, averaged once", CONTROL),
    },
    "fsdp": {
        "fsdp_even": Job(lambda: fsdp(Fault()), "every rank does the same", CONTROL),
        "fsdp_forward_host": Job(lambda: fsdp(Fault(0, forward_ms=HOST_MS)), "rank 0 computes on the host in its forward pass", straggler(0, "host"), "fsdp_even"),
        "fsdp_backward_host": Job(lambda: fsdp(Fault(1, backward_ms=HOST_MS)), "rank 1 computes on the host in a hook of its backward pass", straggler(1, "host"), "fsdp_even"),
        "fsdp_host": Job(lambda: fsdp(Fault(0, host_ms=HOST_MS)), "rank 0 computes on the host before each step", straggler(0, "host"), "fsdp_even"),
        "fsdp_longer_batch": Job(lambda: fsdp(Fault(0, rows=1.75)), "rank 0 has 1.75 times the rows", straggler(0, "imbalance"), "fsdp_even"),
        "fsdp_input_even": Job(lambda: fsdp(Fault(), loaded=True), "every rank reads as fast", CONTROL),
        "fsdp_slow_read": Job(lambda: fsdp(Fault(1, input_ms=HOST_MS * 1.5), loaded=True), "rank 1 reads its batches slowly", straggler(1, "data-loading"), "fsdp_input_even"),
    },
    "tensor": {
        "tensor_even": Job(lambda: tensor_parallel(Fault()), "every rank does the same", {}),
        "tensor_more_compute": Job(lambda: tensor_parallel(Fault(1, extra_products=12)), "rank 1 computes more products", straggler(1, "compute"), "tensor_even"),
        "tensor_host": Job(lambda: tensor_parallel(Fault(0, host_ms=HOST_MS)), "rank 0 computes on the host before each step", straggler(0, "host"), "tensor_even"),
    },
    "pipeline": {
        "pipeline_2": Job(lambda: pipeline(2), "two micro-batches", {"cause": "pipeline-bubble", "rule": ["pipeline-bubble"]}, "pipeline_8"),
        "pipeline_8": Job(lambda: pipeline(8), "eight micro-batches", {"bubble": True}),
        "pipeline_uneven": Job(lambda: pipeline(8, heavier=1), "stage 1 has twice the layers", straggler(1, "imbalance"), "pipeline_8"),
    },
    "experts": {
        "experts_even": Job(lambda: experts(1.0), "every expert gets as many tokens", {}),
        "experts_hot": Job(lambda: experts(4.0), "rank 1's expert gets four times the tokens of another's", straggler(1, "imbalance"), "experts_even"),
    },
    "metrics": {
        "metrics_once": Job(lambda: measured_metrics(False), "no metric is read", CONTROL),
        "metrics_each": Job(lambda: measured_metrics(True), "each gradient's norm is averaged and read", {"cause": "rank-sync", "rule": ["rank-sync"]}, "metrics_once"),
        "reduces_each": Job(lambda: small_reduces(False), "an all-reduce for each small parameter", {"cause": "small-messages", "rule": ["small-messages", "exposed-communication", "missed-overlap"]}, "reduces_merged"),
        "reduces_merged": Job(lambda: small_reduces(True), "the same gradients in one all-reduce", {}),
    },
}  # fmt: skip
LAYOUTS = {
    "ddp": "data parallel", "input": "data parallel", "metrics": "data parallel", "fsdp": "sharded data parallel", "tensor": "tensor parallel",
    "pipeline": "pipeline", "experts": "expert parallel",
}  # fmt: skip


def step_ms(step: Step) -> float:
    """Median unprofiled step time of the job: all ranks start together and the last one ends it."""

    def timed(count: int) -> float:
        synchronize()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            step()
        synchronize()
        dist.barrier()
        return 1e3 * (time.perf_counter() - start) / count

    timed(2 if TINY else 8)
    return statistics.median(timed(STEPS) for _ in range(REPEATS))


def trace_of(step: Step) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        with profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if CUDA else [])],
            schedule=schedule(**SCHEDULE, repeat=1),
            on_trace_ready=lambda prof: prof.export_chrome_trace(str(path)),
            record_shapes=True,
        ) as prof:
            for _ in range(sum(SCHEDULE.values())):
                step()
                prof.step()
        synchronize()
        return json.loads(path.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--only", nargs="+", help="these jobs of the family; default: all")
    parser.add_argument("--tiny", action="store_true", help="small and without a GPU")
    arguments = parser.parse_args()
    if CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if CUDA else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    jobs = {n: j for n, j in FAMILIES[arguments.family].items() if not arguments.only or n in arguments.only}
    suffix = "" if world == 4 else f"_{world}"
    steps: dict[str, Step] = {}
    times: dict[str, float] = {}
    for name, job in jobs.items():
        steps[name] = job.build()
        times[name] = step_ms(steps[name])
        if rank == 0:
            print(name, f"{times[name]:.2f} ms", flush=True)
    cases = {}
    for name, job in jobs.items():
        folder = arguments.out / (name + suffix)
        trace = scrub(trace_of(steps[name]), ROOT)
        trace["traceName"] = f"rank{rank}.json"
        write(trace, folder / f"rank{rank}.trace.zst")
        dist.barrier()
        fixed = {"fixed": job.fixed + suffix} if job.fixed else {}
        culprit = {"culprit": job.truth["culprit"] % world} if "culprit" in job.truth else {}
        cases[name + suffix] = {
            **job.truth,
            **culprit,
            **fixed,
            "note": job.note,
            "layout": LAYOUTS[arguments.family],
            "step_ms": times[name],
            "dir": name + suffix,
        }
    if rank == 0:
        path = arguments.out / "manifest.json"
        manifest = json.loads(path.read_text()) if path.exists() else {"cases": {}}
        manifest["cases"] |= cases
        path.write_text(json.dumps(manifest, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
