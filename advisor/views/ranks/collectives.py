"""What one rank sent, received and reduced: kind, group, sizes, when it arrived and left."""

from __future__ import annotations

import json
import re

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.collectives import Collective, element_bytes, kind_of
from advisor.recordings.timeline import Timeline
from advisor.views.time.device_time import Partition
from advisor.views.trace.annotated_graphs import AnnotatedGraphs
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.launches import Launches
from advisor.views.trace.needed_sums import NeededSums
from advisor.views.trace.steps import Steps

KINDS = tuple(Collective)
_PEER = re.compile(r"(to|from) (-?\d{1,18}) of (.*)$")


class RankCollectives(msgspec.Struct, frozen=True):
    """One row each communication kernel of the busiest device, by start.

    kind: (n,) positions in `KINDS`. step: which step launched it, as `Steps.of_host_time`. known: whether the framework
    recorded what it is (heads of a trace, from before it began, are not). group: (n,) the recorded name and members as text.
    peers: (n,) of messages `to 2`, `from 0` joined by a comma, in global ranks; "" for all others.
    needed: (n,) as in `NeededSums`. bytes: the full buffer where recorded, else 0. sent_elements, received_elements: -1 where not recorded.
    """

    kind: Ints
    known: np.ndarray
    group: tuple[str, ...]
    dtype: tuple[str, ...]
    peers: tuple[str, ...]
    sequence: Ints
    communicator: tuple[str, ...]
    sent_elements: Ints
    received_elements: Ints
    bytes: Ints
    split: tuple[str, ...]
    start_us: Floats
    end_us: Floats
    launch_us: Floats
    stream: Ints
    step: Ints
    row: Ints
    needed: Mask

    @classmethod
    def build(
        cls, timeline: Timeline, kernels: Kernels, launches: Launches, steps: Steps, partition: Partition, sums: NeededSums, annotated: AnnotatedGraphs | None
    ) -> RankCollectives:
        ops = timeline.gpu_ops
        device = partition.main.device if partition.main else -1
        rows = np.flatnonzero(kernels.communication & (ops["device"] == device))
        frame = annotated.told(ops[rows], rows) if annotated else ops[rows]
        launch = launches.start_us[rows]
        names, recorded = frame["name"].tolist(), frame["collective"].tolist()
        kinds = [kind_of(r, n) for r, n in zip(recorded, names, strict=True)]
        kind = np.array([KINDS.index(k) for k in kinds], np.int64)
        messages = np.array([k is Collective.POINT_TO_POINT for k in kinds], bool)
        peers = _peers(timeline, launches, rows, messages)
        sent, received = frame["in_elements"].astype(np.int64), frame["out_elements"].astype(np.int64)
        dtype = frame["collective_dtype"].tolist()
        size = np.array([element_bytes(d) for d in dtype], np.int64)
        group = [f"{name} {members}".strip() for name, members in zip(frame["group"], frame["group_ranks"], strict=True)]
        start = frame["start_us"]
        step = steps.of_host_time(np.where(np.isnan(launch), -np.inf, launch))
        step = np.where(np.isnan(launch), np.searchsorted(steps.edges_us, start, side="right") - 1, step)
        return cls(
            kind=kind,
            known=np.array([bool(r) or bool(p) for r, p in zip(recorded, peers, strict=True)], bool),
            group=tuple(group),
            dtype=tuple(dtype),
            peers=tuple(peers),
            sequence=frame["collective_sequence"].astype(np.int64),
            communicator=tuple(frame["communicator"]),
            sent_elements=sent,
            received_elements=received,
            bytes=np.maximum(np.maximum(sent, received), 0) * size,
            split=tuple(frame["in_split"]),
            start_us=start,
            end_us=start + frame["dur_us"],
            launch_us=launch,
            stream=frame["stream"].astype(np.int64),
            step=step,
            row=rows,
            needed=sums.needed[rows],
        )


def _peers(timeline: Timeline, launches: Launches, rows: Ints, messages: np.ndarray) -> list[str]:
    """Whom each message kernel talks to: the sends and receives that its thread issued since the message before.

    Kernels of messages carry nothing themselves; several sends and receives in one batch are one kernel.
    """
    found = [""] * len(rows)
    ops = timeline.cpu_ops
    named = np.flatnonzero(ops["peer"] != "") if len(ops) else np.empty(0, np.int64)
    if not messages.any() or not len(named):
        return found
    pid_tid = np.c_[timeline.api_calls["pid"], timeline.api_calls["tid"]]
    op_thread, op_start = np.c_[ops["pid"], ops["tid"]][named], ops["start_us"][named]
    texts = ops["peer"][named].tolist()
    for thread in {tuple(t) for t in op_thread.tolist()}:
        own = np.flatnonzero((op_thread == thread).all(axis=1))
        here = [i for i in np.flatnonzero(messages) if launches.call[rows[i]] >= 0 and tuple(pid_tid[launches.call[rows[i]]].tolist()) == thread]
        here.sort(key=lambda i: float(launches.start_us[rows[i]]))
        first = 0
        for i in here:
            last = int(np.searchsorted(op_start[own], launches.start_us[rows[i]], side="right"))
            found[i] = ",".join(_global(texts[own[j]]) for j in range(first, last))
            first = last
    return found


def _global(text: str) -> str:
    """`to 2` in global ranks, of a number within a group and the group's ranks."""
    match = _PEER.match(text)
    if not match:
        return ""
    number = int(match[2])
    try:
        ranks = json.loads(match[3])
    except ValueError:
        ranks = []
    inside = isinstance(ranks, list) and 0 <= number < len(ranks) and isinstance(ranks[number], int)
    return f"{match[1]} {ranks[number] if inside else number}"
