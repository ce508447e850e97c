"""Records of the capture of CUDA graphs, next to the timeline that replays them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec

from advisor.recordings.timeline import Timeline


class CaptureTrace(msgspec.Struct, frozen=True):
    """name: of its file. rows: tokens or requests of the captured graphs by the file's name or a file next to it, -1 if unknown."""

    name: str
    timeline: Timeline
    rows: int = -1


class CaptureTraces(msgspec.Struct, frozen=True):
    """Recorded while an engine captured its graphs. Each call adds a node to a graph, under its op, module and shapes, and runs nothing."""

    part_of: ClassVar[Literal["trace"]] = "trace"

    traces: tuple[CaptureTrace, ...]


class NodeAnnotation(msgspec.Struct, frozen=True):
    """The program's own name for the node of a graph (scope), and of a collective the columns of `Timeline.gpu_ops`."""

    scope: str = ""
    collective: str = ""
    collective_dtype: str = ""
    group: str = ""
    group_ranks: str = ""
    group_size: int = -1
    in_elements: int = -1
    out_elements: int = -1


class GraphAnnotations(msgspec.Struct, frozen=True):
    """What `mark_kernels` of `torch.cuda` recorded in a process, by the number of each node, with the graph's in its upper 32 bits."""

    part_of: ClassVar[Literal["trace"]] = "trace"

    nodes: Mapping[int, NodeAnnotation]


CapturePart = CaptureTraces | GraphAnnotations
