"""Attention taken apart and put together faster: components timed, the bottleneck named, four ways of computing it compared."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from advisor.errors import UsageError
from advisor.knowledge import devices
from advisor.lab.bench import bench
from advisor.lab.clock import device_name
from advisor.lab.intensity import Bound, bound
from advisor.lab.memory import measure_memory_usage

if TYPE_CHECKING:
    import pandas as pd
    import torch

COMPONENTS = ("QKV Projection", "Score Computation", "Softmax", "Weighted Sum", "Output Projection")

FLASH_REMOVES = ("Score Computation", "Softmax", "Weighted Sum")
"""What a fused attention kernel does without writing the scores to memory."""


@dataclass(frozen=True)
class Component:
    """One part of attention: its time, its work, and what bounds it on this device (None where its rates are not known)."""

    name: str
    ms: float
    flops: float = 0.0
    moved_bytes: float = 0.0
    bound: Bound | None = None


@dataclass(frozen=True)
class AttentionProfile:
    """The five components in the order in which they run. Printing it gives the table."""

    rows: tuple[Component, ...]
    device: str = ""
    dtype: str = "float32"

    @property
    def total_ms(self) -> float:
        """Of all components."""
        return sum(row.ms for row in self.rows)

    def share(self, row: Component) -> float:
        """Percent of the total."""
        return 100.0 * row.ms / self.total_ms if self.total_ms else 0.0

    @property
    def bottleneck(self) -> Component:
        """The slowest component."""
        return max(self.rows, key=lambda row: row.ms)

    @property
    def recommendation(self) -> str:
        """What to try first."""
        if self.bottleneck.name in FLASH_REMOVES:
            return "Use Flash Attention"
        return "Use a lower precision (bfloat16)" if self.dtype == "float32" else "Use larger batches, or quantise the weights"

    def __str__(self) -> str:
        row = "{:<20}{:<10.2f}{:>7.1f}%".format
        worst = self.bottleneck
        return "\n".join([
            "Attention Component Profiling:",
            "=" * 40,
            f"{'Component':<20}Time (ms)    % Total",
            "-" * 40,
            *(row(r.name, r.ms, self.share(r)) for r in self.rows),
            "-" * 40,
            row("Total", self.total_ms, 100.0 if self.total_ms else 0.0),
            "",
            f"Bottleneck: {worst.name} ({self.share(worst):.1f}%)",
            f"Recommendation: {self.recommendation}",
        ])  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Rows with bytes, FLOPs and share of the roofline; the bottleneck."""
        return {
            "device": self.device, "dtype": self.dtype, "total_ms": self.total_ms,
            "rows": [_component(row, self.share(row)) for row in self.rows],
            "bottleneck": self.bottleneck.name, "recommendation": self.recommendation,
        }  # fmt: skip

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=1)

    def to_frame(self) -> pd.DataFrame:
        """A row a component."""
        import pandas as pd

        return pd.DataFrame(self.to_dict()["rows"])

    def _repr_html_(self) -> str:
        from advisor.lab.page import table

        rows = [["Component", "Time (ms)", "% Total", "GFLOP", "MB", "Roofline"]]
        for item in self.to_dict()["rows"]:
            roof = "" if item["roofline_share"] is None else f"{item['roofline_share']:.0%}"
            rows.append([item["name"], f"{item['ms']:.3g}", f"{item['percent']:.1f}", f"{item['flops'] / 1e9:.3g}", f"{item['bytes'] / 1e6:.3g}", roof])
        return table(rows, f"Bottleneck: {self.bottleneck.name}")


def _component(row: Component, percent: float) -> dict[str, Any]:
    """One component for JSON."""
    roof = row.bound.least_us / 1e3 / row.ms if row.bound and row.ms else None
    return {"name": row.name, "ms": row.ms, "percent": percent, "flops": row.flops, "bytes": row.moved_bytes, "roofline_share": roof}


def profile_attention_components(
    seq_len: int,
    d_model: int,
    num_heads: int,
    *,
    batch: int = 1,
    dtype: str = "float32",
    causal: bool = False,
    dropout: float = 0.0,
    device: str | None = None,
) -> AttentionProfile:
    """Time the components of one attention layer written out, on random inputs: medians on the device, after warm-up.

    device: "cuda" where there is one, else "cpu". Raises UsageError where d_model does not divide by num_heads.
    """
    import torch
    from torch.nn import functional as F

    if min(seq_len, d_model, num_heads, batch) < 1 or d_model % num_heads:
        raise UsageError(f"{d_model} channels do not divide into {num_heads} heads", "Give a d_model that is a multiple of num_heads.")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    kind, head = getattr(torch, dtype), d_model // num_heads
    x = torch.randn(batch, seq_len, d_model, device=device, dtype=kind)
    w_qkv, w_out = (torch.randn(n * d_model, d_model, device=device, dtype=kind) / math.sqrt(d_model) for n in (3, 1))
    q, k, v = (t.transpose(1, 2).contiguous() for t in F.linear(x, w_qkv).view(batch, seq_len, 3, num_heads, head).unbind(2))
    hidden = torch.ones(seq_len, seq_len, dtype=torch.bool, device=device).triu(1) if causal else None

    def scores() -> torch.Tensor:
        made = q @ k.transpose(-2, -1) / math.sqrt(head)
        return made if hidden is None else made.masked_fill(hidden, float("-inf"))

    def probabilities() -> torch.Tensor:
        made = s.softmax(-1)
        return F.dropout(made, dropout) if dropout else made

    item, rows, pairs = kind.itemsize, batch * seq_len, batch * num_heads * seq_len * seq_len
    work = (
        (6.0 * rows * d_model**2, item * (4.0 * rows * d_model + 3 * d_model**2)),
        (2.0 * pairs * head, item * (2.0 * rows * d_model + pairs)),
        (5.0 * pairs, item * 2.0 * pairs),
        (2.0 * pairs * head, item * (2.0 * rows * d_model + pairs)),
        (2.0 * rows * d_model**2, item * (2.0 * rows * d_model + d_model**2)),
    )
    with torch.no_grad():
        s = scores()
        p = s.softmax(-1)
        merged = (p @ v).transpose(1, 2).reshape(batch, seq_len, d_model)
        parts: tuple[Callable[[], torch.Tensor], ...] = (
            lambda: F.linear(x, w_qkv), scores, probabilities, lambda: p @ v, lambda: F.linear(merged, w_out),
        )  # fmt: skip
        times = [bench(part, flops=flops, bytes=moved).device_us / 1e3 for part, (flops, moved) in zip(parts, work, strict=True)]
    peaks = devices.find(device_name(device)) if device != "cpu" else None
    made = (
        Component(name, ms, flops, moved, bound(flops, moved, dtype, peaks))
        for name, ms, (flops, moved) in zip(COMPONENTS, times, work, strict=True)
    )
    return AttentionProfile(tuple(made), device_name(device), dtype)


@dataclass(frozen=True)
class Bottleneck:
    """limit: "memory", "compute" or "unknown" where the device's rates are not known."""

    component: str
    percent: float
    limit: str
    intensity: float
    ridge: float | None
    why: str

    def __str__(self) -> str:
        return f"{self.component}: {self.percent:.1f}% of the time, {self.limit}-bound. {self.why}"


def identify_bottleneck(profile_results: AttentionProfile) -> Bottleneck:
    """The slowest component, its share, whether memory or compute bounds it, and why."""
    worst = profile_results.bottleneck
    percent, known = profile_results.share(worst), worst.bound
    intensity = worst.flops / worst.moved_bytes if worst.moved_bytes else 0.0
    if known is None:
        why = f"It does {intensity:.3g} FLOP for each byte; the peak rates of {profile_results.device or 'this device'} are not known."
        return Bottleneck(worst.name, percent, "unknown", intensity, None, why)
    side, most = ("below", "moving data") if known.limit == "memory" else ("above", "arithmetic")
    why = f"It does {intensity:.3g} FLOP for each byte, {side} the device's ridge point of {known.ridge:.3g}: {most} takes longest."
    if worst.name in FLASH_REMOVES:
        why += " A fused kernel keeps the scores on the chip."
    return Bottleneck(worst.name, percent, known.limit, intensity, known.ridge, why)


LEVELS = ("naive", "compile", "sdpa", "flash")
"""Level 0 to 3, by the names that `advisor attention --impl` takes."""


@dataclass(frozen=True)
class Level:
    """One way of computing attention, measured. ran: the level that really ran, with `note` saying why where it is another.

    max_error: largest difference to the same in FP64. peak_bytes: while it ran. failed: why it could not run or is wrong, "" else.
    """

    level: int
    ran: int
    ms: float
    max_error: float
    peak_bytes: int = 0
    note: str = ""
    failed: str = ""

    @property
    def name(self) -> str:
        """As `--impl` names it."""
        return LEVELS[self.level]

    def __str__(self) -> str:
        if self.failed:
            return f"Level {self.level} ({self.name}): {self.failed}"
        note = f" ({self.note})" if self.note else ""
        return f"Level {self.level} ({self.name}): {self.ms:.4g} ms, largest error {self.max_error:.2g} against FP64{note}"


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Product, softmax, product. mask: True where attention is allowed, or added to the scores."""
    import torch

    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~allowed, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1) @ v


def optimize_attention(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    optimization_level: int,
    *,
    causal: bool = False,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention at a level: 0 written out, 1 compiled, 2 `scaled_dot_product_attention`, 3 flash attention forced.

    Q, K, V: (..., sequence, head). The result is checked against FP64 and timed: it says so, and the figures stand in its
    attribute `measured` (a `Level`). Where flash attention cannot run (FP32, a CPU, a mask), a warning says why and level 2 runs.
    Raises UsageError for another level, where compilation fails, or where a result holds NaN or Inf.
    """
    measured, output = run_level(Q, K, V, optimization_level, causal=causal, mask=mask)
    if measured.failed:
        raise UsageError(f"level {optimization_level}: {measured.failed}", "Take another level.")
    if measured.note:
        warnings.warn(f"advisor: {measured.note}", stacklevel=2)
    print(measured)
    output.measured = measured  # type: ignore[attr-defined]
    return output


def run_level(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, level: int, *, causal: bool = False, mask: torch.Tensor | None = None
) -> tuple[Level, torch.Tensor]:
    """One level, measured: nothing is raised or printed where it fails."""
    import torch

    if level not in range(len(LEVELS)):
        raise UsageError(f"there is no level {level}", f"Levels are 0 to {len(LEVELS) - 1}: {', '.join(LEVELS)}.")
    ran, note = (2, why) if level == 3 and (why := _no_flash(q, mask)) else (level, "")
    compute = _computed(ran, causal, mask)
    with torch.no_grad():
        try:
            output = compute(q, k, v)
        except RuntimeError as refused:  # no kernel for these shapes, no compiler, no memory
            first = next(iter(str(refused).strip().splitlines()), type(refused).__name__)
            if ran != 3:
                return Level(level, ran, math.nan, math.nan, failed=f"cannot run here: {first}"), q
            ran, note = 2, f"flash attention cannot run here ({first}); level 2 ran"
            compute = _computed(ran, causal, mask)
            output = compute(q, k, v)
        error = _largest_error(output, q, k, v, causal, mask)
        if not math.isfinite(error):
            return Level(level, ran, math.nan, error, note=note, failed="the result holds NaN or Inf"), output
        # As work that has to be done: what a level does beyond it (scores written and read) is its own.
        pairs, item = q.numel() // q.shape[-1] * k.shape[-2], q.element_size()
        timing = bench(compute, q, k, v, flops=4.0 * pairs * q.shape[-1], bytes=4.0 * item * q.numel())
        peak = measure_memory_usage(compute, (q, k, v)).peak_bytes
    return Level(level, ran, timing.device_us / 1e3, error, peak, note), output


def _no_flash(q: torch.Tensor, mask: torch.Tensor | None) -> str:
    """Why flash attention cannot be forced, "" where it may be tried."""
    import torch

    if q.device.type == "cpu":
        return "flash attention needs a GPU; level 2 ran"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"flash attention does not take {str(q.dtype).removeprefix('torch.')}; level 2 ran"
    return "flash attention takes no mask; level 2 ran" if mask is not None else ""


def _computed(level: int, causal: bool, mask: torch.Tensor | None) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def written(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return written_out(q, k, v, causal, mask)

    def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)

    def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return fused(q, k, v)

    return (written, torch.compile(written, dynamic=False) if level == 1 else written, fused, flash)[level]


def _largest_error(output: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, mask: torch.Tensor | None) -> float:
    """Largest difference to FP64, a head at a time so that the scores of one alone are held; NaN or Inf where the output has any."""
    import torch

    if not bool(torch.isfinite(output).all()):
        return math.nan
    worst = 0.0
    flat = [t.reshape(-1, *t.shape[-2:]) for t in (output, q, k, v)]
    masks = None if mask is None else mask.expand(*q.shape[:-1], k.shape[-2]).reshape(-1, q.shape[-2], k.shape[-2])
    for i, (o, a, b, c) in enumerate(zip(*flat, strict=True)):
        exact = written_out(a.double(), b.double(), c.double(), causal, None if masks is None else masks[i])
        worst = max(worst, float((o.double() - exact).abs().max()))
    return worst


@dataclass(frozen=True)
class Session:
    """Attention over sequence lengths: baseline and its components, the cause, the levels, what was gained."""

    device: str
    dtype: str
    lengths: tuple[int, ...]
    profiles: tuple[AttentionProfile, ...]
    levels: tuple[tuple[Level, ...], ...]

    def fastest(self, at: int) -> Level | None:
        """The fastest level that ran as itself, at that place in `lengths`."""
        ran = [level for level in self.levels[at] if not level.failed and level.ran == level.level]
        return min(ran, key=lambda level: level.ms, default=None)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        rows = []
        for i, length in enumerate(self.lengths):
            best = self.fastest(i)
            rows.append({
                "seq_len": length, "components": self.profiles[i].to_dict(), "bottleneck": asdict(identify_bottleneck(self.profiles[i])),
                "levels": [{**asdict(level), "name": level.name} for level in self.levels[i]], "fastest": best and best.name,
            })  # fmt: skip
        return {"device": self.device, "dtype": self.dtype, "sequences": rows}

    def to_json(self) -> str:
        """`to_dict` as text; what could not be measured is null."""
        return json.dumps(_without_nan(self.to_dict()), indent=1)

    def __str__(self) -> str:
        """The five steps: baseline, profile, cause, fix, measured."""
        lines = [f"Attention on {self.device}, {self.dtype}"]
        for i, length in enumerate(self.lengths):
            base, best, cause = self.levels[i][0], self.fastest(i), identify_bottleneck(self.profiles[i])
            lines += ["", f"Sequence length {length}", f"1 Baseline   {base}", "2 Profile    " + self._shares(i), f"3 Cause      {cause}"]
            lines += [f"4 Fix        {level}" for level in self.levels[i][1:]]
            if best is None or base.failed:
                lines.append("5 Measured   nothing to compare")
            elif best.level == base.level:
                lines.append("5 Measured   the baseline is the fastest here")
            else:
                lines.append(f"5 Measured   {best.name} is the fastest: {base.ms / best.ms:.2f} times as fast as {base.name}")
        return "\n".join(lines)

    def _shares(self, at: int) -> str:
        profile = self.profiles[at]
        return ", ".join(f"{row.name} {profile.share(row):.0f}%" for row in profile.rows)

    def _repr_html_(self) -> str:
        from advisor.lab.page import table

        rows = [["Sequence", *(level.name for level in self.levels[0]), "Fastest"]]
        for i, length in enumerate(self.lengths):
            best = self.fastest(i)
            cells = ["" if math.isnan(level.ms) else f"{level.ms:.4g} ms" for level in self.levels[i]]
            rows.append([str(length), *cells, best.name if best else ""])
        return table(rows, f"Attention on {self.device}, {self.dtype}")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def attention_session(
    seq_lengths: Sequence[int],
    impl: Sequence[str] = LEVELS,
    *,
    dtype: str = "bfloat16",
    d_model: int = 512,
    num_heads: int = 8,
    batch: int = 8,
    causal: bool = False,
    device: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Session:
    """Measure attention of one layer over sequence lengths, at the named levels; the written-out baseline is always one of them.

    progress: called with each length when it begins. Nothing of the program is changed.
    """
    import torch

    unknown = [name for name in impl if name not in LEVELS]
    if unknown or not seq_lengths:
        raise UsageError(f"there is no implementation {', '.join(unknown)}" if unknown else "no sequence length", f"They are: {', '.join(LEVELS)}.")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    chosen = sorted({0, *(LEVELS.index(name) for name in impl)})
    profiles, levels = [], []
    for length in seq_lengths:
        if progress:
            progress(length)
        profiles.append(
            profile_attention_components(length, d_model, num_heads, batch=batch, dtype=dtype, causal=causal, device=device)
        )
        shape = (batch, num_heads, length, d_model // num_heads)
        q, k, v = (torch.randn(shape, device=device, dtype=getattr(torch, dtype)) for _ in range(3))
        levels.append(tuple(run_level(q, k, v, level, causal=causal)[0] for level in chosen))
    return Session(device_name(device), dtype, tuple(seq_lengths), tuple(profiles), tuple(levels))


def session_charts(session: Session) -> Iterator[tuple[str, str]]:
    """Plots as SVG by file name: time over sequence length by level, and the components' shares."""
    from advisor.lab.page import lines

    by_level = {}
    for i, first in enumerate(session.levels[0]):
        points = [(length, row[i].ms) for length, row in zip(session.lengths, session.levels, strict=True) if math.isfinite(row[i].ms)]
        by_level[first.name] = points
    yield "levels.svg", lines(by_level, "sequence length", "ms")
    parts = {
        name: [(length, p.rows[i].ms) for length, p in zip(session.lengths, session.profiles, strict=True)] for i, name in enumerate(COMPONENTS)
    }
    yield "components.svg", lines(parts, "sequence length", "ms")
