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
"""Ops that take about 0.5 µs as children of another op. Any longer time in NVTX ranges is the overhead of writing them."""


class EventCosts(msgspec.Struct, frozen=True):
    """µs of the host for each recorded event."""

    op_us: float
    api_call_us: float
    python_call_us: float


class Added(EventCosts, frozen=True):
    """Profiler overhead per event in µs. kept: the remaining share of the host's time between events. graph_node_us: per op of a graph launch. in_waits:
    whether the framework runs code of its own during a wait, which recording slows down.
    """

    kept: float
    graph_node_us: float = 0.0
    in_waits: bool = False


class Limits(msgspec.Struct, frozen=True):
    """Limits that separate profiler overhead from CPU code of the program.

    max_share: the largest share of a time span that overhead explains. quiet_us: a longer time without an event is CPU code, unless that place was
    passed `usual_passes` times and fewer than `usual_share` of these are as long. longest_us: no overhead is longer. rare_us: nor longer than this, if
    such pauses outnumber steps. event_us: maximum overhead of an op or API call; python_times: of a Python call, relative to its estimate.
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
    """Errors of the estimates.

    added, needed: standard deviation of the logarithm of the time without overhead, and of the time that a host needs. added_share: of the overhead of
    Python calls; cold: of a program's first steps. deviations: half width of an interval. own, gpu_faster, gpu_slower, staged_faster: factors, the
    last for copies that the host moves itself. gap_us: a longer pause of a stream that has work and waits for nothing may be due to another program.
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
    """Overhead per event, None for a producer that nobody measured.

    nothing_us, view_us: mean time in the trace of an empty Python call and of a view op; None if there is none.
    """
    table = data.load("recording_cost").get(source.format, {}).get("added")
    if table is None:
        return None
    bare = data.load("recording_cost")["unrecorded"]
    python = table["python_call_us"] if nothing_us is None else table["python_call_times"] * max(nothing_us - bare["python_call_us"], 0.0)
    op = table["op_us"] if view_us is None else max(view_us - bare["view_op_us"], table["op_us"])
    return Added(op, table["api_call_us"], python, table["kept"], table.get("graph_node_us", 0.0), table.get("in_waits", False))


def ranges_tell(source: Source) -> bool:
    """Whether this producer's ops are ranges of the program, with an overhead that only the trace shows."""
    table = data.load("recording_cost").get(source.format, {}).get("added")
    return table is not None and table["op_us"] == 0.0


def needed(source: Source) -> EventCosts | None:
    """The host's time per event without a profiler; None if the events do not show it, as in a trace without ops."""
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
