"""What a collective is, by whatever name it was recorded, and how many bytes each link must carry for it."""

from __future__ import annotations

import re
from enum import Enum
from functools import cache

from advisor.knowledge.data import load
from advisor.knowledge.expressions import expression


class Collective(str, Enum):
    """Kinds of communication between ranks."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    POINT_TO_POINT = "send/recv"
    OTHER = "other"


# Order matters: "reduce_scatter" and "all_reduce" hold "reduce".
_NAMES = (
    (expression(r"all_?to_?all", re.I), Collective.ALL_TO_ALL),
    (expression(r"reduce_?scatter", re.I), Collective.REDUCE_SCATTER),
    (expression(r"all_?gather|^gather|_gather", re.I), Collective.ALL_GATHER),
    (expression(r"all_?reduce|barrier", re.I), Collective.ALL_REDUCE),
    (expression(r"broadcast|scatter", re.I), Collective.BROADCAST),
    (expression(r"send_?recv|\bsend|\brecv|nccl:coalesced", re.I), Collective.POINT_TO_POINT),
    (expression(r"reduce", re.I), Collective.REDUCE),
)


def kind_of(recorded: str, kernel: str) -> Collective:
    """The kind by the name that the framework recorded, else by the kernel's."""
    for text in (recorded, kernel):
        for pattern, kind in _NAMES:
            if text and pattern.search(text):
                return kind
    return Collective.OTHER


def bus_factor(kind: Collective, ranks: int) -> float:
    """Bytes that cross each rank's link per byte of the full buffer (github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)."""
    if ranks < 2:
        return 0.0
    if kind is Collective.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL):
        return (ranks - 1) / ranks
    return 1.0


def element_bytes(dtype: str) -> int:
    """Bytes of one element by the name of its type, 0 if that is unknown."""
    return _bytes().get(dtype.lower(), 0)


@cache
def _bytes() -> dict[str, int]:
    return {name.lower(): int(size) for table in load("dtypes").values() for size, names in table.items() for name in names}


def link_gbps(device: str) -> float:
    """One-way bandwidth of a GPU of that name to others in its node (links.toml), in 1e9 bytes per second; 0 if unknown."""
    if "PCIe" in device or "NVL" in device:
        return 0.0
    return next((float(link["gbps"]) for link in load("links")["link"] if any(name in device for name in link["names"])), 0.0)
