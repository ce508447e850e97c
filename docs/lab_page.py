"""Writes docs/lab.md from what `lab_figures.py` and `advisor record` and `advisor verify` left in a folder:

python docs/lab_page.py docs/lab > docs/lab.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from advisor.lab.verify import Gain

RECORDING = """\
# The lab

Functions and commands that measure on your machine. They need torch (`pip install '.[lab]'`; JAX for functions of it, `pip install '.[jax]'`)
and say so where it is missing, run on CUDA, ROCm and CPU, and change nothing of a program. This page is written by `python docs/lab_page.py docs/lab > docs/lab.md`{measured}.

## Recording

`advisor record -- python train.py`, or around a loop:

```python
with advisor.record("recording") as run:
    for batch in run.steps(loader):      # or run.step() at the end of each step
        train(batch)
        if run.done:                     # all is recorded; without this the loop runs on
            break
```

1. Ten steps and more, until compilation is over and the medians of two runs of five steps agree within 10 %. Where they
   do not within 100 steps, the recording says so.
2. Twenty steps, and more until 0.3 s are over (500 at most), are timed without a profiler: events on the device, synchronised at the ends alone.
3. Five steps with neither shapes nor stacks: `light.json.gz`.
4. Three with shapes, stacks and memory: `deep.json.gz`.

`recording.json` holds the step times, versions, the device's name and the options; no host, path or environment. Both traces
carry the step times too (`advisor_recording`), so that one alone is still analysed in true time. `advisor analyze recording`
takes times from the light trace and from the timed steps, lines, modules and shapes from the deep one, op by op.

A script's steps end where its optimizer has stepped. Where there is none they end with `backward`, or with the outermost module's forward if
no gradients are computed (`--steps` says which). Its output and exit code stay its own.

**How it ends.** The program is ended once all is recorded, and the last lines say after how many steps; `--keep-going` lets it run on. Ranks of a
process group agree through its store and end after the same step, or all run on. So does a program whose steps run in a thread, a notebook, a
process that it forked, or a worker of a pool: `record` says so, and an interrupt ends it without loss. A program that ends sooner keeps what was recorded until then, if only
the times of its first steps, and `record` says how many steps it saw and how many it needs. Where nothing was recorded of a program that ended
well, the exit code is 3.

**Several processes.** Every process that takes steps is recorded, whether the program starts, forks or spawns it or torchrun does. Each writes under a
name of its own. At the end one process is the recording itself; the ranks of a job lie in `rank0` and so on, others in `process0` and so on, with `manifest.json`, and
`advisor analyze recording` reads ranks as one job. Ranks record equally many steps each. Processes that are no ranks are looked at with `--each`.

**What it does to the program.** Nothing that the program can see, and nothing where it fails:

- A folder of this package stands first in `PYTHONPATH` as Python starts, takes itself off `sys.path` and out of `os.environ`, and runs the `sitecustomize` that it
  hides. Until the program imports torch nothing is loaded, afterwards only under a private name: a module `advisor` or `statistics` of the program's is its own.
  No file is written for that, none outside of the recording. Programs that are no Python, a shell say, see two environment variables more.
- An error of ours, a full disk or a folder that is taken away ends the recording, is said once, and the program runs on to its own exit code.
  What a killed program has recorded is kept.
- Signals go to the program. If `advisor` itself is killed, so is the program.
- What differs: a traceback through the module that is recorded of a program without an optimizer shows one frame of torch's more, and torch tells
  standard error where its profiler begins in another thread than the first.

A program that profiles or records itself is refused (exit code 2), since two profilers cannot run at once: take its own one out
while you record, or analyze what it writes. Where it begins with that only once a trace was recorded, that trace is kept and the recording says why it ends there.
With `--nsys` Nsight Systems records instead; that way was tried with a stand-in for `nsys`, not yet with the real one.

With `advisor.record` in the code, what fails is a warning, and steps run on. A second process that records into the same directory is given a folder
of its own there, and told.

Frameworks:

```python
from advisor.lab.callbacks.lightning import Record      # Lightning
trainer = Trainer(callbacks=[Record("recording", stop=True)])

from advisor.lab.callbacks.transformers import Record   # Hugging Face
trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Record("recording", stop=True)])

with advisor.record("recording") as run:                # Accelerate
    for batch in run.steps(accelerator.prepare(loader)):
        ...
```
"""

AFTERWARDS = """\
What is left of it once it is over: a loop of 600 launches a step took {before_ms:.2f} ms before a recording, {recorded_ms:.2f} ms
as the recording timed it, and {after_ms:.2f} ms after it. A profiler of your own with `trace_handler`: {handler_wait_ms:.2f} ms in
the steps that it waits for, {handler_warmup_ms:.2f} ms in its warm-up steps, in which the device is traced already.
"""

FUNCTIONS = """\
## Functions

All are `advisor.NAME` and take torch's tensors; each says in its docstring what it measures.

| Function | Gives |
|---|---|
| `benchmark_function(fn, args, warmup, iterations)` | mean seconds of a call, waited for each |
| `benchmark_fn(fn, args, num_warmup=5, num_runs=100)` | the same for JAX |
| `profile_attention_components(seq_len, d_model, num_heads)` | time of the five components; prints as a table |
| `identify_bottleneck(profile_results)` | the slowest, whether memory or compute bounds it, and why: of that profile, of times in ms by name, of a report, or of a recording's path |
| `optimize_attention(Q, K, V, optimization_level)` | attention written out (0), compiled (1), `scaled_dot_product_attention` (2), flash (3), checked against FP64 |
| `measure_memory_usage(fn, args)` | peak, current and cached bytes |
| `estimate_arithmetic_intensity(op_name, shapes)` | FLOP a byte of any op that the cost models know |
| `full_profiling_session(model, dataloader, device='cuda')` | top operations by time and by memory, a trace, and at the end what makes it slow and what to do |
| `profile_memory()` | prints what is held |
| `bench`, `bench_all`, `bench_sizes`, `bench_batches` | timings with intervals and rates; side by side; over sizes; over batch sizes |
| `attention_session` | the five steps over sequence lengths |
| `verify(before, after)` | what a change gains |
| `record`, `trace_handler` | recordings |

"""

BENCH = """\
## bench

`advisor.bench(fn, *args)` warms up until calls settle, then times three things: the device alone (events, the queue kept full;
median with its 95 % interval), latency (each call waited for), and back to back. Functions are compared only where the device's
clock stood still.

What is timed and fails, or would end the process, ends `advisor bench` with exit code 2, its own traceback, and the line of it that failed; so it
does where it lies in an installed package or is compiled, which has no traceback, and where a function that is called with a size makes no
function. From Python the error is as it was raised. Code 70 is an error of `advisor`'s own.
"""

BENCHED = """\
Ten kernels against others' timers, in µs: with the L2 cache overwritten before each call against
`triton.testing.do_bench`, which does the same; back to back against `torch.utils.benchmark`; and short kernels as the profiler
records them.

| Kernel | bench, L2 flushed | do_bench | off | bench, back to back | Timer | off | bench, device | recorded kernel | beside it |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
"""

VERIFY = """\
## verify

`advisor.verify(before, after)` runs both by turns and says what the change gains, with a bootstrap interval over turns and calls.
`advisor verify --before CMD --after CMD` does the same with programs. There are three verdicts, in the text, and with a hyphen (`no-difference`) in `verdict` of the JSON and in the ledger:

| Verdict | Where the 95 % interval |
|---|---|
| `faster` or `slower` (of memory `less`, `more`) | leaves out 0, and the gain is 2 % or more |
| `no difference` | lies within ±2 %, about what unprofiled step times repeat within |
| `cannot tell` | is wider than that and holds 0: `verify` says about how many runs would tell |
"""

VERIFIED = """\
Five samples as functions, against the gain in their manifest, and each slow program against itself:

| Program | Manifest | Measured | Interval | Against itself |
|---|--:|--:|--:|---|
"""

COMMANDED = """\
Five as programs of their own, with the finding that predicted the gain. `rmsnorm_training` and `fp16_scaler` were started three
times a side with the host to themselves, the others twice while programs were starting beside them:

| Program | Manifest | Measured | Interval | Predicted by | Predicted | Against itself |
|---|--:|--:|--:|---|--:|---|
"""


def page(folder: Path) -> Iterator[str]:
    """The page, part by part; what was not measured is left out."""
    parts = ("recording", "functions", "bench", "attention", "verify", "commands")
    recording, functions, bench, attention, verify, commands = (_read(folder, name) for name in parts)
    where = f" from what `docs/lab_figures.py` measured on one {bench['device']}, torch {bench['torch'].split('+')[0]}" if bench else ""
    yield RECORDING.format(measured=where)
    if recording:
        yield AFTERWARDS.format(**recording)
    yield FUNCTIONS
    for call, said in (functions or {}).items():
        yield f"`{call}`\n\n```text\n{_shortened(said)}\n```\n"
    yield BENCH
    if bench:
        yield BENCHED + "\n".join(_bench_rows(bench["rows"])) + "\n"
        yield _bench_words(bench["rows"])
    if attention:
        yield "## attention\n\n`advisor attention --seq-lengths 128,256,512,1024,2048,4096 --d-model 1024 --num-heads 16`: five steps a length.\n"
        yield "![Time by level](lab/levels.svg)\n"
    for session in (attention or {}).values():
        yield f"```text\n{session['text']}\n```\n"
    yield VERIFY
    if verify:
        yield VERIFIED + "\n".join(_verify_rows(verify)) + "\n" + _verify_words(verify)
    if commands:
        yield COMMANDED + "\n".join(_verify_rows(commands)) + "\n" + _verify_words(commands)
    for name, title in (("verify_command", "the slow and the fixed example"), ("verify_same", "the example and itself")):
        if (folder / f"{name}.txt").exists():
            yield f"`advisor verify --before … --after …` on {title}:\n\n```text\n{_said(folder / f'{name}.txt')}\n```\n"


def _read(folder: Path, name: str) -> Any:
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _said(path: Path) -> str:
    """The lines that a command of ours printed, without those of the libraries that it loads."""
    return "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(("Time:", "Peak memory:", "Step times")))


def _shortened(text: str, most: int = 34, width: int = 150) -> str:
    """A long table's head and foot, lines cut."""
    lines = [line.rstrip()[:width] for line in text.splitlines() if line.strip()]
    return "\n".join(lines if len(lines) <= most else [*lines[: most - 4], "…", *lines[-3:]])


SHORT_US = 100.0
"""Kernels up to this long are held against their recorded time: what lies beside it counts there."""

AGREES = 0.02


def _bench_rows(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        cold, warm, recorded = row["cold"]["device_us"], row["warm"], row["recorded_us"]
        back = warm["throughput_us"]
        short = recorded <= SHORT_US
        cells = [
            _us(cold), _us(row["do_bench_us"]), f"{cold / row['do_bench_us'] - 1:+.1%}", _us(back), _us(row["timer_us"]),
            f"{back / row['timer_us'] - 1:+.1%}", _us(warm["device_us"]), _us(recorded) if short else "",
            f"{warm['device_us'] - recorded:+.1f}" if short else "",
        ]  # fmt: skip
        yield f"| {row['name']} | {' | '.join(cells)} |"


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _bench_words(rows: list[dict[str, Any]]) -> str:
    cold = {row["name"]: row["cold"]["device_us"] / row["do_bench_us"] - 1 for row in rows if row["do_bench_us"] > 20}
    back = {row["name"]: row["warm"]["throughput_us"] / row["timer_us"] - 1 for row in rows if row["timer_us"] > 50}
    beside = [row["warm"]["device_us"] - row["recorded_us"] for row in rows if row["recorded_us"] <= SHORT_US]
    off = sorted({name for found in (cold, back) for name, share in found.items() if abs(share) > AGREES})
    agree = sum(abs(share) <= AGREES for found in (cold, back) for share in found.values())
    said = f"Of {len(cold)} kernels above 20 µs and {len(back)} above 50 µs back to back, {agree} comparisons agree within {AGREES:.0%}"
    for row in rows:
        if row["name"] in off:
            own = (row["cold"]["device_us"], row["warm"]["device_us"], row["warm"]["throughput_us"])
            said += f"; {row['name']} does not: its own time moved between {_us(min(own))} and {_us(max(own))} µs in this run"
    return (
        f"{said}. Short kernels take {min(beside):.1f} to {max(beside):.1f} µs more than their recorded time: "
        "what the device needs between two events and a kernel.\n"
    )


def _verify_words(rows: list[dict[str, Any]]) -> str:
    """How often the measurement holds the manifest's gain."""
    held = [
        abs(r["pair"]["time"]["expected"] - r["manifest"]) <= AGREES or r["pair"]["time"]["low"] <= r["manifest"] <= r["pair"]["time"]["high"] for r in rows
    ]
    verdicts = [Gain(**row["same"]["time"]).verdict.replace("-", " ") for row in rows]
    missed = ", ".join(row["name"] for row, ok in zip(rows, held, strict=True) if not ok)
    return (
        f"\n{sum(held)} of {len(rows)} gains lie within two points of the manifest's or have it in their interval"
        + (f" (not {missed})" if missed else "")
        + f"; of {len(rows)} programs held against themselves {verdicts.count('no difference')} have no difference, of {verdicts.count('cannot tell')} "
        "it cannot be told: that host was not quiet, and intervals of host-bound programs are wide.\n"
    )


def _verify_rows(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        gain, same, said = row["pair"]["time"], row["same"], row["pair"]["prediction"]
        cells = [row["name"], f"{row['manifest']:.1%}", f"{gain['expected']:.1%}", f"{gain['low']:.1%} to {gain['high']:.1%}"]
        cells += [f"`{said['finding']}`", f"{said['expected']:.0%} ({said['low']:.0%} to {said['high']:.0%})"] if said else []
        yield f"| {' | '.join(cells)} | {Gain(**same['time']).verdict.replace('-', ' ')} ({round(same['time']['expected'], 3) + 0.0:+.1%}) |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(page(Path(sys.argv[1]))))
