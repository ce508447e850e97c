"""What is said of a recording: its hardware and steps, where the time goes, the critical path, and what the profiler cost."""

from __future__ import annotations

from math import inf

import msgspec

from advisor.knowledge.idle import IDLE_CAUSES
from advisor.knowledge.shares import CONSIDERABLE, HARDLY_ANY, NO_DIFFERENCE
from advisor.report.model import DEVICE_BOUND, Kind, Report
from advisor.report.numbers import NAMED, counted, duration, percent, rough_duration, share, span
from advisor.report.recording import DeviceTime, Prediction
from advisor.report.step import HOST_LINKS, PathPart
from advisor.report.wording.savings import step_noun

_BUSY = (
    ("compute", "Compute"),
    ("exposed_comm", "Exposed communication"),
    ("exposed_copy", "Exposed copies"),
    ("exposed_memset", "Exposed memset"),
)
_IDLE = tuple((cause.name, f"Idle: {cause.title}") for cause in IDLE_CAUSES if cause.name != "profiler")
_OF_TPU = {
    "exposed_comm": "Collectives and waits for other cores",
    "exposed_copy": "Infeed, outfeed and waits for copies",
    "dependency": "Idle: within a program",
    "unknown": "Idle: between programs",
}
_WINDOWS = {
    "profiler-step": "the profiler's step marks",
    "nvtx": "NVTX ranges",
    "detected": "a repeating pattern in the trace",
    "whole": "no step marks: the whole trace counts as a step",
}
_LINKS = {
    "kernel": "kernels",
    "copy": "copies",
    "launch-delay": "launch latency",
    "kernel-to-kernel": "gaps between queued ops",
    "return": "returning from a wait",
    "allocation": "device memory allocation",
    "data-loading": "waiting for a batch",
    "dispatch": "launching ops",
    "host": "other CPU code",
}

MENTIONED = NO_DIFFERENCE
"""Profiler overhead that changes a step by less than this is not mentioned."""

BUSY = 1 - CONSIDERABLE
"""A GPU that works for more than this of a step whose path is the host's waits for it by no more than the rest."""


def link(kind: str) -> str:
    """What a part of the critical path is."""
    return _LINKS.get(kind, kind)


def critical_path(report: Report) -> str:
    """The critical path, now and after the fixes; "" if there is none."""
    now, after = _path(report.critical_path), _path(report.critical_path_after)
    if not now:
        return ""
    fixed = f". After the fixes, of the shorter step: {after}" if after else ""
    return f"Critical path (shares of the chain that sets the {step_noun(report)}'s length, not of GPU time): {now}{fixed}.{_tie(report)}"


def _tie(report: Report) -> str:
    """A host-bound path next to a GPU-bound headline; "" where both name the same side."""
    host = sum(part.share for part in report.critical_path if part.link in HOST_LINKS)
    time = max(report.time or (), key=lambda t: t.window_us - t.idle_us, default=None)
    if time is None or host <= 0.5:
        return ""
    if report.headline.bottleneck == "communication-bound":
        return " The host works as long as the collectives run: only traces of all ranks show which of the two is the bound."
    # The path is of the step without what recording added, which is idle time.
    busy = time.window_us - time.idle_us >= BUSY * (time.window_us - report.added_us(time))
    return " The host and the GPU take about equally long: either may be the bound." if busy and report.headline.bottleneck in DEVICE_BOUND else ""


def _path(parts: tuple[PathPart, ...]) -> str:
    return ", ".join(f"{link(part.link)} {percent(part.share)}" for part in parts[:3] if part.share >= 0.01)


class Slice(msgspec.Struct, frozen=True):
    """One class of a device's time. `key` is stable, `share` is of the window."""

    key: str
    label: str
    us: float
    share: float
    idle: bool

    @property
    def short(self) -> str:
        """The label for a narrow place: what the exposed or idle time is about."""
        return self.label.removeprefix("Idle: ").removeprefix("Exposed ").capitalize()


def unrecorded_us(time: DeviceTime) -> float:
    """The window of a device without the idle time that the profiler caused."""
    return time.window_us - time.idle.profiler


def slices(time: DeviceTime, kind: Kind = "trace") -> list[Slice]:
    """Where a device's window went, without profiler overhead: busy classes in their order, then idle causes, largest first; nothing that is 0.
    kind: of the recording."""
    whole, other = unrecorded_us(time), _OF_TPU if kind == "tpu" else {}
    busy = [Slice(k, other.get(k, label), us := getattr(time, f"{k}_us"), share(us, whole), False) for k, label in _BUSY]
    idle = [Slice(k, other.get(k, label), us := getattr(time.idle, k), share(us, whole), True) for k, label in _IDLE]
    return [part for part in (*busy, *sorted(idle, key=lambda part: -part.us)) if 0 < part.us < inf]


def processor(report: Report) -> str:
    """What its devices are."""
    return "TPU" if report.kind == "tpu" else "GPU"


def hardware(report: Report) -> str:
    """`NVIDIA H200`, `8 × NVIDIA H200`; "no GPU" only where nothing ran on one."""
    unnamed = f"{processor(report)} of unknown name"
    names = [device.name or unnamed for device in report.devices] or [unnamed for _ in report.time or ()]
    counts = {name: names.count(name) for name in names}
    return ", ".join(f"{number} × {name}" if number > 1 else name for name, number in counts.items()) or "no GPU"


def framework(report: Report) -> str:
    """`Transformers 4.57.1`: the framework whose options the fixes name; "" where they name those of PyTorch or CUDA."""
    named = report.framework
    return f"{named.name} {named.version}".rstrip() if named else ""


def steps(report: Report) -> str:
    """`3 steps`, `8 ranks, 3 steps`, or `the whole trace`: the analysed part."""
    if report.window is None:
        return ""
    part = "the whole trace" if report.window.basis == "whole" else counted(report.window.steps, "step")
    return f"{counted(len(report.ranks), 'rank')}, {part}" if report.kind == "job" and report.ranks else part


def window_basis(report: Report) -> str:
    """How steps were found, and why there is a mark more than steps."""
    if report.window is None:
        return ""
    basis = report.window.basis
    closes = ". The last mark only ends the window" if basis in ("profiler-step", "nvtx") and report.window.steps > 1 else ""
    return f"{_WINDOWS.get(basis, basis)}{closes}"


def profiler_overhead(report: Report) -> str:
    """What the profiler cost, in one line at the end of a report; "" where it made no difference worth mentioning."""
    window, step_us = report.window, report.step_us
    if window is None or window.true_step_us is None or (abs(window.step_us / (step_us or 1) - 1) < MENTIONED and not window.unused_step_us):
        return ""
    noun, true = step_noun(report), window.true_step_us
    recorded = f"Profiler overhead: the recorded {noun} took {duration(window.step_us)}"
    if window.true_step_basis == "measured":
        return f"{recorded}; without the profiler {duration(step_us)} was measured."
    without = without_profiler(true, window.step_us)
    if window.unused_step_us:
        between = "" if window.true_step_basis == "recorded" else f" Without the profiler it takes {without}, estimated from the trace."
        return f"{recorded}. The given {duration(window.unused_step_us)} does not fit this trace and is not used.{between}"
    stacks = ", with Python stacks" if report.source.recorded.stacks else ""
    return f"{recorded}{stacks}, about {rough_duration(window.recording_us)} of it overhead. Without the profiler: {without}, estimated from the trace."


def without_profiler(true: Prediction, recorded_us: float) -> str:
    """`13 to 17.6 ms`: the estimated step without the profiler. It ends at the recorded step at the latest, unless even the estimate is longer."""
    most = recorded_us if true.expected <= recorded_us else inf
    # Rounding to two digits adds less than a twentieth: 1.05 becomes 1.1.
    return span(true.low, true.high, lambda us: rough_duration(us) if us * (1 + HARDLY_ANY) <= most else duration(min(us, most)))


def unseen(report: Report) -> str:
    """Work that was launched, or is in the file, and is in no figure; "" where all of it is."""
    rows = [f"{row.what}: {row.count:,}{'' if row.us is None else f', {duration(row.us)}'}" for row in report.unseen]
    more = [f"{counted(len(rows) - NAMED, 'more kind')}"] if len(rows) > NAMED else []
    return f"Not included in any figure: {'; '.join((*rows[:NAMED], *more))}." if rows else ""


def measured(report: Report) -> str:
    """What hardware counters say of the window; "" if none were sampled."""
    by_device: dict[int, list[str]] = {}
    for row in report.utilization:
        by_device.setdefault(row.device, []).append(f"{row.unit} {row.mean_pct:.0f} %")
    return " ".join(f"Measured on GPU {device}, in percent of peak: {', '.join(units)}." for device, units in by_device.items())
