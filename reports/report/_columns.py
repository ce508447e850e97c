"""Millions of numbers in little text: columns of unsigned integers, their bytes sorted by place, deflated, in base64.

The page takes them apart with `DecompressionStream`, which every browser has. High bytes are nearly all zero, so that a column of
differences shrinks to about a byte a row.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

import numpy as np

from advisor.intervals import Ints


def packed(columns: Sequence[np.ndarray]) -> str:
    """Columns of one length, each value from 0 to 2³² − 1: of each column all lowest bytes, then all second ones, and so on."""
    planes = b"".join(np.ascontiguousarray(np.asarray(c).astype("<u4").view(np.uint8).reshape(-1, 4).T).tobytes() for c in columns)
    return base64.b64encode(zlib.compress(planes, 6)).decode()


def steps(values: Ints) -> Ints:
    """Differences of neighbours, folded so that none is negative: 0, −1, 1, −2, 2 are 0, 1, 2, 3, 4."""
    change = np.diff(values, prepend=0)
    folded: Ints = np.where(change < 0, -2 * change - 1, 2 * change)
    return folded
