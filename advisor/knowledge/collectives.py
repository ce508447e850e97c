"""What a collective is, by whatever name it was recorded, and how many bytes each link must carry for it."""

from __future__ import annotations

import re
from enum import Enum

from advisor.knowledge.data import load


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
    (re.compile(r"all_?to_?all", re.I), Collective.ALL_TO_ALL),
    (re.compile(r"reduce_?scatter", re.I), Collective.REDUCE_SCATTER),
    (re.compile(r"all_?gather|^gather|_gather", re.I), Collective.ALL_GATHER),
    (re.compile(r"all_?reduce|barrier", re.I), Collective.ALL_REDUCE),
    (re.compile(r"broadcast|scatter", re.I), Collective.BROADCAST),
    (re.compile(r"send_?recv|\bsend|\brecv|nccl:coalesced", re.I), Collective.POINT_TO_POINT),
    (re.compile(r"reduce", re.I), Collective.REDUCE),
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


_BYTES = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "float": 4, "float32": 4, "int": 4, "int32": 4, "half": 2, "float16": 2,
    "bfloat16": 2, "short": 2, "byte": 1, "char": 1, "uint8": 1, "int8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "c10::half": 2, "c10::bfloat16": 2,
}  # fmt: skip


def element_bytes(dtype: str) -> int:
    """Bytes of one element by the name of its type, 0 if that is unknown."""
    return _BYTES.get(dtype.lower(), 0)


def link_gbps(device: str) -> float:
    """What a GPU of that name sends to others of its node in one direction (links.toml), 1e9 bytes a second; 0 where unknown."""
    if "PCIe" in device or "NVL" in device:
        return 0.0
    return next((float(link["gbps"]) for link in load("links")["link"] if any(name in device for name in link["names"])), 0.0)
