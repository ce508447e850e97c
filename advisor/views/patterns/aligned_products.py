"""Products, and whether the rows that they load are aligned."""

from __future__ import annotations

import numpy as np

from advisor.knowledge.alignment import Product, product_of
from advisor.knowledge.op_tokens import names_of
from advisor.recordings.timeline import Timeline
from advisor.views.time.roofline import Roofline
from advisor.views.trace import arguments
from advisor.views.trace.ops import Ops

ALIGN = names_of("aligned_to")


def loads_whole(kernel: str, product: Product) -> bool:
    """Whether the kernel's own name says that it loads 16 bytes at once: cuBLAS found the operands in order."""
    said = ALIGN.search(kernel)
    return said is not None and int(said[1]) >= product.unit


def products_of(timeline: Timeline, ops: Ops, roofline: Roofline, precision: np.ndarray, rows: np.ndarray, positions: list[int]) -> dict[int, Product]:
    """The GEMM that each kernel (position) belongs to, if shapes show it."""
    columns = [timeline.cpu_ops[name] for name in ("dims", "types", "strides")]
    codes = [ops.names, *(column.codes for column in columns)]
    texts = [column.categories for column in columns]
    # Layers repeat: each distinct op is judged once.
    known: dict[tuple[object, ...], Product | None] = {}
    found = {}
    for p in positions:
        op = roofline.cost_op[rows[p]]
        key = (*(int(code[op]) for code in codes), str(precision[p]))
        if key not in known:
            dims, types, strides = (str(text[code[op]]) if code[op] >= 0 else "" for text, code in zip(texts, codes[1:], strict=True))
            shapes, steps = arguments.numbers(dims), arguments.numbers(strides)
            known[key] = product_of(ops.name(int(op)), str(precision[p]), shapes, arguments.names(types), steps)
        if product := known[key]:
            found[p] = product
    return found
