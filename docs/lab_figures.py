"""Measures on a GPU what docs/lab.md says; `lab_page.py` writes that page from it.

python docs/lab_figures.py measure bench|attention|functions|verify|commands|recording out/    # one part a process
python docs/lab_figures.py sample rmsnorm_training slow                               # a sample's steps, as a program
python docs/lab_page.py out/ > docs/lab.md                                            # anywhere
"""

from __future__ import annotations

import io
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import advisor

ROOT = Path(__file__).resolve().parents[1]
PAIRS = ("cpu_tolist_in_loop", "own_momentum", "permuted_backbone", "encoder_dropout_training", "adapter_tuning")
"""Samples with gains from a sixth to six tenths."""

COMMANDS = {
    "permuted_backbone": "memory-layout", "rmsnorm_training": "unfused-norm", "language_model_fp32": "precision",
    "encoder_dropout_training": "unfused-attention", "fp16_scaler": "amp-scaler-sync",
}  # fmt: skip
"""Samples whose steps `advisor verify` finds in a program that knows nothing of it, each with the rule that speaks of it."""


def kernels() -> dict[str, Callable[[], object]]:
    """Ten kernels from 3 µs to 30 ms."""
    import torch

    def product(n: int, dtype: torch.dtype = torch.bfloat16) -> Callable[[], object]:
        a, b = (torch.randn(n, n, device="cuda", dtype=dtype) for _ in range(2))
        return lambda: a @ b

    def plus(n: int) -> Callable[[], object]:
        x = torch.randn(n, device="cuda")
        return lambda: x + 1.0

    wide = torch.randn(1 << 30, device="cuda")
    return {
        "add 1 Ki": plus(1 << 10),
        "mm 512": product(512),
        "add 4 Mi": plus(1 << 22),
        "mm 2048": product(2048),
        "add 32 Mi": plus(1 << 25),
        "mm 4096": product(4096),
        "add 256 Mi": plus(1 << 28),
        "gelu 1 Gi": lambda: torch.nn.functional.gelu(wide),
        "mm 16384": product(16384),
        "mm FP32 9216": product(9216, torch.float32),
    }


def recorded_us(fn: Callable[[], object], calls: int = 20) -> float:
    """Mean time of the kernels of a call, as the profiler records them."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            fn()
        torch.cuda.synchronize()
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    times = [e.duration_ns() for e in events if "cuda" in str(e.device_type()).lower() and "Sync" not in e.name()]
    return sum(times) / calls / 1e3


def measure_bench() -> Any:
    import torch
    import triton
    from torch.utils.benchmark import Timer

    rows: list[dict[str, Any]] = []
    functions = kernels()
    for name, fn in functions.items():
        cold, warm = advisor.bench(fn, name=name, flush_l2=True), advisor.bench(fn, name=name)
        theirs = Timer("fn()", globals={"fn": fn}).blocked_autorange(min_run_time=0.3).median * 1e6
        rows.append({
            "name": name, "cold": cold.to_dict(), "warm": warm.to_dict(),
            "do_bench_us": 1e3 * triton.testing.do_bench(fn, warmup=50, rep=200, return_mode="median"), "timer_us": theirs,
        })  # fmt: skip
    # The profiler last: once loaded it slows launches for the rest of the process.
    for row, fn in zip(rows, functions.values(), strict=True):
        row["recorded_us"] = recorded_us(fn)
    return {"rows": rows, "device": torch.cuda.get_device_name(), "torch": torch.__version__}


def measure_attention() -> Any:
    from advisor.lab.attention.session import attention_session, session_charts

    made = {}
    for dtype, lengths in (("bfloat16", (128, 256, 512, 1024, 2048, 4096)), ("float32", (1024,))):
        session = attention_session(lengths, dtype=dtype, d_model=1024, num_heads=16)
        made[dtype] = {"text": str(session), "json": json.loads(session.to_json()), "charts": dict(session_charts(session))}
    return made


def measure_functions() -> Any:
    """What each of the founding functions prints or gives."""
    import torch

    said: dict[str, str] = {}

    def show(call: str, work: Callable[[], object]) -> None:
        with redirect_stdout(io.StringIO()) as printed:
            result = work()
        value = "" if result is None or isinstance(result, torch.Tensor) else str(result)
        said[call] = "\n".join(filter(None, [printed.getvalue().rstrip(), value]))
        print(f"{call}\n{said[call]}\n", flush=True)

    a = torch.randn(1024, 1024, device="cuda")
    profile = advisor.profile_attention_components(2048, 1024, 16)
    show("profile_attention_components(2048, 1024, 16)", lambda: profile)
    show("identify_bottleneck(profile_results)", lambda: advisor.identify_bottleneck(profile))
    show("benchmark_function(torch.mm, (a, a), warmup=10, iterations=100)", lambda: advisor.benchmark_function(torch.mm, (a, a), 10, 100))
    shapes = {"A": (1024, 1024), "B": (1024, 1024)}
    show("estimate_arithmetic_intensity('matmul', shapes)", lambda: advisor.estimate_arithmetic_intensity("matmul", shapes))
    show("measure_memory_usage(torch.mm, (a, a))", lambda: advisor.measure_memory_usage(torch.mm, (a, a)))
    q, k, v = (torch.randn(8, 16, 2048, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    for level in range(4):
        show(f"optimize_attention(Q, K, V, {level})", lambda level=level: advisor.optimize_attention(q, k, v, level))
    show("profile_memory()", advisor.profile_memory)
    net = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).eval()
    folder = os.getcwd()
    os.chdir(os.environ.get("TMPDIR", "/tmp"))  # where the trace may lie
    show("full_profiling_session(model, dataloader)", lambda: advisor.full_profiling_session(net, [torch.randn(512, 1024)] * 5) and None)
    os.chdir(folder)
    try:
        import jax
        import jax.numpy as jnp

        x = jnp.ones((1024, 1024))
        jitted = jax.jit(lambda x: {"out": x @ x})
        show("benchmark_fn(jax.jit(fn), (x,))", lambda: f"{advisor.benchmark_fn(jitted, (x,))} on {jax.devices()[0].platform}")
    except Exception as error:  # jax may not be there, or find no memory left
        said["benchmark_fn"] = f"not measured: {error}"
    return said


def measure_verify() -> Any:
    import torch

    sys.path.insert(0, str(ROOT / "samples"))
    from workloads import REGISTRY, Setup  # type: ignore[import-not-found]

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    setup, rows = Setup(torch.device("cuda")), []
    manifest = json.loads((ROOT / "samples" / "manifest.json").read_text())["cases"]
    for name in PAIRS:
        workload, case, begun = REGISTRY[name], manifest[name], time.perf_counter()
        torch.manual_seed(0)
        slow, again, fixed = workload.make_slow(setup), workload.make_slow(setup), workload.make_fixed(setup)
        pair, same = advisor.verify(slow, fixed), advisor.verify(slow, again)
        rows.append({
            "name": name, "manifest": 1 - case["fixed_ms"] / case["slow_ms"], "pair": pair.to_dict(), "same": same.to_dict(),
            "texts": [str(pair), str(same)], "took_s": time.perf_counter() - begun,
        })  # fmt: skip
        print(name, rows[-1]["manifest"], rows[-1]["texts"], flush=True)
    return rows


def sample(name: str, side: str) -> None:
    """The steps of one side of a sample, until whoever watches has seen enough."""
    import torch

    sys.path.insert(0, str(ROOT / "samples"))
    from workloads import REGISTRY, Setup  # type: ignore[import-not-found]

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    workload = REGISTRY[name]
    step = (workload.make_slow if side == "slow" else workload.make_fixed)(Setup(torch.device("cuda")))
    for _ in range(400):
        step()


def measure_commands() -> Any:
    from advisor.lab.verify import Prediction, verify_commands, with_prediction

    manifest, rows = json.loads((ROOT / "samples" / "manifest.json").read_text())["cases"], []
    for name, rule in COMMANDS.items():
        case = manifest[name]
        slow, fixed = (f"{sys.executable} {Path(__file__).resolve()} sample {name} {side}" for side in ("slow", "fixed"))
        report = advisor.analyze(ROOT / "samples" / case["kineto"]["slow"])
        finding = next(f for f in report.findings if f.rule == rule)
        saving, step = finding.saving, report.step_us
        said = Prediction(rule, finding.id, saving.low / step, saving.expected / step, saving.high / step)
        pair = with_prediction(verify_commands(slow, fixed, runs=2), said)
        same = verify_commands(slow, slow, runs=2)
        rows.append({"name": name, "manifest": 1 - case["fixed_ms"] / case["slow_ms"], "pair": pair.to_dict(), "same": same.to_dict()})
    return rows


def measure_recording() -> Any:
    """What recording costs a program that goes on, and how warm-up steps of a profiler compare with unprofiled ones."""
    import gzip
    from tempfile import mkdtemp

    import torch
    from torch.profiler import profile, schedule

    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(60))).cuda()
    optimizer, x = torch.optim.Adam(net.parameters(), foreach=False), torch.randn(64, 256, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    def median_ms() -> float:
        times = []
        for _ in range(30):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(10):
                step()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 100)
        return statistics.median(times)

    for _ in range(20):
        step()
    before = median_ms()
    folder = Path(mkdtemp())
    with advisor.record(folder / "run") as run:
        while not run.done:
            step()
            run.step()
    after = median_ms()
    with profile(schedule=schedule(wait=20, warmup=10, active=3, repeat=1), on_trace_ready=advisor.trace_handler(folder / "own")) as own:
        for _ in range(33):
            step()
            own.step()
    carried = json.loads(gzip.decompress((folder / "own" / "trace.json.gz").read_bytes()))["advisor_recording"]
    return {
        "before_ms": before, "recorded_ms": statistics.median(run.unprofiled_step_us) / 1e3, "after_ms": after,
        "handler_wait_ms": statistics.median(carried["unprofiled_step_us"]) / 1e3,
        "handler_warmup_ms": statistics.median(carried["warmup_step_us"]) / 1e3,
    }  # fmt: skip


MEASURES = {
    "bench": measure_bench, "attention": measure_attention, "functions": measure_functions, "verify": measure_verify,
    "commands": measure_commands, "recording": measure_recording,
}  # fmt: skip


def main(arguments: list[str]) -> int:
    if len(arguments) == 3 and arguments[0] == "measure" and arguments[1] in MEASURES:
        result = MEASURES[arguments[1]]()
        Path(arguments[2], f"{arguments[1]}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        return 0
    if len(arguments) == 3 and arguments[0] == "sample":
        sample(*arguments[1:])
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
