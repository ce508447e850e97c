"""Embedding tables whose gradient is as large as the table, and what fills, sums and applies it."""

from __future__ import annotations

from math import prod

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.op_tokens import has_token, names_of
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.arguments import numbers
from advisor.views.trace.shapes import Shapes

_GRADIENT = names_of("embedding_backward")
_LOOKUP = names_of("embedding")
_FILL = names_of("fill")

Shape = tuple[int, ...]


class DenseGradients(msgspec.Struct, frozen=True):
    """Dense gradients of embedding tables in the replayed steps.

    gradients: rows of `cpu_ops` that make them, in order. table, read: (n_gradients,) rows of the table, and rows that were read. lookups: rows of `cpu_ops`
    that read tables. within, reading: (n,) per GPU op, position of its launching op in `gradients` or `lookups`, or -1. fills: positions of kernels that zero a
    whole gradient. updates, share: positions of optimizer kernels on such tables, and the tables' share of their tensors. shapes: of the tables.
    """

    gradients: Ints
    table: Ints
    read: Ints
    lookups: Ints
    within: Ints
    reading: Ints
    fills: Ints
    updates: Ints
    share: Floats
    shapes: tuple[Shape, ...]

    @classmethod
    def build(cls, work: GpuWork, shapes: Shapes) -> DenseGradients:
        ops = work.ops
        around = ops.enclosing(work.op, _GRADIENT)
        filling = np.flatnonzero((around >= 0) & work.launched_by(_FILL.search) & work.kernel)
        tables = {int(around[at]): shape for at in filling.tolist() if len(shape := _first(shapes, int(work.op[at]))) == 2}
        rows = np.array(sorted(tables), np.int64)
        read = np.array([_rows_read(shapes, ops.name(op), op) for op in rows.tolist()], np.int64)
        kinds = set(tables.values())
        looking = ops.enclosing(work.op, _LOOKUP)
        lookups = np.array([op for op in np.unique(looking[looking >= 0]).tolist() if _first(shapes, op) in kinds], np.int64)
        updates, share = _updates(work, kinds, around >= 0) if kinds else (filling[:0], np.zeros(0))
        return cls(
            gradients=rows,
            table=np.array([tables[op][0] for op in rows.tolist()], np.int64),
            read=read,
            lookups=lookups,
            within=_place(rows, around),
            reading=_place(lookups, looking),
            fills=filling,
            updates=updates,
            share=share,
            shapes=tuple(sorted(kinds)),
        )


def _first(shapes: Shapes, op: int) -> Shape:
    tensors = shapes.inputs(op)
    return tensors[0][0] if tensors else ()


def _rows_read(shapes: Shapes, name: str, op: int) -> int:
    """Of an embedding bag's gradient the indices are the second tensor; of a plain gradient each row of the first tensor is of a row that was read."""
    tensors = shapes.inputs(op)
    if "bag" in name:
        return prod(tensors[1][0]) if len(tensors) > 1 else 0
    return prod(tensors[0][0][:-1]) if tensors else 0


def _place(rows: Ints, of: Ints) -> Ints:
    """Where each is in sorted rows, -1 if it does not."""
    if not len(rows):
        return np.full(len(of), -1, np.int64)
    at = np.minimum(np.searchsorted(rows, of), len(rows) - 1)
    return np.where(rows[at] == of, at, -1)


def _updates(work: GpuWork, tables: set[Shape], gradient: np.ndarray) -> tuple[Ints, Floats]:
    """Kernels outside of gradients that a table's sizes go into: an op on lists (foreach) takes other parameters too, by their elements."""
    at, shares = [], []
    for position in np.flatnonzero(work.kernel & ~gradient & ~work.backward & (work.op >= 0)).tolist():
        op = int(work.op[position])
        name = work.ops.name(op)
        first = next(iter(numbers(work.timeline.cpu_ops["dims"][op])), [])
        listed = [tuple(shape) for shape in first] if first and isinstance(first[0], list) else [tuple(first)]
        if not has_token(name, "foreach_or_fused_call"):  # an optimizer's: foreach, fused, or in place
            continue
        sizes = np.array([prod(shape) for shape in listed], float)
        own = np.array([shape in tables for shape in listed])
        if own.any() and sizes.sum() > 0:
            at.append(position)
            shares.append(float(sizes[own].sum() / sizes.sum()))
    return np.array(at, np.int64), np.array(shares)
