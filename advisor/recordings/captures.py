"""What was recorded while CUDA graphs were captured, next to the timeline that replays them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from advisor.recordings.timeline import Timeline


@dataclass(frozen=True)
class CaptureTrace:
    """name: of its file. rows: tokens or requests that the captured graphs are for, as the file's name says or what lies next to it, -1 if they do not."""

    name: str
    timeline: Timeline
    rows: int = -1


@dataclass(frozen=True)
class CaptureTraces:
    """Recorded while an engine captured its graphs: each call of them adds a node to a graph, under its op, module and shapes, and runs nothing."""

    part_of: ClassVar[Literal["trace"]] = "trace"

    traces: tuple[CaptureTrace, ...]


@dataclass(frozen=True)
class NodeAnnotation:
    """What the program said of the node of a graph. scope: its name; the others as the columns of `Timeline.gpu_ops`, for a collective."""

    scope: str = ""
    collective: str = ""
    collective_dtype: str = ""
    group: str = ""
    group_ranks: str = ""
    group_size: int = -1
    in_elements: int = -1
    out_elements: int = -1


@dataclass(frozen=True)
class GraphAnnotations:
    """What `torch.cuda` recorded of a process's graphs where the program used `mark_kernels`: by the number of each node, with the graph's in its upper 32 bits."""

    part_of: ClassVar[Literal["trace"]] = "trace"

    nodes: Mapping[int, NodeAnnotation]


CapturePart = CaptureTraces | GraphAnnotations
