"""Files with a server's performance for its clients: results of `vllm bench serve` and of SGLang's `bench_serving`, and the text of its counters."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from advisor.errors import TraceError
from advisor.knowledge import serving_metrics as metrics
from advisor.recordings.served_load import LoadBeside
from advisor.report.serving import Latency, LoadSource, ServingLoad
from advisor.sources.paths import open_binary
from advisor.sources.stream import Stream
from advisor.sources.whole import MOST_BYTES

_HINT = "Give what `vllm bench serve --save-result` or SGLang's bench_serving wrote, or the text of the server's /metrics."
_SERIES = re.compile(r"(?P<name>[A-Za-z_:][\w:]{0,199})(?:\{(?P<labels>[^\n]{0,2000})\})?[ \t]{1,8}(?P<value>[-+.\w]{1,40})(?:[ \t]{1,8}-?\d{1,20})?\s*")
_BOUND = re.compile(r'(?:^|,)\s*le="([^"]{1,40})"')
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!-]{0,39}")


def read_load(path: str) -> LoadBeside:
    """The measured load. Raises TraceError if the file cannot be read, or is of no such kind."""
    try:
        file, size = open_binary(path)
    except OSError as error:
        raise TraceError(f"{path} cannot be opened: {error.strerror or error}", "Check the path and its permissions.") from None
    with file:
        text = Stream(file, size or None, MOST_BYTES).peek(MOST_BYTES).decode("utf-8", "replace").lstrip("\ufeff")
    found = _of_bench(text) if text.lstrip().startswith("{") else _of_counters(text)
    if found is None:
        raise TraceError(f"{path} holds neither the results of a serving benchmark nor a server's counters", _HINT)
    return found


def _of_bench(text: str) -> LoadBeside | None:
    """Of several results, a line each, the last."""
    rows = [line for line in text.splitlines() if line.strip()]
    said = next((row for tried in (text, rows[-1]) if (row := _object(tried)) is not None), None)
    if said is None or not any(f"{which}_ttft_ms" in said for which in ("mean", "median")):
        return None
    by_sglang = ("concurrency" in said and "server_info" in said) or "total_output_tokens_retokenized" in said
    source: LoadSource = "SGLang bench_serving" if by_sglang else "vLLM bench serve"
    server = said.get("server_info")
    version = server.get("version") if isinstance(server, dict) else None
    return LoadBeside(
        ServingLoad(
            source=source,
            ttft=_latency(said, "ttft"),
            tpot=_latency(said, "tpot") or _latency(said, "itl"),
            running=_concurrency(said),
            requests_per_s=_number(said.get("request_throughput")),
            output_tokens_per_s=_number(said.get("output_throughput")),
            accepted_tokens=_number(said.get("accept_length")),
        ),
        version if isinstance(version, str) and _VERSION.fullmatch(version) else "",
    )


def _object(text: str) -> dict[str, Any] | None:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _latency(said: Mapping[str, Any], name: str) -> Latency | None:
    found = Latency(*(_number(said.get(f"{which}_{name}_ms")) for which in ("mean", "median", "p99")))
    return found if found.usual_ms else None


def _concurrency(said: Mapping[str, Any]) -> float | None:
    """Mean number of concurrent requests: as given, or the total time of the requests over the time of the benchmark."""
    own, duration_s = _number(said.get("concurrency")), _number(said.get("duration"))
    if own is not None or not duration_s:
        return own
    requests, first, each, tokens = (_number(said.get(key)) for key in ("completed", "mean_ttft_ms", "mean_tpot_ms", "total_output_tokens"))
    if not requests or first is None or each is None or tokens is None:
        return None
    return (requests * first + max(tokens - requests, 0.0) * each) / 1e3 / duration_s


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and math.isfinite(value) and value >= 0 else None


Series = Mapping[str, Sequence[tuple[str, float]]]
"""By name: the labels and the value of each series."""


def _of_counters(text: str) -> LoadBeside | None:
    """The counters of all of the server's engines together."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _SERIES.fullmatch(line)
        value = _float(match["value"]) if match else None
        if match and value is not None:
            found.setdefault(match["name"], {})[match["labels"] or ""] = value  # of several readings the last
    series = {name: list(values.items()) for name, values in found.items()}
    load = ServingLoad(
        source="Prometheus",
        ttft=_histogram(series, metrics.TTFT),
        tpot=_histogram(series, metrics.TPOT),
        queue=_histogram(series, metrics.QUEUE),
        running=_total(series, metrics.RUNNING),
        waiting=_total(series, metrics.WAITING),
        output_tokens_per_s=_total(series, metrics.OUTPUT_TOKENS_PER_S),
        cache_used=_mean(series, metrics.CACHE_USED),
        accepted_tokens=_accepted(series),
    )
    return None if load == ServingLoad(source="Prometheus") else LoadBeside(load)


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _values(series: Series, names: Sequence[str]) -> list[float]:
    return [value for _, value in next((series[name] for name in names if name in series), ())]


def _total(series: Series, names: Sequence[str]) -> float | None:
    values = _values(series, names)
    return sum(values) if values else None


def _mean(series: Series, names: Sequence[str]) -> float | None:
    values = _values(series, names)
    return min(sum(values) / len(values), 1.0) if values else None


def _accepted(series: Series) -> float | None:
    """Tokens per step: the accepted tokens of its drafts, and the model's own token."""
    own, accepted, drafts = (_total(series, names) for names in (metrics.ACCEPTED, metrics.ACCEPTED_TOKENS, metrics.DRAFTS))
    return own or (1 + accepted / drafts if accepted is not None and drafts else None)


def _histogram(series: Series, names: Sequence[str]) -> Latency | None:
    name = next((name for name in names if _total(series, (f"{name}_count",))), None)
    if name is None:
        return None
    count, whole = _total(series, (f"{name}_count",)), _total(series, (f"{name}_sum",))
    below: dict[float, float] = {}
    for labels, value in series.get(f"{name}_bucket", ()):
        if (match := _BOUND.search(labels)) and (bound := math.inf if "inf" in match[1].lower() else _float(match[1])) is not None:
            below[bound] = below.get(bound, 0.0) + value
    mean = 1e3 * whole / count if whole is not None and count else None
    return Latency(mean, *(_quantile(sorted(below.items()), share) for share in (0.5, 0.99)))


def _quantile(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """In ms, interpolated between the two surrounding bounds; None if it is beyond the last, or all are in the first."""
    wanted = share * (buckets[-1][1] if buckets else 0.0)
    before, under = 0.0, 0.0
    for at, (bound, count) in enumerate(buckets):
        if count >= wanted > 0:
            return None if math.isinf(bound) or not at else 1e3 * (before + (bound - before) * (wanted - under) / max(count - under, 1e-12))
        before, under = bound, count
    return None
