"""What an analysis says: frozen structs, serialised as they stand (JSON schema 2; fields are added, never renamed)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from advisor.report.encoded import as_json
from advisor.report.numbers import duration

if TYPE_CHECKING:
    import pandas as pd

    from advisor.report.charts import Picture

SCHEMA = 2
"""2: `headline.step_us` is the step without a profiler. Reports of 1, where it is the recorded one, are still read."""
Severity = Literal["high", "medium", "low", "info"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low", "info")
LOUD: tuple[Severity, ...] = ("high", "medium")
"""Severities of what asks to be done; the others are notes."""
Basis = Literal["simulated", "bound", "measured"]
Kind = Literal["trace", "job", "kernels", "memory", "tpu"]
"""What a recording is, and so what a report speaks of: one process's timeline, the ranks of a job, kernels measured one by
one, snapshots of memory, or a TPU's cores, of which advice says nothing."""
SUMMARY_CHARACTERS = 240
"""Of a finding's summary at most: it is one line."""
LEVEL = 0.8
"""How often what is measured lies between low and high, by design."""


class SourceLine(msgspec.Struct, frozen=True):
    """A place in the program's text; lines count from 1."""

    file: str
    line: int


class Evidence(msgspec.Struct, frozen=True):
    """One place in the trace that shows the problem; `count` repeats are folded into it, `dur_us` is their total."""

    label: str
    start_us: float
    dur_us: float
    count: int = 1
    device: int | None = None
    stream: int | None = None
    thread: int | None = None
    source: SourceLine | None = None
    bytes: int | None = None
    """Of memory, where that is the problem: the most held at once."""


class Code(msgspec.Struct, frozen=True):
    """The lines to change as they are, in the user's terms, and as they should be."""

    before: str
    after: str


class Fix(msgspec.Struct, frozen=True):
    """What to change. At least one step."""

    title: str
    steps: tuple[str, ...]
    code: Code | None = None
    url: str = ""
    risk: str = ""

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError(f"the fix {self.title!r} has no step")


class Saving(msgspec.Struct, frozen=True, tag_field="unit", tag="us"):
    """What one step gains, in µs: 0 <= low <= expected <= high."""

    low_us: float
    expected_us: float
    high_us: float
    basis: Basis
    removes: str = ""
    level: float = LEVEL
    per: Literal["step", "request"] = "step"
    """What becomes shorter: the step, or the time of each of several requests that share a step as long as now."""

    def __post_init__(self) -> None:
        _ordered(self.low_us, self.expected_us, self.high_us)

    @property
    def unit(self) -> str:
        return "us"

    @property
    def low(self) -> float:
        return self.low_us

    @property
    def expected(self) -> float:
        return self.expected_us

    @property
    def high(self) -> float:
        return self.high_us


class _Amount(msgspec.Struct, frozen=True, tag_field="unit"):
    low: float
    expected: float
    high: float
    basis: Basis
    removes: str = ""
    level: float = LEVEL

    def __post_init__(self) -> None:
        _ordered(self.low, self.expected, self.high)

    @property
    def unit(self) -> str:
        return str(self.__struct_config__.tag)


class BytesSaved(_Amount, frozen=True, tag="bytes"):
    """What the peak of memory loses, in bytes."""

    of: Literal["allocated", "reserved"] = "allocated"
    """The peak meant: of what the program holds, or of what its allocator holds from the driver."""


class ShareSaved(_Amount, frozen=True, tag="share"):
    """What one kernel gains, as a share of its own time."""


AnySaving: TypeAlias = Saving | BytesSaved | ShareSaved


def _ordered(low: float, expected: float, high: float) -> None:
    if not 0 <= low <= expected <= high:
        raise ValueError(f"a saving is ordered, not {low}, {expected}, {high}")


HIGH_SHARE, MEDIUM_SHARE, LOW_SHARE = 0.20, 0.05, 0.01
"""Shares of the step that a fix must save to be high, medium or low. A twentieth is what an unprofiled run can confirm
against its own noise; a fifth is worth dropping other work for."""


def severity_of(saving: AnySaving, whole: float) -> Severity:
    """How much a finding matters, by the share of the whole (the step's µs, the peak's bytes, 1) that its fix is expected to save."""
    share = saving.expected / whole if whole > 0 else 0.0
    if share >= HIGH_SHARE:
        return "high"
    if share >= MEDIUM_SHARE:
        return "medium"
    return "low" if share >= LOW_SHARE else "info"


class Change(msgspec.Struct, frozen=True):
    """What one part of a fix does to a step in the replay, in µs and ops a step."""

    edit: str
    ops_removed: float = 0.0
    ops_changed: float = 0.0
    gpu_us: float = 0.0
    """GPU time that it takes away; likewise of the host."""
    host_us: float = 0.0
    waits_removed: float = 0.0


class Finding(msgspec.Struct, frozen=True):
    """A problem, how sure we are, what to do and what it gains. The engine fills in `rule`."""

    title: str
    summary: str
    severity: Severity
    confidence: float
    saving: AnySaving
    evidence: tuple[Evidence, ...]
    fix: Fix
    rule: str = ""
    id: str = ""
    """The rule and an ordinal, `launch-gap-1`: the same in every report of the same trace."""
    status: Literal["found", "possible"] = "found"
    """A possible one is low at most: `possible_why` says what stands against it, "" where recording could have made it, and
    `decide_with` is the command that tells."""
    possible_why: str = ""
    decide_with: str = ""
    cause: str = ""
    """Of a job: compute, imbalance, host, data-loading, copy or communication."""
    ranks: tuple[int, ...] = ()
    """The ranks it holds for, the culprit first."""
    folded_into: str = ""
    """The rule whose fix already removes most of this: the cause, of which this is a symptom."""
    allowed: str = ""
    """Why the team lives with this; "" where it does not."""
    checks: tuple[str, ...] = ()
    """The health checks it rests on: each of them passed, or at worst degraded."""
    lines_with: str = ""
    """How to record the lines of the source that it comes from, where the recording has none."""
    edits: tuple[Change, ...] = ()
    """What the fix is expected to do to the step, part by part."""

    @property
    def loud(self) -> bool:
        """Whether it asks for something to be done, rather than notes it."""
        return self.severity in LOUD

    @property
    def shortens(self) -> bool:
        """Whether the fix, as far as it is known to help, makes the step itself shorter."""
        return isinstance(self.saving, Saving) and self.saving.per == "step" and self.status == "found"

    def __post_init__(self) -> None:
        if not self.evidence:
            raise ValueError(f"the finding {self.title!r} has no evidence")
        if "\n" in self.summary or len(self.summary) > SUMMARY_CHARACTERS:
            raise ValueError(f"the summary of {self.title!r} does not fit one line")
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence is 0 to 1, not {self.confidence}")


class Clear(msgspec.Struct, frozen=True):
    """A rule looked and found nothing: `why` gives the value and the threshold."""

    why: str
    rule: str = ""


class Skipped(msgspec.Struct, frozen=True):
    """A rule could not look: what was missing, and how to record it."""

    why: str
    record_with: str = ""
    rule: str = ""


class Failed(msgspec.Struct, frozen=True):
    """A rule broke; the others went on."""

    rule: str
    error: str


class Recorded(msgspec.Struct, frozen=True):
    """What the recorder was told to write beside the events; `steps`: whole ones in the window, 0 where none repeats."""

    shapes: bool
    stacks: bool
    steps: int
    memory: bool = False
    syncs: bool = False


class SourceInfo(msgspec.Struct, frozen=True):
    """The file that was read. bytes: of its uncompressed text; events: of every kind."""

    path: str
    format: str
    bytes: int
    events: int
    recorded: Recorded


class DeviceInfo(msgspec.Struct, frozen=True):
    """A device that did something. sm_count: its multiprocessors, 0 where they were not recorded."""

    id: int
    name: str
    sm_count: int
    rates: dict[str, float] = {}
    """Peak rates that the analysis used, where they are not those of the table of known devices: TFLOP/s by precision, GB/s of memory."""
    rates_from: str = ""
    """Where these come from: the user's settings, or an estimate by generation."""


class Prediction(msgspec.Struct, frozen=True):
    """A figure with the interval that it lies in."""

    low: float
    expected: float
    high: float


class Window(msgspec.Struct, frozen=True):
    """The analysed part of the trace. `basis` says what a step is; `step_us` is its steady period."""

    start_us: float
    end_us: float
    steps: int
    step_us: float
    basis: Literal["profiler-step", "nvtx", "detected", "whole"]
    detail: str = ""
    true_step_us: Prediction | None = None
    """The step as it runs without a profiler; None where that was not worked out."""
    recording_us: float = 0.0
    """What recording added to a step."""
    true_step_basis: Literal["measured", "estimated", "recorded"] = "recorded"
    """Whether `true_step_us` was timed without a profiler, follows from the trace, or is the recorded step for want of better."""


class Idle(msgspec.Struct, frozen=True):
    """Idle device time by cause; the causes sum to `DeviceTime.idle_us`."""

    sync: float = 0.0
    data_loading: float = 0.0
    launch: float = 0.0
    allocator: float = 0.0
    host: float = 0.0
    dependency: float = 0.0
    profiler: float = 0.0
    unknown: float = 0.0


class DeviceTime(msgspec.Struct, frozen=True):
    """Where one device's window went; the five classes sum to `window_us`."""

    device: int
    window_us: float
    compute_us: float
    exposed_comm_us: float
    exposed_copy_us: float
    exposed_memset_us: float
    idle_us: float
    idle: Idle


TOUCHES = ("host", "kernels", "counters", "memory", "ranks")
"""What a check of a recording may find untrue, and what a rule may rely on: what the host did, what the device's ops took, the
counters of a kernel, what memory held, how ranks are matched."""


class Health(msgspec.Struct, frozen=True):
    """One question asked of the trace before any advice."""

    check: str
    status: Literal["ok", "degraded", "failed"]
    detail: str
    touches: tuple[str, ...] = ("host", "kernels")
    """What cannot be trusted where it fails: what the host did, or what the device's ops took."""
    record_with: str = ""
    """How to record again so that it holds."""


DEVICE_BOUND = ("compute-bound", "memory-bound", "gpu-bound", "copy-bound")
"""Bottlenecks that a faster host leaves as they are."""


class Headline(msgspec.Struct, frozen=True):
    """The report in a line. `predicted_step_us` is one replay with every fix, not a sum of savings; None where nothing has steps."""

    bottleneck: str
    summary: str
    step_us: float | None = None
    predicted_step_us: Prediction | None = None
    judged: Literal["yes", "partly", "no"] = "yes"
    """Whether the recording could be judged: "nothing found" and "could not look" are different."""
    judged_why: str = ""


class UtilizationRow(msgspec.Struct, frozen=True):
    """Mean of a hardware counter over the window, in percent of its peak."""

    device: int
    unit: str
    mean_pct: float
    samples: int


class Occupancy(msgspec.Struct, frozen=True):
    """Warps on a multiprocessor over those that it holds, 0 to 1: `theoretical` those that fit, `achieved` those that were there,
    None where nobody counted. `limiter`: what keeps more from fitting: registers, shared memory, threads or blocks.
    `limits`: the blocks that registers, shared memory, threads and the multiprocessor itself allow."""

    theoretical: float
    achieved: float | None = None
    limiter: str = ""
    limits: tuple[int, ...] = ()


class Check(msgspec.Struct, frozen=True):
    """One question asked of a measured kernel. What was not collected is neither good nor bad: `record_with` collects it."""

    check: str
    status: Literal["ok", "concern", "not collected"]
    detail: str
    record_with: str = ""


class Counted(msgspec.Struct, frozen=True):
    """What hardware counters say of a kernel; None where they were not collected. Shares of the peak are 0 to 1."""

    compute: float | None = None
    memory: float | None = None
    dram: float | None = None
    l2: float | None = None
    l1: float | None = None
    dram_bytes: float | None = None
    dram_bound_us: float | None = None
    """What moving those bytes takes at the device's peak."""
    waves: float | None = None
    threads: int | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    capability: tuple[int, ...] = ()
    """The device's compute capability, major and minor."""
    flops: float | None = None
    """A second, FP64 and FP32 of CUDA cores."""
    intensity: float | None = None
    """FLOP a byte of DRAM."""
    verdict: str = ""
    checks: tuple[Check, ...] = ()


class KernelRow(msgspec.Struct, frozen=True):
    """GPU ops of one name and family in the window, or launches of one kernel with one grid that were measured one by one.

    Rates are NaN-free: 0 where they cannot be known.
    """

    name: str
    family: str
    precision: str
    calls: int
    total_us: float
    mean_us: float
    share: float
    """Of the device's busy time."""
    op: str = ""
    occupancy_pct: float = 0.0
    active_sms: float = 0.0
    """Share of the multiprocessors that have a block of it, by its grid and weighted by time; 0 where no grid was recorded."""
    gbps: float = 0.0
    tflops: float = 0.0
    dur_us: float = 0.0
    """Of one launch: the median where each was measured, else the mean."""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    limiter: str = ""
    """What it is limited by: compute, dram, l2, l1, or latency; "" where nobody counted."""
    stalls: dict[str, float] = {}
    """Share of a warp's time by what it waits for, most first."""
    occupancy: Occupancy | None = None
    counted: Counted | None = None


class CategoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A TPU's HLO ops of one category, a step of one core, times in µs. Rows sum to what a core works."""

    name: str
    kind: Literal["compute", "communication", "copy"]
    calls: float
    us: float
    """Its own, without the ops inside of it."""
    share: float
    """Of the step."""
    beside_us: float = 0.0
    """Of asynchronous ops, from start to end, whether or not the core waited."""
    gbps: float = 0.0
    tflops: float = 0.0


class OpRow(msgspec.Struct, frozen=True, kw_only=True):
    """Framework ops of one name in the window, times in µs. `self` is without the ops inside of it, `total` with them.

    Rates are of the kernels whose work is known, 0 where none is.
    """

    name: str
    calls: int
    kernels: int = 0
    """GPU ops that it launched itself."""
    gpu_self_us: float = 0.0
    gpu_total_us: float = 0.0
    host_self_us: float = 0.0
    host_total_us: float = 0.0
    allocated_bytes: int = 0
    """Device memory that it asked for itself, where memory was recorded."""
    share: float = 0.0
    """Of the GPU's busy time, of what it launched itself."""
    gbps: float = 0.0
    tflops: float = 0.0


Link = Literal["kernel", "copy", "launch-delay", "kernel-to-kernel", "return", "allocation", "data-loading", "dispatch", "host"]
"""What a critical path is made of: a GPU op; from the launching call to the op's start on an idle stream; from the op it waited for to
its start; from the end of an op to the return of the call that waited for it; the host allocating, waiting for a batch, issuing ops, or at
work of its own."""

HOST_LINKS: frozenset[Link] = frozenset(("launch-delay", "return", "allocation", "data-loading", "dispatch", "host"))
"""Links that a faster GPU leaves as long as they are."""


class PathPart(msgspec.Struct, frozen=True):
    """All links of one kind on the critical path of the window. The parts sum to the path."""

    link: str
    total_us: float
    share: float
    count: int


class Rates(msgspec.Struct, frozen=True):
    """Use of the hardware, 0 to 1: of the peaks while the GPU works and over the step, and of the warps that could be active.
    `known` is the share of the kernels' time whose work is known; None where a rate is not."""

    known: float
    flops_busy: float | None
    flops_step: float | None
    bytes_busy: float | None
    bytes_step: float | None
    active_warps: float | None
    basis: Literal["estimated", "measured"]


class Answer(msgspec.Struct, frozen=True):
    """One of the questions that are asked of any profile: yes, no or not recorded, the figure behind it (a share, 0 to 1), whether
    that is good news, and the section of the page that shows it."""

    id: str
    question: str
    answer: Literal["yes", "no", "not recorded"]
    detail: str
    link: str
    figure: float | None = None
    good: bool | None = None


PartKind = Literal["compute", "communication", "copy", "memset", "idle"]


class Part(msgspec.Struct, frozen=True):
    """A part of one step that no other part holds: a kernel of an op and a module, or idleness of one cause. Parts sum to the step."""

    kind: PartKind
    name: str
    """The kernel, or the cause of idleness."""
    family: str = ""
    op: str = ""
    module: str = ""
    shapes: str = ""
    """Of the first call, as recorded."""
    calls: float = 0.0
    us: float = 0.0


class Work(msgspec.Struct, frozen=True):
    """What one step does, on all devices, overlaps counted twice. Two programs that differ in it are not the same work."""

    kernels: float = 0.0
    kernel_us: float = 0.0
    copied_bytes: float = 0.0
    flops: float = 0.0
    """Of products and convolutions whose shapes were recorded, attention left out."""
    samples: float = 0.0
    """Samples or requests of a step, 0 where neither marks nor shapes say."""
    samples_from: str = ""
    """What said so."""


class HeldRow(msgspec.Struct, frozen=True):
    """Memory of one category, place and op that is held at the peak. Rows sum to the peak of their device."""

    category: str
    module: str
    source: str
    """The innermost line of the program, `file.py:12`."""
    bytes: int
    op: str = ""
    count: int = 1
    lifetime: str = ""
    """How long it lives: `part of a step`, `a step`, `several steps`, `always`."""
    start_us: float = 0.0
    """When the first of them was made, and the last of them given back, from the first event."""
    end_us: float = 0.0


class MemoryDevice(msgspec.Struct, frozen=True):
    """One device's peaks, in bytes; `segments` are those that it ends with."""

    device: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    end_allocated_bytes: int
    events: int
    out_of_memory: int = 0
    """Requests that failed."""


class TracedMemory(msgspec.Struct, frozen=True):
    """What a timeline's own memory events say of one device in the window, in bytes; None where they do not say it."""

    device: int
    peak_allocated_bytes: int | None = None
    """What the program held of its allocator."""
    peak_reserved_bytes: int | None = None
    """What was held from the driver."""


class SegmentRow(msgspec.Struct, frozen=True):
    """A segment at the moment when most was reserved: what of it is in use, as [offset, bytes] in order."""

    bytes: int
    large: bool
    used: tuple[tuple[int, int], ...]
    stream: int = 0


class MemoryCurve(msgspec.Struct, frozen=True):
    """Memory over time, thinned to what a chart shows: the highest moment of each stretch. Lists of one length."""

    time_us: tuple[float, ...]
    """From the first event."""
    reserved: tuple[int, ...]
    categories: dict[str, tuple[int, ...]]
    """Bytes allocated by category; they sum to what is allocated."""
    peak: int
    """The position of the peak."""

    def __post_init__(self) -> None:
        lengths = {len(self.time_us), len(self.reserved), *map(len, self.categories.values())}
        if len(lengths) > 1:
            raise ValueError(f"the lists of a memory curve have {' and '.join(map(str, sorted(lengths)))} entries")
        if not 0 <= self.peak < max(max(lengths), 1):
            raise ValueError(f"a memory curve of {max(lengths)} moments has no peak at {self.peak}")


class Memory(msgspec.Struct, frozen=True):
    """What a snapshot of memory says: of the device that holds most, and in brief of the others."""

    device: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    at_peak: tuple[HeldRow, ...]
    named_share: float
    """Share of the bytes at the peak whose category is known."""
    reserved_at_peak_bytes: int = 0
    """Reserved when most was allocated: what is beyond that is cached or in pieces."""
    steps: int = 0
    growth_bytes: int = 0
    """What a step adds, where each adds about the same."""
    replay_error: float = 0.0
    """How far the replay of the recorded requests is from the recorded peak of reserved bytes, as a share."""
    devices: tuple[MemoryDevice, ...] = ()
    curve: MemoryCurve | None = None
    segments: tuple[SegmentRow, ...] = ()

    def peak(self, of: Literal["allocated", "reserved"]) -> int:
        """The peak that a saving of that kind is a part of."""
        return self.peak_allocated_bytes if of == "allocated" else self.peak_reserved_bytes


class RankStep(msgspec.Struct, frozen=True, array_like=True):
    """One step of one rank, in µs: as recorded, computing, and waiting for other ranks."""

    step_us: float
    compute_us: float
    wait_us: float


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a job: where a step of its device went, in µs. The parts sum to `step_us`."""

    rank: int
    host: str = ""
    step_us: float
    compute_us: float
    copy_us: float = 0.0
    wait_us: float = 0.0
    """Waiting for other ranks: communication that nothing of this rank's runs beside, before the last one has come."""
    transfer_us: float = 0.0
    """Exposed communication after that."""
    input_us: float = 0.0
    host_us: float = 0.0
    """Idle for other reasons of the host's."""
    other_us: float = 0.0
    lateness_us: float = 0.0
    """What the others waited for it, a step."""
    by_step: tuple[RankStep, ...] = ()
    trace: str = ""
    """The name of its trace."""
    page: str = ""
    """The file of its own page, seen from the job's."""
    failed: str = ""
    """Why it could not be read; all else is 0 then."""


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """How collectives of different ranks were found to be the same, and whether that is proved."""

    method: str
    matched: int
    share: float = 1.0
    """Of all collectives that could be matched."""
    spread_us: float = 0.0
    """Median distance of the same collective's ends: all leave it together."""
    status: Literal["ok", "degraded", "failed"]
    detail: str = ""
    clock_offset_us: float = 0.0
    """Largest between two ranks' clocks; corrected."""
    missing: tuple[int, ...] = ()
    """Ranks of the job that no trace was given of, the first thousand."""


class CollectiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one kind, group and size. Waits and transfers in µs a step, summed over ranks and divided by them."""

    kind: str
    group: str
    ranks: int
    bytes: int
    calls: float
    """A step."""
    wait_us: float
    transfer_us: float
    transfer_each_us: float
    """Median of one."""
    bus_gbps: float = 0.0
    """In 1e9 bytes a second, as nccl-tests has it; 0 where the size is unknown."""
    link_gbps: float = 0.0
    """What the link between the devices can carry in one direction; 0 where that is unknown."""
    nodes: int = 0
    """Machines that the group's ranks run on; 0 where that is unknown."""


class RankCost(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as long the job takes as the ideal one where only this rank's own time is as it was."""

    rank: int
    slowdown: float


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """A job over the ideal one, in which every rank does each stretch as long as the mean of all and each transfer takes the median of
    its like (Lin et al., OSDI 2025). `by_part`: where only that part of the ranks' time is as it was."""

    slowdown: float
    by_part: dict[str, float]
    by_rank: tuple[RankCost, ...]
    worst_ranks: tuple[int, ...]
    """The slowest 3 % of the ranks, one at least."""
    explained_by_worst: float
    """Of what the job loses against the ideal, the share that returns when only these are as the ideal has them."""


class WaitRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank waits for another, the last to come, in collectives: so many µs a step."""

    rank: int
    waits_for: int
    wait_us: float


class RankSpan(msgspec.Struct, frozen=True, array_like=True):
    """What a rank's device did for a while: a part of `RankRow`, or `transfer`; µs from the beginning of what is shown."""

    part: str
    start_us: float
    end_us: float


class RankMoment(msgspec.Struct, frozen=True, kw_only=True):
    """One rank around a collective: when it came to it and when it left, None where it has no part in it, and its device's time."""

    rank: int
    arrival_us: float | None
    end_us: float | None
    spans: tuple[RankSpan, ...]


class CollectiveMoment(msgspec.Struct, frozen=True, kw_only=True):
    """The collective that ranks waited longest in, on one clock: µs from the beginning of what is shown. `begin_us`: when the last
    rank, `last`, had come. `ranks`: those that came latest and earliest where there are many."""

    kind: str
    group: str
    bytes: int
    step: int
    last: int
    wait_us: float
    """All ranks' waits together."""
    begin_us: float
    span_us: float
    ranks: tuple[RankMoment, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Everything an analysis says. Every selected rule stands in exactly one of the four lists. What a kind lacks is None."""

    # These two stand first in the JSON, so that a reader knows at once what it holds.
    schema: int = SCHEMA
    advisor: str = ""
    kind: Kind = "trace"
    source: SourceInfo
    devices: tuple[DeviceInfo, ...]
    window: Window | None
    time: tuple[DeviceTime, ...] | None
    health: tuple[Health, ...]
    headline: Headline
    findings: tuple[Finding, ...]
    clear: tuple[Clear, ...]
    skipped: tuple[Skipped, ...]
    failed: tuple[Failed, ...]
    kernels: tuple[KernelRow, ...] = ()
    utilization: tuple[UtilizationRow, ...] = ()
    critical_path: tuple[PathPart, ...] = ()
    critical_path_after: tuple[PathPart, ...] = ()
    """Of the step with every fix: what would bound it then. Empty where nothing was found."""
    breakdown: tuple[Part, ...] = ()
    work: Work = Work()
    memory: Memory | None = None
    traced_memory: tuple[TracedMemory, ...] = ()
    rates: Rates | None = None
    checklist: tuple[Answer, ...] = ()
    ranks: tuple[RankRow, ...] = ()
    matching: Matching | None = None
    collectives: tuple[CollectiveRow, ...] = ()
    waits: tuple[WaitRow, ...] = ()
    """Of a job: who waits for whom, most first."""
    worst: CollectiveMoment | None = None
    slowdown: Slowdown | None = None
    ops: tuple[OpRow, ...] = ()
    """Framework ops by name, most GPU time first."""
    categories: tuple[CategoryRow, ...] = ()
    """Of a TPU: its HLO ops by category, most time first."""

    @property
    def picture(self) -> Picture | None:
        """What charts draw beyond the JSON, made when it is first asked for; None of a saved report, and of one made by replacing fields."""
        draw: Callable[[], Picture] | None = self.__dict__.get("draw")
        return draw() if draw else None

    def with_picture(self, draw: Callable[[], Picture]) -> Report:
        """The same report that carries a picture: most formats ask for none, and it takes a third of a small trace's analysis."""
        made = copy.copy(self)
        made.__dict__["draw"] = cache(draw)
        return made

    def with_picture_of(self, other: Report) -> Report:
        """The same report with the picture that the other carries, drawn or not."""
        made = copy.copy(self)
        made.__dict__.update(other.__dict__)
        return made

    @property
    def traced(self) -> Window:
        """The window of a report that has one. Raises TypeError where a recording of another kind has no steps."""
        if self.window is None:
            raise TypeError(f"a report of kind {self.kind} has no window")
        return self.window

    @property
    def step_us(self) -> float:
        """The step that savings are parts of; 0 where nothing has steps."""
        return self.headline.step_us or 0.0

    def added_us(self, time: DeviceTime) -> float:
        """What recording added to the device's window, all of it idle time."""
        return min(self.window.recording_us * self.window.steps, time.idle.profiler) if self.window else 0.0

    def whole(self, saving: AnySaving) -> float:
        """What a saving is a part of, in its unit."""
        if isinstance(saving, BytesSaved):
            return float(self.memory.peak(saving.of)) if self.memory else 0.0
        return self.step_us if isinstance(saving, Saving) else 1.0

    def share(self, finding: Finding) -> float:
        """The share of the whole that a finding's fix is expected to save, 0 to 1."""
        whole = self.whole(finding.saving)
        return min(finding.saving.expected / whole, 1.0) if whole > 0 else 0.0

    def tables(self) -> dict[str, pd.DataFrame]:
        """The report's lists as DataFrames by name; see `advisor.report.tables`."""
        from advisor.report.tables import tables

        return tables({name: getattr(self, name) for name in self.__struct_fields__}, self.picture)

    def __repr__(self) -> str:
        head = self.headline
        found = f"{len(self.findings)} finding{'' if len(self.findings) == 1 else 's'}"
        step = f", {duration(self.step_us)}" if self.step_us else ""
        return f"<Report of {self.source.path}: {head.bottleneck}{step}, {found}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the HTML report in a frame of its own, with no access to the notebook."""
        from html import escape

        from advisor import reports

        page = reports.formats()["html"].render(self)
        style = "width:100%;height:48rem;border:1px solid #8885;border-radius:8px"
        return f'<iframe title="advisor report" sandbox="allow-scripts" style="{style}" srcdoc="{escape(page)}"></iframe>'

    def to_json(self) -> bytes:
        """The report as JSON of this schema."""
        return as_json(self)

    @classmethod
    def from_json(cls, data: bytes) -> Report:
        """Read a saved report. Raises msgspec.DecodeError or ValidationError where it is no report."""
        return msgspec.convert(_upgraded(msgspec.json.decode(data)), cls)


def _upgraded(saved: Any) -> Any:
    """A saved report of an earlier advisor with the fields that it did not know: savings had one unit."""
    found = saved.get("findings") if isinstance(saved, dict) else None
    for finding in found if isinstance(found, list) else ():
        if isinstance(finding, dict) and isinstance(finding.get("saving"), dict):
            finding["saving"].setdefault("unit", "us")
    return saved
