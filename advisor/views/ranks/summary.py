"""A rank's trace reduced to the data that its job needs: kilobytes of plain arrays, without paths of the machine."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import msgspec
import numpy as np

from advisor.errors import TraceError
from advisor.intervals import NANOSECOND_US, Floats, Ints, Mask, Spans, in_spans
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import EXPERTS, Family
from advisor.recordings.timeline import Timeline
from advisor.report.charts import PIXELS
from advisor.report.finding import Clear, Failed, Finding, Skipped
from advisor.report.recording import Health, Prediction, UnseenWork
from advisor.report.serving import Serving
from advisor.views.ranks import stored
from advisor.views.ranks.collectives import KINDS, RankCollectives
from advisor.views.ranks.contention import contention
from advisor.views.ranks.lane import PARTS, Lane
from advisor.views.replay.replay import Replay
from advisor.views.replay.schedule import Schedule
from advisor.views.time.device_time import Partition
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.host_activity import LONGEST_DISPATCH_US
from advisor.views.trace.launches import Launches
from advisor.views.trace.program import Program
from advisor.views.trace.stack import Framework, Stack
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches

SCHEMA = 7  # of a rank's summary: an older one is made anew

COUNTED = "order"
"""Says which rank a trace is where nothing else does: its place among the others' names."""

STRIP = 10 * PIXELS
"""Pieces that a window is drawn in: a few steps, a few of these a pixel."""

LAUNCH_US = cost("collective-start")


class RankFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a rank. Times in µs; `base_ns` is the absolute time of their zero."""

    schema: int = SCHEMA
    rank: int
    label: str = ""
    """The name of its trace's file, or of its part of a file with several."""
    rank_from: str = ""
    """What says which rank it is: distributedInfo, name or order."""
    conflict: str = ""
    """Where two of those disagree."""
    world_size: int | None = None
    format: str = ""
    host: str = ""
    """The machine that it ran on, "" if nothing says it."""
    run: str = ""
    """The run of a log of JAX that was picked, by its directory's name."""
    device: str = ""
    base_ns: int = 0
    start_us: float = 0.0
    end_us: float = 0.0
    steps: int = 1
    basis: str = "whole"
    step_us: float = 0.0
    true_step_us: Prediction = Prediction(0.0, 0.0, 0.0)
    """The step as it runs when nobody records, by this rank's trace alone."""
    host_us: float = 0.0
    """What the host itself needs for a step, waits for the device left out and the profiler's cost taken off."""
    recorded_host_us: float = 0.0
    """The same as recorded."""
    between_steps_us: float = 0.0
    """A step's idle time for its host before its first kernel: where a program waits for its next batch."""
    shows_loader: bool = True
    """Whether a wait for input would show as one: the framework's ranges were recorded."""
    kernels: float = 0.0
    """Kernels beside communication in a step."""
    threads: float = 0.0
    """Threads that they were launched with: a measure of the work that does not depend on the device."""
    collective_host_us: float = 0.0
    """Host time to launch a collective, as recorded."""
    trains: bool = True
    """Whether its program computes gradients or updates parameters, as far as its trace tells; a program of JAX may."""
    framework: str = "torch"
    """Whose functions launch its work, as in `Program`."""
    server: str = ""
    """The inference server that its program is, "" if it is none."""
    frameworks: tuple[Framework, ...] = ()
    """The frameworks that word the fixes, as `Stack.likely`."""
    accumulations: float = 1.0
    """Times a step that the same gradients are averaged."""
    contended_us: float = 0.0
    """What kernels took longer, a step, while communication ran next to them."""
    contention_ratio: float = 1.0
    bytes: int = 0
    events: int = 0
    shapes: bool = False
    stacks: bool = False
    devices: tuple[tuple[str, int], ...] = ()
    groups: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    communicators: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    clear: tuple[Clear, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    failed: tuple[Failed, ...] = ()
    health: tuple[Health, ...] = ()
    unseen: tuple[UnseenWork, ...] = ()
    serving: Serving | None = None
    experts_us: tuple[float, ...] = ()
    """Time of its experts' GEMMs in each step; empty if there are none."""

    @property
    def recording_us(self) -> float:
        """Overhead per step by this rank's trace alone; 0 if the trace does not show the step without a profiler."""
        true_us = self.true_step_us.expected
        return max(self.step_us - true_us, 0.0) if true_us > 0 else 0.0


class RankSummary(msgspec.Struct, frozen=True):
    """The facts, the collectives and the segments of the rank's own lane between them.

    Of collectives (n,): kind (position in `collectives.KINDS`), known, group, dtype, peers, communicator, split (positions in the facts' lists), needed (as in
    `NeededSums`), sequence, sent, received (elements, -1 unknown), size_bytes, start_us, end_us, launch_us, stream, step, trigger (the segment at whose end it
    could begin, -1), lag_us after that, after (the collective before on its stream, -1), after_lag_us, and before (n, parts): what the rank did since the end
    of the collective before of the same group. Of segments (m,): segment_start_us, segment_end_us, own (m, parts), waits_for (collective, -1), segment_step,
    held (it begins when a collective lets the host go on). steps_us (steps, parts): each step's parts, communication's wait and transfer together. strip
    (STRIP,): which part (position in `PARTS`) takes most of each of as many equal pieces of the window: the lane as a picture.
    """

    facts: RankFacts
    kind: Ints
    known: Mask
    group: Ints
    dtype: Ints
    peers: Ints
    communicator: Ints
    split: Ints
    sequence: Ints
    sent: Ints
    received: Ints
    size_bytes: Ints
    start_us: Floats
    end_us: Floats
    launch_us: Floats
    stream: Ints
    step: Ints
    needed: Mask
    trigger: Ints
    lag_us: Floats
    after: Ints
    after_lag_us: Floats
    before: Floats
    segment_start_us: Floats
    segment_end_us: Floats
    own: Floats
    waits_for: Ints
    segment_step: Ints
    held: Mask
    steps_us: Floats
    strip: Ints

    @property
    def rank(self) -> int:
        return self.facts.rank

    def to_bytes(self) -> bytes:
        """For a file or another machine; `from_bytes` reads it. Nothing in it is executed when it is read."""
        out = io.BytesIO()
        facts = np.frombuffer(msgspec.json.encode(self.facts), np.uint8)
        np.savez_compressed(out, facts=facts, **{name: getattr(self, name) for name in _ARRAYS})
        return out.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> RankSummary:
        """Raises TraceError if the data are no summary of this version."""
        try:
            arrays = stored.unpacked(data)
            facts = msgspec.json.decode(arrays.pop("facts").tobytes(), type=RankFacts)
            if facts.schema != SCHEMA:
                raise TraceError(f"the summary of rank {facts.rank} has schema {facts.schema}, not {SCHEMA}", "Make it again.")
            if not all(_PEERS.fullmatch(peers) for peers in facts.peers):
                raise ValueError("it names peers that are no ranks")
            true = facts.true_step_us
            if not 0 <= facts.step_us < float("inf"):
                raise ValueError(f"its step takes {facts.step_us} µs")
            if not 0 <= true.low <= true.expected <= true.high < float("inf"):
                raise ValueError(f"its step without a recording takes {true.low} to {true.high} µs")
            stored.check(arrays, _ARRAYS, {"kind": len(KINDS), **{name: len(getattr(facts, known)) for name, known in _LISTS.items()}})
            if facts.steps != len(arrays["steps_us"]):
                raise ValueError(f"it tells {len(arrays['steps_us'])} of {facts.steps} steps")
            return cls(facts, **{name: arrays[name] for name in _ARRAYS})
        except (ValueError, KeyError, msgspec.MsgspecError) as error:
            raise TraceError(f"the file is no summary of a rank: {error}", "Make it again: advisor analyze JOB --shard 1/4 -o DIR") from None

    @classmethod
    def build(
        cls,
        timeline: Timeline,
        steps: Steps,
        launches: Launches,
        kernels: Kernels,
        collectives: RankCollectives,
        lane: Lane,
        partition: Partition,
        replay: Replay,
        program: Program,
        stack: Stack,
    ) -> RankSummary:
        found, device = collectives, partition.main.device if partition.main else -1
        trigger_us = _triggers(timeline, kernels, launches, device, found, lane)
        cuts, segments = _cut(steps, lane, trigger_us)
        trigger = np.where(np.isnan(trigger_us), -1, np.searchsorted(cuts[1], trigger_us + NANOSECOND_US, side="right") - 1)
        after, after_lag, lag = _order(found, np.where(trigger >= 0, cuts[1][np.maximum(trigger, 0)], np.nan))
        waits_for = np.full(len(cuts[0]), -1, np.int64)
        if len(lane.waits[0]):
            at = np.searchsorted(cuts[0], lane.waits[1] - NANOSECOND_US)
            inside = at < len(cuts[0])
            waits_for[at[inside]] = lane.wait_collective[inside]
        edges = steps.edges_us
        pieces = np.linspace(steps.start_us, steps.end_us, STRIP + 1)
        dtypes, dtype = coded(found.dtype)
        groups, group = coded(found.group)
        peers, peer = coded(found.peers)
        communicators, communicator = coded(found.communicator)
        splits, split = coded(found.split)
        return cls(
            facts=msgspec.structs.replace(
                _facts(timeline, steps, kernels, found, lane, replay, device, program, stack),
                groups=groups, dtypes=dtypes, peers=peers, communicators=communicators, splits=splits,
            ),
            kind=found.kind,
            known=found.known,
            group=group,
            dtype=dtype,
            peers=peer,
            communicator=communicator,
            split=split,
            sequence=found.sequence,
            sent=found.sent_elements,
            received=found.received_elements,
            size_bytes=found.bytes,
            start_us=found.start_us,
            end_us=found.end_us,
            launch_us=found.launch_us,
            stream=found.stream,
            step=found.step,
            needed=found.needed,
            trigger=trigger,
            lag_us=lag,
            after=after,
            after_lag_us=after_lag,
            before=_time_before(found, group, lane),
            segment_start_us=cuts[0],
            segment_end_us=cuts[1],
            own=segments,
            waits_for=waits_for,
            segment_step=np.searchsorted(edges, cuts[0] + 1e-6, side="right") - 1,
            held=in_spans((cuts[0] + cuts[1]) / 2, lane.held) & (cuts[1] > cuts[0]),
            steps_us=lane.parts_between(edges[:-1], edges[1:]),
            strip=lane.parts_between(pieces[:-1], pieces[1:]).argmax(axis=1).astype(np.int8),
        )  # fmt: skip


def _facts(
    timeline: Timeline, steps: Steps, kernels: Kernels, found: RankCollectives, lane: Lane, replay: Replay, device: int, program: Program, stack: Stack
) -> RankFacts:
    """device: the one that works most, -1 if none does. What collectives are of, their lists, is left empty."""
    source, per_step = timeline.source, max(steps.steps, 1)
    described = timeline.device(device) if device >= 0 else None
    beside, own = contention(timeline, steps, kernels, found), _own_kernels(timeline, kernels, steps, device)
    between = lane.since_computing(steps.edges_us[1:])[:, [PARTS.index(part) for part in ("host", "launch", "sync")]]
    return RankFacts(
        rank=source.rank if source.rank is not None else -1,
        world_size=source.world_size,
        format=source.format,
        device=described.name if described else "",
        base_ns=timeline.base_ns,
        start_us=steps.start_us,
        end_us=steps.end_us,
        steps=steps.steps,
        basis=steps.basis,
        step_us=steps.step_us,
        true_step_us=replay.true_step.interval,
        host_us=_host_us(replay.corrected),
        recorded_host_us=_host_us(replay.recorded),
        between_steps_us=float(between.sum()) / per_step,
        shows_loader=bool(len(timeline.cpu_ops)) or bool(lane.parts[:, PARTS.index("data-loading")].any()),
        kernels=float(own.sum()) / per_step,
        threads=float(_threads(timeline)[own].sum()) / per_step,
        collective_host_us=_issuing_us(timeline),
        trains=program.training or program.framework == "jax",
        framework=program.framework,
        server=program.server,
        frameworks=stack.likely,
        accumulations=_accumulations(timeline, steps),
        contended_us=beside.extra_us / per_step,
        contention_ratio=beside.ratio,
        bytes=source.bytes,
        events=source.events,
        shapes=source.shapes,
        stacks=source.stacks,
        devices=((described.name, described.sm_count),) if described else (),
        experts_us=_experts_us(timeline, kernels, steps, device),
    )


Cuts = tuple[Spans, Floats]


def coded(texts: Sequence[str]) -> tuple[tuple[str, ...], Ints]:
    """Distinct texts and each one's position among them."""
    distinct = tuple(dict.fromkeys(texts))
    at = {text: i for i, text in enumerate(distinct)}
    return distinct, np.array([at[text] for text in texts], np.int64)


def _host_us(schedule: Schedule) -> float:
    return float(schedule.host_us.sum() + schedule.call_us.sum()) / max(schedule.steps, 1)


def _own_kernels(timeline: Timeline, kernels: Kernels, steps: Steps, device: int) -> Mask:
    ops = timeline.gpu_ops
    start = ops["start_us"]
    return kernels.compute & (ops["device"] == device) & steps.holds(start)


def _experts_us(timeline: Timeline, kernels: Kernels, steps: Steps, device: int) -> tuple[float, ...]:
    ops = timeline.gpu_ops
    chosen = kernels.in_families(Family.GEMM) & matches(ops, EXPERTS) & (ops["device"] == device)
    start, edges = ops["start_us"][chosen], steps.edges_us
    found, _ = np.histogram(start, edges, weights=ops["dur_us"][chosen]) if len(edges) > 1 else (np.empty(0), None)
    return tuple(found.tolist()) if found.any() else ()


def _threads(timeline: Timeline) -> Floats:
    ops = timeline.gpu_ops
    return np.maximum(ops["grid_blocks"].astype(float), 0.0) * np.maximum(ops["block_threads"].astype(float), 0.0)


def _issuing_us(timeline: Timeline) -> float:
    """Median time of the framework's op that issues a collective, 0 if none was recorded."""
    ops = timeline.cpu_ops
    if not len(ops):
        return 0.0
    issuing = ops["name"].matching(lambda name: name.startswith("c10d::"))
    return float(np.median(ops["dur_us"][issuing])) if issuing.any() else 0.0


_WRAPPED, _UPDATES = "DistributedDataParallel.forward", names_of("optimizer_step_anywhere")


def _accumulations(timeline: Timeline, steps: Steps) -> float:
    """Forward passes of the wrapper that averages gradients after each of them, a step. If none is known, a recording is one that updates once."""
    notes = timeline.annotations
    if not len(notes):
        return 1.0
    start = notes["start_us"]
    inside = steps.issued_at(start)
    if not steps.repeats:
        # Its first pass begins before its first launch.
        inside |= (start < steps.host_start_us) & (start + notes["dur_us"] > steps.host_start_us)
        if int((inside & matches(notes, _UPDATES)).sum()) != 1:
            return 1.0
    return max(1.0, float((inside & (notes["name"] == _WRAPPED)).sum()) / max(steps.steps, 1))


def _triggers(timeline: Timeline, kernels: Kernels, launches: Launches, device: int, found: RankCollectives, lane: Lane) -> Floats:
    """(n,) when each collective could have begun as far as this rank's own work goes, NaN if that is before the window.

    A collective waits, as its stream does, for the last op that the host had launched before it. One that the host launched when
    the lane had run dry begins when the lane's own time, which the host took, is over.
    """
    ops = timeline.gpu_ops
    own = np.flatnonzero((ops["device"] == device) & ~kernels.communication)
    end = ops.ends[own]
    order = np.argsort(end, kind="stable")
    end, launch = end[order], launches.start_us[own][order]
    made = np.full(len(found.start_us), np.nan)
    first = np.searchsorted(end, found.start_us + 1.0, side="right") - 1
    late = ~(found.launch_us <= np.r_[end, -np.inf][first])
    for i, at in enumerate(first.tolist()):
        while at >= 0 and launch[at] > found.launch_us[i]:
            at -= 1
        if at >= 0:
            made[i] = min(end[at], found.start_us[i])
    opens = np.searchsorted(lane.waits[0], found.start_us - 1e-3)
    inside = late & (opens < len(lane.waits[0]))
    inside[inside] &= lane.waits[0][opens[inside]] <= found.start_us[inside] + 1e-3
    made[inside] = found.start_us[inside]
    # Where the lane idles as it is launched, and goes on beside it, what the host did until then is what it waited for.
    piece = np.searchsorted(lane.start_us, found.launch_us, side="right") - 1
    idle = (piece >= 0) & (lane.parts[np.maximum(piece, 0)][:, [PARTS.index("compute"), PARTS.index("copy")]].sum(axis=1) == 0)
    idle &= late & ~inside & (found.launch_us - np.nan_to_num(made, nan=np.inf) > LONGEST_DISPATCH_US)
    made[idle] = np.minimum(found.launch_us, found.start_us)[idle]
    low, high = (lane.start_us[0], lane.end_us[-1]) if len(lane.start_us) else (np.inf, -np.inf)
    made[(made < low) | (made > high)] = np.nan
    return made


def _cut(steps: Steps, lane: Lane, triggers: Floats) -> Cuts:
    """The lane cut at every trigger, wait and step: spans of the rank's own work, and what each is made of."""
    points = np.unique(np.round(np.concatenate([steps.edges_us, triggers[~np.isnan(triggers)], *lane.waits, *lane.held]), 3))
    points = np.clip(points[(points >= steps.start_us - NANOSECOND_US) & (points <= steps.end_us + NANOSECOND_US)], steps.start_us, steps.end_us)
    start, end = points[:-1], points[1:]
    waiting = in_spans((start + end) / 2, lane.waits)
    # The last, empty one stands for where the next step begins, which a wait may end.
    start, end = np.r_[start[~waiting], steps.end_us], np.r_[end[~waiting], steps.end_us]
    own = lane.parts_between(start, end)
    own[:, PARTS.index("communication")] = 0.0
    return (start, end), own


def _order(found: RankCollectives, trigger_us: Floats) -> tuple[Ints, Floats, Floats]:
    """The predecessor of each collective on its stream, and the time of its start after that, and after its trigger.

    The later of the two is the one it waited for, and keeps the time between; the other only has to come before.
    """
    n = len(found.start_us)
    after = np.full(n, -1, np.int64)
    for stream in np.unique(found.stream):
        rows = np.flatnonzero(found.stream == stream)
        after[rows[1:]] = rows[:-1]
    ended = np.where(after >= 0, found.end_us[np.maximum(after, 0)], -np.inf)
    triggered = np.nan_to_num(trigger_us, nan=-np.inf)
    behind = (ended > triggered) & ~(found.launch_us > ended)
    after_lag = np.where(behind, np.maximum(found.start_us - ended, 0.0), 0.0)
    lag = np.where(np.isfinite(triggered), np.maximum(found.start_us - triggered, 0.0), 0.0)
    return after, after_lag, np.where(behind, np.minimum(lag, LAUNCH_US), lag)


def _time_before(found: RankCollectives, group: Ints, lane: Lane) -> Floats:
    """(n, parts) of the time from the end of the group's collective before to each one's start; NaN for the first."""
    previous = np.full(len(found.start_us), np.nan)
    for g in np.unique(group):
        rows = np.flatnonzero(group == g)
        previous[rows[1:]] = found.end_us[rows[:-1]]
    made = lane.parts_between(np.nan_to_num(previous), found.start_us)
    made[np.isnan(previous)] = np.nan
    return made


_ARRAYS = {name: {"Ints": "i", "Floats": "f", "Mask": "b"}[kind] for name, kind in RankSummary.__annotations__.items() if name != "facts"}
"""With numpy's letter of what each holds."""
_PEERS = re.compile(r"(?:(?:to|from) -?\d{1,9}(?:,(?:to|from) -?\d{1,9}){0,999})?")
_LISTS = {"group": "groups", "dtype": "dtypes", "peers": "peers", "communicator": "communicators", "split": "splits"}
"""Arrays of positions, and the facts' lists that they point into."""
