"""CPU time of a step, of a trace without GPU work."""

from __future__ import annotations

from typing import Literal

import msgspec

Phase = Literal["data-loading", "forward", "backward", "optimizer", "communication", "other"]


class HostPart(msgspec.Struct, frozen=True):
    """One phase of the thread that runs the program, per step. Parts are disjoint and sum to the step."""

    phase: Phase
    us: float
    share: float


class HostOp(msgspec.Struct, frozen=True):
    """Ops of one name on any thread, per step: their own time, without the ops inside of them. share: of the step."""

    name: str
    calls: float
    us: float
    share: float


class HostLine(msgspec.Struct, frozen=True):
    """A function of the program, per step, with its callees outside the program's code: the line at which it starts. share: of the step.

    function: empty if only the stacks of ops were recorded. Then this is a line, with the time of the ops that it calls.
    """

    file: str
    line: int
    us: float
    share: float
    function: str = ""


class HostTime(msgspec.Struct, frozen=True):
    """Most time first. thread: the one that runs the program, by its number; lines: empty if no stacks were recorded."""

    step_us: float
    thread: int
    parts: tuple[HostPart, ...]
    ops: tuple[HostOp, ...]
    lines: tuple[HostLine, ...]
