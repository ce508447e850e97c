"""An inference server in a report: its steps by phase and batch, and their time."""

from __future__ import annotations

from typing import Literal

import msgspec

Phase = Literal["prefill", "decode", "mixed", "verify", "draft"]

Held = Literal["products", "attention", "communication", "other", "idle"]

Bound = Literal["weights", "kv-cache", "compute", "communication", "launches", "others"]
"""The limit of a step: reading weights or cached keys and values, computing, communication, launches by the host, or further kernels."""


class ServingParts(msgspec.Struct, frozen=True):
    """Shares of a step, 0 to 1, that sum to 1. products: GEMMs, which read the weights; attention: reads keys and values from the cache; communication: without
    overlapping compute; other: further kernels and copies; idle: nothing ran, mostly because the host had launched nothing.
    """

    products: float
    attention: float
    communication: float
    other: float
    idle: float

    @property
    def largest(self) -> Held:
        """What holds most of a step."""
        names: tuple[Held, ...] = ("products", "attention", "communication", "other", "idle")
        return max(names, key=lambda name: float(getattr(self, name)))


class ServingPhase(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of the same phase and number of requests, per step, as recorded. None if neither the server's marks nor its graphs show it."""

    phase: Phase
    requests: int | None
    steps: int
    step_us: float
    query_tokens: float | None
    """Tokens that it computes."""
    kv_tokens: float | None
    """Tokens whose keys and values its attention reads."""
    graph_launches: float
    eager_launches: float
    graph_coverage: float | None
    """Share of the device's time that lies in graphs."""
    padded_to: int | None
    """Rows that its graphs compute, padding among them."""
    tokens_per_s: float | None
    """Generated ones of a phase that decodes, else those computed."""
    parts: ServingParts | None = None
    knee_rows: float | None = None
    """Rows of a step up to which its GEMMs are bound by reading their weights: fewer rows take as long."""
    weight_bytes_most: float | None = None
    """The most that its GEMMs can have read in a step: their time at the memory's peak rate."""
    kv_bytes_most: float | None = None
    """The same of its attention, for each token that the mark counts as cached."""
    bound_by: Bound | None = None
    """None if no part is known."""


class Latency(msgspec.Struct, frozen=True):
    """Over requests, in ms; None where that was not measured."""

    mean_ms: float | None = None
    median_ms: float | None = None
    p99_ms: float | None = None

    @property
    def usual_ms(self) -> float | None:
        """The median, or the mean where there is none."""
        return self.mean_ms if self.median_ms is None else self.median_ms


LoadSource = Literal["vLLM bench serve", "SGLang bench_serving", "Prometheus"]

Steady = Literal["yes", "no", "unknown"]


class ServingLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a benchmark's client, or of the server's counters. None if missing."""

    source: LoadSource
    ttft: Latency | None = None
    """Time to the first token."""
    tpot: Latency | None = None
    """Time per output token after the first."""
    queue: Latency | None = None
    """What requests wait before they run."""
    running: float | None = None
    """Requests that run at once: on average, of counters at the moment that they were read."""
    waiting: float | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    cache_used: float | None = None
    """Share of the cache of keys and values, 0 to 1."""
    accepted_tokens: float | None = None
    """Tokens that a step of speculative decoding yields for a request."""
    steady: Steady = "unknown"
    """Whether the traced steps are of the state that was measured."""
    why: str = ""


class Decoding(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of decode steps: the median, and the means of their first and last third. step_us: the median whole step, None without any."""

    requests: float
    first: float
    last: float
    step_us: float | None = None


class Serving(msgspec.Struct, frozen=True):
    """A row for each phase and batch. version: "" if the recording does not hold it. load: the server's own measurement, None if none was given.

    decoding: None if no step decodes. rank: of a job, the rank of these rows. replicas: copies of the model with separate requests.
    """

    engine: str
    version: str
    phases: tuple[ServingPhase, ...]
    load: ServingLoad | None = None
    decoding: Decoding | None = None
    rank: int | None = None
    replicas: int = 1
