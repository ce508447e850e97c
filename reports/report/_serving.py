"""What an inference server's steps did, in words: a row a phase and batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from advisor.report.model import Report
from advisor.report.numbers import UNKNOWN, counted, duration, large_count, mean, percent, size, three
from advisor.report.serving import Bound, Held, Latency, Serving, ServingPhase, Steady

HEADINGS = ("Phase", "Requests", "Steps", "A step", "Tokens/s", "Tokens", "Cached", "In graphs", "Launched", "Rows", "Most of it")
"""A row's cells: tokens that a step computes, and those in the cache that its attention reads; the share of the device's time in graphs; launches of
graphs and of single kernels; rows that its graphs compute; what holds most of a step."""

_HELD: dict[Held, str] = {
    "products": "GEMMs",
    "attention": "attention",
    "communication": "communication",
    "other": "others",
    "idle": "idle",
}
_READ: dict[Bound, str] = {"weights": "weights", "kv-cache": "KV cache"}
"""Names of the largest part by the data that it reads."""
LINES = 12
"""Rows where a page has to be short."""


class Row(NamedTuple):
    """The cells of a phase, and the figures to sort them by."""

    cells: tuple[str, ...]
    figures: tuple[float, ...]


def rows(report: Report) -> list[Row]:
    """One a phase and batch; none if no server was recorded."""
    return [Row(_cells(phase), _figures(phase)) for phase in report.serving.phases] if report.serving else []


def title(report: Report) -> str:
    """What the table is of."""
    served = report.serving
    if served is None:
        return ""
    of = "" if served.rank is None else f" of rank {served.rank}"
    copies = f"; {served.replicas:,} copies of the model take requests of their own" if served.replicas > 1 else ""
    marked = sum(phase.steps for phase in served.phases)
    return f"{served.engine}: {counted(marked, 'marked step')}{of} by phase and batch, as recorded{copies}{_outside_window(report, marked)}"


def _outside_window(report: Report, marked: int) -> str:
    """Why the report's window holds fewer steps than are marked; "" if it holds all, or where a job has no window."""
    judged = report.window.steps if report.window else marked
    if judged >= marked:
        return ""
    return f"; {judged:,} are judged ({'the last may be cut off' if judged == marked - 1 else 'not the last, nor other kinds'})"


_STEADY: dict[Steady, str] = {
    "yes": "The traced steps are of that state",
    "no": "The traced steps are not of that state",
    "unknown": "Whether the traced steps are of that state is not known",
}


def load(report: Report) -> str:
    """What was measured of the server beside the trace, or would have to be, in a sentence or two; "" where nothing was given."""
    served = report.serving
    if served is None:
        return ""
    notes = [*_knees(served), *_bytes_read(served)]
    if any(phase.phase == "verify" and phase.tokens_per_s is None for phase in served.phases):
        notes.append("How many tokens a verified step yields is not in a trace: --serving FILE says it.")
    measured = served.load
    if measured is None:
        return " ".join(notes)
    latencies = (("TTFT", measured.ttft), ("TPOT", measured.tpot), ("in the queue", measured.queue))
    numbers = (
        (measured.running, "requests running"), (measured.waiting, "waiting"), (measured.requests_per_s, "requests/s"), (measured.output_tokens_per_s, "tokens/s"),
    )  # fmt: skip
    told = [
        *(f"{name} {_latency(value)}" for name, value in latencies if value),
        *(f"{large_count(value)} {what}" for value, what in numbers if value is not None),
    ]
    told += [f"{three(measured.accepted_tokens)} tokens a verified step"] if measured.accepted_tokens is not None else []
    told += [f"{percent(measured.cache_used)} of the cache used"] if measured.cache_used is not None else []
    return " ".join([f"Measured by {measured.source}: {', '.join(told)}. {_STEADY[measured.steady]}: {measured.why}.", *notes])


def _knees(served: Serving) -> Iterator[str]:
    """Up to how many rows a step of decoding takes as long, where its GEMMs read weights for fewer."""
    below = [
        phase for phase in served.phases if phase.phase == "decode" and phase.knee_rows and 0 < (phase.padded_to or phase.query_tokens or 0) < phase.knee_rows
    ]
    if below:
        most = max(below, key=lambda phase: phase.steps * phase.step_us)
        yield f"Decode GEMMs on {_count(most.padded_to or most.query_tokens)} rows are bound by reading weights, up to about {large_count(most.knee_rows or 0.0)} rows."


def _bytes_read(served: Serving) -> Iterator[str]:
    """The most that decode steps can have read: divided by it, the model's sizes are shares of the memory's peak rate."""
    decodes = [phase for phase in served.phases if phase.phase == "decode" and phase.weight_bytes_most]
    if decodes:
        most = max(decodes, key=lambda phase: phase.steps * phase.step_us)
        cached = f". Attention can have read {size(most.kv_bytes_most)} per cached token" if most.kv_bytes_most else ""
        read = f"At the memory's peak rate, the GEMMs of a decode step can have read at most {size(most.weight_bytes_most or 0.0)} of weights"
        yield f"{read}{cached}. Compare the model's sizes."


def _latency(value: Latency) -> str:
    usual = UNKNOWN if value.usual_ms is None else duration(1e3 * value.usual_ms)
    return usual if value.p99_ms is None else f"{usual} (p99 {duration(1e3 * value.p99_ms)})"


def lines(report: Report) -> list[str]:
    """A line a phase for a terminal."""
    found = [HEADINGS, *(row.cells for row in rows(report)[:LINES])]
    if len(found) == 1:
        return []
    # What no row says takes no column.
    kept = [at for at in range(len(HEADINGS)) if any(row[at] != UNKNOWN for row in found[1:])]
    widths = {at: max(len(row[at]) for row in found) for at in kept}
    made = ["  ".join(row[at].ljust(widths[at]) if at in (0, len(HEADINGS) - 1) else row[at].rjust(widths[at]) for at in kept).rstrip() for row in found]
    left = len(rows(report)) - LINES
    return [f"{title(report)}:", *made, *([f"and {counted(left, 'more row')}"] if left > 0 else [])]


def _cells(phase: ServingPhase) -> tuple[str, ...]:
    launched = f"{_count(phase.graph_launches)} + {_count(phase.eager_launches)}" if phase.graph_launches else _count(phase.eager_launches)
    held = UNKNOWN
    if phase.parts:
        largest = phase.parts.largest
        held = f"{_READ.get(phase.bound_by or 'others', _HELD[largest])} {percent(getattr(phase.parts, largest))}"
    return (
        phase.phase,
        _count(phase.requests),
        _count(phase.steps),
        duration(phase.step_us),
        UNKNOWN if phase.tokens_per_s is None else large_count(phase.tokens_per_s),
        _count(phase.query_tokens),
        _count(phase.kv_tokens),
        UNKNOWN if phase.graph_coverage is None else percent(phase.graph_coverage),
        launched,
        _count(phase.padded_to),
        held,
    )


def _count(number: float | None) -> str:
    return UNKNOWN if number is None else mean(number)


def _figures(phase: ServingPhase) -> tuple[float, ...]:
    held = getattr(phase.parts, phase.parts.largest) if phase.parts else None
    found = (
        0.0, phase.requests, phase.steps, phase.step_us, phase.tokens_per_s, phase.query_tokens, phase.kv_tokens, phase.graph_coverage,
        phase.graph_launches + phase.eager_launches, phase.padded_to, held,
    )  # fmt: skip
    return tuple(-1.0 if value is None else float(value) for value in found)
