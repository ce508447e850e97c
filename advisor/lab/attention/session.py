"""The five steps over sequence lengths: baseline, profile, cause, fix, measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from advisor.errors import UsageError, require
from advisor.knowledge.structs import replace
from advisor.lab.attention.components import COMPONENTS, AttentionProfile, profile_attention_components
from advisor.lab.attention.levels import LEVELS, Level, run_level
from advisor.lab.bottleneck import identify_bottleneck
from advisor.lab.clock import device_name


@dataclass(frozen=True)
class Session:
    """Attention over sequence lengths: baseline and its components, the cause, the levels, the gain."""

    device: str
    dtype: str
    lengths: tuple[int, ...]
    profiles: tuple[AttentionProfile, ...]
    levels: tuple[tuple[Level, ...], ...]

    def fastest(self, at: int) -> Level | None:
        """The fastest level at that place in `lengths`, by the level that really ran. A level that ran in place of another counts if it was not
        measured itself."""
        asked = {level.level for level in self.levels[at]}
        ran = [replace(level, level=level.ran) for level in self.levels[at] if not level.failed and (level.ran == level.level or level.ran not in asked)]
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
            cells = [_cell(level) for level in self.levels[i]]
            rows.append([str(length), *cells, best.name if best else ""])
        return table(rows, f"Attention on {self.device}, {self.dtype}")


def _cell(level: Level) -> str:
    if level.failed:
        return "cannot run"
    return f"{level.ms:.4g} ms" if level.ran == level.level else f"as {LEVELS[level.ran]}"


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
    """Measure attention of a layer over sequence lengths, at the named levels and the unfused baseline.

    progress: called with each length when it begins. Nothing of the program is changed."""
    require("torch", extra="lab")
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
        profiles.append(profile_attention_components(length, d_model, num_heads, batch=batch, dtype=dtype, causal=causal, device=device))
        shape = (batch, num_heads, length, d_model // num_heads)
        q, k, v = (torch.randn(shape, device=device, dtype=getattr(torch, dtype)) for _ in range(3))
        levels.append(tuple(run_level(q, k, v, level, causal=causal)[0] for level in chosen))
    return Session(device_name(device), dtype, tuple(seq_lengths), tuple(profiles), tuple(levels))


CHARTS = ("levels.svg", "components.svg")
"""Files of `session_charts`."""


def session_charts(session: Session) -> Iterator[tuple[str, str]]:
    """Plots as SVG by file name: time over sequence length by level, and the components' shares."""
    from advisor.lab.page import lines

    by_level = {}
    for i, first in enumerate(session.levels[0]):
        rows = [(length, row[i]) for length, row in zip(session.lengths, session.levels, strict=True)]
        by_level[first.name] = [(length, level.ms) for length, level in rows if not level.failed and level.ran == level.level]
    yield CHARTS[0], lines(by_level, "sequence length", "ms")
    parts = {name: [(length, p.rows[i].ms) for length, p in zip(session.lengths, session.profiles, strict=True)] for i, name in enumerate(COMPONENTS)}
    yield CHARTS[1], lines(parts, "sequence length", "ms")
