"""Calls that wait for the GPU, if the report lists all."""

from __future__ import annotations

import msgspec

from advisor.report.finding import SourceLine


class HostWaitRow(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that wait for the GPU, of the same line; without recorded lines, of the same op and module."""

    call: str
    """As it is written, where the table of such calls knows it; else the op, or the runtime call that no op is around."""
    known: bool
    """Whether that table has it."""
    op: str
    """The op that waits, the outermost one; the runtime call if there is none."""
    waits: int
    """In the window."""
    waits_a_step: float
    us: float
    """The recorded time of the calls that wait, a step."""
    instead: str
    """What is in for it."""
    since: str = ""
    """The version that this takes, if it takes one."""
    module: str = ""
    source: SourceLine | None = None


class HostWaits(msgspec.Struct, frozen=True, kw_only=True):
    """The window's waits, most of the host's time first; `why` says why there are none to tell."""

    rows: tuple[HostWaitRow, ...] = ()
    why: str = ""
    measured: str = ""
    """With what the table was measured."""
