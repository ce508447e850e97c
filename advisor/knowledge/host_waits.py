"""Calls that make the host wait for the GPU, and the fix for each: `host_waits.toml`, a `HostWait` per row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, cached_property, lru_cache
from typing import Literal, NamedTuple

import msgspec

from advisor.knowledge.data import load

GENERALLY = "Move the call out of the loop, or do it every N steps."
"""Text for a call that the table lacks."""

Way = Literal["", "to-device", "to-host"]
"""Which way a copy goes."""


class Waited(NamedTuple):
    """A call that waits, as the trace shows it. Names: of surrounding tensor ops (outermost first), of children of the innermost, of ops directly before
    and after in order of time, and of Python frames up to the program's line (innermost first).

    direct: whether Python made it without a C function in between; library: whether a library made it. None without frames.
    optimizer: the range of the optimizer's step around it.
    """

    call: str
    ops: tuple[str, ...] = ()
    parent: str = ""
    before: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    direct: bool | None = None
    library: bool | None = None
    copy: Way = ""
    memory: str = ""
    bytes: float = -1.0
    optimizer: str = ""


class Instead(msgspec.Struct, frozen=True):
    """Code that waits, and code that does not."""

    before: str
    after: str


class _Conditions(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """What must hold of a wait; what is left out holds."""

    parent: str = ""
    before: str = ""
    then: str = ""
    frames: str = ""
    optimizer: str = ""
    direct: bool | None = None
    library: bool | None = None
    stacks: bool | None = None

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(pattern, re.MULTILINE) for pattern in (self.parent, self.before, self.then, self.frames, self.optimizer))

    def hold(self, seen: Waited) -> bool:
        """Whether they do; one of frames does not if none were recorded."""
        texts = seen.parent, " ".join(seen.before), " ".join(seen.then), "\n".join(seen.frames), seen.optimizer
        return (
            self.direct in (None, seen.direct)
            and self.library in (None, seen.library)
            and self.stacks in (None, bool(seen.frames))
            and all(pattern.search(text) for pattern, text in zip(self._patterns, texts, strict=True))
        )


class HostWait(_Conditions, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True):
    """A row of the table: calls that wait, how often, and the fix. host_waits.toml explains the fields."""

    call: str
    waits: str
    instead: str
    ops: tuple[str, ...] = ()
    calls: str = ""
    alone: bool = False
    copy: Way = ""
    memory: str = ""
    most_bytes: float = float("inf")
    when: tuple[_Conditions, ...] = ()
    general: bool = False
    since: str = ""
    code: Instead | None = None
    inference: Instead | None = None
    url: str = ""
    intervention: str = ""

    def fits(self, seen: Waited, op: str) -> bool:
        """Whether it is the row of a wait, by one of the ops around it, or "" if there is none."""
        return (
            (op in self.ops if op else bool(self.calls and re.search(self.calls, seen.call)))
            and not (self.alone and seen.ops[:1] != (op,))
            and self.copy in ("", seen.copy)
            and self.memory in ("", seen.memory)
            and seen.bytes <= self.most_bytes
            and self.hold(seen)
            and (not self.when or any(conditions.hold(seen) for conditions in self.when))
        )


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    measured: str
    free: tuple[str, ...]
    wait: tuple[HostWait, ...]


@cache
def table() -> _Table:
    """The table; raises msgspec.ValidationError where a row has a field that there is not."""
    return msgspec.convert(load("host_waits"), _Table)


@cache
def _by_op() -> dict[str, list[HostWait]]:
    found: dict[str, list[HostWait]] = {}
    for row in table().wait:
        for op in row.ops or ("",):
            found.setdefault(op, []).append(row)
    return found


@lru_cache(maxsize=1 << 14)
def host_wait(seen: Waited) -> HostWait | None:
    """The row of a wait: by the outermost op around it that one names; None if none does, as for an op that nobody knows."""
    return next((row for op in (seen.ops or ("",)) for row in _by_op().get(op, ()) if row.fits(seen, op)), None)


def as_rows() -> Iterator[tuple[str, str, str]]:
    """The table as text: headings, then a row per call with its meaning, frequency and fix."""
    yield "Call", "Waits a call", "What stands in for it"
    for row in table().wait:
        yield row.call, row.waits, row.instead + (f" Since: {row.since}." if row.since else "")
    yield "free, though often suspected", "0", ", ".join(table().free)


def measured_with() -> str:
    """What the table was measured with."""
    return f"Calls that wait, measured with {table().measured}"
