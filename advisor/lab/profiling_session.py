"""A profiling session from a model and its data, as the first look at a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.errors import AdvisorError, UsageError, require
from advisor.knowledge.counts import ENOUGH
from advisor.report.numbers import counted, percent, share

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.profiler import profile

WARMUP_BATCHES, RECORDED_BATCHES = ENOUGH, 20  # defaults: caches and clocks settle in a few, a mean of twenty is steady
TOP_BY_TIME, TOP_BY_MEMORY = 15, 10  # rows: both tables fit a screen


def full_profiling_session(model: Module, dataloader: Iterable[Any], device: str = "cuda") -> profile:
    """Profile a model over its data: 5 batches of warm-up, 20 recorded. Print the top operations, export the trace, say what to change.

    A model in training mode runs forward and backward (of the sum of its output, or of its loss); any other model runs without gradients. A dataloader with
    fewer batches begins again. Batches are tensors, tuples (the first is the input) or mappings (keyword inputs). Prints the 15 operations with most GPU time
    (CPU time if there is no GPU) and the 10 with most memory. Then it prints what slows the steps and the fixes, as `advisor analyze` does for the trace. That
    is `trace.json` in the current directory, or `trace-1.json` and so on if it exists. Returns the profiler. Raises UsageError if the device does not exist or
    the dataloader is empty."""
    require("torch", extra="lab")
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError("torch sees no CUDA device", 'On a CPU: full_profiling_session(model, dataloader, device="cpu")')
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.startswith("cuda") else [])]
    model = model.to(device)
    batches = _repeated_batches(dataloader, WARMUP_BATCHES + RECORDED_BATCHES)
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=WARMUP_BATCHES, active=RECORDED_BATCHES, repeat=1),
        record_shapes=True,
        profile_memory=True,
        acc_events=True,
    ) as profiler:
        for batch in batches:
            _run(model, _moved(batch, device))
            profiler.step()
    kind = "cuda" if device.startswith("cuda") else "cpu"
    averages = profiler.key_averages()
    print("=== Top operations by GPU time ===")
    print(averages.table(sort_by=f"{kind}_time_total" if kind == "cpu" else "device_time_total", row_limit=TOP_BY_TIME))
    print("=== Top operations by memory ===")
    print(averages.table(sort_by="self_cpu_memory_usage" if kind == "cpu" else "self_device_memory_usage", row_limit=TOP_BY_MEMORY))
    path = _free(Path("trace.json"))
    profiler.export_chrome_trace(str(path))
    print(f"Exported trace to {path}")
    print("=== What makes it slow, and what to do ===")
    if kind == "cpu":
        print(_longest(averages))
    print(_said_of(path))
    return profiler


def _longest(averages: Sequence[Any]) -> str:
    """Of a program without a GPU, for which rules have no advice: the op with most time of its own."""
    ops = [op for op in averages if not op.key.startswith("ProfilerStep")]
    worst, whole = max(ops, key=lambda op: op.self_cpu_time_total), sum(op.self_cpu_time_total for op in ops)
    return f"{worst.key} takes {percent(share(worst.self_cpu_time_total, whole))} of the CPU's time by itself, in {counted(worst.count, 'call')}."


def _said_of(trace: Path) -> str:
    """The report in a screen of text. The session has its tables and its trace even if the trace cannot be analyzed."""
    from advisor import reports
    from advisor.engine.run import report_of

    try:
        return reports.formats()["text"].render(report_of(trace)).rstrip()
    except AdvisorError as error:
        return f"{error.message}\n{error.hint}".rstrip()


def _repeated_batches(batches: Iterable[Any], wanted: int) -> Iterator[Any]:
    """As many batches as are wanted, from the start again if there are fewer."""
    given = 0
    while given < wanted:
        before = given
        for batch in batches:
            yield batch
            given += 1
            if given == wanted:
                return
        if given == before:
            raise UsageError("the dataloader has no batch", "Give a dataloader that can be iterated again and has a batch.")


def _moved(batch: Any, device: str) -> Any:
    import torch

    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _moved(value, device) for key, value in batch.items()}
    return tuple(_moved(value, device) for value in batch) if isinstance(batch, (list, tuple)) else batch


def _run(model: Module, batch: Any) -> None:
    import torch

    with torch.set_grad_enabled(model.training):
        output = model(**batch) if isinstance(batch, Mapping) else model(batch[0] if isinstance(batch, tuple) else batch)
        if not model.training:
            return
        loss = getattr(output, "loss", None)
        loss = output[0] if loss is None and isinstance(output, (tuple, list)) else output if loss is None else loss
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            loss.sum().backward()  # type: ignore[no-untyped-call]
            model.zero_grad(set_to_none=True)


def _free(path: Path) -> Path:
    """The path itself, or with a number if the file exists."""
    return path if not path.exists() else next(p for i in count(1) if not (p := path.with_stem(f"{path.stem}-{i}")).exists())
