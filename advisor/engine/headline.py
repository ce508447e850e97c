"""The report in a line: what bounds the step, and what it would take with every fix."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.engine.rule import Judged
from advisor.intervals import overlap_with
from advisor.knowledge.kernel_names import Family
from advisor.report.model import Headline, Prediction
from advisor.timeline import GpuKind, Timeline
from advisor.views.replay.build import Replay
from advisor.views.replay.calibration import Calibration
from advisor.views.replay.edits import Edits
from advisor.views.time.device_time import DevicePartition, Partition, total
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.steps import Steps
from advisor.views.workspace import Workspace

IDLE_BOUND = 1 / 3
"""A device that idles for a third of the step is not its bottleneck, whatever keeps it busy meanwhile."""

_IDLE = {
    "sync": ("sync-bound", "while the host waits for it and then has nothing queued"),
    "data_loading": ("data-bound", "waiting for the next batch"),
    "launch": ("launch-bound", "waiting for the host to issue the next kernel"),
    "allocator": ("allocator-bound", "while the host allocates or frees device memory"),
    "host": ("host-bound", "while the host does other work than issuing kernels"),
    "dependency": ("dependency-bound", "between kernels that were already queued"),
    "profiler": ("profiler-bound", "while the profiler writes its own buffers"),
    "unknown": ("idle", "for reasons the trace does not show"),
}
_DENSE = (Family.GEMM, Family.CONV, Family.ATTENTION)


def headline(workspace: Workspace, found: Sequence[Judged]) -> Headline:
    """Bottleneck and summary of the busiest device, and the replayed step with every fix applied."""
    steps, replay = workspace.get(Steps), workspace.get(Replay)
    edits = [f.edits for f in found if f.edits and f.counted]
    saving = replay.saving(Edits.all_of(edits), "every finding") if edits else None
    known = workspace.get(Calibration).step_us
    step = known or steps.step_us
    scale = step / steps.step_us if steps.step_us else 1.0
    predicted = Prediction(
        low=step - scale * (saving.high_us if saving else 0.0),
        expected=step - scale * (saving.expected_us if saving else 0.0),
        high=step - scale * (saving.low_us if saving else 0.0),
    )
    main = workspace.get(Partition).main
    if main is None or not main.busy_us:
        return Headline(
            bottleneck="cpu-only", summary="The trace records no GPU work.", step_us=step, predicted_step_us=predicted
        )
    bottleneck, summary = _bound(workspace, main, steps)
    return Headline(bottleneck=bottleneck, summary=summary, step_us=step, predicted_step_us=predicted)


def _bound(workspace: Workspace, main: DevicePartition, steps: Steps) -> tuple[str, str]:
    window = steps.end_us - steps.start_us
    idle = float(total(main.idle).sum())
    span = "step" if steps.repeats else "traced time"
    if idle >= IDLE_BOUND * window:
        causes = workspace.get(Gaps).by_device[main.device]
        name, why = _IDLE[max(causes, key=causes.__getitem__)]
        where = _blocked_in(workspace) if name == "host-bound" else ""
        return name, f"The GPU is idle for {idle / window:.0%} of the {span}, mostly {why}{where}."
    shares = {
        "copy": float(total(main.copy).sum()),
        "communication": float(total(main.communication).sum()),
        "compute": float(total(main.compute).sum()),
    }
    largest = max(shares, key=shares.__getitem__)
    share = shares[largest] / window
    if largest == "copy":
        return "copy-bound", f"Copies that overlap no compute take {share:.0%} of the {span}."
    if largest == "communication":
        return "communication-bound", f"Communication that overlaps no compute takes {share:.0%} of the {span}."
    kernels, ops = workspace.get(Kernels), workspace.get(Timeline).gpu_ops
    inside = ((ops["start_us"] >= steps.start_us) & (ops["start_us"] < steps.end_us)).to_numpy() & kernels.compute
    dur = ops["dur_us"].to_numpy()
    graphs = float(dur[inside & (ops["kind"] == GpuKind.GRAPH.value).to_numpy()].sum())
    if graphs > 0.5 * float(dur[inside].sum()):
        return "gpu-bound", f"Kernels run for {share:.0%} of the {span}, mostly in CUDA graphs recorded whole: what they are is unknown."
    dense = float(dur[inside & kernels.of(*_DENSE)].sum()) / max(float(dur[inside].sum()), 1e-9)
    if dense >= 0.5:
        return (
            "compute-bound",
            f"Kernels run for {share:.0%} of the {span}; {dense:.0%} of that is matrix products, convolutions and attention.",
        )
    return "memory-bound", (
        f"Kernels run for {share:.0%} of the {span}, but only {dense:.0%} of that is matrix products, convolutions or attention: "
        "the rest moves memory."
    )


def _blocked_in(workspace: Workspace) -> str:
    """The operating system's call in which the issuing threads spend most of the device's idle time, if they do."""
    gaps, host, calls = workspace.get(Gaps), workspace.get(HostActivity), workspace.get(Timeline).os_calls
    mine = calls[host.on_threads(calls)]
    start = mine["start_us"].to_numpy()
    inside = overlap_with(start, start + mine["dur_us"].to_numpy(), (gaps.start_us, gaps.end_us))
    if inside.sum() < 0.5 * gaps.causes["host"].sum() or not inside.sum():
        return ""
    by_name = mine.assign(inside=inside).groupby("name", observed=True)["inside"].sum()
    return f", blocked in {by_name.idxmax()}"
