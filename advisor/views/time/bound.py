"""The bottleneck of the step: decided here, once, from its time by cause and from its critical path."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from advisor.intervals import Floats, overlap_with
from advisor.knowledge.idle import BY_NAME, IdleCause
from advisor.knowledge.op_tokens.families import PRODUCTS, Family, of_library
from advisor.knowledge.shares import CONSIDERABLE, HARDLY_ANY, LITTLE, MOST, NEARLY_ALL, WELL_USED
from advisor.recordings.columns import Categorical
from advisor.recordings.timeline import CopyKind, GpuKind, MemoryKind, Timeline
from advisor.report.model import UNKNOWN
from advisor.report.step import HOST_LINKS
from advisor.report.wording import headlines
from advisor.views.replay.replay import Replay
from advisor.views.replay.true_step import TrueStep
from advisor.views.time.critical_path import CriticalPath
from advisor.views.time.device_time import DevicePartition, Partition, total
from advisor.views.time.idle_gaps import Gaps
from advisor.views.time.roofline import Roofline
from advisor.views.time.utilization import Utilization
from advisor.views.trace.first_pass import FirstPass
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.program import Program
from advisor.views.trace.startup import StartUp
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import spans_of
from advisor.views.trace.unseen import Unseen

SAID_BESIDE = CONSIDERABLE
"""The headline names a second resource that holds a quarter of the step: a fix of the first alone leaves it."""

WORTH_SAYING = HARDLY_ANY
"""A part of the kernel time that the headline names next to the largest."""

_COPIES = {
    CopyKind.HTOD.value: "from the host to the device",
    CopyKind.DTOH.value: "from the device to the host",
    CopyKind.DTOD.value: "within the device",
    CopyKind.PTOP.value: "between devices",
    CopyKind.MIGRATION_HTOD.value: "managed-memory pages migrating to the device",
    CopyKind.MIGRATION_DTOH.value: "managed-memory pages migrating to the host",
}
MOVES_MEMORY = (
    Family.ELEMENTWISE, Family.REDUCTION, Family.NORM, Family.SOFTMAX, Family.EMBEDDING, Family.LAYOUT, Family.COPY,
    Family.FILL, Family.OPTIMIZER, Family.FUSED, Family.RANDOM,
)  # fmt: skip
"""Kernels that do a few FLOPs for each byte they move, whatever their shapes."""


class Shares(NamedTuple):
    """Of the window of the busiest device; they sum to 1. Communication and copies count without their overlap with computation."""

    compute: float = 0.0
    communication: float = 0.0
    copy: float = 0.0
    idle: float = 0.0

    @property
    def largest(self) -> str:
        """The resource with the most time."""
        return max(self._fields, key=lambda name: float(getattr(self, name)))


class Made(NamedTuple):
    """The parts of computation, as shares of its time. `memory` and `dense` share the GEMMs that are known to wait for memory."""

    dense: float
    memory: float
    starved: float
    """GEMMs that wait for memory: on few rows, by the intensity of their recorded shapes and the transfer time of their bytes, or by name."""
    arithmetic: float
    """GEMMs that wait for arithmetic, by the same evidence."""
    unknown: float
    """Kernels of no known kind."""
    graphs: float
    narrow: float
    """Long kernels on few SMs, whatever else they are."""
    longest_unknown: str


class Bound(msgspec.Struct, frozen=True):
    """name: the bottleneck, "cpu-only" if no device got work, "unknown" if its work was not recorded. summary: the reason, in a sentence.

    host_share: of the critical path, NaN without it."""

    name: str
    summary: str
    shares: Shares
    host_share: float
    made: Made | None = None
    open: bool = False
    """Whether the host's time may be so low that the device idles for less than half of its recorded idle time."""

    @classmethod
    def build(
        cls, timeline: Timeline, steps: Steps, partition: Partition, gaps: Gaps, kernels: Kernels, roofline: Roofline,
        path: CriticalPath, host: HostActivity, startup: StartUp, replay: Replay, program: Program, first: FirstPass, launches: Launches,
        unseen: Unseen, utilization: Utilization,
    ) -> Bound:  # fmt: skip
        main = partition.main
        if main is None or not main.busy_us:
            asked = "" if unseen.is_empty else unseen.told()
            return cls("cpu-only" if unseen.is_empty else UNKNOWN, headlines.no_gpu_work(asked), Shares(), float("nan"))
        shares = _shares(main, steps, gaps.recording_us)
        parts = path.parts
        host_share = sum(part.share for part in parts if part.link in HOST_LINKS) if parts else float("nan")
        span = "step" if steps.repeats else "traced time"
        once = startup.once_share(steps.start_us, steps.end_us)
        if once > MOST:
            return cls("start-up", headlines.one_time_work(once, span, startup.longest(steps.start_us, steps.end_us)), shares, host_share)
        if first.only:
            window = steps.end_us - steps.start_us
            text = headlines.first_pass(first.once_us, window, float(total(main.compute).sum()) / window)
            return cls("start-up", text, shares, host_share)
        is_open = _open(main, steps, replay.true_step)
        # What recording may have made is no verdict: then what the GPU does most is named, unless the likely idle time is most of the step.
        unsure = is_open and shares.idle < MOST
        largest = shares._replace(idle=0.0).largest if unsure else shares.largest
        made = _made_of(timeline, steps, kernels, roofline, program, main.device)
        paced = not is_open and largest == "compute" and host_share > MOST and shares.idle >= SAID_BESIDE
        if largest == "idle" or paced:
            causes = {**gaps.by_device[main.device]}
            causes["profiler"] -= gaps.recording_us
            once_us = float(overlap_with(*main.idle, startup.once).sum())
            causes["host"] -= min(once_us, causes["host"])
            if largest == "idle" and once_us > max(causes.values()):
                return cls("start-up", _loading(shares, steps, startup, once_us) + _secondary_in_words(shares, largest), shares, host_share, made, is_open)
            cause, other = _causes(causes, steps)
            name = cause.bound
            where = _blocked_in(timeline, gaps, host) if name == "host-bound" else _held_by(timeline, gaps, launches) if name == "sync-bound" else ""
            # Of the same step as findings' shares.
            held = [(min(causes[one.name] / gaps.run_us, shares.idle), one.why) for one in (cause, other) if one]
            text = headlines.idle(shares.idle, span, held, where)
            if paced:
                return cls(name, text + headlines.host_paced(host_share), shares, host_share, made, is_open)
        elif largest == "copy":
            name, text = "copy-bound", headlines.exposed_copies(shares.copy, span, _directions(timeline, steps))
        elif largest == "communication":
            name, text = "communication-bound", headlines.exposed_communication(shares.communication, span)
        else:
            name, text = _counted(utilization, main.device, shares.compute, span) or _computing(made, shares.compute, span)
        return cls(name, text + _secondary_in_words(shares, largest) + _copies_apart(timeline, launches, steps, program), shares, host_share, made, is_open)


NEARLY = NEARLY_ALL
"""A cause of idle time with this share of the largest is as large, given the precision of a trace."""


def _causes(us: dict[str, float], steps: Steps) -> tuple[IdleCause, IdleCause | None]:
    """The largest cause of idle time, and a second that is as large or None. A batch before a single pass comes second: the next batch may be made
    meanwhile."""
    first, second = sorted(us, key=us.__getitem__, reverse=True)[:2]
    if us[second] < NEARLY * us[first] or not us[second]:
        return BY_NAME[first], None
    if first == "data_loading" and not steps.repeats:
        first, second = second, first
    return BY_NAME[first], BY_NAME[second]


def _loading(shares: Shares, steps: Steps, startup: StartUp, once_us: float) -> str:
    window = steps.end_us - steps.start_us
    span = "step" if steps.repeats else "traced time"
    return headlines.loading(shares.idle, span, once_us / window, startup.longest(steps.start_us, steps.end_us))


def _shares(main: DevicePartition, steps: Steps, recording_us: float) -> Shares:
    """Of the window as it would be without recording, which adds to the idle time alone."""
    window = max(steps.end_us - steps.start_us - recording_us, 1e-9)
    compute, communication, copy, memset, idle = (
        float(total(spans).sum()) / window for spans in (main.compute, main.communication, main.copy, main.memset, main.idle)
    )
    return Shares(compute, communication, copy + memset, max(idle - recording_us / window, 0.0))


def _open(main: DevicePartition, steps: Steps, step: TrueStep) -> bool:
    """Whether profiler overhead may be so much of the idle time that what bounds the step is open."""
    busy_us, recorded = main.busy_us / steps.steps, float(total(main.idle).sum()) / (steps.end_us - steps.start_us)
    if step.basis != "estimated" or recorded < SAID_BESIDE or not step.slowed:
        return False
    least, likely, most = (max(1 - busy_us / us, 0.0) for us in (step.low_us, step.expected_us, step.high_us))
    return most >= SAID_BESIDE and least < likely / 2


def _secondary_in_words(shares: Shares, largest: str) -> str:
    """What else holds much of the step, in a sentence; "" if nothing does."""
    others = [name for name in shares._fields if name != largest and getattr(shares, name) >= SAID_BESIDE]
    if not others:
        return ""
    other = max(others, key=lambda name: float(getattr(shares, name)))
    return headlines.next_resource(other, getattr(shares, other))


MUCH_APART = LITTLE
"""Of the device's work: the headline names copies outside the repeats from a tenth on, such as a batch before a pass of repeating layers."""


def _copies_apart(timeline: Timeline, launches: Launches, steps: Steps, program: Program) -> str:
    """The time of copies before and after a detected repeating sequence, in a sentence; "" if it is little, or if steps are marked."""
    if steps.basis != "detected":
        return ""
    ops = timeline.gpu_ops
    start, dur = ops["start_us"], ops["dur_us"]
    # A step begins, on the device, with its first kernel: what it copied before that is its own, and so is what the last one, cut off, did.
    known, issued = ~np.isnan(launches.start_us), np.nan_to_num(launches.start_us)
    before = np.where(known, issued < steps.host_start_us, start < steps.start_us)
    after = np.where(known, issued > steps.host_end_us + steps.step_us, start >= steps.end_us)
    apart = (before | after) & ops["copy_kind"].isin([CopyKind.HTOD.value, CopyKind.DTOH.value])
    spent, whole = float(dur[apart].sum()), max(float(dur.sum()), 1e-9)
    if spent < MUCH_APART * whole:
        return ""
    return headlines.copies_apart(spent, spent / whole, program.framework != "cuda")


def _directions(timeline: Timeline, steps: Steps) -> str:
    """Which way most of the copied time goes, if that is known."""
    ops = timeline.gpu_ops
    start = ops["start_us"]
    copies = (ops["kind"] == GpuKind.MEMCPY.value) & steps.holds(start)
    kind = _longest(ops["copy_kind"][copies], ops["dur_us"][copies])
    return f", mostly {_COPIES[kind]}" if kind in _COPIES else ""


def _made_of(timeline: Timeline, steps: Steps, kernels: Kernels, roofline: Roofline, program: Program, device: int) -> Made:
    ops = timeline.gpu_ops
    start, dur = ops["start_us"], ops["dur_us"]
    inside = steps.holds(start) & (ops["device"] == device) & kernels.compute
    all_us = max(float(dur[inside].sum()), 1e-9)

    def share(chosen: np.ndarray) -> float:
        return float(dur[inside & chosen].sum()) / all_us

    ridge = _ridges(kernels, roofline, device)
    intensity = np.divide(roofline.flops, roofline.bytes, out=np.full(len(ops), np.nan), where=roofline.bytes > 0)
    known = ~np.isnan(intensity) & ~np.isnan(ridge)
    dense = kernels.in_families(*PRODUCTS)
    # Moving the bytes takes a product that waits for them much of its time; what is slow at both rates waits for something else.
    starved = dense & np.where(known, (intensity < ridge) & (roofline.peak_us >= MOST * dur), _vector_products(timeline))
    narrow = _narrow(timeline)
    # Without a framework most kernels are the program's own, and what their author called them is no proof of what they do.
    told = kernels.in_families(*MOVES_MEMORY) & (_of_libraries(timeline) if program.framework == "cuda" else True)
    memory = (told & ~narrow) | starved
    unknown = (kernels.in_families(Family.OTHER) | (kernels.in_families(*MOVES_MEMORY) & ~told)) & (ops["kind"] != GpuKind.GRAPH.value)
    longest = ""
    if (inside & unknown).any():
        longest = _longest(ops["name"][inside & unknown], dur[inside & unknown])
    return Made(
        dense=share(dense),
        memory=share(memory),
        starved=share(starved),
        arithmetic=share(dense & known & (intensity >= ridge)),
        unknown=share(unknown),
        graphs=share(ops["kind"] == GpuKind.GRAPH.value),
        narrow=share(narrow),
        longest_unknown=longest,
    )


def _of_libraries(timeline: Timeline) -> np.ndarray:
    """(n_gpu,) kernels that a library named."""
    return timeline.gpu_ops["name"].matching(of_library)


NARROW, LONG_US = MOST, 100.0
"""A kernel that runs this long on fewer blocks than half of the SMs waits for latency, whatever its name says it moves."""


def _narrow(timeline: Timeline) -> np.ndarray:
    """(n_gpu,) long kernels on few SMs; none if the grid or the device was not recorded."""
    ops = timeline.gpu_ops
    blocks = ops["grid_blocks"]
    sms = timeline.sm_counts(ops["device"])
    return (blocks > 0) & (blocks < NARROW * sms) & (ops["dur_us"] > LONG_US)


def _ridges(kernels: Kernels, roofline: Roofline, device: int) -> np.ndarray:
    """(n_gpu,) FLOP/byte above which arithmetic is the bound in each kernel's precision, NaN if not known."""
    peaks = roofline.peaks.get(device)
    ridges = [peaks.ridge(name or "fp32") if peaks else None for name in kernels.precision.categories.tolist()]
    return np.array([np.nan if ridge is None else ridge for ridge in ridges], float)[kernels.precision.codes]


def _vector_products(timeline: Timeline) -> np.ndarray:
    """(n_gpu,) GEMVs, by name: they read the matrix for a single use of it."""
    return timeline.gpu_ops["name"].matching(lambda name: "gemv" in name.lower())


def _counted(utilization: Utilization, device: int, share: float, span: str) -> tuple[str, str] | None:
    """The limit of a computing device by sampled counters; None if memory's counter was not sampled, or if neither is high."""
    dram = utilization.dram_pct(device)
    if dram is None or share <= 0:
        return None
    tensor = utilization.tensor_pct(device)
    # Samples are of the whole window, idle time too: the unit works while kernels run.
    of_memory, of_tensor = (None if pct is None else min(pct / 100 / share, 1.0) for pct in (dram, tensor))
    if of_memory is not None and of_memory >= WELL_USED and of_memory >= (of_tensor or 0.0):
        return "memory-bound", headlines.counted_memory(share, span, of_memory, of_tensor)
    if of_tensor is not None and of_tensor >= WELL_USED:
        return "compute-bound", headlines.counted_tensor(share, span, of_tensor, of_memory or 0.0)
    return None


def _computing(made: Made, share: float, span: str) -> tuple[str, str]:
    """Of a device that computes most of the time: what holds it up, as far as that is known."""
    if made.graphs > MOST:
        return "gpu-bound", headlines.graphs(share, span)
    if made.unknown > MOST:
        return "gpu-bound", headlines.unknown_kernels(share, span, made.unknown, made.longest_unknown.strip())
    if made.narrow > MOST and made.memory <= MOST and made.dense <= MOST:
        return "gpu-bound", headlines.narrow_kernels(share, span, made.narrow)
    if made.memory > MOST:
        return "memory-bound", headlines.memory_bound(share, span, made.memory, made.starved if made.starved >= WORTH_SAYING else 0.0)
    if made.arithmetic > MOST or made.dense > MOST:
        known = made.arithmetic > MOST
        return "compute-bound" if known else "gpu-bound", headlines.dense(share, span, made.dense, known)
    return "gpu-bound", headlines.mixed(share, span, made.dense, made.memory, made.unknown if made.unknown >= WORTH_SAYING else 0.0)


def _blocked_in(timeline: Timeline, gaps: Gaps, host: HostActivity) -> str:
    """The call of the operating system in which the launching threads spend most of the device's idle time, if any."""
    calls = timeline.os_calls
    mine = calls[host.on_threads(calls)]
    inside = overlap_with(*mine.bounds(), (gaps.start_us, gaps.end_us))
    if inside.sum() < 0.5 * gaps.causes["host"].sum() or not inside.sum():
        return ""
    return f", blocked in {_longest(mine['name'], inside)}"


def _longest(names: Categorical, us: Floats) -> str:
    """The name with the longest rows in sum, "" without rows."""
    return str(names.categories[np.bincount(names.codes, us).argmax()]) if len(names) else ""


def _held_by(timeline: Timeline, gaps: Gaps, launches: Launches) -> str:
    """A sentence if copies of pageable memory hold the host for most of its waits in idle time: the host moves the data itself."""
    ops, calls = timeline.gpu_ops, timeline.api_calls
    pageable = ((ops["src_kind"] == MemoryKind.PAGEABLE.value) | (ops["dst_kind"] == MemoryKind.PAGEABLE.value)) & (launches.call >= 0)
    copying = np.zeros(len(calls), bool)
    copying[launches.call[pageable]] = True
    inside = float(overlap_with(gaps.start_us, gaps.end_us, spans_of(calls, copying)).sum())
    return ", during copies of pageable memory" if inside > MOST * gaps.causes["sync"].sum() else ""
