"""Sizes of matrix products that Tensor Cores load well, and the next good one of those that they do not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil
from typing import Any

import msgspec

from advisor.knowledge.op_costs import DTYPE_BYTES

ALIGNED_BYTES = 16
"""What a Tensor Core kernel loads at once: each row must begin at a multiple of it. 8 elements of BF16, 4 of TF32, 16 of FP8."""

ROUND_BYTES, ROUND_COST = 128, 0.01
"""Padding extends to a whole cache line if that adds at most 1% of work. NVIDIA's guide names 64 FP16 elements as the best multiple from Ampere on,
and 8 as the minimum.
"""

_TENSORS = re.compile(r"^aten::(_int_mm|_scaled_mm|mm|bmm)$")
_AFTER_BIAS = re.compile(r"^aten::(addmm|_addmm_activation|baddbmm)$")


class Product(msgspec.Struct, frozen=True):
    """Sizes of one product, elements that 16 bytes hold, and which of M, K, N begin rows that are not aligned."""

    m: int
    k: int
    n: int
    unit: int
    wrong: tuple[str, ...]
    whole: bool
    """Strides were recorded: which size begins the rows is known."""

    def padded(self) -> dict[str, int]:
        """The next good size of each wrong one."""
        return {name: _good(getattr(self, name.lower()), self.unit) for name in self.wrong}

    @property
    def more_work(self) -> float:
        """Work with padding over work without."""
        factor = 1.0
        for name, size in self.padded().items():
            factor *= size / getattr(self, name.lower())
        return factor

    @property
    def advice(self) -> str:
        sizes = ((name, getattr(self, name.lower()), size) for name, size in self.padded().items())
        return ", ".join(f"{name} = {old} → {size} (+{added(old, size)})" for name, old, size in sizes)


def added(old: int, size: int) -> str:
    """What padding adds: of 50358 rows, ten are 0.02% and not 0.0%."""
    percent = 100 * (size / old - 1)
    return f"{percent:.1f}%" if percent >= 0.05 else f"{percent:.1g}%"


def _good(size: int, unit: int) -> int:
    """The next multiple of a cache line where that adds little, else of 16 bytes."""
    line = unit * ROUND_BYTES // ALIGNED_BYTES
    rounded = ceil(size / line) * line
    return rounded if rounded <= size * (1 + ROUND_COST) else ceil(size / unit) * unit


def product_of(name: str, precision: str, dims: Sequence[Any], types: Sequence[str], strides: Sequence[Any]) -> Product | None:
    """What M, K and N of an op are and which of them begin rows off 16 bytes; None if it is no product of matrices."""
    first = 0 if _TENSORS.match(name) else 1 if _AFTER_BIAS.match(name) else -1
    if first < 0 or min(len(dims), len(types)) < first + 2 or (types[first] == "float") != (precision == "tf32"):
        return None
    a, b = dims[first], dims[first + 1]
    itemsize = DTYPE_BYTES.get(types[first], 0)
    if len(a) < 2 or len(b) < 2 or not itemsize:
        return None
    (m, k), n, unit = a[-2:], b[-1], ALIGNED_BYTES // itemsize
    lead: list[tuple[str, int]] = []
    whole = len(strides) > first + 1 and len(strides[first]) == len(a) and len(strides[first + 1]) == len(b)
    if whole:
        for (rows, columns), (down, along) in ((("M", "K"), strides[first][-2:]), (("K", "N"), strides[first + 1][-2:])):
            if along == 1:
                lead.append((columns, down))
            elif down == 1:
                lead.append((rows, along))
    else:
        lead.append(("K", k))
    result_bytes = itemsize if precision not in ("fp8", "int8") else 2
    lead.append(("N", n * result_bytes // itemsize))
    wrong = {name for name, step in lead if step % unit}
    return Product(m, k, n, unit, tuple(name for name in "MKN" if name in wrong), whole)
