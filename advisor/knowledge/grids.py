"""Which kernels could run in more blocks than they do, by name and family."""

from __future__ import annotations

import re

from advisor.knowledge.expressions import expression
from advisor.knowledge.op_tokens.families import Family

FEW_ON_PURPOSE = expression(
    r"nvjet|stream_?k|split_?k|persist|cooperative|splitkv|flash_fwd_split|num_splits|sm90_xmma|warpspecialized|device_kernel"
    r"|rnn|lstm|gru_|ctc|spin|sleep|barrier|signal|wait|multi_tensor_apply",
    re.IGNORECASE,
)
"""Few blocks on purpose: persistent and split kernels, recurrences, waits, optimizers (a block a chunk of the parameters)."""

DIVISIBLE = (
    Family.GEMM, Family.ATTENTION, Family.NORM, Family.SOFTMAX, Family.REDUCTION, Family.SORT_SCAN, Family.CONV, Family.EMBEDDING,
)  # fmt: skip
"""Families that can be split over more blocks. Others may be serial; they count only if their limit is known."""

EQUAL_BLOCKS = (Family.GEMM, Family.ATTENTION, Family.CONV)
"""Families with blocks of similar duration, so a partly full last wave costs as much as a full wave."""
