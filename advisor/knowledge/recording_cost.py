"""What recording costs the host for each event, and what the host needs for it when nobody records (recording_cost.toml)."""

from __future__ import annotations

import msgspec

from advisor.knowledge import data
from advisor.knowledge.expressions import expression
from advisor.recordings.timeline import Source

DOES_NOTHING = expression(
    r"<built-in (function|method) (isinstance|issubclass|len|getattr|hasattr|callable|id|iter|next|get|items|keys|values|append|pop|add)\b"
)
"""Python calls that take some 0.05 µs: what they take in a trace is what recording them costs there."""

MAKES_A_VIEW = expression(r"aten::(view|as_strided|alias|_reshape_alias|permute|transpose|t|expand|unsqueeze|squeeze|detach|_unsafe_view|result_type)$")
"""Ops that take some 0.5 µs where another op calls them: what they take between NVTX ranges is what writing the ranges costs."""


class EventCosts(msgspec.Struct, frozen=True):
    """µs of the host for each recorded event."""

    op_us: float
    api_call_us: float
    python_call_us: float


class Added(EventCosts, frozen=True):
    """µs that recording an event adds. kept: the share of the host's time that is left of what lies between events. graph_node_us: for an op
    that a graph launch launches. in_waits: whether the framework runs code of its own in a wait, which recording slows like any other."""

    kept: float
    graph_node_us: float = 0.0
    in_waits: bool = False


class Limits(msgspec.Struct, frozen=True):
    """Between what recording can be told from the program's own work.

    max_share: of a stretch of time, recording explains at most this. quiet_us: longer without an event is own work, unless at
    that place, passed `usual_passes` times at least, fewer than `usual_share` are as long; none longer than `longest_us` is the recorder's, and none
    longer than `rare_us` if there are more of them than steps. event_us: what recording one op or
    API call adds at most; python_times: one Python call, times what it is taken to add.
    """

    max_share: float
    quiet_us: float
    usual_share: float
    usual_passes: int
    longest_us: float
    rare_us: float
    event_us: float
    python_times: float


class Spread(msgspec.Struct, frozen=True):
    """How far estimates lie from the truth.

    added, needed: standard deviation of the logarithm of what is left once recording is taken off, and of what a host
    needs; added_share: of what is taken off for Python calls; cold: of a program's first steps. deviations: how many make an interval. own, gpu_faster,
    gpu_slower, staged_faster: factors, the last of copies that the host moves itself. gap_us: a longer pause of a stream that has work, and waits for nothing, may be another program's doing.
    """

    added: float
    added_share: float
    needed: float
    cold: float
    deviations: float
    own: float
    gpu_faster: float
    gpu_slower: float
    staged_faster: float
    gap_us: float


def added(source: Source, nothing_us: float | None, view_us: float | None = None) -> Added | None:
    """What recording added to each event, None for a producer whose cost nobody measured.

    nothing_us, view_us: what a Python call that does nothing, and an op that makes a view, take in the trace on average, None
    if it holds none.
    """
    table = data.load("recording_cost").get(source.format, {}).get("added")
    if table is None:
        return None
    bare = data.load("recording_cost")["unrecorded"]
    python = table["python_call_us"] if nothing_us is None else table["python_call_times"] * max(nothing_us - bare["python_call_us"], 0.0)
    op = table["op_us"] if view_us is None else max(view_us - bare["view_op_us"], table["op_us"])
    return Added(op, table["api_call_us"], python, table["kept"], table.get("graph_node_us", 0.0), table.get("in_waits", False))


def ranges_tell(source: Source) -> bool:
    """Whether ops of this producer are ranges that the program itself writes, whose cost only the trace tells."""
    table = data.load("recording_cost").get(source.format, {}).get("added")
    return table is not None and table["op_us"] == 0.0


def needed(source: Source) -> EventCosts | None:
    """What a host needs for each event when nobody records; None if the events do not tell, as a trace without ops."""
    table = data.load("recording_cost").get(source.format, {}).get("needed")
    return EventCosts(**table) if table else None


def limits() -> Limits:
    """See `Limits`."""
    return Limits(**data.load("recording_cost")["limits"])


def spread(source: Source | None = None) -> Spread:
    """See `Spread`; where a producer's recordings are known to lie further off, theirs."""
    table = data.load("recording_cost")
    own = table.get(source.format, {}).get("spread", {}) if source else {}
    return Spread(**{**table["spread"], **own})
