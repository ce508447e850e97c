"""The components of an attention layer, timed, and which of them is the bottleneck."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from advisor.errors import UsageError, require
from advisor.knowledge import devices
from advisor.lab.bench import bench
from advisor.lab.clock import device_name
from advisor.lab.intensity import Bound, bound

if TYPE_CHECKING:
    import pandas as pd
    import torch

COMPONENTS = ("QKV Projection", "Score Computation", "Softmax", "Weighted Sum", "Output Projection")

FLASH_REMOVES = ("Score Computation", "Softmax", "Weighted Sum")
"""The op that a fused attention kernel replaces without writing the scores to memory."""


@dataclass(frozen=True)
class Component:
    """A part of attention: time, work, and its bound on this device (None if the device's rates are not known)."""

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
    """A component for JSON."""
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
    """Time the components of an unfused attention layer on random inputs: medians on the device, after warm-up.

    device: "cuda" if there is a GPU, else "cpu". Raises UsageError if a size is below 1 or d_model does not divide by num_heads."""
    require("torch", extra="lab")
    import torch
    from torch.nn import functional as F

    for name, size in {"seq_len": seq_len, "d_model": d_model, "num_heads": num_heads, "batch": batch}.items():
        if size < 1:
            raise UsageError(f"{name} is {size}", "Give 1 or more.")
    if d_model % num_heads:
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
        times = [bench(part, flops=flops, bytes=moved, min_s=0.1).device_us / 1e3 for part, (flops, moved) in zip(parts, work, strict=True)]
    peaks = devices.find(device_name(device)) if device != "cpu" else None
    made = (Component(name, ms, flops, moved, bound(flops, moved, dtype, peaks)) for name, ms, (flops, moved) in zip(COMPONENTS, times, work, strict=True))
    return AttentionProfile(tuple(made), device_name(device), dtype)
