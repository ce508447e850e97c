"""Low-rank adapters that are computed next to the layers that they adapt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import prod

import msgspec
import numpy as np

from advisor.intervals import Ints
from advisor.views.patterns.dataflow import Dataflow, Product

LOW = 4
"""A rank is low that is so many times smaller than both sides of the layer: those in use are 4 to 256, for layers of 512 and more."""


class Adapter(msgspec.Struct, frozen=True):
    """members: kernels (positions) that are not launched once it is part of the layer's weight; rank: of its two products. ops: rows of `cpu_ops`, first and last of each
    stretch in which the program issues them, without the layer's own product."""

    members: Ints
    rank: int
    ops: tuple[tuple[int, int], ...]


class Adapters(msgspec.Struct, frozen=True):
    """Every one of the steps replayed, in order; none if shapes were not recorded."""

    found: tuple[Adapter, ...]

    @classmethod
    def build(cls, flow: Dataflow) -> Adapters:
        return cls(tuple(_adapters(flow)))


def _adapters(flow: Dataflow) -> Iterator[Adapter]:
    """`layer(x) + scale * up(down(x))`: the layer's product is before the other two or behind them."""
    sizes = {product for _, product in flow.products}
    lows = defaultdict[tuple[int, int], list[Product]](list)
    for size in sizes:
        if size.columns * LOW <= size.inner:
            lows[size.rows, size.columns].append(size)
    fitting = {
        high for high in sizes if high.inner * LOW <= high.columns and any(one._replace(columns=high.columns) in sizes for one in lows[high.rows, high.inner])
    }
    for up, high in flow.products:
        if high not in fitting:  # most programs hold no product of such sizes, and nothing of them is walked
            continue
        for down in flow.origins(up, "copy"):
            low = flow.product(down)
            if low and (low.rows, low.columns) == (high.rows, high.inner) and low.columns * LOW <= low.inner:
                sums = _added_products(flow, up, low._replace(columns=high.columns))
                layer, total = next((each for each in sums if _linear(flow, each[0], down, each[1])), (-1, -1))
                if layer >= 0:
                    parts = [(down, layer), (layer + 1, total + 1)] if layer > down else [(layer + 1, total + 1)]
                    yield Adapter(np.concatenate([flow.kernels(*part) for part in parts]), low.columns, tuple(_issued(flow, *part) for part in parts))
                break


def _added_products(flow: Dataflow, up: int, layer: Product) -> Iterator[tuple[int, int]]:
    """Each product of those sizes with an addition of two tensors of as many elements that may read it and an adapter's last product, the next addition first: those of
    later layers have the same sizes."""
    for total in sorted(flow.uses(up, "linear_pointwise")):
        if flow.has_token(total, "add") and [prod(shape) for shape, _ in flow.inputs(total)][:2] == [layer.rows * layer.columns] * 2:
            yield from ((call, total) for call in sorted(flow.origins(total, "linear_pointwise"), reverse=True) if flow.product(call) == layer)


def _linear(flow: Dataflow, layer: int, down: int, total: int) -> bool:
    """Whether nothing else is computed in between: only copies between a layer and the adapter that reads its input, and linear ops after it. If the adapted
    weight is normed, the norm and its GEMMs are in between."""
    inside = [call for call in range(min(layer + 1, down), total) if not flow.product(call)]
    normed = any(flow.has_token(call, "norm_of_weight") for call in inside)
    return all(
        flow.has_token(call, "copy" if call < down and not normed else "linear_pointwise") or (normed and flow.has_token(call, "norm_of_weight"))
        for call in inside
    )


def _issued(flow: Dataflow, begin: int, end: int) -> tuple[int, int]:
    """The ops that launch the first and last of some calls; the innermost if an op, as of compiled code, holds more."""
    outermost, beside = flow.work.ops.outermost, flow.op[[call for call in (begin - 1, end) if 0 <= call < len(flow.op)]]
    more = outermost[beside[beside >= 0]]
    first, last = (int(own if outermost[own] in more else outermost[own]) for own in flow.op[[begin, end - 1]])
    return first, last
