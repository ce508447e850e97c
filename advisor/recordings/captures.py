"""Traces of the capture of CUDA graphs, next to the timeline that replays them."""

from __future__ import annotations

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
