"""Ops that stream through memory: elementwise, norms, softmax, reductions, indexing, copies, foreach.

Bytes decide here. FLOPs are nominal counts per element (stated at each formula), good to a factor of about two.
"""

from __future__ import annotations

from math import prod

from advisor.knowledge.op_costs.arguments import (
    INTEGRAL,
    Formula,
    Inputs,
    NotRecorded,
    Numbers,
    Tensor,
    broadcast,
    dtype_bytes,
    promote,
)


def _result(rule: str, dtype: str) -> str:
    """The type written: `bool` always, else the promoted type with integers turned into `rule`, or kept if it is ""."""
    return "bool" if rule == "bool" else rule if rule and dtype in INTEGRAL else dtype


def elementwise(tensors: int, flops: float = 1, result: str = "") -> Formula:
    """The first `tensors` arguments, possibly numbers: each is read once at its own size, and the broadcast shape is written once. `flops` per written
    element (TraceLens `Elementwise`: 1). Integers become `result`.
    """

    def formula(op: Inputs) -> Numbers:
        inputs = op.tensors(0, tensors)
        if not inputs:
            raise NotRecorded("a tensor input")
        read = sum(tensor.bytes for tensor in inputs)
        outs = op.tensors(tensors)
        if op.in_place:
            written, numel = op.tensor(0).bytes, op.tensor(0).numel
        elif outs:
            written, numel = outs[-1].bytes, broadcast(inputs)
        else:
            numel = broadcast(inputs)
            written = numel * dtype_bytes(_result(result, promote(inputs)))
        return float(flops * numel), float(read + written)

    return formula


def select_elements(op: Inputs) -> Numbers:
    """`where(condition, a, b)`: the condition does not take part in promotion."""
    condition, choices = op.tensor(0), op.tensors(1, 3)
    if not choices:
        raise NotRecorded("a choice that is a tensor")
    numel = broadcast([condition, *choices])
    return float(numel), float(condition.bytes + sum(t.bytes for t in choices) + numel * dtype_bytes(promote(choices)))


def fill(op: Inputs) -> Numbers:
    """Writes its first argument and reads nothing."""
    return 0.0, float(op.tensor(0).bytes)


def generate(op: Inputs) -> Numbers:
    """Random numbers: writes its first argument. Philox costs about 10 integer operations a number; none are FLOPs."""
    return 0.0, float(op.tensor(0).bytes)


def copy_into(op: Inputs) -> Numbers:
    """`copy_(target, source)`: reads the source at its own size, writes the target."""
    return 0.0, float(op.tensor(0).bytes + op.tensor(1).bytes)


def clone(op: Inputs) -> Numbers:
    x = op.tensor(0)
    return 0.0, float(x.bytes + x.numel * x.itemsize)


def to_copy(op: Inputs) -> Numbers:
    """`_to_copy(x, dtype?)`."""
    x = op.tensor(0)
    return 0.0, float(x.bytes + x.numel * dtype_bytes(op.dtype(1, x.dtype)))


def concatenate(op: Inputs) -> Numbers:
    """`cat(tensors)`, `stack(tensors)`: every element read and written."""
    return 0.0, 2.0 * sum(op.tensor_list(0)) * _list_item_bytes(op)


def stream(flops: float, like: int = 0, outputs: int = 1) -> Formula:
    """Reads every tensor argument, writes `outputs` tensors like argument `like`; `flops` for each of its elements."""

    def formula(op: Inputs) -> Numbers:
        model = op.tensor(like)
        return flops * model.numel, float(sum(tensor.bytes for tensor in op.tensors()) + outputs * model.numel * model.itemsize)

    return formula


def interpolate(neighbours: int) -> Formula:
    """`upsample_*(x, output_size, …)`: x read, the result written, a multiply-add for each neighbour of an element."""

    def formula(op: Inputs) -> Numbers:
        x = op.tensor(0)
        made = prod(x.shape[:2]) * prod(op.required(1, list))
        return 2.0 * neighbours * made, float(x.bytes + made * x.itemsize)

    return formula


def interpolate_backward(neighbours: int) -> Formula:
    """`upsample_*_backward(grad, output_size, input_size, …)`: the gradient read, that of the input written."""

    def formula(op: Inputs) -> Numbers:
        grad = op.tensor(0)
        return 2.0 * neighbours * grad.numel, float(grad.bytes + prod(op.required(2, list)) * grad.itemsize)

    return formula


def native_dropout(op: Inputs) -> Numbers:
    """Reads x, writes the result and a mask of one byte an element."""
    x = op.tensor(0)
    return 2.0 * x.numel, float(x.bytes + x.numel * (x.itemsize + 1))


def softmax(dtype: int | None = None) -> Formula:
    """Subtract, exponentiate, divide: 3 FLOPs an element (TraceLens). One pass over memory: rows stay on the chip."""

    def formula(op: Inputs) -> Numbers:
        x = op.tensor(0)
        half_to_float = dtype is None and op.flag(2)
        written = dtype_bytes("float" if half_to_float else x.dtype if dtype is None else op.dtype(dtype, x.dtype))
        return 3.0 * x.numel, float(x.bytes + x.numel * written)

    return formula


def softmax_backward(op: Inputs) -> Numbers:
    """`_softmax_backward_data(grad, out, dim, input_dtype)`: multiply, sum, subtract, multiply: 4 FLOPs an element."""
    grad, out = op.tensor(0), op.tensor(1)
    return 4.0 * grad.numel, float(grad.bytes + out.bytes + grad.numel * dtype_bytes(op.dtype(3, grad.dtype)))


def _kept(x: Tensor, dims: list[int] | None) -> int:
    """Elements left after reducing `dims`; None or an empty list reduces all."""
    if not dims:
        return 1
    gone = {dim % len(x.shape) for dim in dims} if x.shape else set()
    return prod(size for dim, size in enumerate(x.shape) if dim not in gone)


def reduction(dim: int = 1, dtype: int | None = None, result: str = "", flops: float = 1, outputs: int = 1, index: bool = False) -> Formula:
    """One FLOP for each element read (TraceLens `Reduce`). `dim` is the position of the dimensions: a list, a number or none.

    Integers become `result`, as in `elementwise`; a `dtype=` at position `dtype` outranks it; `index` writes positions.
    `outputs=2` writes as many results again (mean and variance).
    """

    def formula(op: Inputs) -> Numbers:
        x = op.tensor(0)
        kind = op.types[dim] if dim < len(op) else ""
        dims: list[int] | None = None
        written = "long int" if index else _result(result, x.dtype)
        if kind in ("ScalarList", "GenericList"):
            dims = op.required(dim, list)
        elif kind == "Scalar" and len(op) > dim + 1:
            dims = [op.integer(dim)]
        elif kind == "Scalar":  # sum(x, dtype=...): a number and nothing after it
            written = op.dtype(dim, x.dtype)
        if dtype is not None and dtype < len(op):
            written = op.dtype(dtype, written)
        return flops * x.numel, float(x.bytes + outputs * _kept(x, dims) * dtype_bytes(written))

    return formula


def extremum(op: Inputs) -> Numbers:
    """`max(x)`, `max(x, dim)` with indices of 8 bytes, or `max(x, other)` element by element."""
    if op.optional(1) is not None:
        return _MAXIMUM(op)
    x = op.tensor(0)
    if len(op) == 1:
        return float(x.numel), float(x.bytes + x.itemsize)
    return float(x.numel), float(x.bytes + _kept(x, [op.integer(1)]) * (x.itemsize + 8))


_MAXIMUM = elementwise(2)


def embedding(op: Inputs) -> Numbers:
    """`embedding(weight, indices)`: indices read, one row each read and written."""
    weight, indices = op.tensor(0), op.tensor(1)
    row = weight.itemsize * prod(weight.shape[1:])
    return 0.0, float(indices.bytes + 2 * indices.numel * row)


def embedding_dense_backward(op: Inputs) -> Numbers:
    """`embedding_dense_backward(grad, indices, num_weights, …)`: gradients added into a zeroed table, which is written whole."""
    grad, indices = op.tensor(0), op.tensor(1)
    table = op.integer(2) * grad.shape[-1] * grad.itemsize
    return float(grad.numel), float(grad.bytes + indices.bytes + table)


def index_select(op: Inputs) -> Numbers:
    """`index_select(x, dim, index)`: the index and each chosen slice read, the slices written."""
    x, dim, index = op.tensor(0), op.integer(1), op.tensor(2)
    slices = x.numel // x.shape[dim] * index.numel if x.numel else 0
    return 0.0, float(index.bytes + 2 * slices * x.itemsize)


def gather(op: Inputs) -> Numbers:
    """`gather(x, dim, index)`: an element read and written for each index."""
    x, index = op.tensor(0), op.tensor(2)
    return 0.0, float(index.bytes + 2 * index.numel * x.itemsize)


def scatter(accumulate: bool) -> Formula:
    """`scatter(x, dim, index, source)`: index and source read, an element written for each; accumulation reads it first.

    Out of place, x is copied before.
    """

    def formula(op: Inputs) -> Numbers:
        x, index = op.tensor(0), op.tensor(2)
        source = op.optional(3)
        touched = index.numel * x.itemsize
        copied = 0 if op.in_place else 2 * x.bytes
        read = index.bytes + (0 if source is None else touched) + (touched if accumulate else 0)
        return float(index.numel) if accumulate else 0.0, float(copied + read + touched)

    return formula


def index_into(accumulate: bool) -> Formula:
    """`index_add(x, dim, index, source)`, `index_copy`: the source read, as many elements written; accumulation reads them."""

    def formula(op: Inputs) -> Numbers:
        x, index, source = op.tensor(0), op.tensor(2), op.tensor(3)
        copied = 0 if op.in_place else 2 * x.bytes
        moved = source.bytes * (3 if accumulate else 2)
        return float(source.numel) if accumulate else 0.0, float(copied + index.bytes + moved)

    return formula


def _list_item_bytes(op: Inputs) -> int:
    if not op.list_item_bytes:
        raise NotRecorded("the element type of tensor lists, which Kineto leaves out")
    return op.list_item_bytes


def foreach(flops: float = 1, reads: int | None = None, writes: int = 1) -> Formula:
    """`_foreach_*`: every list read (or the first `reads` only), the first one's elements written `writes` times."""

    def formula(op: Inputs) -> Numbers:
        lists = [sum(op.tensor_list(index)) for index in range(len(op)) if op.is_list(index)]
        if not lists:
            raise NotRecorded("a tensor list")
        moved = sum(lists if reads is None else lists[:reads]) + writes * lists[0]
        return flops * lists[0], float(moved * _list_item_bytes(op))

    return formula


def foreach_copy(op: Inputs) -> Numbers:
    """`_foreach_copy_(targets, sources)`: the sources read, the targets written."""
    return 0.0, float((sum(op.tensor_list(1)) + sum(op.tensor_list(0))) * _list_item_bytes(op))


def fused_adam(op: Inputs) -> Numbers:
    """`_fused_adam_(params, grads, exp_avgs, exp_avg_sqs, …)`: four lists read, three written (Kingma & Ba 2015, algorithm 1).

    About 12 FLOPs an element. AMSGrad's fifth list is not counted.
    """
    numel = sum(op.tensor_list(0))
    return 12.0 * numel, 7.0 * numel * _list_item_bytes(op)


def fused_sgd(op: Inputs) -> Numbers:
    """`_fused_sgd_(params, grads, momentum_buffers)`: parameters and momentum read and written, gradients read; 4 FLOPs."""
    numel = sum(op.tensor_list(0))
    momentum = sum(op.tensor_list(2)) if op.value(4) else 0
    return 4.0 * numel, float((3 * numel + 2 * momentum) * _list_item_bytes(op))
