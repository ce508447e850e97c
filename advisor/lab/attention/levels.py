"""Four ways of computing attention, each checked against FP64 and timed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.errors import UsageError, require
from advisor.lab.bench import bench
from advisor.lab.memory import measure_memory_usage

if TYPE_CHECKING:
    import torch

LEVELS = ("naive", "compile", "sdpa", "flash")
"""Level 0 to 3, by the names that `advisor attention --impl` takes."""


@dataclass(frozen=True)
class Level:
    """A way to compute attention, measured. ran: the level that really ran; if it is another, `note` gives the reason.

    max_error: largest difference from FP64. peak_bytes: during the run. failed: why it could not run or is wrong, "" else."""

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
    """GEMM, softmax, GEMM. mask: True for allowed positions, or values to add to the scores."""
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
    """Attention at a level: 0 unfused, 1 compiled, 2 `scaled_dot_product_attention`, 3 flash attention forced.

    Q, K, V: (..., sequence, head). The result is checked against FP64 and timed. The figures are printed, and are in its
    attribute `measured` (a `Level`). If flash attention cannot run (FP32, a CPU, a mask), a warning gives the reason and level 2 runs.
    Raises UsageError for another level, if compilation fails, or if a result contains NaN or Inf."""
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
    """Measure a level: nothing is raised or printed if it fails."""
    require("torch", extra="lab")
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
        timing = bench(compute, q, k, v, flops=4.0 * pairs * q.shape[-1], bytes=4.0 * item * q.numel(), min_s=0.1)
        peak = measure_memory_usage(compute, (q, k, v)).peak_bytes
    return Level(level, ran, timing.device_us / 1e3, error, peak, note), output


def _no_flash(q: torch.Tensor, mask: torch.Tensor | None) -> str:
    """Why flash attention cannot be forced, "" if it may be tried."""
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
    """Largest difference from FP64, computed head by head so that only the scores of a single head are in memory. NaN or Inf if the output has any."""
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
